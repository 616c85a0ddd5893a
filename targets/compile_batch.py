"""Many programs in the TPU compiler, in a process of their own: each gets an answer.

`python -m torchtpu.targets.compile_batch FOLDER` compiles what FOLDER/jobs.json lists and writes
NAME.hlo and NAME.json beside each NAME.mlirbc; a later process goes on where one has died.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torchtpu
from torchtpu.private import jax as private
from torchtpu.targets import child
from torchtpu.targets.base import CompileReport

_JOBS = "jobs.json"
_PORTABLE = b"StableHLO_v"  # in the producer that a portable artifact begins with
_OUT_OF_MEMORY = re.compile(r"CompileTimeHbmOom|Ran out of memory (?:on|in memory space) hbm", re.I)
_NEEDED = (
    re.compile(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM"),
    re.compile(r"[Uu]sed ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm"),
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A program to compile for `devices` devices of a topology, 1 or all of them.

    module: StableHLO as MLIR bytecode, or as a portable artifact for another version of jax.
    """

    name: str
    topology: str
    devices: int
    module: bytes


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """What the compiler says of a program: its report and its optimized HLO, or a failure.

    out_of_memory: the failure is the compiler's own verdict; then needed_bytes is what the program
    would take of the HBM (0 where the message does not say).
    """

    report: CompileReport | None = None
    hlo: str = ""
    failure: str = ""
    out_of_memory: bool = False
    needed_bytes: int = 0


def compile_batch(jobs: Sequence[Job], python: str, limit_s: float) -> dict[str, Compilation]:
    """Compile programs with the libtpu of an interpreter; return the answers by name.

    What ends the process is the answer for the program that it worked on; the others go on.
    """
    with tempfile.TemporaryDirectory(prefix="torchtpu-oracle-") as text:
        folder = Path(text)
        for job in jobs:
            (folder / f"{job.name}.mlirbc").write_bytes(job.module)
        pending = list(jobs)
        while pending:
            _list(folder, pending)
            answer = child.ask(
                __name__, text, limit_s=limit_s, python=python, paths=_paths(folder, python)
            )
            left = [job for job in pending if not (folder / f"{job.name}.json").exists()]
            if left:  # the process has died of the first one, or could not begin
                why = answer.failure or "no answer"
                _write(folder, left[0].name, Compilation(failure=why))
                left = left[1:]
            pending = left
        return {job.name: _read(folder, job.name) for job in jobs}


def _paths(folder: Path, python: str) -> list[str] | None:
    """Where another interpreter finds this package, and nothing else of this environment."""
    if python == sys.executable:
        return None
    link = folder / "path" / "torchtpu"
    if not link.exists():
        link.parent.mkdir()
        link.symlink_to(Path(torchtpu.__file__).resolve().parent, target_is_directory=True)
    return [str(link.parent)]


def _list(folder: Path, jobs: Iterable[Job]) -> None:
    listed = [{"name": j.name, "topology": j.topology, "devices": j.devices} for j in jobs]
    (folder / _JOBS).write_text(json.dumps(listed))


def _write(folder: Path, name: str, made: Compilation) -> None:
    """Write the text first: an answer is there when its JSON is, which appears in one step."""
    (folder / f"{name}.hlo").write_text(made.hlo)
    temporary = folder / f"{name}.tmp"
    temporary.write_text(json.dumps({**asdict(made), "hlo": ""}))
    temporary.replace(folder / f"{name}.json")


def _read(folder: Path, name: str) -> Compilation:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return compilation({**found, "hlo": (folder / f"{name}.hlo").read_text()})


def compilation(fields: dict[str, Any]) -> Compilation:
    """Return a compilation of its fields as `asdict` gives them."""
    report = fields["report"]
    return Compilation(**{**fields, "report": CompileReport(**report) if report else None})


def failed(message: str) -> Compilation:
    """Return what an error of the compiler means: no room in HBM is a verdict of its own."""
    first = (message.splitlines() or ["no message"])[0]
    if not _OUT_OF_MEMORY.search(message):
        return Compilation(failure=first)
    used = next((u for pattern in _NEEDED if (u := pattern.search(message))), None)
    needed = int(float(used[1]) * _UNITS[used[2]]) if used else 0
    return Compilation(failure=first, out_of_memory=True, needed_bytes=needed)


def main(folder: str) -> None:
    """Compile the jobs of a folder, in order."""
    from torchtpu.targets.compile_only import TpuCompiler

    place = Path(folder)
    compilers: dict[str, TpuCompiler] = {}
    for job in json.loads((place / _JOBS).read_text()):
        name, topology = job["name"], job["topology"]
        try:
            compiler = compilers.setdefault(topology, TpuCompiler(topology))
            module = _parsed((place / f"{name}.mlirbc").read_bytes())
            text, report = compiler.optimized(module, job["devices"])
            made = Compilation(report=report, hlo=text)
        except Exception as error:
            made = failed(str(error) or type(error).__name__)
        _write(place, name, made)
    sys.stdout.write("true\n")


def _parsed(module: bytes) -> Any:
    is_portable = _PORTABLE in module[:64]
    return private.parse_portable(module) if is_portable else private.parse_module(module)


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    main(*sys.argv[1:])
