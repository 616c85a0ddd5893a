"""Collectives under way: launched in one order everywhere, each when all its members are there."""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from torchtpu.distributed.board import GAVE_UP, Board, Ended, Full, Stuck, differences
from torchtpu.distributed.work import Work
from torchtpu.eager import blame
from torchtpu.errors import TpuError

_SOON_S = 5e-3  # a member that is about to come is waited for by short sleeps
_BLINK_S = 1e-6  # takes 60 us; without any sleep, threads that carry messages would come later
_NAP_S = 2e-4
_LOOK_S = 0.05  # between looks at who is still alive; after it, a call is put into words
_BACKGROUND_S = 2e-3
_IDLE_S = 0.5  # without a call, the thread in the background sleeps until it is woken
_FAREWELL = 1 << 31 << 32 | 1  # the key of the record that all leave by
_LINGER_S = 2.0
_GRACE_S = 5.0  # for a program to fail when its connections are closed, for a rank to find words


class CollectiveError(TpuError):
    """The members of a group did not do the same, or one of them is gone."""


class CollectiveTimeout(CollectiveError):
    """A member did not come in time."""


def signature(same: object, *, graph: bool = False) -> int:
    """Return a number for what members have to agree on; those of graphs are odd, none is 0."""
    text = repr(same).encode()
    found = zlib.crc32(text) << 32 | zlib.adler32(text)
    return found & ~1 | graph


def is_graph(signed: int) -> bool:
    """Tell whether a signature is of a compiled graph."""
    return bool(signed & 1) and signed != GAVE_UP


@dataclass(eq=False, kw_only=True, slots=True)
class Call:
    """A collective that this process has asked for and not launched yet."""

    name: str
    channels: tuple[int, ...]  # each numbers its calls; several where the first sender will do
    ranks: tuple[tuple[int, ...], ...]  # the members, for each channel
    place: int  # of this process among them; for a message: 0 sends, 1 receives
    signature: int  # that all must share
    words: str  # for people
    launch: Callable[[int, Sequence[bytes]], list[Any]]  # of the channel and the payloads
    work: Work
    timeout_s: float
    payload: bytes = b""  # sizes of this member's own
    may_differ: bool = False  # where members call different graphs, none of them is launched
    line: blame.Place | None = None  # of the user's program
    asked_s: float = field(default_factory=time.monotonic)
    chosen: int | None = None  # of the channels
    record: int = 0  # on the board, when chosen
    is_explained: bool = False
    is_late: bool = False  # it ran for longer than its time

    def text(self) -> str:
        """Say what is called, and where."""
        return self.words + (f" at {blame.shown(self.line)}" if self.line else "")


