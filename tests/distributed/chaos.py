"""Ranks of an elastic training are killed and stopped at random; it ends as if nothing had been.

python -m tests.distributed.chaos --events 50 --seed 0

Each launch is `torchrun --max-restarts` over two ranks of examples/train_ddp.py with checkpoints.
torchrun sees a rank that has ended; one that stands still is the other rank's to notice, by the
time limit of the process group.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

TIMEOUT_S = 15.0  # of the process group
START_S = 60.0  # for processes that import, compile and find each other on a busy machine
GRACE_S = 20.0  # for one that has learned of a failure to say so and end
SHUTDOWN_S = 2  # after which torchrun kills what SIGTERM did not end
STEPS = 305  # not a multiple of what lies between two checkpoints: the last steps are always run
KINDS = ("kill", "stop", "stop and go on", "pause")
MOST_OWN = 5  # ends of ranks that nothing was done to, as by a limit of time on a busy machine
CLOSE = 1e-4  # relative, of the final loss
_LOOK_S = 0.05
_ERROR = re.compile(r"^(?:\[rank\d+\]: )?([\w.]*(?:Error|Timeout|Exception)\b.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Event:
    """What was done to a rank, and how long everything of its world was there after it."""

    kind: str
    rank: int
    is_early: bool  # before the first step
    seconds: float
    said: str  # the error of the rank that nothing was done to


@dataclass
class Report:
    """What happened, and what of it must not happen."""

    loss: float = 0.0  # undisturbed
    losses: list[float] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    own: list[str] = field(default_factory=list)  # errors where nothing was done
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Rank:
    """A process of torchrun's."""

    number: int
    pid: int
    log: Path  # of its errors

    def is_there(self) -> bool:
        """Tell whether it runs or stands still."""
        return _state(self.pid) not in ("", "Z", "X")

    def has_said(self, word: str) -> bool:
        """Tell whether it has printed a word: "step" after one, "finished" after the last."""
        with suppress(OSError):
            return word in self.log.with_name("stdout.log").read_text()
        return False

    def said(self) -> str:
        """Return its last error."""
        found = _ERROR.findall(self.log.read_text())
        return str(found[-1]) if found else ""


