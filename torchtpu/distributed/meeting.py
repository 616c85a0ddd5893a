"""How the processes of a world find each other: their addresses, their board, their clients."""

from __future__ import annotations

import atexit
import socket
import time
import uuid
from pathlib import Path
from typing import Any

import torch.distributed as dist

from torchtpu import executor, targets
from torchtpu.distributed.board import Board, SharedBoard, StoreBoard
from torchtpu.distributed.engine import CollectiveError, Engine

_engine: Engine | None = None
_name = ""  # of the world, no other has it
_LOOK_S = 5e-3
_LOOPBACK = "127.0.0.1"


class _Exchange:
    """The store of the process group there is now: a client outlives groups."""

    store: Any = None

    def set(self, key: str, value: bytes) -> None:
        self.store.set(key, value)

    def get(self, key: str, rank: int) -> bytes:
        return _asked(self.store, key, rank)


def _asked(store: Any, key: str, rank: int) -> bytes:
    """Wait for what a rank says; raises CollectiveError after the store's limit."""
    try:
        found: bytes = store.get(key)
    except RuntimeError as error:
        text = str(error).partition("\n")[0]
        raise CollectiveError(
            f"[tpu_dist] rank {rank} did not come: expected its {key!r}, got {text}"
        ) from error
    return found


_exchange = _Exchange()


def meet(rank: int, size: int, store: Any, timeout_s: float) -> Engine:
    """Join a world of `size` processes as `rank`; returns when all are there."""
    global _engine, _name
    part()
    _name = named(rank, size, store, timeout_s)
    _exchange.store = scoped(store)
    machines = _all_say("machine", rank, size, _machine())
    is_one = len(set(machines)) == 1
    host = _LOOPBACK if is_one else _address()
    world = targets.World(rank=rank, size=size, exchange=_exchange, host=host, patience_s=timeout_s)
    executor.join(world)
    board: Board | None = _shared(rank, size, timeout_s) if is_one else None
    target = executor.current().target
    board = board or StoreBoard(rank, _exchange.store)
    _engine = Engine(board, target.abort, rank, size)
    return _engine


def scoped(store: Any) -> Any:
    """Return a store of torch in which nobody but the processes of this world has written."""
    return dist.distributed_c10d.PrefixStore(_name, store)


def named(rank: int, size: int, store: Any, timeout_s: float) -> str:
    """Return a name that these processes share, and no others.

    torchrun starts processes again with the store of those before, where a rank would find what
    another said in its last life. So nobody believes a key that does not hold a number of its own:
    a rank says one, rank 0 answers under it with the world's, and that is confirmed.
    """
    mine = uuid.uuid4().hex
    if rank:
        store.set(f"come/{rank}", mine)
        name: str = _asked(store, f"welcome/{mine}", 0).decode()
        store.set(f"ready/{rank}/{name}", "")
        return name
    answered: dict[int, str] = dict.fromkeys(range(1, size), "")
    end = time.monotonic() + timeout_s
    while answered:
        for other in list(answered):
            if store.check([f"ready/{other}/{mine}"]):
                del answered[other]
            elif store.check([f"come/{other}"]):
                theirs = store.get(f"come/{other}").decode()
                if theirs != answered[other]:
                    answered[other] = theirs
                    store.set(f"welcome/{theirs}", mine)
        if time.monotonic() > end:
            late = ", ".join(map(str, answered))
            raise CollectiveError(f"[tpu_dist] rank {late} did not come in {timeout_s:g} s")
        time.sleep(_LOOK_S if answered else 0.0)
    return mine


def engine() -> Engine:
    """Return the engine of the world that this process is in."""
    assert _engine is not None, "groups are made after the default one"
    return _engine


@atexit.register
def part() -> None:
    """Leave the world, if this process is in one."""
    global _engine
    if _engine is not None:
        _engine.close()
    _engine = None


def _all_say(about: str, rank: int, size: int, mine: str) -> list[str]:
    _exchange.set(f"{about}/{rank}", mine.encode())
    return [_exchange.get(f"{about}/{other}", other).decode() for other in range(size)]


def _shared(rank: int, size: int, timeout_s: float) -> Board | None:
    """Open a board in shared memory; None where a process (in a container) does not see it."""
    if rank == 0:
        board: SharedBoard | None = SharedBoard(rank, size, patience_s=timeout_s)
        assert board is not None
        _exchange.set("board", board.path.encode())
    else:
        try:
            board = SharedBoard(rank, size, _exchange.get("board", 0).decode(), timeout_s)
        except OSError:
            board = None
    answers = _all_say("board", rank, size, "open" if board else "closed")
    if board is not None:
        board.unlink()
    if "closed" not in answers:
        return board
    if board is not None:
        board.close()
    return None


def _machine() -> str:
    """Name this machine as no other is named."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{socket.gethostname()} {uuid.getnode()}"


def _address() -> str:
    """Return the address by which other machines reach this one."""
    import os

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ.get("MASTER_ADDR", "8.8.8.8"), 9))  # sends nothing
        address: str = probe.getsockname()[0]
        return address
