"""The programs of single ops in the TPU compiler, on a machine without a TPU.

python -m tests.ops.tpu_compiles [--topology v5e:2x2 v6e:2x2] [--ops REGEX] [--part N/M]

Each lowering's smallest recorded calls run on target cpu; the programs that this asks for are
lowered for platform tpu and compiled by libtpu (extra `tpu`, or TPU_LIBRARY_PATH).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import pytest
import torch
from torch.utils._pytree import tree_leaves

from tests.lowerings import opinfo
from tests.ops.overloads import _run, calls_of
from tests.ops.samples.call import Call
from tests.ops.worker import Died, Worker, serve
from torchtpu import executor
from torchtpu.cli.lowerings import TPU
from torchtpu.eager import kernel
from torchtpu.eager.schema import overload
from torchtpu.lowerings import table
from torchtpu.program import Program
from torchtpu.targets.compile_only import TpuCompiler, libtpu

_PATIENCE_S = 1200.0  # the first op of a process records calls of all
FAMILIES = {  # a column of the table -> the dtype of the calls it stands for
    "float32": torch.float32,
    "float64": torch.float64,
    "complex64": torch.complex64,
}


@dataclass(kw_only=True)
class Compiled:
    """What became of an op's programs: by topology, the one refused and the compiler's words."""

    op: str
    dtype: str
    programs: int = 0
    seconds: float = 0.0
    refused: dict[str, str] = field(default_factory=dict)


@contextmanager
def programs_asked_for() -> Iterator[list[Program]]:
    """Gather the programs that are compiled inside a `with` block, each once."""
    found: list[Program] = []

    def noted(ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(self: Any, program: Program) -> Any:
            if program not in found:
                found.append(program)
            return ask(self, program)

        return asked

    kernel.forget()  # a call that is prepared already asks for nothing
    strict = torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER)
    with pytest.MonkeyPatch.context() as patch, strict:
        for way in (executor.Executor.executable, executor.Executor.start):
            patch.setattr(executor.Executor, way.__name__, noted(way))
        yield found


def smallest(calls: Sequence[Call]) -> list[Call]:
    """Return the call with the fewest elements, of those with any."""
    sized = sorted(calls, key=_elements)
    return [c for c in sized if _elements(c)][:1] or sized[:1]


def _elements(call: Call) -> int:
    leaves = tree_leaves((call.args, call.kwargs))
    return sum(t.numel() for t in leaves if isinstance(t, torch.Tensor))


def compiled(op: str, dtype: str, *, compilers: Sequence[TpuCompiler]) -> Compiled:
    """Compile the programs of an op's smallest call, or of an OpInfo's first sample."""
    result = Compiled(op=op, dtype=dtype)
    with programs_asked_for() as programs, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for run in _runs(op, FAMILIES[dtype]):
            with suppress(Exception):  # tests.ops.overloads and sweep report what does not run
                run()
    result.programs = len(programs)
    for program in programs:
        for compiler in compilers:
            try:
                module, _ = executor.lower(program, "tpu")
                result.seconds += compiler.compile(module).seconds
            except Exception as error:
                line = (str(error).splitlines() or [""])[0]
                why = f"{program.name}: {type(error).__name__}: {line}"[:300]
                result.refused[compiler.topology] = why
    return result


def _runs(op: str, dtype: torch.dtype) -> Iterator[Callable[[], Any]]:
    if not op.startswith("aten::"):
        yield from opinfo.runs(op, dtype, 1, device="tpu")
        return
    for call in smallest(calls_of(op, (dtype,))):
        yield partial(_run, overload(op), call, "tpu")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 where the compiler refuses a program that the table does not."""
    parser = argparse.ArgumentParser(prog="python -m tests.ops.tpu_compiles", description=__doc__)
    parser.add_argument("--topology", nargs="+", default=["v5e:2x2", "v6e:2x2"])
    parser.add_argument("--dtype", nargs="+", default=["float32"], choices=FAMILIES)
    parser.add_argument("--ops", default=".*", help='regular expression of "add.Tensor" and so on')
    parser.add_argument("--part", default="0/1", help="N/M: each M-th op, from the N-th")
    parser.add_argument("--json", type=Path, help="file for one result per line")
    parser.add_argument("--write", action="store_true", help=f"put the results into {TPU.name}")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker:
        compilers = [TpuCompiler(t) for t in given.topology]
        return serve(lambda *job: asdict(compiled(*job, compilers=compilers)))
    part, parts = map(int, given.part.split("/"))
    names = [n for n in table() if n.startswith("aten::")]
    chosen = [n for n in names if re.fullmatch(given.ops, n.removeprefix("aten::"))][part::parts]
    results = []
    for one in _all_compiled(chosen, given.dtype, given.topology):
        results.append(one)
        for topology, why in one.refused.items():
            print(f"{one.op} {one.dtype} {topology}: {why}", flush=True)
        if given.json:
            with given.json.open("a") as file:
                file.write(json.dumps(asdict(one)) + "\n")
    known = _table()
    if given.write:
        write(results, given.topology)
    for topology in given.topology:
        right = sum(topology not in r.refused for r in results)
        print(f"{topology}: {right} of {len(results)} ops compile, {right / len(results):.1%}")
    return int(any(set(r.refused) - set(known.get(r.op, {}).get(r.dtype, {})) for r in results))


def _table() -> dict[str, dict[str, dict[str, str]]]:
    """What is known of each op and dtype: the topologies that refuse it, and why."""
    known: dict[str, dict[str, dict[str, str]]] = {}
    return json.loads(TPU.read_text())["lowerings"] if TPU.exists() else known


def libtpu_version() -> str:
    """Return the version of the library that compiles here."""
    about = Path(libtpu()).parent.parent.glob("libtpu-*.dist-info")
    return next((f.name.split("-")[1].removesuffix(".dist") for f in about), "unknown")


def write(results: Sequence[Compiled], topologies: Sequence[str]) -> None:
    """Merge results into the table that `python -m torchtpu.lowerings --tpu` prints."""
    known = _table()
    for result in results:
        known.setdefault(result.op, {})[result.dtype] = result.refused
    about = {
        "versions": {
            "jaxlib": metadata.version("jaxlib"),
            "libtpu": libtpu_version(),
        },
        "topologies": list(topologies),
        "lowerings": {op: dict(sorted(known[op].items())) for op in sorted(known)},
    }
    lines = [f" {json.dumps(op)}: {json.dumps(row)}" for op, row in about.pop("lowerings").items()]
    head = json.dumps(about, indent=1).removesuffix("\n}")
    TPU.write_text(head + ',\n "lowerings": {\n' + ",\n".join(lines) + "\n }\n}\n")


def _all_compiled(
    ops: Sequence[str], dtypes: Sequence[str], topologies: Sequence[str]
) -> Iterator[Compiled]:
    """Yield the ops that have programs, from a process that the compiler may end."""
    command = [sys.executable, "-m", "tests.ops.tpu_compiles", "--worker", "--topology"]
    worker = Worker([*command, *topologies], _PATIENCE_S)
    try:
        for dtype in dtypes:
            for op in ops:
                try:
                    one = Compiled(**json.loads(worker.ask(json.dumps([op, dtype]))))
                except Died as end:
                    one = Compiled(op=op, dtype=dtype, refused=dict.fromkeys(topologies, str(end)))
                if one.programs or one.refused:
                    yield one
    finally:
        worker.end()


if __name__ == "__main__":
    sys.exit(main())
