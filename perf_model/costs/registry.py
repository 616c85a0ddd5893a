"""The table of cost rules: what an op costs the matrix unit and the vector units, and how it may
fuse.
"""

from __future__ import annotations

import enum
import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.program import Graph, Op


class Kind(enum.Enum):
    """How an op takes part in fusion."""

    ALIAS = "alias"  # a new name for its operand's memory
    VIRTUAL = "virtual"  # never in memory: recomputed in each consumer
    LOOP = "loop"  # one output element at a time, from few input elements
    REDUCE = "reduce"  # takes producers in, ends the fusion
    MATMUL = "matmul"  # the matrix unit: cheap producers in, same-shape consumers out
    UPDATE = "update"  # writes into its first operand
    OTHER = "other"  # a kernel of its own


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one execution of an op asks of a device, apart from what crosses HBM at its borders.

    matmul_flops: 2 x multiply-adds of matmuls and convolutions, without padding.
    mxu_cycles: cycles of all matrix units of the device together, padding and dtype included.
    valu_ops, eup_ops, xlu_ops: element operations of the vector ALUs, the transcendental and the
    cross-lane unit.
    scalar_cycles: address computation of gathers and scatters; the other units run beside it.
    serial_cycles: cycles that nothing overlaps with.
    hbm_bytes: HBM traffic of an op that reads its operands more than once, all of it; 0 where each
    operand and result crosses once.
    unmodelled: why there is no number, "" where there is one.
    hint: what the user could do about the cost, "" where there is nothing.
    """

    matmul_flops: float = 0.0
    mxu_cycles: float = 0.0
    valu_ops: float = 0.0
    eup_ops: float = 0.0
    xlu_ops: float = 0.0
    scalar_cycles: float = 0.0
    serial_cycles: float = 0.0
    hbm_bytes: float = 0.0
    unmodelled: str = ""
    hint: str = ""


FREE = Cost()
RuleFunction = Callable[[Op, Graph, Chip], Cost]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One row of the table. `expensive` ops are not computed twice to save memory traffic."""

    kind: Kind
    cost: RuleFunction
    expensive: bool = False


_RULES: dict[str, Rule] = {}


def rule(
    *opcodes: str, kind: Kind, expensive: bool = False
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function (op, graph, chip) -> Cost for opcodes. Registering twice is an error."""

    def register(function: RuleFunction) -> RuleFunction:
        for opcode in opcodes:
            if opcode in _RULES:
                raise ValueError(f"[costs] {opcode}: a second cost rule, {function.__qualname__}")
            _RULES[opcode] = Rule(kind=kind, cost=function, expensive=expensive)
        return function

    return register


def _no_rule(op: Op, _graph: Graph, _chip: Chip) -> Cost:
    return Cost(unmodelled=f"no cost rule for {op.opcode}")


_UNKNOWN = Rule(kind=Kind.OTHER, cost=_no_rule)


@functools.cache
def rules() -> dict[str, Rule]:
    """The whole table, all families loaded."""
    import torchtpu.perf_model.costs as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return _RULES


def rule_for(op: Op) -> Rule:
    """The rule of an op; for an opcode without one a rule that says so."""
    table = rules()
    if op.opcode == "custom_call":
        return table.get(f"custom_call:{op.text('call_target_name')}", _UNKNOWN_CALL)
    return table.get(op.opcode, _UNKNOWN)


def _no_target(op: Op, _graph: Graph, _chip: Chip) -> Cost:
    return Cost(unmodelled=f"no cost rule for custom call {op.text('call_target_name')}")


_UNKNOWN_CALL = Rule(kind=Kind.OTHER, cost=_no_target)
