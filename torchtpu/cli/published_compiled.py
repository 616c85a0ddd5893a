"""Published kernel rows through the TPU compiler: each program compiled, its timeline the time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torchtpu.oracle.compiler import OracleCompiler
from torchtpu.oracle.estimate import alone
from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.hlo import reader as hlo
from torchtpu.perf_model.hlo import timeline as hlo_timeline
from torchtpu.perf_model.program import Graph
from torchtpu.perf_model.validation.kernels import in_unit, program_of
from torchtpu.perf_model.validation.rows import Row
from torchtpu.perf_model.validation.table import Answer
from torchtpu.private import jax as private
from torchtpu.targets.compile_batch import Compilation

KINDS = ("gemm", "copy", "kernel_floor")
_ARGUMENTS = "LIBTPU_INIT_ARGS"
_OPS = {
    "dot_general": "stablehlo.dot_general {0}, {1}, contracting_dims = [1] x [0] : ({t0}, {t1})",
    "negate": "stablehlo.negate {0} : ({t0})",
    "add": "stablehlo.add {0}, {1} : ({t0}, {t1})",
}


def answers(rows: Sequence[Row]) -> list[Answer]:
    """What the compiler's plan for each row's program takes. Raises TargetError without libtpu."""
    found: dict[str, Answer] = {}
    for chip, kib in dict.fromkeys(map(_place, rows)):
        mine = [row for row in rows if _place(row) == (chip, kib)]
        with _vmem_limit(kib):
            found |= {answer.row.id: answer for answer in _of_chip(chip, mine)}
    return [found[row.id] for row in rows]


def _place(row: Row) -> tuple[str, int]:
    """The chip, and the limit of a kernel's VMEM in KiB that the source has set (0 for none)."""
    return row.chip, row.config.get("scoped_vmem_kib", 0)


@contextmanager
def _vmem_limit(kib: int) -> Iterator[None]:
    """Compile with a limit of the VMEM of one kernel."""
    before = os.environ.get(_ARGUMENTS)
    if kib:
        os.environ[_ARGUMENTS] = f"{before or ''} --xla_tpu_scoped_vmem_limit_kib={kib}".strip()
    try:
        yield
    finally:
        os.environ.pop(_ARGUMENTS, None)
        if before is not None:
            os.environ[_ARGUMENTS] = before


def _of_chip(name: str, rows: Sequence[Row]) -> list[Answer]:
    chip = chips.load(name)
    texts = {row.id: text_of(program_of(row)) for row in rows}
    names = {text: f"p{n}" for n, text in enumerate(dict.fromkeys(texts.values()))}
    modules = {name: (private.parse_module(text), 1) for text, name in names.items()}
    made = OracleCompiler(alone(chip)).compile(modules)
    return [_answer(row, chip, made[names[texts[row.id]]]) for row in rows]


def _answer(row: Row, chip: Chip, compiled: Compilation) -> Answer:
    if compiled.report is None:
        return Answer(row=row, reason=compiled.failure)
    time_s = hlo_timeline.timeline(hlo.read(compiled.hlo), chip).time_s
    return Answer(row=row, predicted=in_unit(row, time_s))


def text_of(graph: Graph) -> str:
    """StableHLO of a program of one op."""
    (op,) = graph.ops
    types = [f"tensor<{'x'.join([*map(str, t.shape), t.dtype])}>" for t in graph.types]
    inputs = [f"%arg{n}" for n in range(len(graph.inputs))]
    said: Mapping[str, str] = {f"t{n}": types[v] for n, v in enumerate(op.operands)}
    call = _OPS[op.opcode].format(*inputs, **said)
    taken = ", ".join(f"{n}: {types[v]}" for n, v in zip(inputs, graph.inputs, strict=True))
    result = types[op.results[0]]
    return (
        f"module @row {{ func.func public @main({taken}) -> {result} {{\n"
        f"%0 = {call} -> {result}\nreturn %0 : {result} }} }}"
    )
