"""What of torch's own distributed tests passes on gloo passes on tpu_dist; so do ours of DTensor.

TORCHTPU_TEST_ALL=1 runs all of them, in worlds of two and four; otherwise a few.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.distributed import forked, upstream

_ALL = bool(os.environ.get("TORCHTPU_TEST_ALL"))
_FEW = {
    "c10d": "^test_(all_reduce_sum|broadcast|send_recv_with_tag|gather_object|scatter_object_list|"
    "ddp_control_flow_same_across_ranks|ddp_sync_module_states|monitored_barrier_gloo)$",
    "nccl": "^test_(reduce_scatter_tensor_cuda|coalescing_manager)$",
    "dtensors": "^test_(attention|dropout|redistributes_empty_ones)$",
}
_RUNS = [(suite, 0, "" if _ALL else only) for suite, only in _FEW.items()]
_RUNS += [("c10d", 4, "group|world|model_averager")] if _ALL else []

pytestmark = pytest.mark.timeout(7200 if _ALL else 480)  # several processes per test


@pytest.mark.parametrize(("suite", "processes", "only"), _RUNS)
def test_torch_s_own_tests(suite: str, processes: int, only: str) -> None:
    command = [sys.executable, "-m", "tests.distributed.upstream", "--suite", suite]
    command += ["--only", only, "--processes", str(processes)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "'device': " in ran.stdout.splitlines()[-1], ran.stdout  # they did run there


def _found(gloo: str, ours: str) -> dict[str, forked.Outcome]:
    return {"gloo": forked.Outcome(gloo), "tpu_dist": forked.Outcome(ours, "why")}


def test_what_gloo_passes_is_due() -> None:
    outcomes = {"a": _found("pass", "fail"), "b": _found("fail", "fail")}
    outcomes |= {"c": _found("pass", "pass"), "d": _found("pass", "hang")}
    report = upstream.Report("c10d", {"c": "a reason", "d": "a reason"}, outcomes)
    assert list(report.faults()) == ["a", "c"]  # c: an exception that is none any more
    assert "4 tests, 3 due, of them 1 pass" in report.summary()
