"""A world of which one rank runs: collectives are launched on abstract buffers, and recorded.

The other ranks are taken to do the same at the same time, as they do in SPMD programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from torchtpu.distributed.base import NamedGroup
from torchtpu.distributed.reductions import Reduction
from torchtpu.eager.collectives import launch
from torchtpu.private import torch as private
from torchtpu.storage import buffer_of

_Tensors = Sequence[torch.Tensor]


class FakeWorld(NamedGroup):
    """The group `ranks` (global numbers) of a world of `world` devices, seen by one of them."""

    def __init__(self, rank: int, ranks: Sequence[int], world: int, name: str) -> None:
        super().__init__(rank, len(ranks), name)
        self._group = (list(ranks), world)

    # All members --------------------------------------------------------------------------------

    def allreduce(self, tensors: _Tensors, opts: Any = None) -> Any:
        """Reduce each tensor in place."""
        reduce = Reduction.of(opts, ()).name
        for tensor in tensors:
            value = _value(tensor)
            if value is None:
                launch("all_reduce", tensor, tensor, reduce, *self._group)
            elif reduce == "sum":
                tensor.copy_(value * self.size())
            elif reduce == "product":
                tensor.copy_(value ** self.size())
        return _done(tensors)

    def allreduce_coalesced(self, tensors: _Tensors, opts: Any = None) -> Any:
        """Reduce each tensor in place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: _Tensors, opts: Any = None) -> Any:
        """Reduce to one member: an all-reduce, as XLA has no other."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: _Tensors, _opts: Any = None) -> Any:
        """Send one member's tensors: an all-reduce of theirs and zeros."""
        for tensor in tensors:
            if _value(tensor) is None:
                launch("all_reduce", tensor, tensor, "max", *self._group)
        return _done(tensors)

    def barrier(self, opts: Any = None) -> Any:
        """Meet: nobody else is here to wait for."""
        del opts
        return _done([])

    def _allgather_base(self, output: torch.Tensor, given: torch.Tensor, _opts: Any = None) -> Any:
        self._gather(output, given)
        return _done([output])

    def _gather(self, output: torch.Tensor, given: torch.Tensor) -> None:
        value = _value(given)
        if value is None:
            launch("all_gather", output, given, *self._group)
        else:
            output.copy_(value.reshape(-1).repeat(self.size()).view(output.shape))

    def allgather(self, outputs: Sequence[_Tensors], inputs: _Tensors, _opts: Any = None) -> Any:
        """Gather each input into a list of tensors."""
        for parts, given in zip(outputs, inputs, strict=True):
            made = given.new_empty(self.size() * given.numel())
            self._gather(made, given)
            _copy_out(parts, made)
        return _done([part for parts in outputs for part in parts])

    def allgather_into_tensor_coalesced(
        self, outputs: _Tensors, inputs: _Tensors, _opts: Any = None
    ) -> Any:
        """Gather each input into its output."""
        for output, given in zip(outputs, inputs, strict=True):
            self._allgather_base(output, given)
        return _done(outputs)

    def _reduce_scatter_base(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> Any:
        launch("reduce_scatter", output, given, Reduction.of(opts, ()).name, *self._group)
        return _done([output])

    def reduce_scatter(
        self, outputs: _Tensors, inputs: Sequence[_Tensors], opts: Any = None
    ) -> Any:
        """Reduce lists of tensors, each member keeping its own."""
        for output, parts in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, _joined(parts), opts)
        return _done(outputs)

    def reduce_scatter_tensor_coalesced(
        self, outputs: _Tensors, inputs: _Tensors, opts: Any = None
    ) -> Any:
        """Reduce and scatter each input into its output."""
        for output, given in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, given, opts)
        return _done(outputs)

    def alltoall_base(
        self, output: torch.Tensor, given: torch.Tensor, *_sizes_and_options: Any
    ) -> Any:
        """Exchange parts along dim 0; uneven ones travel as even ones of the larger side."""
        longest = max(given.numel(), output.numel())
        longest += -longest % self.size()
        sent, made = (_grown(t, longest) for t in (given, output))
        launch("all_to_all", made, sent, *self._group)
        if made.numel() != output.numel():
            output.copy_(made[: output.numel()].view(output.shape))
        return _done([output])

    def alltoall(self, outputs: _Tensors, inputs: _Tensors, _opts: Any = None) -> Any:
        """Exchange lists of tensors."""
        made = outputs[0].new_empty(sum(t.numel() for t in outputs))
        self.alltoall_base(made, _joined(inputs))
        _copy_out(outputs, made)
        return _done(outputs)

    # Two members --------------------------------------------------------------------------------

    def send(self, tensors: _Tensors, to: int, _tag: int = 0) -> Any:
        """Send to a member: each rank is taken to send as far, as in a pipeline."""
        ranks, world = self._group
        step, count = to - self.rank(), self.size()
        pairs = [n for i in range(count) for n in (ranks[i], ranks[(i + step) % count])]
        for tensor in tensors:
            launch("permute", torch.empty_like(tensor), tensor, pairs, world)
        return _done(tensors)

    def recv(self, tensors: _Tensors, _from: int, _tag: int = 0) -> Any:
        """Receive: the sender's launch has carried the time, and values there are none."""
        return _done(tensors)

    # torch's later names --------------------------------------------------------------------------

    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base


def ask_nobody() -> None:
    """Keep torch from reading on the host what other ranks would have answered.

    A DTensor's random ops draw for the part that is here; DDP takes all models for the same.
    """
    private.dtensor_random._rng_tracker = _LocalDraws()
    private.ddp._verify_param_shape_across_processes = lambda *_, **__: True


class _LocalDraws:
    distribute_region_enabled = True

    def _distribute_region(self, *_: Any, **__: Any) -> Any:
        return nullcontext()


def _value(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor's values where they came from the host: other ranks have the same."""
    if tensor.device.type != "tpu":
        return tensor.detach()
    buffer = buffer_of(tensor.untyped_storage())
    known = getattr(buffer.array, "value", None) is not None
    return tensor.detach().cpu() if known else None


def _joined(tensors: _Tensors) -> torch.Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def _copy_out(tensors: _Tensors, made: torch.Tensor) -> None:
    for tensor, part in zip(tensors, made.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(part.view(tensor.shape))


def _grown(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    flat = tensor.reshape(-1)
    return torch.nn.functional.pad(flat, (0, elements - flat.numel()))


def _done(result: Any) -> Any:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return private.create_work(future)
