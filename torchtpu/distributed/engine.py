"""Collectives under way: launched in one order everywhere, each when all its members are there."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from torchtpu.distributed.board import Board, Full, Said, Stuck, differences
from torchtpu.distributed.work import Work
from torchtpu.errors import TpuError

_SPIN_S = 2e-3  # a member that is about to come is waited for without sleep
_NAP_S = 2e-4
_LOOK_S = 0.05  # between looks at who is still alive
_BACKGROUND_S = 1e-3
_IDLE_S = 0.5
_GRACE_S = 5.0  # for a program to fail when its connections are closed


class CollectiveError(TpuError):
    """The members of a group did not do the same, or one of them is gone."""


class CollectiveTimeout(CollectiveError):
    """A member did not come in time."""


@dataclass(eq=False, kw_only=True)
class Call:
    """A collective that this process has asked for and not launched yet."""

    name: str
    channels: tuple[int, ...]  # each numbers its calls; several where the first sender will do
    ranks: tuple[tuple[int, ...], ...]  # the members, for each channel
    place: int  # of this process among them; for a message: 0 sends, 1 receives
    said: Said
    launch: Callable[[int, Sequence[Said]], list[Any]]
    work: Work
    timeout_s: float
    asked_s: float = field(default_factory=time.monotonic)
    chosen: int | None = None  # of the channels
    key: int = 0  # of the record, when chosen
    is_late: bool = False  # it ran for longer than its time


class Engine:
    """One per process: launches are in the order that the board gives."""

    def __init__(self, board: Board, abort: Callable[[], None]) -> None:
        """Take a board, and what makes programs that wait for a lost member fail."""
        self.board = board
        self._abort = abort
        self._lock = threading.RLock()
        self._pending: list[Call] = []
        self._counts: Counter[int] = Counter()  # calls so far, by channel
        self._running: list[tuple[Call, float]] = []
        self._broken: dict[tuple[int, ...], str] = {}  # groups whose connections are lost
        self._wake = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._serve, daemon=True, name="tpu_dist")
        self._thread.start()

    def submit(self, call: Call) -> Work:
        """Say what this process calls, and launch it if everybody is there."""
        with self._lock:
            lost = self._broken.get(call.ranks[0])
            if lost:
                raise CollectiveError(f"[{call.name}] this group failed before: {lost}")
            self._pending.append(call)
            try:
                if len(call.channels) == 1:
                    self._choose(call, 0)
                self._progress()
            except Stuck:
                self._give_up(call)
            except CollectiveTimeout:
                self._pending.remove(call)
                raise
        if not call.work.is_launched():
            self._wake.set()
        return call.work

    def _next(self, channel: int) -> int:
        return channel << 32 | self._counts[channel] + 1

    def _choose(self, call: Call, index: int) -> None:
        channel = call.channels[index]
        call.chosen, call.key = index, self._next(channel)
        self._counts[channel] += 1
        end = time.monotonic() + call.timeout_s
        while True:
            try:
                members = len(call.ranks[index])
                self.board.post(call.key, call.place, members, call.said)
                return
            except Full:
                self._progress()
                if time.monotonic() > end:
                    raise CollectiveTimeout(
                        f"[{call.name}] too many collectives are under way"
                    ) from None
                time.sleep(_NAP_S)

    def _progress(self) -> None:
        """Launch what everybody has come to, in the board's order."""
        while self._pending:
            self._match_any()
            ready = self._ready()
            if not ready:
                return
            if len(self._pending) > 1:  # what came to its end between two looks may be earlier
                ready = self._ready()
            _, call, said = min(ready, key=lambda r: r[0])
            self._pending.remove(call)
            self._launch(call, said)

    def _match_any(self) -> None:
        """Let calls that take a message from anybody choose one that is there."""
        for call in self._pending:
            if call.chosen is not None:
                continue
            for index, channel in enumerate(call.channels):
                if self.board.present(self._next(channel), 2)[0] is not None:
                    self._choose(call, index)
                    break

    def _ready(self) -> list[tuple[int, Call, list[Said]]]:
        found = []
        for call in self._pending:
            if call.chosen is None:
                continue
            record = self.board.read(call.key, len(call.ranks[call.chosen]))
            if record is not None:
                found.append((record[0], call, record[1]))
        return found

    def _launch(self, call: Call, said: list[Said]) -> None:
        assert call.chosen is not None
        ranks = call.ranks[call.chosen]
        with suppress(Stuck):  # then nobody needs its place any more
            self.board.done(call.key, len(ranks))
        if any(s.signature != call.said.signature for s in said):
            error = CollectiveError(
                f"[{call.name}] expected the same collective on all ranks, got\n"
                f"{differences(said, ranks)}\n(nothing was computed)"
            )
            call.work.finish(None, error)
            return
        try:
            results = call.launch(call.chosen, said)
        except Exception as error:  # whatever XLA says
            call.work.finish(None, error)
            return
        if results:
            self._running.append((call, time.monotonic()))
        call.work.finish(results)

    def wait(self, call: Call, timeout_s: float | None = None) -> None:
        """Wait until a call's results are there; raises its error, also that of another rank."""
        work = call.work
        start = time.monotonic()
        end = min(call.asked_s + call.timeout_s, start + (timeout_s or call.timeout_s))
        looked = start
        while not work.is_launched():
            now = time.monotonic()
            if self._lock.acquire(timeout=_LOOK_S):
                try:
                    self._progress()
                    if now - looked > _LOOK_S and not work.is_launched():
                        looked = now
                        self._look(call, end - start if now > end else None)
                except Stuck:
                    self._give_up(call)
                finally:
                    self._lock.release()
            if work.is_launched():
                break
            if now - start < _SPIN_S:
                os.sched_yield()
            else:
                time.sleep(_NAP_S)
        if work.error is not None:
            raise work.error
        self._await(call)

    def _await(self, call: Call) -> None:
        """Block until the arrays are computed; a group of which one fails fails from then on."""
        try:
            for array in call.work.launched or ():
                self._until_ready(array, call)
                array.block_until_ready()  # raises what the program raised
        except Exception as error:
            lost, first = self._lost(call), str(error).partition("\n")[0]
            text = f"[{call.name}] failed while it ran: {lost or first}"
            call.work.error = CollectiveTimeout(text) if call.is_late else CollectiveError(text)
            self._broken[call.ranks[call.chosen or 0]] = lost or first
            raise call.work.error from error
        finally:
            with self._lock:
                self._running = [r for r in self._running if r[0] is not call]
        call.work.launched = []

    def _until_ready(self, array: Any, call: Call) -> None:
        """Wait for an array; a program may wait for a lost connection for ever."""
        start = time.monotonic()
        end = start + call.timeout_s + _GRACE_S
        while not array.is_ready():
            now = time.monotonic()
            if now > end:
                call.is_late = True
                raise TimeoutError
            if now - start < _SPIN_S:
                os.sched_yield()
            else:
                time.sleep(_NAP_S)

    def _lost(self, call: Call) -> str:
        """Say who is to blame for a program that failed; empty where nobody is known to be."""
        if call.is_late:
            return f"it did not end in {call.timeout_s:g} s: a rank stands still"
        ranks = {rank for members in call.ranks for rank in members}
        end = time.monotonic() + 1.0  # a process that dies closes its connections first
        while time.monotonic() < end:
            dead = [rank for rank in sorted(ranks) if not self.board.is_alive(rank)]
            if dead:
                return f"rank {', '.join(map(str, dead))} is gone"
            time.sleep(_LOOK_S)
        return ""

    def _look(self, call: Call, waited_s: float | None) -> None:
        """Give a call up whose members are gone, or that was waited for for so long in vain."""
        index = call.chosen
        missing, text = self._missing(call)
        dead = [rank for rank in missing if not self.board.is_alive(rank)]
        if index is None and len(dead) < len(missing):
            dead = []  # from anybody who is left
        if not dead and waited_s is None:
            return
        here = f"rank {', '.join(map(str, dead or missing))}"
        why = f"{here} is gone" if dead else f"{here} did not come in {waited_s:.3g} s"
        if index is not None:
            members = len(call.ranks[index])
            said = f"gave up, as {why}: {call.said.call}"
            if not self.board.withdraw(call.key, call.place, members, said):
                return  # everybody has come by now
        self._pending.remove(call)
        kind = CollectiveError if dead else CollectiveTimeout
        call.work.finish(None, kind(f"[{call.name}] {why}; who came:\n{text}"))

    def _give_up(self, call: Call) -> None:
        """A process that has stopped holds the board: nobody gets any further."""
        if call not in self._pending:
            return
        self._pending.remove(call)
        text = f"[{call.name}] another rank stands still while it says what it calls"
        call.work.finish(None, CollectiveTimeout(text))

    def _missing(self, call: Call) -> tuple[list[int], str]:
        if call.chosen is None:
            senders = [ranks[0] for ranks in call.ranks]
            return senders, f"  nobody sent; this rank: {call.said.call}"
        ranks = call.ranks[call.chosen]
        said = self.board.present(call.key, len(ranks))
        missing = [rank for rank, s in zip(ranks, said, strict=True) if s is None]
        there = [(rank, s) for rank, s in zip(ranks, said, strict=True) if s is not None]
        return missing, differences([s for _, s in there], [rank for rank, _ in there])

    # In the background ----------------------------------------------------------------------------

    def _serve(self) -> None:
        """Launch what the program does not wait for, and end what has run for too long."""
        looked = time.monotonic()
        while not self._stop:
            self._wake.wait(_IDLE_S)
            with self._lock, suppress(Exception):
                self._progress()
                self._watch()
                if time.monotonic() - looked > _IDLE_S:
                    looked = time.monotonic()
                    self._look_all(looked)
                if not self._pending and not self._stop:
                    self._wake.clear()
            time.sleep(_BACKGROUND_S)

    def _look_all(self, now: float) -> None:
        """Look after calls that nobody waits for here: autograd waits for their futures."""
        for call in list(self._pending):
            try:
                self._look(call, call.timeout_s if now > call.asked_s + call.timeout_s else None)
            except Stuck:
                self._give_up(call)

    def _watch(self) -> None:
        now = time.monotonic()
        self._running = [(c, since) for c, since in self._running if not c.work.is_completed()]
        late = [call for call, since in self._running if now - since > call.timeout_s]
        for call in late:
            call.is_late = True
        if late:
            self._abort()

    def close(self) -> None:
        """Stop, and leave the board."""
        self._stop = True
        self._wake.set()
        self._thread.join()
        self.board.close()
