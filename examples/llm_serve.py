"""Serving the decoder: prefill into a cache, then one token of every sequence at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from examples.llm_config import Config, ModelError
from examples.llm_kv_cache import make_cache
from examples.llm_layers import Linear, rope_table
from examples.llm_model import Decoder


def narrowed(config: Config, ranks: int) -> Config:
    """The model that one of `ranks` tensor-parallel ranks computes. Raises ModelError.

    Heads, hidden units and vocabulary are split; fewer key heads than ranks are repeated.
    """
    if ranks == 1:
        return config
    if config.attention_bias or config.mlp_bias:
        raise ModelError("[serve] tensor > 1 is not written for layers with biases")
    for what in ("heads", "hidden", "vocabulary"):
        if getattr(config, what) % ranks:
            raise ModelError(f"[serve] tensor={ranks} does not divide {what}")
    return replace(
        config,
        head_dim=config.head_size,
        heads=config.heads // ranks,
        kv_heads=max(1, config.kv_heads // ranks),
        hidden=config.hidden // ranks,
        expert_hidden=config.expert_hidden // ranks,
    )


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rank stands: `data` groups of ranks have sequences of their own, and the ranks of
    `group` hold parts of one model. None: a rank holds all of it.
    """

    data: int = 1
    data_rank: int = 0
    group: dist.ProcessGroup | None = None

    @property
    def parts(self) -> int:
        """Ranks that hold a model together."""
        return 1 if self.group is None else dist.get_world_size(self.group)


def placed(world: int, device: str, data: int, tensor: int) -> Place:
    """This rank of data x tensor; tensor = 0 takes what data leaves. Raises ModelError."""
    tensor = tensor or max(1, world // data)
    if data * tensor != max(1, world):
        raise ModelError(
            f"[serve] data {data} x tensor {tensor} = {data * tensor} ranks, got {max(1, world)}"
        )
    if data == 1:
        return Place(group=dist.group.WORLD if world > 1 else None)
    mesh = init_device_mesh(device, (data, tensor), mesh_dim_names=("data", "tensor"))
    group = mesh["tensor"].get_group() if tensor > 1 else None
    return Place(data=data, data_rank=mesh["data"].get_local_rank(), group=group)


def narrow_head(decoder: Decoder, ranks: int) -> None:
    """Leave this rank its part of the vocabulary's output matrix, where that is its own."""
    config = decoder.config
    if ranks > 1 and not config.tied:
        decoder.head.out = Linear(config, config.width, config.vocabulary // ranks)


class Server(nn.Module):
    """A decoder with caches of `length` tokens, of a kind of llm_kv_cache, for `batch` sequences.

    With a group, this rank holds a part of every head and MLP (`narrowed`) and of the output
    matrix, and the ranks add up what they computed behind attention and MLP.
    """

    def __init__(self, decoder: Decoder, batch: int, length: int, cache: str) -> None:
        super().__init__()
        self.decoder, self.length = decoder, length
        self.group: dist.ProcessGroup | None = None
        device = decoder.embed.weight.device
        self.rope = rope_table(decoder.config, length, device)
        self.caches = []
        for block in decoder.layers:
            shapes = block.attention.cache_shapes(length)
            self.caches.append(make_cache(shapes, batch, cache, device))

    def share(self, group: dist.ProcessGroup) -> Server:
        """Serve together with the other ranks of the group."""
        self.group = group
        for block in self.decoder.layers:
            block.mlp.register_forward_hook(self._sum)
            for name in ("prefill", "decode"):
                setattr(block.attention, name, self._summed(getattr(block.attention, name)))
        head, ranks = self.decoder.head, dist.get_world_size(group)
        if self.decoder.config.tied:
            rows = head.out.weight.chunk(ranks)[dist.get_rank(group)]
            head.out.weight = nn.Parameter(rows, requires_grad=False)
        return self

    def _sum(self, _module: nn.Module, _inputs: Any, y: Tensor) -> Tensor:
        dist.all_reduce(y, group=self.group)
        return y

    def _summed(self, function: Any) -> Any:
        return lambda *inputs: self._sum(self, inputs, function(*inputs))

    def forward(self, tokens: Tensor, position: Tensor | None = None) -> Tensor:
        """The likeliest next token [B] after `tokens` [B, T] at 0, 1, ... or [B, 1] at [1]."""
        return self.next_of(self.logits(tokens, position))

    def logits(self, tokens: Tensor, position: Tensor | None = None) -> Tensor:
        """Logits [B, V or its part] of the token behind the last of `tokens`."""
        decoder = self.decoder
        x = decoder.embedded(tokens, position)
        if position is None:
            cos, sin = (table[: tokens.shape[1]] for table in self.rope)
        else:
            cos, sin = (table.index_select(0, position) for table in self.rope)
        for block, cache in zip(decoder.layers, self.caches, strict=True):
            x = block.serve(x, (cos, sin), cache, position)
        logits: Tensor = decoder.head(x[:, -1:])
        return logits[:, 0]

    def next_of(self, logits: Tensor) -> Tensor:
        """The likeliest token [B] of logits [B, V], over all ranks' parts."""
        if self.group is None:
            return logits.argmax(-1)
        best, token = logits.max(-1)
        part, ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        mine = torch.stack((best.float(), (token + part * logits.shape[-1]).float()))  # [2, B]
        every = mine.new_empty(2 * ranks, mine.shape[1])
        dist.all_gather_single(every, mine, group=self.group)
        every = every.view(ranks, *mine.shape)
        winner = every[:, 0].argmax(0, keepdim=True)  # [1, B]
        return every[:, 1].gather(0, winner)[0].long()
