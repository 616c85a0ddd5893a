"""Runs torch's own distributed tests on gloo with CPU tensors, and on tpu_dist with device tensors.

What passes on gloo has to pass on tpu_dist, but for what `upstream.toml` names with a reason.
`python -m tests.distributed.upstream [--suite c10d] [--only REGEX] [--processes 2] [--json FILE]`

Suites: c10d, `distributed_test.py` of torch's wheel as gloo runs it; nccl, what of it gloo leaves
to NCCL, on tpu_dist alone; dtensors, `dtensors.py` with torch's DTensorTestBase. (The wheel's other
distributed tests are of RPC, and base classes.) `diverted.py` says how their tensors come to the
device; the collectives that ran there are counted, and printed. Profiler ranges of collectives are
not looked for: torch makes them where a Work is made in C++.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from tests.distributed import forked

_SOURCE = "torch.testing._internal.distributed.distributed_test"
_PATIENCE_S = 200.0
_WHY_CHARS = 400
_DEVICES = {"gloo": "cpu", "tpu_dist": "tpu"}
_EXCEPTIONS = Path(__file__).with_name("upstream.toml")


@dataclass(frozen=True)
class Suite:
    """Tests by name, what runs one of them as a rank, and on which backends."""

    names: Sequence[str]
    serve: Callable[[str, str, forked.Rank], None]  # of a test, on a backend
    backends: Sequence[str] = tuple(_DEVICES)


def c10d() -> Suite:
    """torch's tests of collectives and DDP, those that are for gloo."""
    module = _load("gloo")
    return Suite(_names(module), partial(_serve, module))


def nccl() -> Suite:
    """Those that are for NCCL and not for gloo: they say themselves what is right."""
    on_gloo = set(_names(_load("gloo")))
    module = _load("nccl")
    names = [name for name in _names(module) if name not in on_gloo]
    return Suite(names, partial(_serve, module), ("tpu_dist",))


def dtensors() -> Suite:
    """Our tests of DTensor, by torch's base class."""
    from tests.distributed.dtensors import DTensors

    return Suite([name for name in dir(DTensors) if name.startswith("test_")], _serve_dtensors)


SUITES = {"c10d": c10d, "nccl": nccl, "dtensors": dtensors}


def _load(backend: str) -> Any:
    """Import torch's tests as they are for a backend, where no GPU is missed."""
    from torch.testing._internal.common_distributed import DistTestCases

    from tests.distributed.diverted import gates_open

    os.environ["BACKEND"] = backend
    for features in DistTestCases.backend_feature.values():
        features.add("tpu_dist")
    spec = importlib.util.find_spec(_SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_SOURCE] = module  # pickle looks for its classes there
    with gates_open():
        spec.loader.exec_module(module)
    return module


def _names(module: Any) -> list[str]:
    tests = module.DistributedTest._DistTestBase
    found = [name for name in dir(tests) if name.startswith("test_")]
    return [n for n in found if not getattr(getattr(tests, n), "__unittest_skip__", False)]


class _Named(str):
    """A backend's name, which is also that of the backend that the tests were written for."""

    gates: str

    def __new__(cls, name: str, gates: str) -> _Named:
        made = super().__new__(cls, name)
        made.gates = gates
        return made

    def __eq__(self, other: object) -> bool:
        return str(self) == other or self.gates == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _serve(module: Any, name: str, backend: str, rank: forked.Rank) -> None:
    """Be a rank of the world of one of torch's tests."""
    import torch.distributed as dist
    from torch.testing._internal.common_utils import set_rng_seed

    from tests.distributed.diverted import diverted

    for part in ("barrier", "test_dir"):
        os.makedirs(os.path.join(rank.folder, part), exist_ok=True)
    os.environ.update(TEMP_DIR=rank.folder, RANK=str(rank.number), MASTER_ADDR="127.0.0.1")
    sys.modules[_SOURCE] = module
    module.BACKEND = _Named(backend, os.environ["BACKEND"])
    kind = type("Test", (module.DistributedTest._DistTestBase, module.TestDistBackend), {})
    test = kind(name)
    test.rank, test.file_name = rank.number, os.path.join(rank.folder, "store")
    _count(rank)
    dist.init_process_group(
        init_method=test.init_method,
        backend=backend,
        world_size=rank.size,
        rank=rank.number,
        timeout=timedelta(seconds=module.CUSTOM_PG_TIMEOUT.get(name, module.default_pg_timeout)),
    )
    test._barrier()
    set_rng_seed(1234)
    with diverted(_DEVICES[backend], module):
        getattr(test, name)()
    if dist.is_initialized():
        dist.destroy_process_group()


def _serve_dtensors(name: str, backend: str, rank: forked.Rank) -> None:
    """Be a rank of the world of one of our tests of DTensor."""
    import torch
    import torch.distributed as dist

    from tests.distributed.dtensors import DTensors

    DTensors.device = _DEVICES[backend]
    test = DTensors(name)
    test.rank = rank.number
    _count(rank)
    dist.init_process_group(
        backend,
        init_method=f"file://{os.path.join(rank.folder, 'store')}",
        world_size=rank.size,
        rank=rank.number,
        timeout=timedelta(seconds=60),
    )
    torch.manual_seed(0)
    getattr(test, name)()
    dist.barrier()