class Engine:
    """One per process: launches are in the order that the board gives."""

    def __init__(
        self, board: Board, abort: Callable[[], None], rank: int = 0, size: int = 1
    ) -> None:
        """Take a board, what makes programs that wait for a lost member fail, and who this is."""
        self.board = board
        self._place, self._size = rank, size
        self._launched_s = 0.0
        self._abort = abort
        self._lock = threading.RLock()
        self._pending: list[Call] = []
        self._ended: Ended = []
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
            if self._broken and call.ranks[0] in self._broken:
                lost = self._broken[call.ranks[0]]
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
        if not (call.work.is_launched() or self._wake.is_set()):
            self._wake.set()
        return call.work

    def _next(self, channel: int) -> int:
        return channel << 32 | self._counts[channel] + 1

    def _choose(self, call: Call, index: int) -> None:
        channel, members = call.channels[index], len(call.ranks[index])
        key = self._next(channel)
        self._counts[channel] += 1
        said = (key, call.place, members, call.signature, call.payload, self._ended)
        end = call.asked_s + call.timeout_s
        while True:
            try:
                call.record = self.board.post(*said)
                call.chosen = index
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
            ready = self._ready()
            if not ready:
                return
            if len(self._pending) > 1:  # what came to its end between two looks may be earlier
                ready = self._ready()
            _, call, signatures = min(ready, key=lambda r: r[0])
            self._pending.remove(call)
            self._launch(call, signatures)

    def _ready(self) -> list[tuple[int, Call, Sequence[int]]]:
        found = []
        for call in self._pending:
            if call.chosen is None and not self._match_any(call):
                continue
            assert call.chosen is not None
            record = self.board.read(call.record, len(call.ranks[call.chosen]))
            if record is not None:
                found.append((record[0], call, record[1]))
        return found

    def _match_any(self, call: Call) -> bool:
        """Let a call that takes a message from anybody choose one that is there."""
        for index, channel in enumerate(call.channels):
            if self.board.is_begun(self._next(channel), 0):
                self._choose(call, index)
                return True
        return False

    def _launch(self, call: Call, signatures: Sequence[int]) -> None:
        assert call.chosen is not None
        members = len(call.ranks[call.chosen])
        if any(s != call.signature for s in signatures):
            if call.may_differ and all(map(is_graph, signatures)):
                call.work.finish([])
            else:
                call.work.finish(None, self._disagreed(call))
            self._ended.append((call.record, members))
            return
        self._launched_s = time.monotonic()
        payloads = self.board.payloads(call.record, members) if call.payload else ()
        self._ended.append((call.record, members))
        try:
            results = call.launch(call.chosen, payloads)
        except Exception as error:  # whatever XLA says
            call.work.finish(None, error)
            return
        call.work.finish(results)
        if not call.work.is_completed():
            self._running.append((call, time.monotonic()))

    def _disagreed(self, call: Call) -> CollectiveError:
        """Return the error of members that call different things, when all have said what."""
        ranks = call.ranks[call.chosen or 0]
        self._explain(call)
        end = time.monotonic() + _GRACE_S
        while True:
            texts = self.board.texts(call.record, len(ranks))
            if all(texts) or time.monotonic() > end:
                break
            time.sleep(_NAP_S)
        said = differences([text or "something else" for text in texts], ranks)
        return CollectiveError(
            f"[{call.name}] expected the same collective on all ranks, got\n{said}\n"
            "(nothing was computed)"
        )

    def _explain(self, call: Call) -> None:
        if call.chosen is not None and not call.is_explained:
            self.board.explain(call.record, call.place, call.text())
            call.is_explained = True

    def wait_for_launch(self, call: Call) -> None:
        """Wait until a call is launched; raises its error."""
        if not call.work.is_launched():
            self._wait_for_launch(call, None)
        if call.work.error is not None:
            raise call.work.error

    def wait(self, call: Call, timeout_s: float | None = None) -> None:
        """Wait until a call's results are there; raises its error, also that of another rank."""
        if not call.work.is_launched():
            self._wait_for_launch(call, timeout_s)
        if call.work.error is not None:
            raise call.work.error
        self._await(call)

    def _wait_for_launch(self, call: Call, timeout_s: float | None) -> None:
        work = call.work
        start = looked = time.monotonic()
        end = min(call.asked_s + call.timeout_s, start + (timeout_s or call.timeout_s))
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
            _rest(now - start)

    def _await(self, call: Call) -> None:
        """Block until the arrays are computed; a group of which one fails fails from then on."""
        try:
            for array in call.work.launched or ():
                if not array.is_ready():
                    self._until_ready(array, call)
                array.block_until_ready()  # raises what the program raised
        except Exception as error:
            lost, first = self._lost(call), str(error).partition("\n")[0]
            text = f"[{call.name}] failed while it ran: {lost or first}"
            call.work.error = CollectiveTimeout(text) if call.is_late else CollectiveError(text)
            self._broken[call.ranks[call.chosen or 0]] = lost or first
            raise call.work.error from error
        finally:
            if self._running:
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
            _rest(now - start)

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
        self._explain(call)
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
            said = f"gave up, as {why}: {call.text()}"
            if not self.board.withdraw(call.record, call.place, members, said):
                return  # everybody has come by now
            self._ended.append((call.record, members))
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
            return senders, f"  nobody sent; this rank: {call.text()}"
        ranks = call.ranks[call.chosen]
        texts = self.board.texts(call.record, len(ranks))
        missing = [rank for rank, text in zip(ranks, texts, strict=True) if text is None]
        there = [(rank, text) for rank, text in zip(ranks, texts, strict=True) if text is not None]
        shown = [text or "(it has come just now)" for _, text in there]
        return missing, differences(shown, [rank for rank, _ in there])

    # In the background ----------------------------------------------------------------------------

    def _serve(self) -> None:
        """Launch what the program does not wait for, and end what has run for too long."""
        looked = idle_since = time.monotonic()
        while not self._stop:
            self._wake.wait(_IDLE_S)
            with suppress(Exception), self._lock:
                self._progress()
                self._watch()
                now = time.monotonic()
                if now - looked > _IDLE_S:
                    looked = now
                    self._look_all(now)
                if self._pending:
                    idle_since = now
                elif now - idle_since > _IDLE_S and not self._stop:
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
        for call in self._pending:
            if now - call.asked_s > _LOOK_S:
                self._explain(call)
        self._running = [(c, since) for c, since in self._running if not c.work.is_completed()]
        late = [call for call, since in self._running if now - since > call.timeout_s]
        for call in late:
            call.is_late = True
        if late:
            self._abort()

    def _linger(self) -> None:
        end = self._launched_s + _LINGER_S
        if time.monotonic() > end:
            return
        signed = signature("leaves")
        record = self.board.post(_FAREWELL, self._place, self._size, signed, b"", self._ended)
        while time.monotonic() < end and self.board.read(record, self._size) is None:
            time.sleep(_NAP_S)

    def close(self) -> None:
        """Stop, and leave the board.

        A process that ends closes its connections, with what others have not read yet: it waits
        until they leave too, or a moment behind its last collective.
        """
        with suppress(Exception):  # the store may be gone
            self._linger()
        self._stop = True
        self._wake.set()
        self._thread.join()
        self.board.close()


def _rest(waited_s: float) -> None:
    """Let other threads and processes run, for the longer the longer this one waits."""
    time.sleep(_BLINK_S if waited_s < _SOON_S else _NAP_S)
