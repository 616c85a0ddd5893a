"""What the padding pass returns: a graph at fixed sizes, and how to reach it from true ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from torchtpu.compiler.padding.layout import (
    Bucket,
    CannotPad,
    Expr,
    Layout,
    Symbol,
    holds,
    padded,
    sizes,
)


@dataclass(frozen=True, kw_only=True)
class PaddedTensor:
    """An input or output: where the unpadded graph has it, and how its valid elements lie."""

    position: int
    layout: Layout

    @property
    def shape(self) -> list[int]:
        """The padded shape."""
        return sizes(self.layout)

    @property
    def padded(self) -> bool:
        """Tell whether there is padding at all."""
        return any(map(padded, self.layout))


@dataclass(frozen=True, kw_only=True)
class Size:
    """An output that is a size: its value in terms of the symbols."""

    expression: Expr

    def value(self, true_sizes: Mapping[Symbol, int]) -> Any:
        """Return the size, a Python number or boolean, for true sizes of the symbols."""
        value = self.expression.subs(true_sizes)
        if value.is_Boolean:
            return bool(value)
        return int(value) if value.is_Integer else float(value)


@dataclass(frozen=True, kw_only=True)
class Constant:
    """An output that is neither a tensor nor a size."""

    value: Any


@dataclass(frozen=True, kw_only=True)
class PaddedGraph:
    """A graph at bucket size: `module(*tensors, *true_sizes)` returns the tensor outputs.

    `inputs` are the tensors in the order of the module's arguments, dense and of any content in
    the padding; one 0-dim int64 tensor for each of `symbols` follows. `outputs` stand for the
    unpadded graph's, in order; the module returns a tuple of those that are a PaddedTensor.
    """

    module: GraphModule
    inputs: tuple[PaddedTensor, ...]
    outputs: tuple[PaddedTensor | Size | Constant, ...]
    symbols: tuple[Symbol, ...]
    bucket: Bucket
    conditions: tuple[Expr, ...]
    origins: Mapping[Symbol, tuple[int, int | None]]

    def true_sizes(
        self, args: Sequence[Any], known: Mapping[Symbol, int] | None = None
    ) -> dict[Symbol, int]:
        """Return the symbols' values from the arguments of the unpadded graph.

        `known` has those that no argument shows: a backward graph may get `s0 * s1` alone.
        """
        found = dict(known or {})
        for symbol, (position, dim) in self.origins.items():
            arg = args[position]
            found[symbol] = int(arg) if dim is None else int(arg.shape[dim])
        missing = [str(symbol) for symbol in self.symbols if symbol not in found]
        if missing:
            raise CannotPad(
                f"[torch.compile] true size of {', '.join(missing)} unknown, expected it in an "
                "argument or in `known`"
            )
        return {symbol: found[symbol] for symbol in self.symbols}

    def fits(self, true_sizes: Mapping[Symbol, int]) -> bool:
        """Tell whether the graph is exact for these sizes, and every padded size holds its own.

        Where it is not, the unpadded graph has to be compiled for them.
        """
        if not all(holds(condition, true_sizes) for condition in self.conditions):
            return False
        return all(0 <= int(e.subs(true_sizes)) <= n for e, n in self.bucket.made.items()) and all(
            true_sizes[symbol] <= n for symbol, n in self.bucket.sizes.items()
        )