def _count(rank: forked.Rank) -> None:
    """Count collectives of tpu_dist by the device that they run on."""
    from torchtpu.distributed.engine import Engine
    from torchtpu.distributed.group import TpuGroup

    engine: Any = Engine
    group: Any = TpuGroup
    submit, by_host = engine.submit, group._by_host

    def on_device(self: Any, call: Any) -> Any:
        rank.calls["barrier" if call.name == "barrier" else "device"] += 1
        return submit(self, call)

    def on_host(self: Any, *arguments: Any) -> Any:
        rank.calls["host"] += 1
        return by_host(self, *arguments)

    engine.submit, group._by_host = on_device, on_host


@dataclass
class Report:
    """Outcomes by test and backend, and what they say beside the exceptions."""

    suite: str
    reasons: dict[str, str]
    outcomes: dict[str, dict[str, forked.Outcome]]

    def line(self, name: str) -> str:
        """What became of a test, for people."""
        found = self.outcomes[name]
        told = [f"{b} {o.verdict} {o.seconds:.1f} s" for b, o in found.items()]
        calls = found["tpu_dist"].calls
        return f"{name}: {', '.join(told)} {calls or ''}".rstrip()

    def faults(self) -> dict[str, str]:
        """Tests that gloo passes (or does not know) and tpu_dist does not; stale exceptions."""
        wrong = {}
        for name, found in self.outcomes.items():
            ours = found["tpu_dist"]
            is_due = "gloo" not in found or found["gloo"].verdict == "pass"
            if ours.verdict == "pass" and name in self.reasons:
                wrong[name] = f"passes, though {_EXCEPTIONS.name} says: {self.reasons[name]}"
            if is_due and ours.verdict != "pass" and name not in self.reasons:
                wrong[name] = f"{ours.verdict}: {ours.why}"
        return wrong

    def summary(self) -> str:
        """Counts of what passes where, and on which device collectives ran."""
        every = self.outcomes.values()
        due = [o for o in every if "gloo" not in o or o["gloo"].verdict == "pass"]
        passed = [o for o in due if o["tpu_dist"].verdict == "pass"]
        calls: dict[str, int] = {}
        for found in passed:
            for where, count in found["tpu_dist"].calls.items():
                calls[where] = calls.get(where, 0) + count
        return (
            f"{self.suite}: {len(self.outcomes)} tests, {len(due)} due, of them {len(passed)} "
            f"pass on tpu_dist; collectives of all ranks: {calls}"
        )


def exceptions(suite: str) -> dict[str, str]:
    """Return the reasons why tests of a suite cannot pass, by test."""
    rows = tomllib.loads(_EXCEPTIONS.read_text())["exception"]
    return {row["test"]: row["reason"] for row in rows if row["suite"] == suite}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a suite; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--suite", choices=SUITES, default="c10d")
    parser.add_argument("--only", default="", help="regular expression found in a test's name")
    parser.add_argument("--processes", type=int, default=0, help="default: 2 for c10d, else 4")
    parser.add_argument("--json", type=Path, help="file for all outcomes")
    chosen = parser.parse_args(arguments)
    size = chosen.processes or (2 if chosen.suite == "c10d" else 4)
    with tempfile.TemporaryDirectory(prefix="torchtpu-upstream-") as cache:
        defaults = {"TORCHTPU_TARGET": "cpu", "TORCHTPU_CACHE_DIR": cache}
        os.environ.update({k: v for k, v in defaults.items() if k not in os.environ})
        os.environ.update(
            WORLD_SIZE=str(size),
            OMP_NUM_THREADS="1",
            TF_CPP_MIN_LOG_LEVEL="2",
            TORCH_TPU_TIER2_COMPILATION_CACHE="upstream",
        )
        report = _run(chosen, size)
    wrong = report.faults()
    for name, why in wrong.items():
        print(f"\n{name}: {why[-_WHY_CHARS:]}")
    print(report.summary())
    return 1 if wrong else 0


def _run(chosen: argparse.Namespace, size: int) -> Report:
    from torchtpu.distributed import ddp, dtensor, group  # noqa: F401  # for all ranks at once
    from torchtpu.eager import dispatch
    from torchtpu.lowerings import table

    dispatch.install()
    table()
    suite = SUITES[chosen.suite]()
    report = Report(chosen.suite, exceptions(chosen.suite), {})
    for name in suite.names:
        if not re.search(chosen.only, name):
            continue
        report.outcomes[name] = {
            backend: forked.run(partial(suite.serve, name, backend), size, _PATIENCE_S)
            for backend in suite.backends
        }
        print(report.line(name), flush=True)
        if chosen.json:
            every = {n: {b: asdict(o) for b, o in f.items()} for n, f in report.outcomes.items()}
            chosen.json.write_text(json.dumps(every, indent=1))
    return report


if __name__ == "__main__":
    raise SystemExit(main())
