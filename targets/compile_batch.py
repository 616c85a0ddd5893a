"""Many programs in the TPU compiler, in a process of their own: each gets an answer.

`python -m torchtpu.targets.compile_batch LIST` compiles the programs of a list in JSON and writes
NAME.hlo and NAME.json beside each NAME.mlirbc; a later process goes on where one has died.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torchtpu
from torchtpu.private import jax as private
from torchtpu.targets import child
from torchtpu.targets.base import CompileReport

_EACH_S = 120.0  # more for each further program of a process
_PROCESSES = 2  # at a time; each takes up to 1.5 GB
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

    A few processes share the work. What ends one is the answer for the program that it worked on;
    the others go on. limit_s: for a program, after which the answer is that there is none.
    """
    with tempfile.TemporaryDirectory(prefix="torchtpu-oracle-") as text:
        folder = Path(text)
        for job in jobs:
            (folder / f"{job.name}.mlirbc").write_bytes(job.module)
        paths = _paths(folder, python)
        shares = _shares(jobs)
        with ThreadPoolExecutor(max_workers=len(shares)) as pool:
            done = [
                pool.submit(_work, share, folder / f"{number}", python, paths, limit_s)
                for number, share in enumerate(shares)
            ]
            for worker in done:
                worker.result()
        return {job.name: _read(folder, job.name) for job in jobs}


def _shares(jobs: Sequence[Job]) -> list[list[Job]]:
    """Deal programs out to processes, the longest first, each to whoever has least."""
    shares: list[list[Job]] = [[] for _ in range(min(_PROCESSES, os.cpu_count() or 1, len(jobs)))]
    for job in sorted(jobs, key=lambda j: -len(j.module)):
        least = min(shares, key=lambda share: sum(len(j.module) for j in share))
        least.append(job)
    return shares or [[]]


def _work(
    jobs: Sequence[Job], listed: Path, python: str, paths: list[str] | None, limit_s: float
) -> None:
    """Have programs compiled by one process after the other until each has an answer."""
    folder, pending = listed.parent, list(jobs)
    while pending:
        _list(listed, pending)
        limit = limit_s + _EACH_S * (len(pending) - 1)
        answer = child.ask(__name__, str(listed), limit_s=limit, python=python, paths=paths)
        left = [job for job in pending if not (folder / f"{job.name}.json").exists()]
        if left:  # the process has died of the first one, or could not begin
            _write(folder, left[0].name, Compilation(failure=answer.failure or "no answer"))
        pending = left[1:]


def _paths(folder: Path, python: str) -> list[str] | None:
    """Where another interpreter finds this package, and nothing else of this environment."""
    if python == sys.executable:
        return None
    link = folder / "path" / "torchtpu"
    if not link.exists():
        link.parent.mkdir()
        link.symlink_to(Path(torchtpu.__file__).resolve().parent, target_is_directory=True)
    return [str(link.parent)]


def _list(listed: Path, jobs: Iterable[Job]) -> None:
    about = [{"name": j.name, "topology": j.topology, "devices": j.devices} for j in jobs]
    listed.write_text(json.dumps(about))


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


def main(listed: str) -> None:
    """Compile the jobs of a list, in order; their programs and answers lie beside it."""
    from torchtpu.targets.compile_only import TpuCompiler

    folder = Path(listed).parent
    compilers: dict[str, TpuCompiler] = {}
    for job in json.loads(Path(listed).read_text()):
        name, topology = job["name"], job["topology"]
        try:
            if topology not in compilers:
                compilers[topology] = TpuCompiler(topology)
            module = _parsed((folder / f"{name}.mlirbc").read_bytes())
            text, report = compilers[topology].optimized(module, job["devices"])
            made = Compilation(report=report, hlo=text)
        except Exception as error:
            made = failed(str(error) or type(error).__name__)
        _write(folder, name, made)
    sys.stdout.write("true\n")


def _parsed(module: bytes) -> Any:
    is_portable = _PORTABLE in module[:64]
    return private.parse_portable(module) if is_portable else private.parse_module(module)


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    main(*sys.argv[1:])
