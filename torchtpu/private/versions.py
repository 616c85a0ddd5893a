"""Versions of torch and jax whose private names this package knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import metadata
from typing import ParamSpec, TypeVar

from packaging.version import Version

P = ParamSpec("P")
T = TypeVar("T")

# First and last release that the tests ran with; every release between them is expected to work.
KNOWN = {
    "torch": ("2.13", "2.14"),
    "jax": ("0.10", "0.12"),
    "jaxlib": ("0.10", "0.12"),
}


class UnknownVersion(ImportError):
    """A package lacks a private name: its version is not one that this package knows."""


def is_known(package: str, version: str) -> bool:
    """Tell whether a version lies in the range that the tests ran with, patch releases included."""
    first, last = map(Version, KNOWN[package])
    release = Version(version).release
    return first.release <= release and release[: len(last.release)] <= last.release


def is_later(package: str) -> bool:
    """Tell whether the installed release is later than the first that the tests ran with."""
    first = Version(KNOWN[package][0]).release
    return Version(metadata.version(package)).release[: len(first)] > first


@contextmanager
def names_of(package: str) -> Iterator[None]:
    """Turn the error of a missing name into one that says which versions have it."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        version = metadata.version(package)
        first, last = KNOWN[package]
        raise UnknownVersion(
            f"[torchtpu] {package} {version} has changed what torchtpu "
            f"{metadata.version('torchtpu')} needs of it ({error}); it is tested with {package} "
            f"{first} to {last}: pip install '{package}>={first},<={last}'"
        ) from error


def taken_from(package: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function that imports private names of a package when it is called."""

    def decorate(get: Callable[P, T]) -> Callable[P, T]:
        @wraps(get)
        def got(*args: P.args, **kwargs: P.kwargs) -> T:
            with names_of(package):
                return get(*args, **kwargs)

        return got

    return decorate
