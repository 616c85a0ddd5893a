"""A small language model, trained alone and by every way that torch spreads training."""

from __future__ import annotations

import functools
from typing import Any

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


def trained(net: nn.Module, device: str, rank: int, size: int) -> nn.Module:
    """Train on this rank's rows of each batch."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(STEPS):
        words = batch(step).chunk(size)[rank].to(device)
        loss_of(net(words[:, :-1]), words).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net


def state(net: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters whole, on the host."""
    found = {}
    for name, value in net.state_dict().items():
        full = value.full_tensor() if hasattr(value, "full_tensor") else value
        found[name.removeprefix("module.")] = full.detach().cpu()
    return found


def alone(device: str = "cpu") -> dict[str, torch.Tensor]:
    """Train in one process."""
    return state(trained(model().to(device), device, 0, 1))


def by_ddp(rank: int, device: str) -> dict[str, torch.Tensor]:
    """Train by DistributedDataParallel."""
    net = nn.parallel.DistributedDataParallel(model().to(device))
    return state(trained(net, device, rank, dist.get_world_size()))


def by_fsdp(rank: int, device: str) -> dict[str, torch.Tensor]:
    """Train by fully_shard, block by block."""
    from torch.distributed.fsdp import fully_shard

    net = model().to(device)
    for block in net.blocks:
        fully_shard(block)
    fully_shard(net)
    return state(trained(net, device, rank, dist.get_world_size()))


def by_tensor_and_fsdp(rank: int, device: str) -> dict[str, torch.Tensor]:
    """Train with the layers split over two ranks and the batch over the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    copies = dist.get_world_size() // 2
    mesh = init_device_mesh(device, (copies, 2), mesh_dim_names=("data", "tensor"))
    net = model().to(device)
    plan: dict[str, Any] = {f"{name}": ColwiseParallel() for name in ("q", "k", "v", "up")}
    plan |= {name: RowwiseParallel() for name in ("out", "down")}
    for block in net.blocks:
        parallelize_module(block, mesh["tensor"], plan)
        fully_shard(block, mesh=mesh["data"])
    fully_shard(net, mesh=mesh["data"])
    return state(trained(net, device, mesh["data"].get_local_rank(), copies))


def by_pipeline(rank: int, device: str) -> dict[str, torch.Tensor]:
    """Train with half of the blocks on each of two ranks, four batches under way."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    whole = model()
    half: Any = _First(whole) if rank == 0 else _Second(whole)
    half = half.to(device)
    stage = PipelineStage(half, rank, 2, torch.device(device))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=lambda y, w: loss_of(y, w))
    optimizer = torch.optim.AdamW(half.parameters(), lr=1e-2)
    for step in range(STEPS):
        words = batch(step).to(device)
        if rank == 0:
            schedule.step(words[:, :-1])
        else:
            schedule.step(target=words)
        optimizer.step()
        optimizer.zero_grad()
    return state(half)


class _First(nn.Module):
    def __init__(self, whole: Gpt) -> None:
        super().__init__()
        self.words, self.places = whole.words, whole.places
        self.blocks = nn.ModuleDict({"0": whole.blocks[0]})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.blocks["0"](self.words(x) + self.places.weight)
        return made


class _Second(nn.Module):
    def __init__(self, whole: Gpt) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({"1": whole.blocks[1]})
        self.head = whole.head

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.blocks["1"](h))
        return made


WAYS = {"ddp": by_ddp, "fsdp": by_fsdp, "tensor and fsdp": by_tensor_and_fsdp}


def by_each(rank: int, device: str) -> dict[str, dict[str, torch.Tensor]]:
    """Train by every way that all ranks take part in alike."""
    return {name: train(rank, device) for name, train in WAYS.items()}
