"""The module `torch.tpu`: device, memory, seed and mode functions under torch_tpu's names."""

from __future__ import annotations

import importlib
import os
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from torchtpu import config, executor, generator, targets
from torchtpu.eager import blame, modes
from torchtpu.eager.modes import EagerMode
from torchtpu.errors import TpuError
from torchtpu.private import torch as private
from torchtpu.streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from torchtpu.targets import Target

__all__ = [
    "EagerMode",
    "Event",
    "Precision",
    "Stream",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "eager_mode",  # noqa: F822  # a property of _Module
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "precision",
    "reset_peak_memory_stats",
    "set_device",
    "set_eager_mode",
    "set_rng_state",
    "set_stream",
    "stream",
    "synchronize",
]


class _Module(types.ModuleType):
    """torch.tpu: functions, plus `eager_mode`, which can be read and assigned."""

    @property
    def eager_mode(self) -> EagerMode:
        """The eager mode of this process."""
        return modes.mode()

    @eager_mode.setter
    def eager_mode(self, mode: EagerMode) -> None:
        modes.set_mode(mode)

    @property
    def _initialized(self) -> bool:
        """What torch.utils.checkpoint asks before it keeps the state of the generator."""
        return is_initialized()

    def __getattr__(self, name: str) -> Any:
        if name in ("optimizers", "distributed"):  # imported at their first use
            return importlib.import_module(f"torch.tpu.{name}")
        if name == "topology_aware_mesh":
            return importlib.import_module("torch.tpu.distributed").topology_aware_mesh
        raise AttributeError(f"module 'torch.tpu' has no attribute {name!r}")

    @property
    def default_generators(self) -> tuple[private.Generator, ...]:
        """The generator of the one device."""
        return (generator.default_generator(),)


def module() -> types.ModuleType:
    """Return this module as `torch.tpu`."""
    this = sys.modules[__name__]
    this.__class__ = _Module
    this.__path__ = []  # so that torch.tpu.optimizers can be imported; stand_in.py finds it
    return this


# Device ---------------------------------------------------------------------------------------


def is_available() -> bool:
    """Whether the device can be used: on targets cpu and sim always, on tpu where there is one."""
    return is_initialized() or not targets.absent(config.get("target"))


def device_count() -> int:
    """Devices of this process: one, as under torchrun; 0 where the device cannot be used."""
    return int(is_available())


def current_device() -> int:
    """Index of the current device."""
    return 0


def set_device(device: Any) -> None:
    """Make a device current; TpuError for an index that this process does not have."""
    _index(device)


def is_initialized() -> bool:
    """Whether the target has been made (it is, at the first use of the device)."""
    return _forked or executor.current.cache_info().currsize > 0


def init() -> None:
    """Make the target now instead of at the first use."""
    executor.current()


def _lazy_init() -> None:
    try:
        init()
    except Exception as error:
        blame.annotate(error, "the first use of device tpu")
        raise


def _is_in_bad_fork() -> bool:
    return _forked


_forked = False


def guard_forks() -> None:
    """Make the device an error in a child that was forked after its first use, and not a hang."""
    os.register_at_fork(after_in_child=_after_fork)
    # jax warns of every fork that a child may hang, as those of a DataLoader; ours cannot.
    warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)


def _after_fork() -> None:
    global _forked
    if is_initialized():
        _forked = True
        executor.current = _refuse_in_child  # type: ignore[assignment]  # torn down with the process
        modes.current = _ForkedMode()


def _refuse_in_child() -> Any:
    raise TpuError(
        "[torch.tpu] cannot use the device in a process forked after its first use; start "
        "processes with torch.multiprocessing.set_start_method('spawn'), and let DataLoader "
        "workers return CPU tensors"
    )


class _ForkedMode(modes.Strict):
    def launch(self, call: Any, arrays: Any, targets: Any) -> None:
        del call, arrays, targets
        _refuse_in_child()


def synchronize(device: Any = None) -> None:
    """Wait until everything that was launched is done; raises what it raised."""
    _index(device)
    modes.synchronize()


