"""The benchmarks' GPT, trained alone and by every way that torch spreads training.

python -m tests.distributed.training                 # all ways: largest difference to one process
python -m tests.distributed.training --way fsdp --device cpu     # the same script over torch's gloo

What AdamW makes of rounding is no part of the question, so eps is 1e-5 and nothing decays:
- Attention's key bias has a gradient of exactly 0 (softmax does not see what is added to all scores
  of a query), which arithmetic makes 1e-10 of either sign; divided by its own size + 1e-8 it would
  be steps of the learning rate.
- A decay of 1e-5 of an embedding of size 4 is 170 units of its last place; whether it is rounded
  before the step is added or with it (as XLA's fused multiply-add does) is half of a unit at every
  step, always to the same side: 3e-5 after 200 steps between torch's CPU and XLA's, in one process.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models import HEADS, LAYERS, LENGTH, VOCABULARY, WIDTH, Block, Gpt, loss_of

BATCH = 4  # of all processes
TEXT = ("argparse", "collections", "json", "logging", "pathlib", "random", "statistics", "typing")
State = dict[str, Tensor]


def model() -> Gpt:
    """Return the same model everywhere."""
    torch.manual_seed(1)
    return Gpt()


@functools.cache
def text() -> Tensor:
    """Return the standard library's documentation as its commonest words' numbers; 0: others."""
    words = re.findall(r"\w+|\S", "\n".join(_docs()))
    numbers = {w: n for n, (w, _) in enumerate(Counter(words).most_common(VOCABULARY - 1), 1)}
    return torch.tensor([numbers.get(word, 0) for word in words])


def _docs() -> Iterator[str]:
    for module in map(importlib.import_module, TEXT):
        public = [vars(module)[name] for name in sorted(vars(module)) if name[0] != "_"]
        own = [o for o in public if str(getattr(o, "__module__", "")).startswith(module.__name__)]
        members = [m for o in own if inspect.isclass(o) for _, m in sorted(vars(o).items())]
        functions = [m for m in members if inspect.isfunction(m)]
        for documented in (module, *own, *functions):
            with warnings.catch_warnings(action="ignore"):  # typing.io is deprecated
                yield inspect.getdoc(documented) or ""


def batch(step: int) -> Tensor:
    """Return int64[BATCH, LENGTH + 1] of the text, the same in every process."""
    draws = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text()) - LENGTH, (BATCH,), generator=draws)
    return torch.stack([text()[s : s + LENGTH + 1] for s in starts])


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of all ways; see above for its settings."""
    return torch.optim.AdamW(net.parameters(), lr=1e-3, eps=1e-5, weight_decay=0.0)


