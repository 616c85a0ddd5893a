"""Options of torch.compile(backend="tpu") under torch_tpu's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from torchtpu.errors import TpuError, did_you_mean

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What torch.compile's `options` may hold."""

    async_compile: bool = False  # run op by op while XLA compiles
    num_dynamic_buckets: int = 4  # sizes that a dynamic dim is rounded up to, 1 to 8
    bucket_size: int = 128  # the step between them, once powers of two reach it
    serializable: bool = True  # keep what AOTAutograd made, for the next process
    debug_callback: Callable[..., Any] | None = None  # gets a TpuCompileDebug per graph
    custom_module_name: str = ""  # in place of "graph" in the names of programs

    @classmethod
    def parse(cls, mode: str = "default", options: dict[str, Any] | None = None) -> Options:
        """Return Options of torch.compile's arguments; TpuError names what is wrong."""
        if mode not in _MODES:
            raise TpuError(f"[torch.compile] unknown mode {mode!r}; {did_you_mean(mode, _MODES)}")
        for name in options or {}:
            if name not in NAMES:
                raise TpuError(
                    f"[torch.compile] unknown option {name!r}; {did_you_mean(name, NAMES)}"
                )
        made = cls(**(options or {}))
        if not 1 <= made.num_dynamic_buckets <= 8:
            raise TpuError(
                "[torch.compile] expected num_dynamic_buckets from 1 to 8, got "
                f"{made.num_dynamic_buckets}"
            )
        if made.bucket_size < 1:
            raise TpuError(
                f"[torch.compile] expected a positive bucket_size, got {made.bucket_size}"
            )
        return made


NAMES = tuple(f.name for f in fields(Options))
