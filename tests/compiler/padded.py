"""Runs graphs padded, with garbage in the padding, for the tests that compare them with eager."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.source import ConstantSource
from torch._functorch.aot_autograd import make_boxed_func
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from torchtpu.compiler.buckets import bounds_of
from torchtpu.compiler.padding import Constant, PaddedGraph, PaddedTensor, Size, pad
from torchtpu.compiler.padding.host import cut_host, pad_host
from torchtpu.compiler.padding.layout import Symbol

B, S = 5, 7  # the sizes of the example: a dim of such a size is dynamic
TRUE_SIZES = [(8, 8), (2, 2), (8, 3), (5, 7), (3, 6)]  # in buckets of 8

_NUMBERS = [float("nan"), float("inf"), -1e30, 7.0]
_INDICES = [-(2**40), -1, 0, 3, 2**40]

Function = Callable[..., Any]


def garbage(like: torch.Tensor, seed: int) -> torch.Tensor:
    """Return a tensor of NaN, infinities, large numbers and indices far out of range."""
    draw, n = random.Random(seed), like.numel()
    if like.dtype == torch.bool:
        values = torch.tensor([draw.random() < 0.5 for _ in range(n)])
    elif like.dtype.is_floating_point:
        values = torch.tensor(draw.choices(_NUMBERS, k=n)).to(like.dtype)
    else:
        limits = torch.iinfo(like.dtype)
        integers = [min(max(i, limits.min), limits.max) for i in draw.choices(_INDICES, k=n)]
        values = torch.tensor(integers, dtype=like.dtype)
    return values.reshape(like.shape)


def with_garbage(
    array: torch.Tensor, spec: PaddedTensor, true: Mapping[Symbol, int], seed: int
) -> torch.Tensor:
    """Return a tensor padded with garbage."""
    valid = pad_host(torch.ones(array.shape, dtype=torch.bool), spec.layout, true)
    padded = pad_host(array.detach().contiguous(), spec.layout, true)
    return torch.where(valid, padded, garbage(padded, seed))


def run(padded: PaddedGraph, args: Sequence[Any], seed: int = 0) -> list[Any]:
    """Run a padded graph on arguments of the unpadded one, and cut its results."""
    true = padded.true_sizes(args)
    return cut(padded, run_uncut(padded, args, true, seed), true)


def run_uncut(
    padded: PaddedGraph,
    args: Sequence[Any],
    true: Mapping[Symbol, int],
    seed: int = 0,
    already: Mapping[int, torch.Tensor] | None = None,
) -> Sequence[torch.Tensor]:
    """Run a padded graph; tensors of `already` (by position) come padded as they are."""
    assert padded.fits(true), (true, padded.bucket.sizes)
    tensors = [
        already[spec.position]
        if already and spec.position in already
        else with_garbage(args[spec.position], spec, true, seed + i)
        for i, spec in enumerate(padded.inputs)
    ]
    numbers = [torch.tensor(true[symbol]) for symbol in padded.symbols]
    results: Sequence[torch.Tensor] = padded.module(*tensors, *numbers)
    return results


def cut(
    padded: PaddedGraph, results: Sequence[torch.Tensor], true: Mapping[Symbol, int]
) -> list[Any]:
    """Return the results without padding, with the sizes and constants between them."""
    given, out = iter(results), list[Any]()
    for spec in padded.outputs:
        if isinstance(spec, PaddedTensor):
            tensor = next(given)
            assert list(tensor.shape) == spec.shape
            out.append(cut_host(tensor, spec.layout, true).clone())
        elif isinstance(spec, Size):
            out.append(spec.value(true))
        else:
            assert isinstance(spec, Constant)
            out.append(spec.value)
    return out


def capture(function: Function, args: Sequence[torch.Tensor]) -> GraphModule:
    """Return a function as a graph in which the dims of size B and S vary."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    fakes = [
        mode.from_tensor(
            arg,
            source=ConstantSource(f"arg{i}"),
            symbolic_context=StatelessSymbolicContext(
                dynamic_sizes=[
                    DimDynamic.DUCK if n in (B, S) else DimDynamic.STATIC for n in arg.shape
                ]
            ),
        )
        for i, arg in enumerate(args)
    ]
    with mode, enable_python_dispatcher():
        traced = make_fx(function)(*fakes)
        if not any(map(_writes, traced.graph.nodes)):
            return traced
        with torch.no_grad():
            return make_fx(torch.func.functionalize(traced))(*fakes)


def _writes(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def check(
    function: Function,
    make: Callable[[int, int], Sequence[torch.Tensor]],
    *,
    true_sizes: Sequence[tuple[int, int]] = tuple(TRUE_SIZES),
    bucket: int = 8,
    tolerance: float = 1e-4,
) -> PaddedGraph:
    """Compare a function with its padded graph at several true sizes of one bucket."""
    graph = capture(function, make(B, S))
    padded = pad(graph, dict.fromkeys(bounds_of(graph), bucket))
    for seed, sizes in enumerate(true_sizes):
        args = make(*sizes)
        expected = function(*args)
        expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
        found = run(padded, args, seed)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    return padded


def with_gradients(function: Function) -> Function:
    """Return a function that gives its results and their gradients by its float arguments."""

    def both(*args: torch.Tensor) -> list[torch.Tensor]:
        leaves = [a.detach().requires_grad_(a.is_floating_point()) for a in args]
        results = function(*leaves)
        results = results if isinstance(results, (tuple, list)) else [results]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        sums = [(r * r).sum() for r in results if r.requires_grad]
        return [*results, *torch.autograd.grad(sums, wanted, materialize_grads=True)]

    return both


@dataclass
class PaddingBackend:
    """A torch.compile backend that pads every graph."""

    bucket: Callable[[Symbol], int]
    graphs: list[GraphModule] = field(default_factory=list)
    calls: list[Sequence[Any]] = field(default_factory=list)

    def __call__(self, graph: GraphModule, inputs: Any) -> Any:
        """Compile a graph of Dynamo's."""
        return aot_autograd(fw_compiler=self._compile, bw_compiler=self._compile)(graph, inputs)

    def _compile(self, graph: GraphModule, _inputs: Any) -> Any:
        self.graphs.append(graph)
        padded = pad(graph, {s: self.bucket(s) for s in bounds_of(graph)})

        def call(*args: Any) -> list[Any]:
            self.calls.append(args)
            with torch.no_grad():
                return run(padded, args, seed=len(self.calls))

        return make_boxed_func(call)
