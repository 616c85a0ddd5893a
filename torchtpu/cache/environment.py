"""What decides, beside the program and the target, to what a program is lowered and compiled."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from functools import cache
from importlib import import_module
from pathlib import Path

from torchtpu.cache.encoding import Unencodable
from torchtpu.cache.key import Entries, hashed
from torchtpu.private import jax as private

_ROOT = Path(__file__).parents[1]
_PACKAGES = ("torchtpu", "torch", "jax", "jaxlib", "numpy", "ml_dtypes", "scipy")
_FLAGS = ("XLA_", "TF_XLA_", "LIBTPU_", "NPROC", "PJRT_")  # beginnings of variables
_SETS_ITSELF = frozenset({"jax_enable_x64", "jax_default_matmul_precision", "axis_env_state"})
_NO_CODE = frozenset({"cli", "estimate", "perf_model", "sim", "__pycache__"})


def entries() -> Entries:
    """Return versions, sources and XLA's variables.

    Raises Unencodable where there are no sources, and once one has changed since the process
    started: nobody knows then which of its lines are at work here.
    """
    if not _source_files():
        raise Unencodable(f"[cache] no sources in {_ROOT}, expected *.py")
    for path in _source_files():
        found = os.stat(path)
        if max(found.st_mtime, found.st_ctime) >= _STARTED_S:
            raise Unencodable(f"[cache] {path} has changed since this process started")
    return _fixed()


@cache
def _fixed() -> Entries:
    versions = [(name, str(import_module(name).__version__)) for name in _PACKAGES]
    flags = {n: v for n, v in os.environ.items() if n.startswith(_FLAGS)}
    return (
        ("python", f"{platform.python_implementation()} {platform.python_version()}"),
        *versions,
        ("sources", sources()),
        *((f"variable {n}", flags[n]) for n in sorted(flags)),
    )


def jax_settings() -> Entries:
    """Return JAX's settings of this thread that a trace depends on; the user may change them."""
    found = {n: v for n, v in private.trace_settings().items() if n not in _SETS_ITSELF}
    return hashed([("jax settings", found)])


@cache
def sources() -> str:
    """Return the sha256 over this package's files that lower, compile or run programs."""
    digest = hashlib.sha256()
    for path in _source_files():
        name, content = os.path.relpath(path, _ROOT).encode(), Path(path).read_bytes()
        digest.update(b"%d %d %b%b" % (len(name), len(content), name, content))
    return digest.hexdigest()


@cache
def _source_files() -> list[str]:
    found = []
    for folder, folders, files in os.walk(_ROOT, followlinks=True):
        folders[:] = [f for f in folders if f not in _NO_CODE]
        found += [f"{folder}/{f}" for f in files if f.endswith(".py")]
    return sorted(found)


def _started_s() -> float:
    """Return when this process began, in seconds since the epoch; now where nobody tells."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return time.time()
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


_STARTED_S = _started_s()  # a forked process keeps that of the one that imported
