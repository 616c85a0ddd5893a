"""Every knob: one line each, read from the environment once, overridable in a `with`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torchtpu.errors import ConfigError, did_you_mean

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A setting: its environment variables (the first that is set wins), default and meaning."""

    variables: tuple[str, ...]
    default: Any
    doc: str
    parse: Callable[[str, str], Any]

    def read(self) -> Any:
        """Return the value from the environment, or the default."""
        for variable in self.variables:
            text = os.environ.get(variable)
            if text is not None:
                return self.parse(variable, text)
        return self.default


def _boolean(variable: str, text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise ConfigError(
        f"[{variable}] expected one of 1, true, yes, on, 0, false, no, off, got {text!r}"
    )


def _text(_variable: str, text: str) -> str:
    return text


def _integer(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"[{variable}] expected an integer, got {text!r}") from None


def _plain_name(variable: str, text: str) -> str:
    if text.replace("-", "").replace("_", "").isalnum():
        return text
    raise ConfigError(f"[{variable}] expected a name of letters, digits, - and _, got {text!r}")


def one_of(*allowed: str) -> Callable[[str, str], str]:
    """Return a parser that accepts only the given words."""

    def parse(variable: str, text: str) -> str:
        if text in allowed:
            return text
        raise ConfigError(f"[{variable}] unknown value {text!r}; {did_you_mean(text, allowed)}")

    return parse


def several_of(*allowed: str) -> Callable[[str, str], frozenset[str]]:
    """Return a parser of a comma list of the given words."""
    one = one_of(*allowed)

    def parse(variable: str, text: str) -> frozenset[str]:
        words = (w.strip() for w in text.split(","))
        return frozenset(one(variable, w) for w in words if w)

    return parse


KNOBS: dict[str, Knob] = {
    "target": Knob(
        variables=("TORCHTPU_TARGET",),
        default="",
        parse=_text,
        doc="tpu, cpu, sim, sim:CHIP or sim:CHIP:TOPOLOGY (sim:v6e:4x4). Empty: tpu where one is "
        "present, else cpu.",
    ),
    "mode": Knob(
        variables=("TORCHTPU_MODE",),
        default="",
        parse=one_of("debug", "strict", "fused"),
        doc="Eager mode at start: debug, strict or fused (the default).",
    ),
    "defer_and_fuse": Knob(
        variables=("TORCH_TPU_DEFER_AND_FUSE", "TPU_DEFER_AND_FUSE"),
        default=None,
        parse=_boolean,
        doc="1 starts in fused mode, 0 in strict (same as TORCHTPU_MODE).",
    ),
    "launch_blocking": Knob(
        variables=("TORCH_TPU_LAUNCH_BLOCKING", "TPU_LAUNCH_BLOCKING"),
        default=False,
        parse=_boolean,
        doc="1 starts in debug mode (same as TORCHTPU_MODE=debug).",
    ),
    "fallback": Knob(
        variables=("TORCHTPU_FALLBACK",),
        default="error",
        parse=one_of("error", "warn"),
        doc="What an op without a lowering does: error, or warn and run on the CPU.",
    ),
    "attention": Knob(
        variables=("TORCHTPU_ATTENTION",),
        default="kernel",
        parse=one_of("kernel", "math"),
        doc="Attention on a TPU: kernel (flash kernels, where shapes and dtypes allow it) or math "
        "(for bfloat16 on v2 and v3, too).",
    ),
    "sim_numerics": Knob(
        variables=("TORCHTPU_SIM_NUMERICS",),
        default=True,
        parse=_boolean,
        doc="0: target sim holds abstract buffers (no values), for models that do not fit here.",
    ),
    "imitate_tpu_matmul": Knob(
        variables=("TORCHTPU_IMITATE_TPU_MATMUL",),
        default=False,
        parse=_boolean,
        doc="1: targets cpu and sim compute float32 matmuls and convolutions in 1, 3 or 6 bfloat16 "
        "passes, as a TPU does at torch's matmul precision medium, high or highest.",
    ),
    "start_timeout_s": Knob(
        variables=("TORCHTPU_START_TIMEOUT",),
        default=120,
        parse=_integer,
        doc="Seconds that target tpu's library may take to start.",
    ),
    "check_nan": Knob(
        variables=("TORCHTPU_CHECK_NAN",),
        default=False,
        parse=_boolean,
        doc="1: debug mode raises at the op whose result first holds a NaN.",
    ),
    "cache_entries": Knob(
        variables=("TORCHTPU_CACHE_ENTRIES",),
        default=16384,
        parse=_integer,
        doc="Compiled programs that the process keeps; the least recently used one goes first.",
    ),
    "compile_threads": Knob(
        variables=("TORCHTPU_COMPILE_THREADS",),
        default=min(8, os.cpu_count() or 1),
        parse=_integer,
        doc="Programs compiled at a time while the host runs ahead (default: one per core, at most "
        "8); 0: the host waits for each.",
    ),
    "max_compiles": Knob(
        variables=("TORCHTPU_MAX_COMPILES",),
        default=0,
        parse=_integer,
        doc="More compiles than this in one process are an error that says what recompiled (for "
        "CI); 0: no limit.",
    ),
    "log": Knob(
        variables=("TORCHTPU_LOG",),
        default=frozenset(),
        parse=several_of("recompiles", "compiles", "cache"),
        doc="Topics to log on stderr, with commas: recompiles (and why), compiles, cache.",
    ),
    "oracle_python": Knob(
        variables=("TORCHTPU_ORACLE_PYTHON",),
        default="",
        parse=_text,
        doc="Python whose jax[tpu] compiles for `torchtpu-perf estimate --oracle libtpu` (default: "
        "this one).",
    ),
    "cache_dir": Knob(
        variables=("TORCHTPU_CACHE_DIR",),
        default="",
        parse=_text,
        doc="Where this host's compiled programs lie. Empty: torchtpu in the XDG cache directory.",
    ),
    "cache_name": Knob(
        variables=("TORCH_TPU_TIER2_COMPILATION_CACHE",),
        default="default",
        parse=_plain_name,
        doc="Name of the host's cache that processes share, or disabled.",
    ),
    "cache_bytes": Knob(
        variables=("TORCHTPU_CACHE_BYTES",),
        default=4 << 30,
        parse=_integer,
        doc="Bound of the host's cache; the least recently used programs go first. 0: no bound.",
    ),
    "cache_shared": Knob(
        variables=("TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT",),
        default="",
        parse=_text,
        doc="A directory of compiled programs shared by hosts; whoever may write to it is trusted.",
    ),
}

_values: dict[str, Any] = {}


def get(name: str) -> Any:
    """Return a knob's value: an override, else the environment's (read once), else the default."""
    if name not in _values:
        if name not in KNOBS:
            raise ConfigError(f"[config] unknown knob {name!r}; {did_you_mean(name, KNOBS)}")
        _values[name] = KNOBS[name].read()
    return _values[name]


@contextmanager
def override(**values: Any) -> Iterator[None]:
    """Set knobs inside a `with` block: `with config.override(fallback="warn"): ...`."""
    before = {name: get(name) for name in values}
    _values.update(values)
    try:
        yield
    finally:
        _values.update(before)
