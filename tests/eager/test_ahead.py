"""Running ahead of compiles: the results, the order and the errors of waiting for each of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torchtpu import executor
from torchtpu.eager import ahead, modes
from torchtpu.errors import FreedStorageError
from torchtpu.storage import buffer_of

pytestmark = pytest.mark.usefixtures("strict")


class Gate:
    """Holds compiles in other threads until it is opened; may make some fail."""

    def __init__(self, compile_: Callable[..., Any]) -> None:
        self.fails: Callable[[str], bool] = lambda _: False
        self._compile = compile_
        self._open = threading.Event()

    def __call__(self, module: Any, outputs: Any, *ranks: Any) -> Any:
        if threading.current_thread().name == "torchtpu-compile":
            assert self._open.wait(60)
        if self.fails(str(module)):
            raise ValueError("the compiler broke")
        return self._compile(module, outputs, *ranks)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Strict mode with threads, nothing compiled yet, and compiles that wait for `gate.open()`."""
    torch.tpu.synchronize()
    torch.tpu._clear_cache()
    current = executor.current()
    monkeypatch.setattr(current.workers, "limit", 2)
    monkeypatch.setattr(current, "tiers", _no_tiers())
    made = Gate(current.target.compile)
    monkeypatch.setattr(current.target, "compile", made)
    yield made
    made.open()
    torch.tpu.synchronize()


def _no_tiers() -> Any:
    from torchtpu.cache import Tiers
    from torchtpu.cache.tier import Tier

    return Tiers(executor.current().cache, Tier("host", None), Tier("shared", None))


def _waiting() -> int:
    return len(ahead.queue._launches)


def _tpu(*values: float) -> torch.Tensor:
    return torch.tensor(values).to("tpu")  # copied from the host: no program


def test_launches_wait_in_order_and_a_read_waits_for_its_own(gate: Gate) -> None:
    x = _tpu(1.0, 2.0)
    y = x + 1
    z = y * x
    w = x + 1  # the same program again
    assert _waiting() == 3
    assert type(buffer_of(y.untyped_storage()).array) is ahead.Result
    gate.open()
    assert y.tolist() == [2.0, 3.0]
    assert _waiting() == 2
    assert (z.tolist(), w.tolist()) == ([2.0, 6.0], [2.0, 3.0])
    assert _waiting() == 0
    x + 1  # finds nothing waiting
    assert modes.current is modes.STRICT


def test_what_is_ready_runs_at_the_next_launch(gate: Gate) -> None:
    x = _tpu(1.0)
    y = x + 1
    gate.open()
    executor.current().settle()
    assert _waiting() == 1
    z = x + 1
    assert _waiting() == 0
    assert modes.current is modes.STRICT
    assert not isinstance(buffer_of(y.untyped_storage()).array, ahead.Result)
    assert (y + z).tolist() == [4.0]


def _in_place(device: str) -> list[list[float]]:
    x = torch.arange(6.0).to(device)
    kept = x.clone()
    x.add_(1)
    view = x[2:4]
    before = view * 10
    view.mul_(3)
    x[0] = 7.0
    x.sub_(view.sum())
    after = x * 2
    x.zero_()
    x.add_(after, alpha=0.5)
    del view
    return [t.tolist() for t in (kept, before, after, x)]


def test_in_place_updates_and_donations_keep_their_order(gate: Gate) -> None:
    opener = threading.Timer(0.2, gate.open)  # while this thread waits in the first tolist
    opener.start()
    assert _in_place("tpu") == _in_place("cpu")
    opener.join()


def test_a_storage_that_is_shared_is_not_overwritten(gate: Gate) -> None:
    x = _tpu(1.0, 2.0)
    gate.open()
    y = x + 1
    other = torch.empty(0, device="tpu").set_(y.untyped_storage().clone(), 0, (2,), (1,))
    y.add_(1)
    y.add_(1)
    assert (other.tolist(), y.tolist()) == ([2.0, 3.0], [4.0, 5.0])


def test_a_tensor_that_dies_while_it_waits(gate: Gate) -> None:
    x = _tpu(1.0)
    used = torch.tpu.memory_allocated()
    y = x + 1
    z = y * 2
    del y
    assert torch.tpu.memory_allocated() == used + 4
    gate.open()
    assert z.tolist() == [4.0]


def test_a_host_write_replaces_what_waits(gate: Gate) -> None:
    x = _tpu(1.0, 1.0)
    x.add_(1)
    y = x * 3
    x.copy_(torch.tensor([5.0, 6.0]))
    gate.open()
    assert (y.tolist(), x.tolist()) == ([6.0, 6.0], [5.0, 6.0])


def test_random_numbers_come_in_program_order(gate: Gate) -> None:
    def draw() -> list[list[float]]:
        torch.manual_seed(3)
        a = torch.rand(3, device="tpu")
        b = torch.nn.functional.dropout(a + 1, 0.5)
        return [t.tolist() for t in (b, a, torch.randn(2, device="tpu"))]

    gate.open()
    ahead_of_compiles = draw()
    assert draw() == ahead_of_compiles


