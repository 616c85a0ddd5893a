"""Runs a function in several processes that are the ranks of a world."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

_CACHE = tempfile.TemporaryDirectory(prefix="torchtpu-worlds-")  # ranks share what they compile
_SPAWN = multiprocessing.get_context("spawn")


@dataclass
class Outcome:
    """What became of a rank: what it returned, or the text of its error, or how it ended."""

    result: Any = None
    error: str = ""
    exitcode: int | None = None
    seconds: float = field(default=0.0)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def outcomes(
    fn: Callable[..., Any],
    size: int,
    *args: Any,
    backend: str = "tpu_dist",
    timeout_s: float = 60.0,
    patience_s: float = 400.0,
    join: bool = True,
) -> list[Outcome]:
    """Call fn(rank, *args) in `size` processes of a world; return what became of each.

    timeout_s: of the process group; patience_s: after it, whoever still runs is killed.
    """
    answers = _SPAWN.Queue()
    port = free_port()
    processes = [
        _SPAWN.Process(
            target=_serve,
            args=(fn, rank, size, port, _CACHE.name, backend, timeout_s, join, args, answers),
        )
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    found = [Outcome() for _ in range(size)]
    waiting, end = set(range(size)), time.monotonic() + patience_s
    while waiting and time.monotonic() < end:
        try:
            rank, sent = answers.get(timeout=0.2)
            found[rank] = pickle.loads(sent)
            waiting.discard(rank)
        except queue.Empty:
            waiting = {r for r in waiting if processes[r].is_alive()}
    for rank, process in enumerate(processes):
        process.join(max(0.1, min(20.0, end - time.monotonic())))
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
            found[rank].error = found[rank].error or "still ran when its time was over"
        found[rank].exitcode = process.exitcode
    return found


def results(fn: Callable[..., Any], size: int, *args: Any, **how: Any) -> list[Any]:
    """Call fn(rank, *args) in `size` processes of a world and return the results, by rank."""
    found = outcomes(fn, size, *args, **how)
    wrong = [
        f"rank {r}: {o.error or o.exitcode}" for r, o in enumerate(found) if o.error or o.exitcode
    ]
    assert not wrong, "\n".join(wrong)
    return [o.result for o in found]


def _serve(
    fn: Callable[..., Any],
    rank: int,
    size: int,
    port: int,
    cache: str,
    backend: str,
    timeout_s: float,
    join: bool,
    args: tuple[Any, ...],
    answers: Any,
) -> None:
    import warnings

    warnings.simplefilter("ignore")
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank),
        TORCHTPU_TARGET=os.environ.get("TORCHTPU_TARGET", "cpu"),
        TORCH_TPU_TIER2_COMPILATION_CACHE="worlds",
        TORCHTPU_CACHE_DIR=cache,
        OMP_NUM_THREADS="1",
        TF_CPP_MIN_LOG_LEVEL="2",
    )
    start, outcome = time.monotonic(), Outcome()
    try:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        if join:
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        start = time.monotonic()
        outcome.result = fn(rank, *args)
    except BaseException as error:
        outcome.error = "".join(traceback.format_exception(error))
    outcome.seconds = time.monotonic() - start
    answers.put((rank, pickle.dumps(outcome)))  # tensors by value: this process may end first
    answers.close()
    answers.join_thread()
    if join and dist.is_initialized():
        dist.destroy_process_group()
