"""Which TPU compiler an environment has: libtpu's file, the versions, and whether they match.

Run as a script, which needs nothing but Python, it prints those of its own environment as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

_LIMIT_S = 60.0
_UNKNOWN = "0+"  # begins the version of a library that says none
_NAMES = ("jax", "jaxlib", "libtpu")


@dataclass(frozen=True, kw_only=True)
class TpuCompiler:
    """An environment's compiler; `needs` are jax's requirements of libtpu, as pip writes them."""

    python: str
    library: str  # empty for none
    versions: dict[str, str]  # of jax, jaxlib and libtpu; what is not known is absent
    needs: tuple[str, ...]

    def mismatch(self) -> str:
        """Say why libtpu cannot be used with this jax; empty where it can, or nobody knows."""
        from packaging.requirements import Requirement

        found, jax = self.versions.get("libtpu"), self.versions.get("jax")
        wanted = [Requirement(text).specifier for text in self.needs]
        if (
            not found
            or found.startswith(_UNKNOWN)
            or all(w.contains(found, prereleases=True) for w in wanted)
        ):
            return ""
        asked = ", ".join(str(w) for w in wanted if str(w))
        return f"libtpu {found} in {self.library}, but jax {jax} needs libtpu {asked}"


def library() -> str:
    """Return libtpu's path, from TPU_LIBRARY_PATH or the installed package; "" for none."""
    package = importlib.util.find_spec("libtpu")
    inside = Path(package.origin).with_name("libtpu.so") if package and package.origin else ""
    return os.environ.get("TPU_LIBRARY_PATH") or str(inside)


def here() -> TpuCompiler:
    """Return the compiler of this interpreter."""
    path = library()
    versions = {name: found for name in _NAMES if (found := _version(name, path))}
    return TpuCompiler(python=sys.executable, library=path, versions=versions, needs=_needs())


def of(python: str) -> TpuCompiler:
    """Return the compiler of another interpreter, which is asked.

    Raises OSError where it does not start, ValueError where it gives no answer.
    """
    done = subprocess.run(
        [python, "-I", __file__],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ValueError(f"exit code {done.returncode}: {last}")
    found = json.loads(done.stdout)
    return TpuCompiler(**{**found, "needs": tuple(found["needs"])})


def _version(name: str, path: str) -> str:
    """The version of a package; of a libtpu that TPU_LIBRARY_PATH names, what lies beside it."""
    beside = Path(path).parent.parent.glob(f"{name}-*.dist-info") if path else ()
    for folder in beside:
        return folder.name.removeprefix(f"{name}-").removesuffix(".dist-info")
    if name == "libtpu" and os.environ.get("TPU_LIBRARY_PATH"):
        return _unnamed(Path(path))
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _unnamed(path: Path) -> str:
    """A library without a package: told from others by its size."""
    return f"{_UNKNOWN}{path.stat().st_size}" if path.is_file() else ""


def _needs() -> tuple[str, ...]:
    try:
        found: Sequence[str] = metadata.requires("jax") or ()
    except metadata.PackageNotFoundError:
        return ()
    return tuple(text.partition(";")[0].strip() for text in found if text.startswith("libtpu"))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(here())) + "\n")