@pytest.mark.parametrize("surface", [torch.tpu.synchronize, lambda: torch.ones(2, device="tpu")])
def test_an_error_surfaces_once_with_the_line_that_launched_it(
    gate: Gate, surface: Callable[[], object]
) -> None:
    gate.fails = lambda text: "stablehlo.exponential" in text
    x = _tpu(1.0, 2.0)
    independent = x + 1
    broken = x.exp()  # the line of the error
    dependent = broken * 2
    written = x.clone()
    written.add_(broken)
    gate.open()
    executor.current().settle()
    with pytest.raises(ValueError, match="the compiler broke") as raised:
        surface()
    line = test_an_error_surfaces_once_with_the_line_that_launched_it.__code__.co_firstlineno + 7
    assert raised.value.__notes__ == [f"[torchtpu] in aten::exp, called from test_ahead.py:{line}"]
    torch.tpu.synchronize()
    assert independent.tolist() == [2.0, 3.0]
    assert x.tolist() == [1.0, 2.0]
    for lost in (broken, dependent, written):
        with pytest.raises(FreedStorageError, match="that computes it failed: the compiler broke"):
            lost.tolist()
    written.copy_(torch.tensor([4.0, 5.0]))
    assert written.tolist() == [4.0, 5.0]


def test_a_read_raises_the_error_of_a_launch_before(gate: Gate) -> None:
    gate.fails = lambda text: "stablehlo.exponential" in text
    x = _tpu(1.0, 2.0)
    broken = x.exp()
    after = x + 1
    gate.open()
    with pytest.raises(ValueError, match="the compiler broke"):
        after.tolist()
    assert after.tolist() == [2.0, 3.0]
    del broken


def test_errors_of_shapes_raise_at_once(gate: Gate) -> None:
    x = _tpu(1.0, 2.0)
    y = x + 1
    with pytest.raises(RuntimeError, match="must match the size"):
        y + _tpu(1.0, 2.0, 3.0)
    assert _waiting() == 1
    gate.open()


def test_the_queue_is_bounded(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MAX_LAUNCHES", 3)
    x = _tpu(0.0)
    for _ in range(3):
        x.add_(1)
    assert _waiting() == 3
    gate.open()
    for _ in range(3):
        x.add_(1)
    assert _waiting() <= 3
    assert x.tolist() == [6.0]


def test_another_mode_starts_with_nothing_waiting(gate: Gate) -> None:
    x = _tpu(1.0)
    y = x + 1
    gate.open()
    for mode in (
        torch.tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING,
        torch.tpu.EagerMode.DEFER_AND_FUSE,
    ):
        with torch.tpu.set_eager_mode(mode):
            assert _waiting() == 0
            z = y.sin()
        assert torch.tpu.eager_mode == torch.tpu.EagerMode.DEFER_NEVER
    assert y.tolist() == [2.0]
    del z


def test_debug_mode_never_waits_and_no_threads_mean_strict(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = _tpu(1.0)
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING):
        x + 1
        assert _waiting() == 0
    monkeypatch.setattr(executor.current().workers, "limit", 0)
    x * 2
    assert _waiting() == 0
    assert modes.current is modes.STRICT


def _losses() -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 9), torch.nn.BatchNorm1d(9), torch.nn.GELU(), torch.nn.Linear(9, 1)
    ).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, losses = torch.randn(5, 6).to("tpu"), []
    for _ in range(3):
        loss = torch.nn.functional.dropout(model(x), 0.2).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def test_a_training_gives_the_same_bits_with_and_without_threads(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.open()
    with_threads = _losses()
    torch.tpu._clear_cache()
    monkeypatch.setattr(executor.current().workers, "limit", 0)
    assert _losses() == with_threads


def _run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "TORCHTPU_TARGET": "cpu",
        "TORCHTPU_MODE": "strict",
        "TORCHTPU_COMPILE_THREADS": "2",
        "TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled",
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment | variables,
    )


LEFT = """
import torch
x = torch.ones(3).to("tpu")
for f in (torch.sin, torch.cos, torch.exp, torch.erf, torch.tanh, torch.sigmoid, torch.relu):
    y = f(x)
"""


def test_a_program_may_end_with_launches_waiting() -> None:
    done = _run(LEFT)
    assert (done.returncode, done.stderr) == (0, "")


AT_EXIT = """
import atexit, torch
x = torch.ones(3).to("tpu")
y = [f(x) for f in (torch.abs, torch.neg, torch.square, torch.relu)]
atexit.register(lambda: print([t.tolist() for t in y], (x + 1).tolist()))
"""


def test_values_can_be_read_at_exit() -> None:
    done = _run(AT_EXIT)
    ones = [1.0] * 3
    assert done.stdout == f"{[ones, [-1.0] * 3, ones, ones]} [2.0, 2.0, 2.0]\n"
    assert (done.returncode, done.stderr) == (0, "")


FORK = """
import os, sys, torch
from torchtpu.errors import TpuError

x = torch.ones(3).to("tpu")
y = x.sin()
child = os.fork()
if child == 0:
    try:
        y.tolist()
    except TpuError as error:
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), y.shape)
"""


def test_a_forked_child_gets_an_error_and_does_not_wait() -> None:
    done = _run(FORK)
    assert (done.stdout, done.stderr) == ("7 torch.Size([3])\n", "")


def test_a_simulated_clock_wants_its_launches_one_by_one() -> None:
    code = "import torch; torch.ones(2, device='tpu'); from torchtpu import executor; "
    done = _run(code + "print(executor.current().workers.limit)", TORCHTPU_TARGET="sim")
    assert done.stdout == "0\n"
