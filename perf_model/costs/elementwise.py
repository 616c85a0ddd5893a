"""Elementwise ops: operations per output element on the vector ALUs and on the transcendental unit
(EUP).
"""

from __future__ import annotations

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.costs.registry import Cost, Kind, RuleFunction, rule
from torchtpu.perf_model.program import Graph, Op

_SIMPLE = [
    "add",
    "subtract",
    "multiply",
    "maximum",
    "minimum",
    "and",
    "or",
    "xor",
    "not",
    "negate",
    "abs",
    "compare",
    "select",
    "sign",
    "convert",
    "real",
    "imag",
    "complex",
    "shift_left",
    "shift_right_logical",
    "shift_right_arithmetic",
    "is_finite",
    "clamp",
    "floor",
    "ceil",
    "round_nearest_afz",
    "round_nearest_even",
    "reduce_precision",
    "bitcast_convert",
    "popcnt",
    "count_leading_zeros",
    "map",
    "uniform_quantize",
    "uniform_dequantize",
    "chlo.is_inf",
    "chlo.is_neg_inf",
    "chlo.is_pos_inf",
    "chlo.broadcast_add",
    "chlo.broadcast_multiply",
    "chlo.broadcast_subtract",
    "chlo.broadcast_compare",
    "chlo.broadcast_select",
    "chlo.conj",
    "chlo.constant_like",
]

# (ALU, EUP) operations per element. ALU counts of the polynomial ones come from the cycles that
# libtpu's own estimates add per vector register on a chip with four ALU slots (erf 5.2, sin 39,
# gelu 2.2 cycles).
_EXPENSIVE: dict[str, tuple[float, float]] = {
    "exponential": (2, 1),
    "exponential_minus_one": (6, 1),
    "log": (2, 1),
    "log_plus_one": (6, 1),
    "logistic": (4, 2),
    "tanh": (2, 1),
    "rsqrt": (2, 1),
    "sqrt": (3, 1),
    "cbrt": (8, 2),
    "divide": (3, 1),
    "remainder": (8, 1),
    "power": (8, 2),
    "sine": (150, 0),
    "cosine": (150, 0),
    "tan": (170, 1),
    "atan2": (40, 1),
    "chlo.erf": (20, 0),
    "chlo.erfc": (24, 1),
    "chlo.erf_inv": (30, 2),
    "chlo.square": (1, 0),
    "chlo.tan": (170, 1),
    "chlo.sinh": (10, 2),
    "chlo.cosh": (10, 2),
    "chlo.asin": (30, 1),
    "chlo.acos": (30, 1),
    "chlo.atan": (30, 1),
    "chlo.asinh": (12, 2),
    "chlo.acosh": (12, 2),
    "chlo.atanh": (12, 2),
    "chlo.lgamma": (60, 3),
    "chlo.digamma": (60, 3),
    "chlo.polygamma": (200, 6),
    "chlo.zeta": (200, 6),
    "chlo.bessel_i1e": (40, 2),
    "chlo.next_after": (12, 0),
}


def _per_element(alu: float, eup: float) -> RuleFunction:
    def cost(op: Op, graph: Graph, _chip: Chip) -> Cost:
        elements = graph.types[op.results[0]].elements
        return Cost(valu_ops=alu * elements, eup_ops=eup * elements)

    return cost


rule(*_SIMPLE, kind=Kind.LOOP)(_per_element(1, 0))
for _opcode, (_alu, _eup) in _EXPENSIVE.items():
    rule(_opcode, kind=Kind.LOOP, expensive=_opcode != "chlo.square")(_per_element(_alu, _eup))
for _target in (
    "mhlo.erf",
    "mhlo.tan",
    "mhlo.asin",
    "mhlo.acos",
    "mhlo.sinh",
    "mhlo.cosh",
    "mhlo.asinh",
):
    _alu, _eup = _EXPENSIVE[_target.replace("mhlo.", "chlo.")]
    rule(f"custom_call:{_target}", kind=Kind.LOOP, expensive=True)(_per_element(_alu, _eup))
