"""A small language model with layers of its own for queries, keys and values, and its training."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from torch import nn

WIDTH, HEADS, LAYERS, WORDS, LENGTH = 32, 4, 2, 64, 16
BATCH, STEPS = 8, 6


class Block(nn.Module):
    """Attention and a gated layer, before each a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        # no bias where its gradient is 0 but for rounding, which AdamW would make a step of
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=b) for b in (True, False, True))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, WIDTH] -> the same."""
        h = self.norm1(x)
        b, t, _ = h.shape
        q, k, v = (
            f(h).view(b, t, -1, WIDTH // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, -1))
        made: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return made


class Gpt(nn.Module):
    """Words to the next word's logits."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """int64[B, T] -> [B, T, WORDS]."""
        h = self.words(x) + self.places.weight
        for block in self.blocks:
            h = block(h)
        made: torch.Tensor = self.head(h)
        return made


def model() -> Gpt:
    """Return the same model everywhere."""
    torch.manual_seed(1)
    return Gpt()


@functools.cache
def text() -> torch.Tensor:
    """Return real text: torch's own documentation, a letter a number."""
    letters = (dist.__doc__ or "") + (torch.__doc__ or "") + (torch.add.__doc__ or "") * 20
    return torch.tensor([ord(c) % WORDS for c in letters])


def batch(step: int) -> torch.Tensor:
    """int64[BATCH, LENGTH + 1] of the text."""
    picks = torch.randint(
        0, len(text()) - LENGTH - 1, (BATCH,), generator=torch.Generator().manual_seed(step)
    )
    return torch.stack([text()[p : p + LENGTH + 1] for p in picks])


def loss_of(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of the words after the first."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())


def state(net: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters, on the host."""
    return {name: value.detach().cpu() for name, value in net.state_dict().items()}


def alone() -> dict[str, torch.Tensor]:
    """Train on torch's CPU."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(STEPS):
        words = batch(step)
        loss_of(net(words[:, :-1]), words).backward()
        optimizer.step()
        optimizer.zero_grad()
    return state(net)