def trained(net: nn.Module, device: str, steps: int, part: int = 0, parts: int = 1) -> nn.Module:
    """Train on one of the parts of each batch."""
    optimizer = optimizer_of(net)
    for step in range(steps):
        words = batch(step).chunk(parts)[part].to(device)
        loss_of(net(words[:, :-1]), words[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net


def state(net: nn.Module) -> State:
    """Return the parameters whole, on the host, by the names of the model in one process."""
    found = {}
    for name, value in net.state_dict().items():
        full = value.full_tensor() if hasattr(value, "full_tensor") else value
        found[name.removeprefix("module.")] = full.detach().cpu()
    for name in [n for n in found if ".q." in n]:
        rows = [found.pop(name.replace(".q.", f".{one}.")) for one in "qkv"]
        found[name.replace(".q.", ".qkv.")] = torch.cat(rows)
    return found


def alone(steps: int, device: str = "cpu") -> State:
    """Train in one process."""
    return state(trained(model().to(device), device, steps))


# The ways; each runs in every rank of a world ---------------------------------------------------


def by_ddp(rank: int, device: str, steps: int) -> State:
    """Train by DistributedDataParallel."""
    net = nn.parallel.DistributedDataParallel(model().to(device))
    return state(trained(net, device, steps, rank, dist.get_world_size()))


def by_fsdp(rank: int, device: str, steps: int) -> State:
    """Train by fully_shard, block by block."""
    from torch.distributed.fsdp import fully_shard

    net = model().to(device)
    for block in net.blocks:
        fully_shard(block)
    fully_shard(net)
    return state(trained(net, device, steps, rank, dist.get_world_size()))


def by_tensor_and_fsdp(rank: int, device: str, steps: int) -> State:
    """Train with the layers split over two ranks and the batch over the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    del rank
    copies = dist.get_world_size() // 2
    mesh = init_device_mesh(device, (copies, 2), mesh_dim_names=("data", "tensor"))
    net = model()
    net.blocks = nn.ModuleList(_BlockInHeads(b) for b in net.blocks if isinstance(b, Block))
    net.to(device)
    plan: dict[str, Any] = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
    plan |= {name: RowwiseParallel() for name in ("proj", "down")}
    for block in net.blocks:
        parallelize_module(block, mesh["tensor"], plan)
        fully_shard(block, mesh=mesh["data"])
    fully_shard(net, mesh=mesh["data"])
    return state(trained(net, device, steps, mesh["data"].get_local_rank(), copies))


class _BlockInHeads(nn.Module):
    """A block whose queries, keys and values are apart: a rank has whole heads of each."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.norm1, self.norm2 = block.norm1, block.norm2
        self.proj, self.up, self.down = block.proj, block.up, block.down
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        weights, biases = (p.detach().chunk(3) for p in (block.qkv.weight, block.qkv.bias))
        for own, weight, bias in zip((self.q, self.k, self.v), weights, biases, strict=True):
            own.load_state_dict({"weight": weight, "bias": bias})

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, WIDTH] -> the same."""
        h = self.norm1(x)
        batch, length, _ = x.shape
        heads = (batch, length, -1, WIDTH // HEADS)
        q, k, v = (own(h).view(heads).transpose(1, 2) for own in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, -1))
        made: Tensor = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return made


def by_pipeline(rank: int, device: str, steps: int) -> State:
    """Train with half of the blocks on each of two ranks, a row of the batch at a time."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    half: nn.Module = _Half(model(), rank).to(device)
    stage = PipelineStage(half, rank, 2, torch.device(device))
    schedule = ScheduleGPipe(stage, n_microbatches=BATCH, loss_fn=loss_of)
    optimizer = optimizer_of(half)
    for step in range(steps):
        words = batch(step).to(device)
        if rank == 0:
            schedule.step(words[:, :-1])
        else:
            schedule.step(target=words[:, 1:])
        optimizer.step()
        optimizer.zero_grad()
    return state(half)


class _Half(nn.Module):
    """The embeddings and the first blocks, or the other blocks and the head."""

    def __init__(self, whole: Gpt, number: int) -> None:
        super().__init__()
        numbers = range(number * LAYERS // 2, (number + 1) * LAYERS // 2)
        self.blocks = nn.ModuleDict({str(n): whole.blocks[n] for n in numbers})
        self.is_first = number == 0
        if self.is_first:
            self.words, self.positions = whole.words, whole.positions
        else:
            self.norm, self.head = whole.norm, whole.head

    def forward(self, x: Tensor) -> Tensor:
        """int64[B, T] -> [B, T, WIDTH], or [B, T, WIDTH] -> [B, T, VOCABULARY]."""
        if self.is_first:
            x = self.words(x) + self.positions.weight
        for block in self.blocks.values():
            x = block(x)
        return x if self.is_first else self.head(self.norm(x))


WAYS = {  # and the size of their world
    "ddp": (by_ddp, 4),
    "fsdp": (by_fsdp, 4),
    "tensor and fsdp": (by_tensor_and_fsdp, 4),
    "pipeline": (by_pipeline, 2),
}


def by_each(rank: int, device: str, steps: int, names: list[str]) -> dict[str, State]:
    """Train by several ways, one after the other."""
    return {name: WAYS[name][0](rank, device, steps) for name in names}


def spread(name: str, device: str, steps: int, **how: Any) -> State:
    """Train by a way in processes of its own; return the parameters of all ranks together."""
    from tests.distributed import world

    way, size = WAYS[name]
    backend = "gloo" if device == "cpu" else "tpu_dist"
    joined: State = {}
    for found in world.results(way, size, device, steps, backend=backend, **how):
        joined |= found
    return joined


def difference(found: State, expected: State) -> tuple[float, str]:
    """Return the largest |difference| of two models' parameters, and of which."""
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    return max((float((found[n] - e).abs().max()), n) for n, e in expected.items())


def main() -> None:
    """Print how far each way is from one process, on the same device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", choices=("tpu", "cpu"), default="tpu")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as each rank does
    expected = alone(options.steps)
    net, words = model(), batch(options.steps)
    losses = []
    for values in (net.state_dict(), expected):
        net.load_state_dict(values)
        losses.append(loss_of(net(words[:, :-1]), words[:, 1:]).item())
    print(f"one process, torch's CPU: loss {losses[0]:.4f} -> {losses[1]:.4f}", flush=True)
    for name in options.way or WAYS:
        found = spread(name, options.device, options.steps, patience_s=3600.0)
        largest, where = difference(found, expected)
        print(f"{name} on {options.device}: {largest:.2e} ({where})", flush=True)


if __name__ == "__main__":
    main()
