"""A process among others: who it is, and how the CPU clients of all of them find each other."""

from __future__ import annotations

import os
import re
import socket
import stat
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from torchtpu.private import jax as private

_LOCAL, _GLOBAL = "cpu:local_topology", "cpu:global_topology"  # XLA's folders of keys
_CLIQUES = "cpu:gloo"
_LOOK_S = 1e-3
_SOCKADDR = re.compile(rb"\x02\0(..).{4}\0{8}|\x0a\0(..)\0{4}.{16}\0{4}", re.DOTALL)
_MOST_FILES = 4096


class Exchange(Protocol):
    """What every process of a world reaches; `get` waits for a key, and raises after a limit."""

    def set(self, key: str, value: bytes) -> Any:
        """Say something."""

    def get(self, key: str) -> bytes:
        """Wait for what another has said."""


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
        self._launcher = ThreadPoolExecutor(1, "launches")
        self._ports: set[int] = set()  # that processes of the world listen on
        with ThreadPoolExecutor(1) as maker:
            making = maker.submit(
                private.world_client, self._keys, world.rank, world.size, world.host
            )
            self._tell_topology(making.done)
            self.client = making.result()
        private.keep(self.client)  # its end waits for programs, of which one may wait for ever

    def _tell_topology(self, is_over: Callable[[], bool]) -> None:
        rank, size, exchange = self._world.rank, self._world.size, self._world.exchange
        key, mine = self._first(_LOCAL, is_over)
        exchange.set(key, mine)
        if rank:
            self._keys.key_value_set_bytes(f"{_GLOBAL}/cpu", exchange.get(_GLOBAL))
            return
        for other in range(1, size):
            key = f"{_LOCAL}/cpu/{other}"
            self._keys.key_value_set_bytes(key, exchange.get(key))
        exchange.set(_GLOBAL, self._first(_GLOBAL, is_over)[1])

    def launch(self, devices: Sequence[int], launch: Callable[[], Any]) -> Any:
        """Launch a program of a group of devices, behind those launched before.

        XLA orders the programs that one thread launches, and gloo takes what those of two threads
        send at the same time for each other's: so one thread launches all of them.
        """
        return self._launcher.submit(self._launch, devices, launch).result()

    def _launch(self, devices: Sequence[int], launch: Callable[[], Any]) -> Any:
        introduced = self._introduce(devices)
        try:
            return launch()
        finally:
            introduced()

    def _introduce(self, devices: Sequence[int]) -> Callable[[], None]:
        """Tell the addresses of a group of devices while its first program starts.

        Call it before the launch, and what it returns after it.
        """
        ids = tuple(devices)
        if ids in self._met:
            return _nothing
        self._met.add(ids)
        worker = threading.Thread(target=self._tell_addresses, args=(ids,), daemon=True)
        worker.start()
        return worker.join

    def _tell_addresses(self, ids: tuple[int, ...]) -> None:
        folder = f"{_CLIQUES}/{','.join(map(str, ids))}"
        key, mine = self._first(folder)
        exchange = self._world.exchange
        exchange.set(key, mine)
        self._ports |= _ports(mine)
        for place in range(len(ids)):
            other = f"{folder}/{place}"
            if other != key:
                address = exchange.get(other)
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

    def _first(self, folder: str, is_over: Callable[[], bool] = lambda: False) -> tuple[str, bytes]:
        """Wait until XLA has written to a folder, or will not; return its key and value."""
        end = time.monotonic() + self._world.patience_s
        while time.monotonic() < end:
            found: list[tuple[str, bytes]] = self._keys.key_value_dir_get_bytes(folder)
            if found:
                return found[0]
            if is_over() and folder == _LOCAL:
                break
            time.sleep(_LOOK_S)
        raise TimeoutError(f"[world] XLA wrote nothing to {folder}")


def _ports(address: bytes) -> set[int]:
    """Return the port in gloo's address, which holds a sockaddr of IPv4 or IPv6; none where not."""
    found = _SOCKADDR.search(address)
    port = int.from_bytes(found[1] or found[2], "big") if found else 0
    return {port} - {0}


def _nothing() -> None:
    """Nobody has to be told anything."""
