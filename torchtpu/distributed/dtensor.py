"""What DTensor has to know of the device: what shards draw, and how attention is split."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from torchtpu.generator import default_generator, drawing_for
from torchtpu.private import torch as private

_aten = torch.ops.aten
_logger = logging.getLogger(__name__)
_FUSED = _aten._scaled_dot_product_fused_attention_overrideable.default
_FUSED_BACKWARD = _aten._scaled_dot_product_fused_attention_overrideable_backward.default

if TYPE_CHECKING:

    class _Tracker:
        distribute_region_enabled: bool
        _device: torch.device

        def __init__(self, mesh: Any, run_state_sync: bool) -> None: ...
        def _distribute_region(self, spec: Any, generator: Any = None) -> Any: ...
        def _calc_shard_linear_idx(self, index: Any, count: Any) -> int: ...

else:
    _Tracker = private.OffsetBasedRNGTracker


class Draws(_Tracker):
    """Random ops of DTensors: shards draw numbers of their own, copies of a shard the same.

    torch's tracker moves the offset in a Philox state of 16 bytes, which this device's generators
    do not have: here the shard's number chooses the stream.
    """

    def __init__(self, device_mesh: Any, run_state_sync: bool = True) -> None:
        is_ours = device_mesh.device_type == "tpu"
        super().__init__(device_mesh, run_state_sync=run_state_sync and not is_ours)
        if run_state_sync and is_ours:
            _take_the_state_of_rank_0()

    def _distribute_region(self, spec: Any, generator: Any = None) -> Any:
        if self._device.type != "tpu":
            return super()._distribute_region(spec, generator)
        if not self.distribute_region_enabled:
            return _with_state_of(generator)
        return self._drawn(spec, generator)

    @contextmanager
    def _drawn(self, spec: Any, generator: Any) -> Iterator[None]:
        place = [spec.mesh._sym_get_coordinate(dim) for dim in range(spec.mesh.ndim)]
        shard = self._calc_shard_linear_idx(*private.dtensor_shards(place, spec))
        with _with_state_of(generator), drawing_for(shard):
            yield


def _with_state_of(generator: Any) -> Any:
    return nullcontext() if generator is None else _lent(generator)


@contextmanager
def _lent(generator: Any) -> Iterator[None]:
    """Let the device's own generator go on from another's state, and that one from there."""
    own = default_generator()
    before = own.get_state()
    own.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(own.get_state())
        own.set_state(before)


def _take_the_state_of_rank_0() -> None:
    own = default_generator()
    mine = own.get_state()
    theirs = mine.clone()
    dist.broadcast(theirs, 0)  # over gloo: it is on the host
    if not torch.equal(mine, theirs):
        _logger.warning(
            "[DTensor] expected the same random state on all ranks before the first random op, got "
            "another than rank 0's, which is taken: call torch.manual_seed with one seed everywhere"
        )
    own.set_state(theirs)


@cache
def prepare() -> None:
    """Tell DTensor; once per process."""
    private.dtensor_random.OffsetBasedRNGTracker = Draws
    register_sharding(_FUSED)(_attention)
    register_sharding(_FUSED_BACKWARD)(_attention_backward)


def _ways(bias: Any, query: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Placements of queries (and what has their batch and heads), the bias, its gradient."""
    yield Replicate(), Replicate(), Replicate()
    for dim in (0, 1):  # batch, heads
        kind = Shard(dim)
        is_split = bias is not None and bias.ndim == 4 and bias.shape[dim] == query.shape[dim]
        yield (kind, kind, kind) if is_split else (kind, Replicate(), Partial())


def _attention(
    query: Any, _key: Any, _value: Any, bias: Any = None, *_: Any, **__: Any
) -> list[tuple[list[Any], list[Any]]]:
    ways = []
    for kind, of_bias, _ in _ways(bias, query):
        outputs = [kind, kind, None, None, None, None, Replicate(), Replicate(), None]
        ways.append((outputs, [kind] * 3 + ([of_bias] if bias is not None else [])))
    return ways


def _attention_backward(
    _grad: Any, query: Any, _key: Any, _value: Any, bias: Any, *_: Any, **__: Any
) -> list[tuple[list[Any], list[Any]]]:
    ways = []
    for kind, of_bias, of_gradient in _ways(bias, query):
        outputs = [kind] * 3 + [of_gradient if bias is not None else None]
        inputs = [kind] * 4 + ([of_bias] if bias is not None else [])
        ways.append((outputs, [*inputs, kind, kind, Replicate(), Replicate()]))
    return ways
