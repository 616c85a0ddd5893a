"""Float32 matmuls and convolutions as a TPU computes them: sums of products of bfloat16 parts.

A matrix unit multiplies bfloat16 and adds in float32. XLA splits a float32 operand x into parts
x = x0 + x1 + x2, each the rest rounded to bfloat16, and multiplies as many of them as the op's
precision asks for: DEFAULT 1 (x0 y0), HIGH 3 (and x0 y1, x1 y0), HIGHEST 6 (and x1 y1, x0 y2,
x2 y0). Source: the documentation of jax.lax.Precision, and Henry, Tang, Heinecke, "Leveraging the
bfloat16 artificial intelligence datatype for higher-precision computations", arXiv:1904.06376.
"""

from __future__ import annotations

import io
from functools import reduce
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from torchtpu.targets.channels_last import nested

_PRODUCTS = ("stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution")
_BFLOAT16 = 8, 7  # bits of exponent and mantissa
# The pairs of parts that are multiplied, smallest products first, as they are added.
_PAIRS = {
    "DEFAULT": ((0, 0),),
    "HIGH": ((1, 0), (0, 1), (0, 0)),
    "HIGHEST": ((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0)),
}


def in_bfloat16_passes(module: Any) -> Any:
    """Return a module with every product of float32 operands in bfloat16 passes, as many as its
    precision says; the given one where there is none.
    """
    if not any(_is_float32_product(op) for op in nested(module.operation)):
        return module
    with module.context, ir.Location.unknown():
        text = io.BytesIO()
        module.operation.write_bytecode(text)
        copy = ir.Module.parse(text.getvalue())
        for op in [op for op in nested(copy.operation) if _is_float32_product(op)]:
            _split(op)
        return copy


def _is_float32_product(op: Any) -> bool:
    if op.name not in _PRODUCTS or "algorithm" in op.attributes:
        return False
    return all(str(ir.RankedTensorType(v.type).element_type) == "f32" for v in op.operands)


def _split(op: Any) -> None:
    """Put the sum of products of an op's parts in its place."""
    pairs = _PAIRS[_precision(op)]
    with ir.InsertionPoint(op):
        count = 1 + max(left for left, _ in pairs)
        lefts, rights = (_parts(op.operands[n], count) for n in (0, 1))
        products = [_product(op, lefts[left], rights[right]) for left, right in pairs]
        total = products[-1]
        if len(products) > 1:
            total = stablehlo.add(_or_zero(reduce(stablehlo.add, products[:-1])), total)
    op.results[0].replace_all_uses_with(total)
    op.erase()


def _precision(op: Any) -> str:
    """The highest that an operand asks for; without any, what a TPU takes by itself."""
    if "precision_config" not in op.attributes:
        return "DEFAULT"
    asked = str(op.attributes["precision_config"])
    return next((name for name in ("HIGHEST", "HIGH") if name in asked), "DEFAULT")


def _product(op: Any, left: Any, right: Any) -> Any:
    made = op.clone().operation
    made.operands[0], made.operands[1] = left, right
    return made.results[0]


def _parts(value: Any, count: int) -> list[Any]:
    """Return the first parts of a value; the second of an infinity is no number."""
    parts, rest = [_rounded(value)], value
    while len(parts) < count:
        rest = stablehlo.subtract(rest, parts[-1])
        parts.append(_rounded(rest))
    return parts


def _or_zero(value: Any) -> Any:
    """Zero in place of what is no number: products of an infinity's first part are enough."""
    direction = stablehlo.ComparisonDirectionAttr.get("EQ")
    zero = ir.DenseElementsAttr.get_splat(value.type, ir.FloatAttr.get_f32(0.0))
    same = stablehlo.compare(value, value, direction)
    return stablehlo.select(same, value, stablehlo.constant(zero))


def _rounded(value: Any) -> Any:
    bits = (ir.IntegerAttr.get(ir.IntegerType.get_signless(32), n) for n in _BFLOAT16)
    return stablehlo.reduce_precision(value, *bits)