@dataclass(frozen=True, kw_only=True)
class DeviceProperties:
    """What torch_tpu reports of a device."""

    name: str
    total_memory: int  # bytes: HBM, the host's memory on target cpu, 0 where it is not known
    multi_processor_count: int  # TensorCores
    topology: str = ""  # of the slice that it is part of ("4x4"), where one is simulated
    simulated: bool = False


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Return name, memory in bytes, TensorCores and topology; and whether all that is simulated."""
    _index(device)
    info = executor.current().target.info()
    return DeviceProperties(
        name=info.name,
        total_memory=info.memory_bytes,
        multi_processor_count=info.cores,
        topology=info.topology,
        simulated=info.simulated,
    )


def get_device_name(device: Any = None) -> str:
    """Return the name of the chip, or of what stands in for it."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> dict[str, Any]:
    """Return the dtypes that tensors of the device can have."""
    _index(device)
    from torchtpu import dtypes

    return {"supported_dtypes": {row[0] for row in dtypes._TABLE}}


class device:  # torch's name for a context manager of a device
    """Make a device current inside a `with` block."""

    def __init__(self, device: Any) -> None:
        _index(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


class device_of(device):  # torch's name
    """Make the device of a tensor current; nothing for tensors of other devices."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device if obj.device.type == "tpu" else 0)


def _index(device: Any) -> int:
    index = device if isinstance(device, int) else torch.device(device or "tpu").index or 0
    if not isinstance(device, (int, type(None))) and torch.device(device).type != "tpu":
        raise TpuError(f"[torch.tpu] expected a tpu device, got {device}")
    if index not in (0, -1):
        raise TpuError(
            f"[torch.tpu] expected device tpu:0, got tpu:{index}: a process drives one TPU device; "
            "start one process per device (torchrun) for more"
        )
    return 0


# Memory ---------------------------------------------------------------------------------------


def _target() -> Target:
    """The target, for statistics of its memory; a simulated one has done all work before."""
    target = executor.current().target
    if target.info().simulated:
        modes.current.flush()
    return target


def memory_stats(device: Any = None) -> dict[str, int]:
    """Return bytes in use, their peak and limit, the number of allocations, and `simulated`.

    On target sim (simulated: 1) these are the HBM of the simulated chip: arrays, temporaries of
    programs in the peak, and bytes_limit is what the TPU compiler lets a program use. Work that is
    recorded is launched first. Elsewhere (simulated: 0) they are bytes of live storages, and
    bytes_limit is that of the device, of the host on target cpu, or 0 where it has none.
    """
    _index(device)
    target = _target()
    info, use = target.info(), target.statistics
    return {
        "bytes_in_use": use.in_use_bytes,
        "peak_bytes_in_use": use.peak_bytes,
        "bytes_limit": info.memory_bytes,
        "num_allocs": use.allocations,
        "simulated": int(info.simulated),
    }


def memory_allocated(device: Any = None) -> int:
    """Return the bytes of device memory in use: on target sim, simulated HBM."""
    return memory_stats(device)["bytes_in_use"]


def max_memory_allocated(device: Any = None) -> int:
    """Return the peak of device memory since the start or the last reset.

    On target sim it is simulated HBM, and counts the temporaries of programs too.
    """
    return memory_stats(device)["peak_bytes_in_use"]


def memory_reserved(device: Any = None) -> int:
    """Return memory_allocated: the target's allocator reserves nothing ahead."""
    return memory_allocated(device)


def max_memory_reserved(device: Any = None) -> int:
    """Return max_memory_allocated: the target's allocator reserves nothing ahead."""
    return max_memory_allocated(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Start a new peak at what is in use now."""
    _index(device)
    _target().statistics.reset_peak()


def memory_by_pool() -> dict[str, Any]:
    """Return the statistics in the nested form of torch.accelerator.memory_stats."""
    stats = memory_stats()
    both = {"current": stats["bytes_in_use"], "peak": stats["peak_bytes_in_use"]}
    return {
        "allocated_bytes": {"all": both},
        "reserved_bytes": {"all": dict(both)},
        "num_alloc": stats["num_allocs"],
        "simulated": stats["simulated"],
    }


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return the free and the total bytes of device memory; (0, 0) where they are not known.

    On target sim that is simulated HBM, on target cpu the memory of the host.
    """
    stats = memory_stats(device)
    return max(stats["bytes_limit"] - stats["bytes_in_use"], 0), stats["bytes_limit"]


def empty_cache() -> None:
    """Do nothing: freed memory goes back to the device at once."""


def _hbm_usage_summary() -> str:
    stats = memory_stats()
    limit = stats["bytes_limit"]
    of = f" of {limit / 2**30:.2f} GiB" if limit else ""
    return (
        f"HBM{' (simulated)' if stats['simulated'] else ''}: "
        f"{stats['bytes_in_use'] / 2**30:.3f} GiB in use{of}, "
        f"peak {stats['peak_bytes_in_use'] / 2**30:.3f} GiB, {stats['num_allocs']} allocations"
    )


# Random numbers -------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    """Seed the device's generator."""
    generator.default_generator().manual_seed(int(seed))


manual_seed_all = manual_seed


def seed() -> None:
    """Seed the device's generator from the system's entropy."""
    generator.default_generator().seed()


seed_all = seed


def initial_seed() -> int:
    """Return the seed of the device's generator."""
    return generator.default_generator().initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Return the state of the device's generator as a uint8 CPU tensor."""
    _index(device)
    return generator.default_generator().get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Restore a state that get_rng_state returned."""
    _index(device)
    generator.default_generator().set_state(new_state)


# Modes and precision --------------------------------------------------------------------------

set_eager_mode = modes.use


class Precision(Enum):
    """Passes over bfloat16 that a float32 matmul takes on the MXU."""

    DEFAULT = "medium"  # one
    HIGH = "high"  # three
    HIGHEST = "highest"  # six


@contextmanager
def precision(value: Precision) -> Iterator[None]:
    """Set the float32 matmul precision inside a `with` block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(value.value)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def set_matmul_precision(precision: str) -> None:
    """Compile matmuls from now on with torch's "medium", "high" or "highest" float32 precision."""
    from torchtpu.eager import kernel

    executor.set_float32_matmul_precision(precision)
    kernel.forget()


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes for torch.autocast("tpu"); the default is bfloat16."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported() -> bool:
    """Every TPU computes in bfloat16."""
    return True


# The compile cache ----------------------------------------------------------------------------


def _get_cache_stats() -> dict[str, Any]:
    """Return num_cache_reqs, num_cache_hits, num_compilations and more of the program cache.

    Hits are those of all tiers: memory, host and the directory between hosts.
    """
    executor.current().settle()
    stats, tiers = executor.current().cache.stats, executor.current().tiers
    return {
        "num_cache_reqs": stats.requests,
        "num_cache_hits": stats.hits + stats.host_hits + stats.shared_hits,
        "num_memory_hits": stats.hits,
        "num_host_hits": stats.host_hits,
        "num_shared_hits": stats.shared_hits,
        "load_s": stats.load_s,
        "num_traces": stats.traces,
        "num_compilations": stats.compilations,
        "compile_s": stats.compile_s,
        "num_unpersistable": stats.unpersistable,
        "num_cache_errors": tiers.host.errors + tiers.shared.errors,
        "num_evictions": stats.evictions,
        "per_entry_stats": dict(stats.per_program),
    }


def _clear_cache() -> None:
    from torchtpu.eager import kernel

    executor.current().settle()
    executor.current().cache.clear()
    kernel.forget()


def _set_allow_cache(allow: bool) -> None:
    """Whether compiled programs may be used again (they may); False compiles at every request."""
    from torchtpu.eager import kernel

    executor.current().allow_cache = allow
    kernel.forget()


def _set_cache_only(cache_only: bool) -> None:
    """Whether a program that is not compiled yet is an error: for what must not compile again."""
    executor.current().cache_only = cache_only


def _set_dump_on_cache_miss(folder: str | os.PathLike[str] | None) -> None:
    """Write the StableHLO of each program that is compiled to this folder; None stops that."""
    executor.current().dump_to = None if folder is None else Path(folder)


def _get_fallback_counts() -> dict[str, int]:
    """Return how often each op without a lowering ran on the CPU (TORCHTPU_FALLBACK=warn)."""
    from torchtpu.eager import fallback

    return dict(fallback.counts)
