"""A process among others: who it is, and how the CPU clients of all of them find each other."""

from __future__ import annotations

import os
import re
import socket
import stat
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from torchtpu.private import jax as private

_LOCAL, _GLOBAL = "cpu:local_topology", "cpu:global_topology"  # XLA's folders of keys
_CLIQUES = "cpu:gloo"
_LOOK_S = 1e-3
_SOCKADDR = re.compile(rb"\x02\0(..).{4}\0{8}|\x0a\0(..)\0{4}.{16}\0{4}", re.DOTALL)
_MOST_FILES = 4096


class Exchange(Protocol):
    """What every process of a world reaches."""

    def set(self, key: str, value: bytes) -> Any:
        """Say something."""

    def get(self, key: str, rank: int) -> bytes:
        """Wait for what another rank says; raises after a limit, and names the rank."""


@dataclass(frozen=True, kw_only=True)
class World:
    """Processes of one device each; `host` is this one's address for the others."""

    rank: int
    size: int
    exchange: Exchange
    host: str = "127.0.0.1"
    patience_s: float = 300.0


class CpuWorld:
    """XLA's CPU client of one process of a world.

    XLA lets its clients meet in a key-value store whose end is theirs. Here each process has a
    store to itself, and what the others have to know of it goes through the world's exchange.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._runtime = private.lone_runtime()  # as long as the client
        self._keys = self._runtime.keys
        self._met: set[tuple[int, ...]] = set()
        self._lost: Exception | None = None  # why no program with others is launched any more
        self._last: Any = None  # the token of the last one's end, and who launched it
        self._last_thread: int | None = None
        self._results: list[weakref.ref[Any]] = []
        self._ports: set[int] = set()  # that processes of the world listen on
        self._thread = _OneThread()
        making = self._thread.start(
            partial(private.world_client, self._keys, world.rank, world.size, world.host)
        )
        self._tell_topology(making.done)
        self.client = making.result(world.patience_s)
        private.keep(self.client)  # its end waits for programs, of which one may wait for ever

    def _tell_topology(self, is_over: Callable[[], bool]) -> None:
        rank, size, exchange = self._world.rank, self._world.size, self._world.exchange
        key, mine = self._first(_LOCAL, is_over)
        exchange.set(key, mine)
        if rank:
            self._keys.key_value_set_bytes(f"{_GLOBAL}/cpu", exchange.get(_GLOBAL, 0))
            return
        for other in range(1, size):
            key = f"{_LOCAL}/cpu/{other}"
            self._keys.key_value_set_bytes(key, exchange.get(key, other))
        exchange.set(_GLOBAL, self._first(_GLOBAL, is_over)[1])

    def launch(self, launch: Callable[[], tuple[Any, Any]], ranks: Sequence[int]) -> Any:
        """Launch a program of some ranks, which returns its results and a token of its end.

        XLA runs in order what one thread launches, and at once what two do, which mixes up their
        messages: the second waits. The first program of some ranks makes their connections, which
        XLA waits for in the launch itself. Where a rank keeps this one waiting for too long, all
        later launches are the same error.
        """
        if self._lost is not None:
            raise self._lost
        is_first, thread = tuple(ranks) not in self._met, threading.get_ident()
        if self._last_thread != thread and not all(map(_is_there, self._results)):
            self._waited_for(self._thread.start(partial(_end_of, self._last)))
        if is_first:
            launched = self._thread.start(launch)
            tell = partial(self._tell_addresses, tuple(ranks), partial(_has_run, launched))
            self._waited_for(launched, tell)
            self._met.add(tuple(ranks))
            results, self._last = launched.result()
            self._last_thread = None
        else:
            results, self._last = launch()
            self._last_thread = thread
        self._results = [weakref.ref(array) for array in results]
        return results

    def _waited_for(self, answer: Future[Any], meanwhile: Callable[[], None] = lambda: None) -> Any:
        try:
            meanwhile()
            return answer.result(self._world.patience_s)
        except Exception as error:
            if not answer.done():
                self._lost = error
            raise

    def _tell_addresses(self, ranks: tuple[int, ...], is_over: Callable[[], bool]) -> None:
        ids = [d.id for d in sorted(self.client.devices(), key=lambda d: d.process_index)]
        folder = f"{_CLIQUES}/{','.join(str(ids[rank]) for rank in ranks)}"
        key, mine = self._first(folder, is_over)
        exchange = self._world.exchange
        exchange.set(key, mine)
        self._ports |= _ports(mine)
        for place, rank in enumerate(ranks):
            other = f"{folder}/{place}"
            if other != key:
                address = exchange.get(other, rank)
                self._ports |= _ports(address)
                self._keys.key_value_set_bytes(other, address)

    def abort(self) -> None:
        """Close gloo's connections, so that programs that wait for a peer fail and end.

        XLA has no limit of time that a group could set, and no way to cancel a program.
        """
        for number in range(3, _MOST_FILES):
            try:
                copy = os.dup(number)
            except OSError:
                continue
            if not stat.S_ISSOCK(os.fstat(copy).st_mode):
                os.close(copy)
                continue
            with socket.socket(fileno=copy) as connection, suppress(OSError):
                ends = (connection.getsockname(), connection.getpeername())
                if any(isinstance(end, tuple) and end[1] in self._ports for end in ends):
                    connection.shutdown(socket.SHUT_RDWR)

    def _first(self, folder: str, is_over: Callable[[], bool]) -> tuple[str, bytes]:
        """Wait until XLA has written to a folder; return its key and value."""
        end = time.monotonic() + self._world.patience_s
        while True:
            is_last = is_over() or time.monotonic() > end
            found: list[tuple[str, bytes]] = self._keys.key_value_dir_get_bytes(folder)
            if found:
                return found[0]
            if is_last:
                raise TimeoutError(f"[world] XLA wrote nothing to {folder}")
            time.sleep(_LOOK_S)


class _OneThread:
    """Calls functions one after the other, in a thread that nobody waits for at the end."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="torchtpu-world").start()

    def start(self, function: Callable[[], Any]) -> Future[Any]:
        """Call a function, some time."""
        answer: Future[Any] = Future()
        self._asked.put((answer, function))
        return answer

    def _serve(self) -> None:
        while True:
            answer, function = self._asked.get()
            try:
                answer.set_result(function())
            except BaseException as error:
                answer.set_exception(error)


def _ports(address: bytes) -> set[int]:
    """Return the port in gloo's address, which holds a sockaddr of IPv4 or IPv6; none where not."""
    found = _SOCKADDR.search(address)
    port = int.from_bytes(found[1] or found[2], "big") if found else 0
    return {port} - {0}


def _has_run(launched: Future[tuple[Any, Any]]) -> bool:
    """Tell whether a program has ended; a launch may be over before its inputs are computed."""
    if not launched.done():
        return False
    if launched.exception() is not None:
        return True
    results, _ = launched.result()
    return all(array.is_deleted() or array.is_ready() for array in results)


def _is_there(result: weakref.ref[Any]) -> bool:
    """Tell whether an array is known to be computed; nobody knows of one that is given away."""
    array = result()
    return array is not None and not array.is_deleted() and array.is_ready()


def _end_of(token: Any) -> None:
    with suppress(Exception):  # is that of whoever waits for the program's results
        token.block_until_ready()