class Launch:
    """One torchrun."""

    def __init__(self, folder: Path, cache: Path, *, shard: bool) -> None:
        self._kept = folder / "checkpoints"
        self._kept.mkdir(parents=True)
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("--max-restarts=1000", "--monitor-interval=0.1", f"--shutdown-timeout={SHUTDOWN_S}"),
            *("--redirects=3", f"--log-dir={folder / 'logs'}", "-m", "tests.distributed.chaos"),
            *("--train", str(self._kept), *(["--shard"] if shard else [])),
        ]
        environment = {
            **os.environ,
            "TORCHTPU_TARGET": os.environ.get("TORCHTPU_TARGET", "cpu"),
            "TORCHTPU_CACHE_DIR": str(cache),
            "TORCH_TPU_TIER2_COMPILATION_CACHE": "chaos",
            "OMP_NUM_THREADS": "1",
        }
        root = Path(__file__).parents[2]
        with (folder / "torchrun.log").open("w") as log:
            self.agent = subprocess.Popen(
                command, cwd=root, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def ranks(self) -> list[Rank]:
        """Wait until both ranks are there; none where the training is over."""
        found: list[Rank] = []
        while len(found) < 2 and self.agent.poll() is None:
            time.sleep(_LOOK_S)
            found = _ranks(self.agent.pid)
        return sorted(found, key=lambda r: r.number) if len(found) == 2 else []

    def loss(self) -> float:
        """Return the final loss; RuntimeError where there is none."""
        code = self.agent.wait(timeout=600.0)
        final = self._kept / "final"
        if code or not final.exists():
            raise RuntimeError(f"torchrun ended with {code}, and without a final loss")
        return float(final.read_text())

    def end(self) -> None:
        """Leave no process behind."""
        for rank in _ranks(self.agent.pid):
            _signal(rank.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(self.agent.pid, signal.SIGKILL)
        self.agent.wait()


def run(events: int, seed: int, folder: Path, tell: Callable[[str], None]) -> Report:
    """Train without events, and then over and over again until there have been so many."""
    draws, report, cache = random.Random(seed), Report(), folder / "cache"
    cache.mkdir()
    count = 0
    while not report.faults and (len(report.events) < events or not report.losses):
        launch = Launch(folder / str(count), cache, shard=count % 2 == 1)
        try:
            if count:
                _disturb(launch, events, draws, report, tell)
            if not report.faults:
                _keep(report, launch.loss(), count)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            report.faults.append(f"launch {count}: {error}")
        finally:
            launch.end()
        tell(f"launch {count}: loss {report.losses[-1] if report.losses else report.loss}")
        count += 1
    return report


def _keep(report: Report, loss: float, count: int) -> None:
    if count == 0:
        report.loss = loss
        return
    report.losses.append(loss)
    if abs(loss / report.loss - 1) > CLOSE:
        report.faults.append(f"launch {count}: loss {loss}, undisturbed {report.loss}")


def _disturb(
    launch: Launch, events: int, draws: random.Random, report: Report, tell: Callable[[str], None]
) -> None:
    """Let things happen to a launch, until there have been enough or it is over."""
    while len(report.events) < events and not report.faults:
        ranks = launch.ranks()
        if not ranks:
            return
        event = _happens(draws, ranks, report.faults)
        if event is not None:
            report.events.append(event)
            tell(f"{len(report.events):3} {event}")
            continue
        said = next((r.said() for r in ranks if r.said()), "")
        if not said:
            return  # the training was over first
        report.own.append(said)
        tell(f"    of its own: {said}")
        if len(report.own) > MOST_OWN:
            report.faults.append("ranks ended that nothing was done to")


def _happens(draws: random.Random, ranks: list[Rank], faults: list[str]) -> Event | None:
    """Do something to one of the ranks, and see how long the others are there after it."""
    kind, victim = draws.choice(KINDS), draws.choice(ranks)
    is_early, delay_s = draws.random() < 0.3, draws.uniform(0.0, 4.0)
    if is_early:
        delay_s *= 3
    elif not _until(lambda: ranks[0].has_said("step") or _is_over(ranks), 10 * START_S):
        faults.append(f"no step within {10 * START_S:g} s, see {ranks[0].log}")
        return None
    _until(lambda: _is_over(ranks), delay_s)
    if _is_over(ranks):
        return None
    others = [r for r in ranks if r is not victim]
    start = time.monotonic()
    _signal(victim.pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
    if kind == "pause":  # shorter than the limit: nobody has to notice
        time.sleep(TIMEOUT_S / 5)
        _signal(victim.pid, signal.SIGCONT)
        return Event(kind, victim.number, is_early, time.monotonic() - start, "")
    if kind == "stop and go on":
        _until(lambda: _is_over(others), TIMEOUT_S + draws.uniform(0.0, 4.0))
        _signal(victim.pid, signal.SIGCONT)
    limit_s = GRACE_S + (START_S if is_early else 0.0) + (0.0 if kind == "kill" else TIMEOUT_S)
    goes_on = is_early and kind == "stop and go on"  # it may have gone on before it was missed
    is_in_time = _until(
        lambda: _is_over(others) or (goes_on and ranks[0].has_said("step")), limit_s
    )
    if goes_on and not _is_over(others) and is_in_time:
        return Event(kind, victim.number, is_early, time.monotonic() - start, "")
    seconds, said = time.monotonic() - start, others[0].said()
    event = Event(kind, victim.number, is_early, seconds, said)
    if not is_in_time:
        faults.append(f"rank {others[0].number} still runs after {limit_s:g} s: {event}")
    elif kind != "kill" and not said and not others[0].has_said("finished"):
        faults.append(f"rank {others[0].number} ended without an error: {others[0].log}")
    if not _until(lambda: _is_over([victim]), SHUTDOWN_S + GRACE_S / 4):
        _signal(victim.pid, signal.SIGCONT)  # the others had no more need of it
    return event


def _ranks(agent: int) -> list[Rank]:
    """Return the processes that torchrun has started and that are there."""
    found = []
    for children in Path(f"/proc/{agent}/task").glob("*/children"):
        with suppress(OSError):
            for pid in map(int, children.read_text().split()):
                with suppress(OSError):
                    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                    number = next((e[5:] for e in environment if e[:5] == b"RANK="), None)
                    if number is not None and _state(pid) not in ("", "Z", "X"):
                        log = Path(os.readlink(f"/proc/{pid}/fd/2"))
                        found.append(Rank(int(number), pid, log))
    return found


def _state(pid: int) -> str:
    """Return a process's state as a letter (proc(5)); empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_over(ranks: list[Rank]) -> bool:
    return not any(rank.is_there() for rank in ranks)


def _until(is_so: Callable[[], bool], limit_s: float) -> bool:
    """Wait for something; False where it was not within the limit."""
    end = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_S)
    return True


def _train(kept: Path, *, shard: bool) -> None:
    """Be a rank: train the example, and keep its final loss."""
    import torch
    import torch.distributed as dist

    from examples import train_ddp

    torch.set_num_threads(1)
    dist.init_process_group("tpu_dist", timeout=timedelta(seconds=TIMEOUT_S))
    losses = train_ddp.train("tpu", STEPS, shard=shard, kept=kept)
    if dist.get_rank() == 0:
        (kept / "final.new").write_text(repr(losses[-1]))
        (kept / "final.new").replace(kept / "final")
    print("finished", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Run as the command line says; the exit code is 1 where there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a new folder for logs and checkpoints")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shard", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        _train(options.train, shard=options.shard)
        return
    with tempfile.TemporaryDirectory(prefix="torchtpu-chaos-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        report = run(options.events, options.seed, folder, lambda line: print(line, flush=True))
    print(f"losses {report.losses}, undisturbed {report.loss}")
    for kind in KINDS:
        seconds = [e.seconds for e in report.events if e.kind == kind]
        print(f"{kind}: {len(seconds)}, over after {max(seconds, default=0.0):.1f} s at most")
    print(f"ended of their own: {len(report.own)}")
    for fault in report.faults:
        print(f"FAULT {fault}")
    sys.exit(bool(report.faults))


if __name__ == "__main__":
    main()
