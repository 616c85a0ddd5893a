"""Elementwise ops: operations per output element on the vector ALUs and on the transcendental unit
(EUP).
"""

from __future__ import annotations

from pathlib import Path

from torchtpu.perf_model.chip import Chip, sources
from torchtpu.perf_model.costs.registry import Cost, Kind, RuleFunction, rule
from torchtpu.perf_model.facts import FactError, read_toml
from torchtpu.perf_model.program import Graph, Op

PATH = Path(__file__).parent / "vector_ops.toml"

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


def _table() -> dict[str, tuple[float, float]]:
    """(ALU, EUP) operations per element of the ops of vector_ops.toml, which owns them."""
    found: dict[str, tuple[float, float]] = {}
    for opcode, entry in read_toml(PATH).items():
        if opcode == "date":
            continue
        if not isinstance(entry, dict) or set(entry) != {"alu", "eup", "source"}:
            raise FactError(f"{PATH.name}: {opcode}: expected alu, eup and source, got {entry!r}")
        if entry["source"] not in sources():
            raise FactError(f"{PATH.name}: {opcode}: unknown source {entry['source']!r}")
        found[opcode] = (float(entry["alu"]), float(entry["eup"]))
    return found


_EXPENSIVE = _table()


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
