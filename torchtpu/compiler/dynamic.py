"""Graphs with sizes that vary: one program per bucket of sizes, inputs padded and results cut."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from torchtpu.compiler.buckets import BucketError, bounds_of, buckets
from torchtpu.compiler.graph import CompiledGraph, buffer_or_none
from torchtpu.compiler.options import Options
from torchtpu.compiler.padding import (
    CannotPad,
    Layout,
    PaddedGraph,
    PaddedTensor,
    Size,
    origins,
    pad,
)
from torchtpu.compiler.padding.host import cut_host, pad_host, strided_cut, true_shape
from torchtpu.eager.copy_ops import read
from torchtpu.storage import Buffer
from torchtpu.tensor import from_host

log = logging.getLogger("torchtpu")
TrueSizes = Mapping[Any, int]


class _Whole(NamedTuple):
    """How a tensor that forward keeps for backward is padded."""

    layout: Layout
    sizes: TrueSizes


_wholes: WeakKeyDictionary[Buffer, _Whole] = WeakKeyDictionary()


class DynamicGraph:
    """Runs an FX graph whose placeholders have symbolic sizes.

    compiled: makes a graph of fixed sizes ready to run. visible: how many of the results the user
    gets (None: all); the others go to the backward graph, padded as they are. Where an op has no
    exact form at bucket size the graph is compiled for each size instead, with a warning that names
    the op.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        compiled: Callable[[torch.fx.GraphModule], CompiledGraph],
        options: Options,
        visible: int | None,
    ) -> None:
        self._boxed_call = True
        self._module = module
        self._compiled = compiled
        self._visible = visible
        self._exact = compiled(module)
        self._origins = origins(module)
        self._buckets = {
            symbol: buckets(
                bounds,
                num_dynamic_buckets=options.num_dynamic_buckets,
                bucket_size=options.bucket_size,
            )
            for symbol, bounds in bounds_of(module).items()
        }
        self._padded: dict[Any, tuple[PaddedGraph, CompiledGraph] | None] = {}

    def __call__(self, inputs: list[Any]) -> Any:
        """Run on a flat list of tensors and sizes; the list is emptied."""
        wholes = {i: w for i, value in enumerate(inputs) if (w := _whole(value)) is not None}
        sizes = self._true_sizes(inputs, wholes)
        found = self._at_bucket(sizes, wholes)
        if found is None or not found[0].fits(sizes):
            for i, whole in wholes.items():
                inputs[i] = from_host(cut_host(read(inputs[i]), whole.layout, whole.sizes))
            return self._exact(inputs)
        padded, run = found
        arguments = [
            inputs[t.position] if t.position in wholes else _pad(inputs[t.position], t, sizes)
            for t in padded.inputs
        ]
        inputs.clear()
        arguments += [_size_tensor(sizes[symbol]) for symbol in padded.symbols]
        return self._results(padded, iter(run(arguments)), sizes)

    def _true_sizes(self, inputs: Sequence[Any], wholes: Mapping[int, _Whole]) -> dict[Any, int]:
        sizes: dict[Any, int] = {}
        for whole in wholes.values():
            sizes.update(whole.sizes)
        for symbol, (position, dim) in self._origins.items():
            if symbol not in sizes:
                value = inputs[position]
                sizes[symbol] = int(value if dim is None else value.shape[dim])
        return sizes

    def _at_bucket(
        self, sizes: TrueSizes, wholes: Mapping[int, _Whole]
    ) -> tuple[PaddedGraph, CompiledGraph] | None:
        try:
            bucket = {s: b.round_up(sizes[s], str(s)) for s, b in self._buckets.items()}
        except BucketError as error:
            log.info("%s", error)
            return None
        layouts = {i: whole.layout for i, whole in wholes.items()}
        key = tuple(bucket.values()), tuple(layouts.items())
        if key not in self._padded:
            self._padded[key] = self._pad(bucket, layouts)
        return self._padded[key]

    def _pad(
        self, bucket: Mapping[Any, int], layouts: Mapping[int, Layout]
    ) -> tuple[PaddedGraph, CompiledGraph] | None:
        kept: Sequence[int] = ()
        if self._visible is not None:
            kept = range(self._visible, len(_outputs(self._module)))
        try:
            padded = pad(self._module, bucket, layouts=layouts, keep=kept)
        except CannotPad as reason:
            warnings.warn(f"[torchtpu] compiled once per size: {reason}", stacklevel=2)
            return None
        return padded, self._compiled(padded.module)

    def _results(self, padded: PaddedGraph, made: Any, sizes: TrueSizes) -> list[Any]:
        results: list[Any] = []
        for position, output in enumerate(padded.outputs):
            if isinstance(output, Size):
                results.append(output.value(sizes))
            elif not isinstance(output, PaddedTensor):
                results.append(output.value)
            elif not output.padded:
                results.append(next(made))
            elif self._visible is None or position < self._visible:
                results.append(_cut(next(made), output.layout, sizes))
            else:
                whole = next(made)
                _wholes[buffer_or_none(whole)] = _Whole(output.layout, dict(sizes))
                results.append(whole)
        return results


def _outputs(module: torch.fx.GraphModule) -> Sequence[Any]:
    found: Sequence[Any] = next(iter(module.graph.find_nodes(op="output"))).args[0]
    return found


def _whole(value: Any) -> _Whole | None:
    buffer = buffer_or_none(value)
    return _wholes.get(buffer) if buffer is not None else None


def _pad(tensor: torch.Tensor, like: PaddedTensor, sizes: TrueSizes) -> torch.Tensor:
    """Return a tensor at bucket size; the host pads it, as a program for each size would not do."""
    if not like.padded or true_shape(like.layout, sizes) == tuple(like.shape):
        return tensor
    return from_host(pad_host(read(tensor.detach()), like.layout, sizes))


def _cut(tensor: torch.Tensor, layout: Layout, sizes: TrueSizes) -> torch.Tensor:
    """Return the valid elements: a view where it is contiguous, else a copy made by the host."""
    cut = strided_cut(layout, sizes)
    if cut is not None and tensor.is_contiguous():
        view = tensor.as_strided(cut.sizes, cut.strides, cut.offset)
        if view.is_contiguous():
            return view
    return from_host(cut_host(read(tensor), layout, sizes).contiguous())


@lru_cache(maxsize=1024)
def _size_tensor(size: int) -> torch.Tensor:
    return from_host(torch.tensor(size, device="cpu"))
