"""Random number state of the device: host generators from which each random op takes a key."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch

from torchtpu import executor
from torchtpu.errors import TpuError
from torchtpu.private import torch as private

_library = torch.library.Library("torchtpu", "FRAGMENT")
_library.define("seen_by_ops(Generator generator) -> ()")
_library.impl("seen_by_ops", lambda seen: _seen.append(seen), "CompositeImplicitAutograd")
_seen: list[private.Generator] = []
_ours: weakref.WeakSet[private.Generator] = weakref.WeakSet()  # as kernels meet them


class _AnyGenerator(type(private.Generator)):  # type: ignore[misc]  # torch's metaclass is not annotated
    """Keeps `isinstance(g, torch.Generator)` true for the generators of every device."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, private.Generator)


class Generator(private.Generator, metaclass=_AnyGenerator):
    """A generator for device tpu.

    The state is a host Mersenne Twister of torch's own, so seeds, get_state and set_state behave
    as everywhere; each random op draws 128 bits from it, as the key of a counter-based generator on
    the device. The bits differ from those of cpu and cuda.
    """

    _as_seen: private.Generator  # what torch's dispatcher hands to kernels; kept alive, so the same

    def __new__(cls, device: Any = "cpu") -> Any:
        """Return a generator of the device: one of these for tpu, torch's own for others."""
        wanted = torch.device(device)
        if wanted.type != "tpu":
            return private.Generator(device)
        if wanted.index not in (None, 0):
            raise TpuError(
                f"[Generator] expected device tpu:0, got {wanted}: a process drives one device"
            )
        made = super().__new__(cls)
        made._as_seen = _as_seen(made)
        _ours.add(made._as_seen)
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # read-only there too
        """The device whose tensors this generator fills."""
        return torch.device("tpu", 0)

    def clone_state(self) -> Generator:
        """Return another generator in the same state."""
        return _with_state(self.get_state())

    def __reduce__(self) -> Any:
        return _with_state, (self.get_state(),)


def _as_seen(generator: private.Generator) -> private.Generator:
    with private.DisableTorchDispatch():
        torch.ops.torchtpu.seen_by_ops.default(generator)
    return _seen.pop()


def _with_state(state: torch.Tensor) -> Generator:
    made: Generator = Generator("tpu")
    made.set_state(state)
    return made


_default: private.Generator | None = None


def default_generator() -> private.Generator:
    """Return the generator that ops use where none is given."""
    global _default
    if _default is None:
        _default = Generator("tpu")
        _default.manual_seed(torch.initial_seed())
    return _default


_shard: ContextVar[int] = ContextVar("shard", default=0)


@contextmanager
def drawing_for(shard: int) -> Iterator[None]:
    """Let random ops inside draw the numbers of a shard, by number: each has its own.

    Generators go on alike for all shards, so that processes stay in step.
    """
    before = _shard.set(shard)
    try:
        yield
    finally:
        _shard.reset(before)


def random_keys(generator: private.Generator | None, *shape: int) -> np.ndarray[Any, Any]:
    """Draw the next uint32[*shape, 4] keys from a generator; never the same one twice.

    RuntimeError, in torch's words, for a generator of another device.
    """
    source = generator if generator is not None else default_generator()
    if source not in _ours and type(source) is not Generator:
        raise RuntimeError(
            f"Expected a 'tpu' device type for generator but found '{source.device.type}'"
        )
    bits = torch.empty(*shape, 4, dtype=torch.int64, device="cpu")
    keys: np.ndarray[Any, Any] = bits.random_(0, 1 << 32, generator=source).numpy()
    keys[..., 0] ^= _shard.get()  # words 0 and 1 choose the stream, 2 and 3 are where it begins
    return keys.astype(np.uint32)


def device_keys(generator: private.Generator | None, *shape: int) -> Any:
    """Return the next keys of a generator as a device array."""
    return executor.current().target.put(random_keys(generator, *shape))
