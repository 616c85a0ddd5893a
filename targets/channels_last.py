"""Keeps the channels of convolutions last in StableHLO, from one convolution to the next.

XLA's CPU computes convolutions with channels last and puts transposes around each that has them
elsewhere. Here a result stays as it was computed, through all ops that take dims in any order,
until one needs the order it was written for.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

Order = tuple[int, ...]  # which dim of a value comes first in memory, which second, ...

_ELEMENTWISE = frozenset({
    *(f"chlo.{name}" for name in ("erf", "erf_inv", "erfc", "square")),
    *(f"stablehlo.{name}" for name in (
        "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "complex", "convert",
        "cosine", "divide", "exponential", "exponential_minus_one", "floor", "imag", "is_finite",
        "log", "log_plus_one", "logistic", "maximum", "minimum", "multiply", "negate", "not", "or",
        "power", "real", "reduce_precision", "remainder", "round_nearest_afz", "round_nearest_even",
        "rsqrt", "select", "sign", "sine", "sqrt", "subtract", "tan", "tanh", "xor",
    )),
})  # fmt: skip
_WINDOW = (
    "window_dimensions", "window_strides", "base_dilations", "window_dilations", "padding",
)  # fmt: skip


def channels_last(module: Any) -> Any:
    """Return a module that computes the same; the given one where nothing is convolved."""
    if "stablehlo.convolution" not in {op.operation.name for op in _body(module).operations}:
        return module
    with module.context, ir.Location.unknown():
        text = io.BytesIO()
        module.operation.write_bytecode(text)
        copy = ir.Module.parse(text.getvalue())
        _Rewriter(copy).rewrite()
        return copy


def _body(module: Any) -> Any:
    return _functions(module)["main"]


def _functions(module: Any) -> dict[str, Any]:
    """The body of each function by its name."""
    functions = [op for op in module.body.operations if op.operation.name == "func.func"]
    named = {ir.StringAttr(f.operation.attributes["sym_name"]).value: f for f in functions}
    return {name: f.regions[0].blocks[0] for name, f in named.items() if len(f.regions[0].blocks)}


class _Rewriter:
    """Visits ops in order; a value that lies otherwise than it was written has an entry."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._orders: dict[Any, Order] = {}
        self._made: dict[tuple[Any, Order], Any] = {}
        self._rules: dict[str, Callable[[Any], None]] = {
            "func.call": self._inline,
            "stablehlo.concatenate": self._concatenate,
            "stablehlo.pad": self._by_dim(
                1, "edge_padding_low", "edge_padding_high", "interior_padding"
            ),
            "stablehlo.reduce": self._reduce,
            "stablehlo.reduce_window": self._by_dim(None, *_WINDOW),
            "stablehlo.reverse": self._reverse,
            "stablehlo.select_and_scatter": self._by_dim(2, *_WINDOW),
            "stablehlo.slice": self._by_dim(1, "start_indices", "limit_indices", "strides"),
            "stablehlo.transpose": self._transpose,
        }

    def rewrite(self) -> None:
        """Rewrite the module in place."""
        for op in list(_body(self._module).operations):
            self._visit(op.operation)

    def _visit(self, op: Any) -> None:
        if op.name == "stablehlo.convolution":
            self._convolve(op)
        elif not any(operand in self._orders for operand in op.operands):
            self._restore_inside(op)
        elif op.name in _ELEMENTWISE:
            self._lay(op, self._order(op), range(len(op.operands)))
        elif op.name in self._rules:
            self._rules[op.name](op)
        else:
            self._restore_inside(op)

    def _order(self, op: Any) -> Order:
        """The order of the first operand that has one of its own."""
        return next(self._orders[v] for v in op.operands if v in self._orders)

    def _restore_inside(self, op: Any) -> None:
        """Give an op, and those in its regions, the values as they were written."""
        for inner in nested(op):
            for n, value in enumerate(inner.operands):
                if value in self._orders:
                    inner.operands[n] = self._at(value, tuple(range(_rank(value))), op)

    def _lay(self, op: Any, order: Order, operands: Sequence[int]) -> None:
        """Compute an op in an order: some operands and all results, the latter of the same rank."""
        for n in operands:
            if _rank(op.operands[n]) == len(order):
                op.operands[n] = self._at(op.operands[n], order, op)
        for result in op.results:
            self._set(result, order)

    def _set(self, result: Any, order: Order) -> None:
        """Say that a result, still typed as it was written, comes in an order."""
        if order == tuple(range(len(order))):
            return
        shape = ir.RankedTensorType(result.type).shape
        result.set_type(_typed(result, [shape[dim] for dim in order]))
        self._orders[result] = order

    def _at(self, value: Any, order: Order, op: Any) -> Any:
        """Return a value in an order, made before an op that uses it."""
        held = self._orders.get(value, tuple(range(len(order))))
        if held == order:
            return value
        if (value, order) not in self._made:
            with ir.InsertionPoint(op):
                self._made[value, order] = self._moved(value, [held.index(dim) for dim in order])
        return self._made[value, order]

    def _moved(self, value: Any, dims: list[int]) -> Any:
        """A value with its dims, as they lie, in another order."""
        source = value.owner.operation if isinstance(value.owner, ir.OpView) else None
        if value not in self._orders and source and source.name in _FILLED:
            shape = ir.RankedTensorType(value.type).shape
            made = _typed(value, [shape[dim] for dim in dims])
            return _FILLED[source.name](source, made, dims)
        return stablehlo.transpose(value, dims)

    def _convolve(self, op: Any) -> None:
        given = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        rank = _rank(op.operands[0])
        space = range(rank - 2)
        lhs = (
            given.input_batch_dimension,
            *given.input_spatial_dimensions,
            given.input_feature_dimension,
        )
        rhs = (
            *given.kernel_spatial_dimensions,
            given.kernel_input_feature_dimension,
            given.kernel_output_feature_dimension,
        )
        out = (
            given.output_batch_dimension,
            *given.output_spatial_dimensions,
            given.output_feature_dimension,
        )
        op.operands[0] = self._at(op.operands[0], lhs, op)
        op.operands[1] = self._at(op.operands[1], rhs, op)
        op.attributes["dimension_numbers"] = stablehlo.ConvDimensionNumbers.get(
            input_batch_dimension=0,
            input_feature_dimension=rank - 1,
            input_spatial_dimensions=[n + 1 for n in space],
            kernel_input_feature_dimension=rank - 2,
            kernel_output_feature_dimension=rank - 1,
            kernel_spatial_dimensions=list(space),
            output_batch_dimension=0,
            output_feature_dimension=rank - 1,
            output_spatial_dimensions=[n + 1 for n in space],
        )
        result = op.results[0]
        self._set(result, out)
        if given.output_batch_dimension != 0 and result in self._orders:
            self._settle(op)

    def _settle(self, op: Any) -> None:
        """Put a kernel's gradient in the order of the kernel, which nobody transposes."""
        result = op.results[0]
        order = self._orders.pop(result)
        with ir.InsertionPoint.after(op):
            back = stablehlo.transpose(result, [order.index(n) for n in range(len(order))])
        result.replace_all_uses_except(back, back.owner.operation)

    def _by_dim(self, count: int | None, *names: str) -> Callable[[Any], None]:
        """The rule of an op with attributes per dim; its first operands are what it works on."""

        def rule(op: Any) -> None:
            order = self._order(op)
            several = len(op.operands) // 2 if count is None else count
            self._lay(op, order, range(several))
            for name in names:
                if name in op.attributes:
                    op.attributes[name] = _permuted(op.attributes[name], order)

        return rule

    def _concatenate(self, op: Any) -> None:
        order = self._order(op)
        dim = order.index(ir.IntegerAttr(op.attributes["dimension"]).value)
        op.attributes["dimension"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
        self._lay(op, order, range(len(op.operands)))

    def _reverse(self, op: Any) -> None:
        order = self._order(op)
        dims = [order.index(dim) for dim in _numbers(op, "dimensions")]
        op.attributes["dimensions"] = ir.DenseI64ArrayAttr.get(sorted(dims))
        self._lay(op, order, range(1))

    def _transpose(self, op: Any) -> None:
        """Only the order of the result's dims is another."""
        order, dims = self._order(op), _numbers(op, "permutation")
        op.attributes["permutation"] = ir.DenseI64ArrayAttr.get(list(range(len(order))))
        self._set(op.results[0], tuple(dims.index(dim) for dim in order))

    def _reduce(self, op: Any) -> None:
        order, dims = self._order(op), _numbers(op, "dimensions")
        inputs = range(len(op.operands) // 2)
        for n in inputs:
            op.operands[n] = self._at(op.operands[n], order, op)
        op.attributes["dimensions"] = ir.DenseI64ArrayAttr.get(
            sorted(order.index(dim) for dim in dims)
        )
        kept = [dim for dim in range(len(order)) if dim not in dims]
        left = tuple(kept.index(dim) for dim in order if dim not in dims)
        for result in op.results:
            self._set(result, left)

    def _inline(self, op: Any) -> None:
        """Put a function's ops in the place of a call, then visit them."""
        name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        block = _functions(self._module)[name]
        values = dict(zip(block.arguments, op.operands, strict=True))
        visited = []
        for inner in block.operations:
            if inner.operation.name == "func.return":
                results = [values[v] for v in inner.operands]
                break
            with ir.InsertionPoint(op):
                made = inner.operation.clone()
            _renew(made.operation, values)
            values |= zip(inner.operation.results, made.operation.results, strict=True)
            visited.append(made.operation)
        for old, new in zip(op.results, results, strict=True):
            old.replace_all_uses_with(new)
        op.erase()
        for made in visited:
            self._visit(made)


def _broadcast(source: Any, made: Any, dims: list[int]) -> Any:
    places = [dims.index(dim) for dim in _numbers(source, "broadcast_dimensions")]
    operand = source.operands[0]
    if places != sorted(places):
        operand = stablehlo.transpose(operand, sorted(range(len(places)), key=places.__getitem__))
    return stablehlo.broadcast_in_dim(made, operand, sorted(places))


def _iota(source: Any, made: Any, dims: list[int]) -> Any:
    return stablehlo.iota(
        made, dims.index(ir.IntegerAttr(source.attributes["iota_dimension"]).value)
    )


# What is made in any order at no cost.
_FILLED: dict[str, Callable[[Any, Any, list[int]], Any]] = {
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.iota": _iota,
}


def _renew(op: Any, values: dict[Any, Any]) -> None:
    """Put an op and those in its regions on new values."""
    for inner in nested(op):
        for n, value in enumerate(inner.operands):
            inner.operands[n] = values.get(value, value)


def nested(op: Any) -> Iterator[Any]:
    """An op and those in its regions."""
    yield op
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from nested(inner.operation)


def _rank(value: Any) -> int:
    rank: int = ir.RankedTensorType(value.type).rank
    return rank


def _typed(value: Any, shape: Sequence[int]) -> Any:
    return ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)


def _numbers(op: Any, name: str) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


def _permuted(attribute: Any, order: Order) -> Any:
    """An attribute with an entry, or a pair, per dim."""
    if isinstance(attribute, ir.DenseI64ArrayAttr):
        numbers = list(attribute)
        return ir.DenseI64ArrayAttr.get([numbers[dim] for dim in order])
    pairs: Any = np.array(ir.DenseIntElementsAttr(attribute))
    return ir.DenseIntElementsAttr.get(pairs[list(order)].copy())
