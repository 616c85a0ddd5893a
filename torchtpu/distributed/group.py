"""A process group of backend "tpu_dist": torch's collectives on the device, between processes."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from torchtpu.distributed import captured, programs, sparse
from torchtpu.distributed.calling import Memory, limit
from torchtpu.distributed.engine import CollectiveError, CollectiveTimeout, signature
from torchtpu.distributed.messages import Messenger
from torchtpu.distributed.operands import Tensors, cut, on_device, operands, padded
from torchtpu.distributed.reductions import Reduction
from torchtpu.distributed.work import done
from torchtpu.errors import TpuError

_BARRIER = signature("barrier")


class TpuGroup(Messenger):
    """The processes `ranks` (global numbers, in the group's order) and what they do together."""

    # All members --------------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        """Reduce each tensor in place over the members."""
        if not on_device(tensors):
            return self._by_host("allreduce", tensors, opts)
        reduction = Reduction.of(opts, tensors)
        if all(t.is_sparse for t in tensors):
            return sparse.all_reduce(self, list(tensors), reduction.name)
        return self._collective(
            "all_reduce",
            programs.all_reduce,
            reduction.prepared(tensors),
            tensors,
            opts,
            memory=Memory.IN_PLACE,
            reduce=reduction.name,
        )

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        """Reduce each tensor in place, in one program."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any = None) -> Any:
        """Reduce to one member; the others' tensors stay as they are."""
        if not on_device(tensors):
            return self._by_host("reduce", tensors, opts)
        reduction = Reduction.of(opts, tensors)
        root = opts.rootRank
        kept = tensors if self._place == root else [torch.empty_like(t) for t in tensors]
        return self._collective(
            "reduce",
            programs.all_reduce,
            reduction.prepared(tensors),
            kept,
            opts,
            said=f"to {root}",
            memory=Memory.IN_PLACE if self._place == root else Memory.NEW,
            reduce=reduction.name,
        )

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Any:
        """Hand one member's tensors to all."""
        if not on_device(tensors):
            return self._by_host("broadcast", tensors, opts)
        root = opts.rootRank
        return self._collective(
            "broadcast",
            programs.broadcast,
            tensors,
            tensors,
            opts,
            memory=Memory.IN_PLACE,
            root=root,
        )

    def barrier(self, opts: Any = None) -> Any:
        """Meet: all members have come, and their devices have done what was launched before."""
        from torchtpu.eager import modes

        modes.synchronize()
        return self._submit("barrier", "barrier()", _BARRIER, _nothing, [], limit(opts))

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Meet; who does not come in time is named in the error on every rank.

        timeout: a number is of seconds; None: the group's.
        """
        del wait_all_ranks  # all of them always are
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if seconds is not None and seconds <= 0:
            raise CollectiveTimeout(
                f"[monitored_barrier] Rank {self._place} timed out in monitoredBarrier: expected a "
                f"timeout of more than 0 s, got {seconds:g}"
            )
        within = seconds or self._timeout_s
        try:
            self._submit("barrier", "monitored_barrier()", _BARRIER, _nothing, [], within).wait()
        except CollectiveError as error:  # in torch's words, which programs look for
            text = re.sub(
                "rank ([^ ]+)", r"Rank \1 failed to pass monitoredBarrier:", str(error), count=1
            )
            raise type(error)(text) from None

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """Gather each input into a list of tensors, which may differ in size."""
        if not on_device(inputs):
            return self._by_host("allgather", outputs, inputs, opts)
        (parts,), (given,) = outputs, inputs
        lengths = tuple(part.numel() for part in parts)
        if len(parts) != self.size() or lengths[self._place] != given.numel():
            raise TpuError(
                f"[all_gather] expected {self.size()} outputs, the one of this rank with the "
                f"input's {given.numel()} elements, got outputs of {lengths}"
            )
        return self._collective(
            "all_gather",
            programs.all_gather_parts,
            [given],
            list(parts),
            opts,
            same=("all_gather", given.dtype, lengths),
            lengths=lengths,
        )

    def _allgather_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        if not on_device([output, given]):
            return self._by_host("_allgather_base", output, given, opts)
        return self.allgather_into_tensor_coalesced([output], [given], opts)

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        """Gather each input into its output, behind each other."""
        if not on_device(inputs):
            return self._by_host("allgather_into_tensor_coalesced", outputs, inputs, opts)
        for output, given in zip(outputs, inputs, strict=True):
            self._check_ratio("all_gather_into_tensor", "output", output, given)
        return self._collective(
            "all_gather_into_tensor", programs.all_gather, inputs, outputs, opts, memory=Memory.ROOM
        )

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Any:
        """Gather several inputs; outputs[member][input]."""
        lists = [[row[n] for row in outputs] for n in range(len(inputs))]
        for to, given in zip(lists[:-1], inputs[:-1], strict=True):
            self.allgather([to], [given], opts)
        return self.allgather([lists[-1]], [inputs[-1]], opts)  # they run in order

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """Gather to one member."""
        if not on_device(inputs):
            return self._by_host("gather", outputs, inputs, opts)
        (given,) = inputs
        root = opts.rootRank
        parts = self._parts("gather", "outputs", outputs, given, root)
        lengths = (given.numel(),) * self.size()
        return self._collective(
            "gather",
            programs.all_gather_parts,
            [given],
            parts,
            opts,
            said=f"to {root}",
            lengths=lengths,
        )

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Any:
        """Hand one member's tensors to the others, one each."""
        if not on_device(outputs):
            return self._by_host("scatter", outputs, inputs, opts)
        (output,) = outputs
        root = opts.rootRank
        parts = self._parts("scatter", "inputs", inputs, output, root)
        return self._collective("scatter", programs.scatter, parts, [output], opts, root=root)

    def _parts(
        self, name: str, side: str, lists: Sequence[Tensors], like: torch.Tensor, root: int
    ) -> list[torch.Tensor]:
        """Return the root's list of tensors; elsewhere, where nobody gives one, such tensors."""
        if self._place != root:
            return [torch.empty_like(like) for _ in range(self.size())]
        (parts,) = lists
        if len(parts) != self.size() or any(p.numel() != like.numel() for p in parts):
            raise TpuError(
                f"[{name}] expected {self.size()} {side} of {like.numel()} elements, got "
                f"{[p.numel() for p in parts]}"
            )
        return list(parts)

    def _reduce_scatter_base(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> Any:
        if not on_device([output, given]):
            return self._by_host("_reduce_scatter_base", output, given, opts)
        return self.reduce_scatter_tensor_coalesced([output], [given], opts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        """Reduce each input; each member keeps its part, in the output."""
        if not on_device(inputs):
            return self._by_host("reduce_scatter_tensor_coalesced", outputs, inputs, opts)
        for output, given in zip(outputs, inputs, strict=True):
            self._check_ratio("reduce_scatter_tensor", "input", given, output)
        reduction = Reduction.of(opts, inputs)
        return self._collective(
            "reduce_scatter_tensor",
            programs.reduce_scatter,
            reduction.prepared(inputs),
            outputs,
            opts,
            memory=Memory.ROOM,
            reduce=reduction.name,
        )

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Any:
        """Reduce lists of tensors, which may differ in size; each member keeps its own."""
        if not on_device(outputs):
            return self._by_host("reduce_scatter", outputs, inputs, opts)
        (output,), (parts,) = outputs, inputs
        lengths = [p.numel() for p in parts]
        if len(parts) != self.size() or lengths[self._place] != output.numel():
            raise TpuError(
                f"[reduce_scatter] expected {self.size()} inputs, the one of this rank with the "
                f"output's {output.numel()} elements, got inputs of {lengths}"
            )
        longest = max(lengths)
        joined = torch.cat([padded(p, longest) for p in parts])
        kept = output if output.numel() == longest else output.new_empty(longest)
        reduction = Reduction.of(opts, parts)
        return self._collective(
            "reduce_scatter",
            programs.reduce_scatter,
            reduction.prepared([joined]),
            [kept],
            opts,
            finish=None if kept is output else lambda: cut(output, kept),
            reduce=reduction.name,
        )

    def alltoall_base(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> Any:
        """Exchange parts along dim 0, of the given sizes or equal ones."""
        if not on_device([given]):
            return self._by_host("alltoall_base", output, given, output_splits, input_splits, opts)
        sent = self._split("input", given, input_splits)
        expected = self._split("output", output, output_splits)
        return self._exchange("all_to_all_single", [given], [output], sent, expected, opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """Exchange lists of tensors, which may differ in size."""
        if not on_device(inputs):
            return self._by_host("alltoall", outputs, inputs, opts)
        if len(inputs) != self.size() or len(outputs) != self.size():
            raise TpuError(
                f"[all_to_all] expected {self.size()} inputs and outputs, got {len(inputs)} and "
                f"{len(outputs)}"
            )
        sent, expected = ([t.numel() for t in tensors] for tensors in (inputs, outputs))
        return self._exchange("all_to_all", inputs, outputs, sent, expected, opts)

    def _split(self, side: str, tensor: torch.Tensor, sizes: Sequence[int]) -> list[int]:
        rows = tensor.shape[0] if tensor.dim() else 0
        row = tensor.numel() // rows if rows else 0
        if sizes:
            if len(sizes) != self.size() or sum(sizes) != rows:
                raise TpuError(
                    f"[all_to_all_single] expected {self.size()} {side} splits that add up to "
                    f"dim 0, which is {rows}, got {list(sizes)}"
                )
            return [n * row for n in sizes]
        if rows % self.size():
            raise TpuError(
                f"[all_to_all_single] expected dim 0 of the {side} to be divisible by the group's "
                f"size {self.size()}, got {rows}"
            )
        return [rows // self.size() * row] * self.size()

    def _exchange(
        self,
        name: str,
        inputs: Tensors,
        outputs: Tensors,
        sent: list[int],
        expected: list[int],
        opts: Any,
    ) -> Any:
        """Exchange parts; all lengths are known when everybody has said what it sends."""
        is_even = len(inputs) == len(outputs) == 1 and len({*sent, *expected}) == 1
        if captured.is_on() and is_even:
            captured.add(name, programs.all_to_all_even, inputs, outputs, self._ranks)
            return done(outputs)
        form = struct.Struct(f"@{2 * self.size()}q")
        held, dtype = operands(inputs), inputs[0].dtype

        def launch(payloads: Sequence[bytes]) -> list[Any]:
            lengths = [form.unpack(payload) for payload in payloads]
            table = tuple(row[: self.size()] for row in lengths)
            self._check_parts(name, table, [row[self.size() :] for row in lengths])
            if len(held) == len(outputs) == 1 and len({n for row in table for n in row}) == 1:
                prepared = self._prepared(
                    name, programs.all_to_all_even, held, outputs, memory=Memory.ROOM
                )
            else:
                prepared = self._prepared(
                    name, programs.all_to_all, held, outputs, splits=table, place=self._place
                )
            return prepared.launch(held, outputs)

        kind = str(dtype).removeprefix("torch.")
        words = f"{name}({kind}, {sent} elements)"
        packed, signed = form.pack(*sent, *expected), signature((name, kind))
        return self._submit(name, words, signed, launch, outputs, limit(opts), packed)

    def _check_parts(
        self, name: str, sent: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]
    ) -> None:
        """All members find the same fault: none of them waits for another then."""
        for a, row in enumerate(sent):
            for b, count in enumerate(row):
                if expected[b][a] != count:
                    raise CollectiveError(
                        f"[{name}] expected outputs for what is sent, got {count} elements sent by "
                        f"rank {self._ranks[a]} to rank {self._ranks[b]}, whose output has room "
                        f"for {expected[b][a]} (nothing was computed)"
                    )

    # torch's later names

    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def _check_ratio(self, name: str, side: str, large: torch.Tensor, small: torch.Tensor) -> None:
        if large.numel() != small.numel() * self.size() or large.dtype != small.dtype:
            raise TpuError(
                f"[{name}] expected an {side} of {self.size()} times {small.numel()} elements of "
                f"{small.dtype}, got {large.numel()} of {large.dtype}"
            )


def _nothing(_payloads: Sequence[bytes]) -> list[Any]:
    return []
