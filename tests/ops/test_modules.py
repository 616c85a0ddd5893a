"""Every module of torch's module database gives on the device what it gives on the CPU.

Forward, gradients of inputs and parameters, buffers afterwards, in training and in evaluation. A
few inputs per module by default; TORCHTPU_TEST_ALL=1 takes all of them.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_map

from tests.daily import ALL

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of optional packages that are absent
    from torch.testing._internal.common_modules import module_db

INPUTS = 2  # per module in the default run, and again in evaluation where that differs
LARGE = frozenset({"nn.TransformerEncoder", "nn.TransformerDecoderLayer", "nn.Transformer"})
TOLERANCE = 1e-4
MODES = (torch.tpu.EagerMode.DEFER_NEVER, torch.tpu.EagerMode.DEFER_AND_FUSE)

pytestmark = pytest.mark.timeout(7200 if ALL else 120)


def inputs_of(info: Any, training: bool) -> list[Any]:
    """The module's inputs on the host; the default run takes some from all over the list."""
    torch.manual_seed(0)
    found = list(
        info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
        )
    )
    count = 1 if info.name in LARGE else INPUTS
    return found if ALL else found[:: -(-len(found) // count)]


def build(info: Any, example: Any, training: bool) -> tuple[Any, Any]:
    """The module on the host and its twin on the device, with the same parameters and buffers."""
    made = example.constructor_input
    ours, theirs = (info.module_cls(*made.args, **made.kwargs) for _ in range(2))
    ours, theirs = ours.to("tpu", torch.float32), theirs.float()  # some have float64 constants
    if any(isinstance(p, torch.nn.UninitializedParameter) for p in theirs.parameters()):
        call = example.forward_input
        with torch.no_grad():
            theirs(*moved(call.args, "cpu"), **moved(call.kwargs, "cpu"))
            ours(*moved(call.args, "tpu"), **moved(call.kwargs, "tpu"))
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    return ours.train(training), theirs.train(training)


def moved(values: Any, device: str) -> Any:
    """Leaf copies on a device, with the strides and the requires_grad of the originals."""

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        there = value.detach().clone(memory_format=torch.preserve_format).to(device)
        return there.requires_grad_(value.requires_grad)

    return tree_map(one, values)


def tensors(values: Any) -> list[torch.Tensor]:
    """All tensors of a structure; an nn.utils.rnn.PackedSequence is a tuple of them."""
    return [v for v in tree_leaves(values) if isinstance(v, torch.Tensor)]


def seed(result: torch.Tensor) -> torch.Tensor:
    """A gradient that differs from element to element, the same on every device."""
    steps = torch.arange(result.numel(), dtype=torch.float64).reshape(result.shape)
    return torch.cos(steps).to(result.dtype).to(result.device)


def run(module: Any, call: Any, device: str) -> dict[str, list[torch.Tensor | None]]:
    """Results, gradients and buffers, on the host."""
    args, kwargs = moved(call.args, device), moved(call.kwargs, device)
    with torch.no_grad():
        plain = [] if module.training else tensors(module(*args, **kwargs))
    results = tensors(module(*args, **kwargs))
    leaves = [t for t in (*tensors((args, kwargs)), *module.parameters()) if t.requires_grad]
    differentiable = [r for r in results if r.requires_grad]
    gradients: Any = []
    if leaves and differentiable:
        seeds = [seed(r) for r in differentiable]
        gradients = torch.autograd.grad(differentiable, leaves, seeds, allow_unused=True)
    found = {"no_grad": plain, "results": results, "gradients": gradients}
    found["buffers"] = list(module.buffers())
    return {n: [None if t is None else t.detach().cpu() for t in v] for n, v in found.items()}


def located(where: str, text: str) -> str:
    """An assertion's text after what it is about."""
    return f"{where}\n{text}"


def cases(info: Any) -> Iterator[tuple[bool, int, Any]]:
    """(training, number, input) of all that the run takes of a module."""
    differ = ALL or (info.train_and_eval_differ and info.name not in LARGE)
    for training in (True, False) if differ else (True,):
        for number, example in enumerate(inputs_of(info, training)):
            yield training, number, example


@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_module_equals_cpu(info: Any) -> None:
    """The inputs take turns in strict and fused mode."""
    for training, number, example in cases(info):
        where = f"{info.name} input {number} training={training}: {example.desc}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own; the device's stay errors
            warnings.filterwarnings("error", message=r"\[torchtpu\]")
            ours, theirs = build(info, example, training)
            expected = run(theirs, example.forward_input, "cpu")
            with torch.tpu.set_eager_mode(MODES[(number + training) % 2]):
                actual = run(ours, example.forward_input, "tpu")
        assert_close(
            actual,
            expected,
            rtol=TOLERANCE,
            atol=TOLERANCE,
            equal_nan=True,
            msg=partial(located, where),
        )
