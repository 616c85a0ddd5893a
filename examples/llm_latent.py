"""Multi-head latent attention (arXiv:2405.04434, section 2.1): keys and values from a low rank."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.llm_attention import Cache, attend
from examples.llm_config import Config
from examples.llm_layers import Linear, Rope, norm, rotate


class LatentAttention(nn.Module):
    """Each token is stored as one latent row of `kv_rank` and one rotary key of `rope_dim`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        heads, width = config.heads, config.width
        self.q_down = Linear(config, width, config.q_rank, "q") if config.q_rank else None
        self.q_norm = norm(config, config.q_rank) if config.q_rank else None
        self.q_up = Linear(config, config.q_rank or width, heads * config.head_size, "q")
        self.kv_down = Linear(config, width, config.kv_rank + config.rope_dim, "k")
        self.kv_norm = norm(config, config.kv_rank)
        self.kv_up = Linear(
            config, config.kv_rank, heads * (config.nope_dim + config.value_dim), "v"
        )
        self.out = Linear(config, heads * config.value_dim, width, "out")

    def queries(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Parts without and with position [B, H, T, nope_dim], [B, H, T, rope_dim]."""
        if self.q_down is not None and self.q_norm is not None:
            x = self.q_norm(self.q_down(x))
        q = self.q_up(x).unflatten(-1, (-1, self.config.head_size)).transpose(1, 2)
        plain, turned = q.split((self.config.nope_dim, self.config.rope_dim), dim=-1)
        return plain, rotate(turned, rope)

    def latent(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """What is stored of x [B, T, C]: [B, T, kv_rank] and the rotary key [B, 1, T, rope_dim]."""
        low, key = self.kv_down(x).split((self.config.kv_rank, self.config.rope_dim), dim=-1)
        return self.kv_norm(low), rotate(key[:, None], rope)

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        return self._over(x, rope, *self.latent(x, rope))

    def _over(self, x: Tensor, rope: Rope, low: Tensor, turned_key: Tensor) -> Tensor:
        """Attention of a sequence to itself, with keys and values of every head written out."""
        sizes = (self.config.nope_dim, self.config.value_dim)
        both = self.kv_up(low).unflatten(-1, (-1, sum(sizes))).transpose(1, 2)
        key, value = both.split(sizes, dim=-1)  # [B, H, T, nope_dim], [B, H, T, value_dim]
        k = torch.cat((key, turned_key.expand(-1, key.shape[1], -1, -1)), dim=-1)
        q = torch.cat(self.queries(x, rope), dim=-1)
        y = attend(q, k, value, window=0, kind=self.config.attention)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out

    def cache_shapes(self, length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the latent rows with rotary keys, and of the latent rows, of one sequence."""
        rank = self.config.kv_rank
        return (length, 1, rank + self.config.rope_dim), (length, 1, rank)

    def prefill(self, x: Tensor, rope: Rope, cache: Cache) -> Tensor:
        """`forward` that leaves its latent rows in the cache."""
        low, turned_key = self.latent(x, rope)
        cache.fill(torch.cat((low[:, None], turned_key), dim=-1), low[:, None])
        return self._over(x, rope, low, turned_key)

    def decode(self, x: Tensor, rope: Rope, cache: Cache, position: Tensor) -> Tensor:
        """One token x [B, 1, C]: the up projection is moved to the query and the result."""
        low, turned_key = self.latent(x, rope)
        cache.append(torch.cat((low[:, None], turned_key), dim=-1), low[:, None], position)
        sizes = (self.config.nope_dim, self.config.value_dim)
        up = self.kv_up.weight.to(x.dtype).unflatten(0, (-1, sum(sizes)))  # [H, nope + value, R]
        key_up, value_up = up.split(sizes, dim=1)
        plain, turned = self.queries(x, rope)
        q = torch.cat((torch.einsum("bhtn,hnr->bhtr", plain, key_up), turned), dim=-1)
        scale = (q.shape[-1] / self.config.head_size) ** 0.5  # attention divides by q's own width
        y = cache.attend(q * scale, position)  # [B, H, 1, R]
        y = torch.einsum("bhtr,hvr->bthv", y, value_up)
        out: Tensor = self.out(y.flatten(2))
        return out
