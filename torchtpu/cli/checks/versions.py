"""Section versions: what is installed, and whether torchtpu, jax and jaxlib allow it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from torchtpu.cli.checks.row import Row, fail, note, ok, warn
from torchtpu.private.versions import KNOWN, is_known

_PACKAGES = ("torch", "jax", "jaxlib", "numpy", "scipy", "ml_dtypes")
_OWNERS = ("torchtpu", "jax", "jaxlib")  # whose requirements count


@dataclass(frozen=True, kw_only=True)
class _Need:
    """A range that a package requires of another one."""

    owner: str
    specifier: SpecifierSet

    def __str__(self) -> str:
        return f"{self.owner} needs {self.specifier}" if self.specifier else f"{self.owner} uses it"

    def met_by(self, version: str) -> bool:
        return self.specifier.contains(version, prereleases=True)


def rows(_limit_s: float) -> list[Row]:
    """Return what is installed, and what does not match."""
    return [_torchtpu(), _python(), *(_package(n) for n in _PACKAGES), *_same_jaxlib(), _libtpu()]


def _version(name: str) -> str:
    """Return the version of an installed package; empty where there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


@cache
def _requirements(owner: str) -> list[Requirement]:
    try:
        return [Requirement(text) for text in metadata.requires(owner) or ()]
    except metadata.PackageNotFoundError:
        return []


def _needs(name: str, extra: str = "", owners: tuple[str, ...] = _OWNERS) -> Iterator[_Need]:
    """Yield the ranges of a package, with an extra those that it alone asks for."""
    for owner in owners:
        for found in _requirements(owner):
            is_named = canonicalize_name(found.name) == canonicalize_name(name)
            if is_named and _applies(found, extra) and not (extra and _applies(found, "")):
                yield _Need(owner=f"{owner} {_version(owner)}", specifier=found.specifier)


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _torchtpu() -> Row:
    version = _version("torchtpu")
    if version:
        return ok("torchtpu", version)
    return fail(
        "torchtpu",
        "not installed, only found on Python's path, so that `import torch` does not load it",
        "pip install torchtpu, or `pip install .` in a clone",
    )


def _python() -> Row:
    version = platform.python_version()
    where = f"{sys.executable} on {platform.system()} {platform.machine()}"
    text = metadata.metadata("torchtpu")["Requires-Python"] if _version("torchtpu") else ""
    need = _Need(owner="torchtpu", specifier=SpecifierSet(text or ""))
    if need.met_by(version):
        return ok("python", f"{version} ({need}), {where}")
    return fail("python", f"{version}, but {need}", "make an environment with a newer Python")


def _package(name: str) -> Row:
    version, needs = _version(name), list(_needs(name))
    install = f"pip install '{name}{','.join(str(n.specifier) for n in needs if n.specifier)}'"
    if not version:
        return fail(name, f"not installed; {'; '.join(map(str, needs))}", install)
    unmet = [n for n in needs if not n.met_by(version)]
    if unmet:
        return fail(name, f"{version}, but {' and '.join(map(str, unmet))}", install)
    if name in KNOWN and not is_known(name, version):
        first, last = KNOWN[name]
        tested = f"{version}: torchtpu is tested with {first} to {last}"
        return warn(name, tested, f"pip install '{name}=={last}.*'")
    return ok(name, f"{version} ({'; '.join(map(str, needs))})")


def _same_jaxlib() -> Iterator[Row]:
    jax, jaxlib = _version("jax"), _version("jaxlib")
    if jax and jaxlib and jax != jaxlib:
        yield warn(
            "jax and jaxlib",
            f"jax {jax} with jaxlib {jaxlib}: not of one release",
            f"pip install 'jax=={jax}' 'jaxlib=={jax}'",
        )


def _libtpu() -> Row:
    version, needs = _version("libtpu"), list(_needs("libtpu", extra="tpu", owners=("jax",)))
    wanted = "; ".join(map(str, needs)) or "jax says nothing of it"
    if not version:
        return note("libtpu", f"not installed; only target tpu uses it ({wanted})")
    if all(n.met_by(version) for n in needs):
        return ok("libtpu", f"{version} ({wanted})")
    return warn("libtpu", f"{version}, but {wanted}", f"pip install 'jax[tpu]=={_version('jax')}'")
