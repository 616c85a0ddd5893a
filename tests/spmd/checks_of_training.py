"""Trains a small language model split over four devices, in every way of running a step."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Any

os.environ.setdefault("TORCHTPU_TARGET", "cpu")

import torch

from tests.spmd import checks, small_gpt
from torchtpu import spmd

RULES: dict[str, spmd.PartitionSpec] = {
    r".*\.(q|k|v|up)\.weight": ("tensor",),
    r".*\.(q|v|up)\.bias": ("tensor",),
    r".*\.(out|down)\.weight": (None, "tensor"),
    r"(words|head)\.weight": ("tensor",),
}
_COLLECTIVE = re.compile(r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\(")


def _trained(
    step: str, rules: dict[str, spmd.PartitionSpec], rows: tuple[str, ...]
) -> tuple[small_gpt.Gpt, torch.optim.Optimizer]:
    net = spmd.shard_module(small_gpt.model().to("tpu"), checks.MESH, rules)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=step == "whole")

    def loss_of(words: torch.Tensor) -> torch.Tensor:
        return small_gpt.loss_of(net(words[:, :-1]), words)

    def whole(words: torch.Tensor) -> None:
        loss_of(words).backward()
        optimizer.step()
        optimizer.zero_grad()

    if step == "whole":
        from torchtpu.compiler.whole_step import WholeStep

        whole_step: Any = WholeStep(whole, (net,), (optimizer,))
    elif step == "compiled":
        loss_of = torch.compile(loss_of)
    for number in range(small_gpt.STEPS):
        words = spmd.shard(small_gpt.batch(number), checks.MESH, rows)
        (whole_step if step == "whole" else whole)(words)
    return net, optimizer


def _check(step: str) -> None:
    with checks.partitioned() as texts:
        net, optimizer = _trained(step, RULES, ("data",))
        found = small_gpt.state(net)
    # AdamW as one op magnifies rounding in ways of its own, on one device too
    alone = small_gpt.state(_trained(step, {}, ())[0]) if step == "whole" else small_gpt.alone()
    for name, expected in alone.items():
        assert torch.allclose(found[name], expected, rtol=1e-4, atol=1e-4), name
    kinds = Counter(_COLLECTIVE.findall("".join(texts)))
    assert kinds["all-reduce"] > 4, kinds  # of the gradients, and of rows and columns
    up = net.blocks[0].get_parameter("up.weight")
    state = optimizer.state[up]
    for held in (up, state["exp_avg"], state["exp_avg_sq"]):
        assert spmd.sharding_of(held) == ("tensor", None)
        assert checks.shards(held) == [(up.shape[0] // 2, up.shape[1])] * 4
    down = net.blocks[1].get_parameter("down.weight")
    assert spmd.sharding_of(down) == (None, "tensor")


def check_fused() -> None:
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE):
        _check("eager")


def check_strict() -> None:
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER):
        _check("eager")


def check_compiled() -> None:
    _check("compiled")


def check_whole_step() -> None:
    _check("whole")


def check_it_equals_training_on_one_device() -> None:
    """By an optimizer whose steps do not magnify rounding, to 1e-5."""

    def trained(rules: dict[str, spmd.PartitionSpec], rows: tuple[str, ...]) -> Any:
        net = spmd.shard_module(small_gpt.model().to("tpu"), checks.MESH, rules)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for number in range(small_gpt.STEPS):
            words = spmd.shard(small_gpt.batch(number), checks.MESH, rows)
            small_gpt.loss_of(net(words[:, :-1]), words).backward()
            optimizer.step()
            optimizer.zero_grad()
        return small_gpt.state(net)

    whole, split = trained({}, ()), trained(RULES, ("data",))
    moved = 0.0
    start = small_gpt.state(small_gpt.model())
    for name, value in whole.items():
        assert torch.allclose(split[name], value, rtol=1e-5, atol=1e-5), name
        moved = max(moved, (value - start[name]).abs().max().item())
    assert moved > 0.01  # it has learned something


if __name__ == "__main__":
    checks.main(globals())
