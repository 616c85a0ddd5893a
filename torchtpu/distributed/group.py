"""A process group of backend "tpu_dist": torch's collectives on the device, between processes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from torchtpu import executor, views
from torchtpu.distributed import meeting, programs, sparse
from torchtpu.distributed.base import NamedGroup
from torchtpu.distributed.board import Said
from torchtpu.distributed.engine import Call, CollectiveError, Engine
from torchtpu.distributed.reductions import Reduction
from torchtpu.distributed.work import Work, Works
from torchtpu.eager import blame
from torchtpu.errors import TpuError
from torchtpu.private import torch as private
from torchtpu.program import ArrayType, Program
from torchtpu.storage import Buffer, Layout, buffer_of, launch_lock
from torchtpu.tensor import factory

_Tensors = Sequence[torch.Tensor]
_Shapes = tuple[tuple[int, ...], ...]


class TpuGroup(NamedGroup):
    """The processes `ranks` (global numbers, in the group's order) and what they do together."""

    def __init__(
        self,
        engine: Engine,
        rank: int,
        ranks: Sequence[int],
        name: str,
        store: Any,
        timeout: timedelta,
    ) -> None:
        super().__init__(rank, len(ranks), name)
        self._engine = engine
        self._place = rank
        self._ranks = tuple(ranks)
        self._store = store
        self._timeout_s = timeout.total_seconds()
        self._channel = _channel(f"{name} {self._ranks}")
        self._is_world = not dist.is_initialized()
        self._host: Any = None  # torch's gloo, for tensors on the CPU
        self._batch: list[Work] | None = None  # what is asked for between two marks

    def shutdown(self) -> None:
        """Leave the group; the last to go leaves the world."""
        if self._is_world:
            meeting.part()

    abort = shutdown

    # All members --------------------------------------------------------------------------------

    def allreduce(self, tensors: _Tensors, opts: Any = None) -> Any:
        """Reduce each tensor in place over the members."""
        if not _on_device(tensors):
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
            reduce=reduction.name,
        )

    def allreduce_coalesced(self, tensors: _Tensors, opts: Any = None) -> Any:
        """Reduce each tensor in place, in one program."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: _Tensors, opts: Any = None) -> Any:
        """Reduce to one member; the others' tensors stay as they are."""
        if not _on_device(tensors):
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
            reduce=reduction.name,
        )

    def broadcast(self, tensors: _Tensors, opts: Any = None) -> Any:
        """Hand one member's tensors to all."""
        if not _on_device(tensors):
            return self._by_host("broadcast", tensors, opts)
        root = opts.rootRank
        return self._collective("broadcast", programs.broadcast, tensors, tensors, opts, root=root)

    def barrier(self, opts: Any = None) -> Any:
        """Meet: all members have come, and their devices have done what was launched before."""
        from torchtpu.eager import modes

        modes.synchronize()
        return self._submit("barrier", "barrier()", "barrier", _nothing, [], _limit(opts))

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Meet; who does not come in time is named in the error on every rank."""
        del wait_all_ranks  # all of them always are
        seconds = timeout.total_seconds() if timeout else self._timeout_s
        self._submit("barrier", "monitored_barrier()", "barrier", _nothing, [], seconds).wait()

    def allgather(self, outputs: Sequence[_Tensors], inputs: _Tensors, opts: Any = None) -> Any:
        """Gather each input into a list of tensors, which may differ in size."""
        if not _on_device(inputs):
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
        if not _on_device([output, given]):
            return self._by_host("_allgather_base", output, given, opts)
        return self.allgather_into_tensor_coalesced([output], [given], opts)

    def allgather_into_tensor_coalesced(
        self, outputs: _Tensors, inputs: _Tensors, opts: Any = None
    ) -> Any:
        """Gather each input into its output, behind each other."""
        if not _on_device(inputs):
            return self._by_host("allgather_into_tensor_coalesced", outputs, inputs, opts)
        for output, given in zip(outputs, inputs, strict=True):
            self._check_ratio("all_gather_into_tensor", "output", output, given)
        return self._collective(
            "all_gather_into_tensor", programs.all_gather, inputs, outputs, opts
        )

    def allgather_coalesced(
        self, outputs: Sequence[_Tensors], inputs: _Tensors, opts: Any = None
    ) -> Any:
        """Gather several inputs; outputs[member][input]."""
        lists = [[row[n] for row in outputs] for n in range(len(inputs))]
        for to, given in zip(lists[:-1], inputs[:-1], strict=True):
            self.allgather([to], [given], opts)
        return self.allgather([lists[-1]], [inputs[-1]], opts)  # they run in order

    def gather(self, outputs: Sequence[_Tensors], inputs: _Tensors, opts: Any = None) -> Any:
        """Gather to one member."""
        if not _on_device(inputs):
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

    def scatter(self, outputs: _Tensors, inputs: Sequence[_Tensors], opts: Any = None) -> Any:
        """Hand one member's tensors to the others, one each."""
        if not _on_device(outputs):
            return self._by_host("scatter", outputs, inputs, opts)
        (output,) = outputs
        root = opts.rootRank
        parts = self._parts("scatter", "inputs", inputs, output, root)
        return self._collective("scatter", programs.scatter, parts, [output], opts, root=root)

    def _parts(
        self, name: str, side: str, lists: Sequence[_Tensors], like: torch.Tensor, root: int
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
        if not _on_device([output, given]):
            return self._by_host("_reduce_scatter_base", output, given, opts)
        return self.reduce_scatter_tensor_coalesced([output], [given], opts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: _Tensors, inputs: _Tensors, opts: Any = None
    ) -> Any:
        """Reduce each input; each member keeps its part, in the output."""
        if not _on_device(inputs):
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
            reduce=reduction.name,
        )

    def reduce_scatter(
        self, outputs: _Tensors, inputs: Sequence[_Tensors], opts: Any = None
    ) -> Any:
        """Reduce lists of tensors, which may differ in size; each member keeps its own."""
        if not _on_device(outputs):
            return self._by_host("reduce_scatter", outputs, inputs, opts)
        (output,), (parts,) = outputs, inputs
        lengths = [p.numel() for p in parts]
        if len(parts) != self.size() or lengths[self._place] != output.numel():
            raise TpuError(
                f"[reduce_scatter] expected {self.size()} inputs, the one of this rank with the "
                f"output's {output.numel()} elements, got inputs of {lengths}"
            )
        longest = max(lengths)
        padded = [_padded(p, longest) for p in parts]
        kept = output if output.numel() == longest else output.new_empty(longest)
        reduction = Reduction.of(opts, parts)
        return self._collective(
            "reduce_scatter",
            programs.reduce_scatter,
            reduction.prepared([torch.cat(padded)]),
            [kept],
            opts,
            finish=None if kept is output else lambda: _cut(output, kept),
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
        if not _on_device([given]):
            return self._by_host("alltoall_base", output, given, output_splits, input_splits, opts)
        sent = self._split("input", given, input_splits)
        expected = self._split("output", output, output_splits)
        return self._exchange("all_to_all_single", [given], [output], sent, expected, opts)

    def alltoall(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> Any:
        """Exchange lists of tensors, which may differ in size."""
        if not _on_device(inputs):
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
        inputs: _Tensors,
        outputs: _Tensors,
        sent: list[int],
        expected: list[int],
        opts: Any,
    ) -> Any:
        """Exchange parts; all lengths are known when everybody has said what it sends."""
        form = struct.Struct(f"@{2 * self.size()}q")
        held, dtype = _inputs(inputs), inputs[0].dtype
        shapes = tuple(tuple(t.shape) for t in outputs)

        def launch(said: Sequence[Said]) -> list[Any]:
            lengths = [form.unpack(s.payload) for s in said]
            table = tuple(row[: self.size()] for row in lengths)
            self._check_parts(name, table, [row[self.size() :] for row in lengths])
            static = {"splits": table, "shapes": shapes, "place": self._place}
            program = programs.together(
                name, programs.all_to_all, held.types, len(outputs), self._ranks, **static
            )
            results = held.run(program)
            _keep(outputs, results)
            return results

        kind = str(dtype).removeprefix("torch.")
        said = f"{name}({kind}, {sent} elements)"
        packed = form.pack(*sent, *expected)
        return self._submit(name, said, (name, kind), launch, outputs, _limit(opts), packed)

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

    # Two members --------------------------------------------------------------------------------

    def send(self, tensors: _Tensors, to: int, tag: int = 0) -> Any:
        """Send to a member."""
        if not _on_device(tensors):
            return self._by_host("send", tensors, to, tag)
        self._check_peer("send", to)
        return self._message("send", tensors, [(self._place, to)], 0, tag)

    def recv(self, tensors: _Tensors, source: int, tag: int = 0) -> Any:
        """Receive from a member."""
        if not _on_device(tensors):
            return self._by_host("recv", tensors, source, tag)
        self._check_peer("recv", source)
        return self._message("recv", tensors, [(source, self._place)], 1, tag)

    def recv_anysource(self, tensors: _Tensors, tag: int = 0) -> Any:
        """Receive from whoever sends first."""
        if not _on_device(tensors):
            return self._by_host("recv_anysource", tensors, tag)
        others = [n for n in range(self.size()) if n != self._place]
        return self._message("recv", tensors, [(n, self._place) for n in others], 1, tag)

    def _check_peer(self, name: str, peer: int) -> None:
        if not 0 <= peer < self.size() or peer == self._place:
            raise TpuError(
                f"[{name}] expected another member of a group of {self.size()}, got {peer}"
            )

    def _message(
        self, name: str, tensors: _Tensors, channels: list[tuple[int, int]], side: int, tag: int
    ) -> Any:
        (tensor,) = tensors
        held = _inputs([tensor])
        shapes = (tuple(tensor.shape),)
        pairs = tuple((self._ranks[a], self._ranks[b]) for a, b in channels)

        def launch(index: int, _said: Sequence[Said]) -> list[Any]:
            program = programs.together(
                "message", programs.message, held.types, 1, pairs[index], shapes=shapes
            )
            results = held.run(program)
            if side:
                work.source = channels[index][0]
                _keep(tensors, results)
            return results

        described = _described(tensors)
        work = Work(lambda _, seconds: self._engine.wait(call, seconds), tensors)
        call = Call(
            name=name,
            channels=tuple(_channel(f"{self._name} {c} {tag}") | 1 << 31 for c in channels),
            ranks=pairs,
            place=side,
            said=_say(f"{name}({described}, tag {tag})", ("message", described)),
            launch=launch,
            work=work,
            timeout_s=self._timeout_s,
        )
        return self._asked(call)

    # How they run -------------------------------------------------------------------------------

    def _collective(
        self,
        name: str,
        fn: Callable[..., Any],
        inputs: _Tensors,
        outputs: _Tensors,
        opts: Any,
        *,
        said: str = "",
        same: object = None,
        finish: Callable[[], None] | None = None,
        **static: Any,
    ) -> Any:
        """Run `fn` of programs.py on the inputs' values; its results become the outputs'."""
        _on_device([*inputs, *outputs])
        held = _inputs(inputs)
        shapes = tuple(tuple(t.shape) for t in outputs)
        program = programs.together(
            name, fn, held.types, len(outputs), self._ranks, shapes=shapes, **static
        )

        def launch(_said: Sequence[Said]) -> list[Any]:
            results = held.run(program)
            _keep(outputs, results)
            if finish is not None:
                finish()
            return results

        options = "".join(f", {key}={value}" for key, value in static.items())
        described = f"{name}({_described(inputs)}{options}{said and ', ' + said})"
        return self._submit(name, described, same or described, launch, outputs, _limit(opts))

    def _submit(
        self,
        name: str,
        described: str,
        same: object,
        launch: Callable[[Sequence[Said]], list[Any]],
        outputs: _Tensors,
        timeout_s: float | None,
        payload: bytes = b"",
    ) -> Work:
        work = Work(lambda _, seconds: self._engine.wait(call, seconds), outputs)
        call = Call(
            name=name,
            channels=(self._channel,),
            ranks=(self._ranks,),
            place=self._place,
            said=_say(described, same, payload),
            launch=lambda _, said: launch(said),
            work=work,
            timeout_s=timeout_s or self._timeout_s,
        )
        return self._asked(call)

    def _asked(self, call: Call) -> Work:
        work = self._engine.submit(call)
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _start_coalescing(self, _device: torch.device) -> None:
        self._batch = []

    def _end_coalescing(self, _device: torch.device) -> Work | None:
        works, self._batch = self._batch or [], None
        return Works(works) if works else None

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

    def _by_host(self, name: str, *arguments: Any) -> Any:
        """Run a collective of CPU tensors over torch's gloo, in a group of the same members."""
        if self._host is None:
            store = dist.distributed_c10d.PrefixStore("host", self._store)
            limit = timedelta(seconds=self._timeout_s)
            gloo = private.gloo(store, self.rank(), self.size(), timeout=limit)
            made: Any = dist.ProcessGroup(store, self.rank(), self.size())
            made._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
            made._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
            self._host = made
        return getattr(self._host, name)(*(a for a in arguments if a is not None))


def serve_monitored_barrier() -> None:
    """Let torch's monitored_barrier, which asks for gloo, take this backend's groups too."""
    for_gloo = dist.distributed_c10d.monitored_barrier
    if hasattr(for_gloo, "__wrapped__"):
        return

    @wraps(for_gloo)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> Any:
        chosen = dist.group.WORLD if group is None else group
        if not isinstance(chosen, TpuGroup):
            return for_gloo(group, timeout, wait_all_ranks)
        return chosen.monitored_barrier(timeout, wait_all_ranks)

    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = monitored_barrier


def _nothing(_said: Sequence[Said]) -> list[Any]:
    return []


def _say(described: str, same: object, payload: bytes = b"") -> Said:
    line = blame.user_line()
    return Said(_signature(same), f"{described}{f' at {line}' if line else ''}", payload)


def _signature(same: object) -> int:
    text = repr(same).encode()
    return zlib.crc32(text) << 32 | zlib.adler32(text)


def _channel(name: str) -> int:
    return zlib.crc32(name.encode()) & 0x7FFFFFFF or 1


def _described(tensors: _Tensors) -> str:
    texts = [f"{str(t.dtype).removeprefix('torch.')}[{t.numel()}]" for t in tensors[:3]]
    return ", ".join(texts) + (f" and {len(tensors) - 3} more" if len(tensors) > 3 else "")


def _on_device(tensors: _Tensors) -> bool:
    if all(t.is_cpu for t in tensors):
        return False
    kinds = {t.device.type for t in tensors if t.device.type != "tpu"}
    if kinds:
        raise TpuError(
            f"[tpu_dist] expected tensors on tpu, or all on cpu, got some on {sorted(kinds)}"
        )
    return True


def _limit(opts: Any) -> float | None:
    """Return the limit in seconds that a call asks for; None: the group's."""
    wanted = getattr(opts, "timeout", None)
    seconds = wanted.total_seconds() if isinstance(wanted, timedelta) else 0.0
    return seconds if seconds > 0 else None


def _even(lengths: Sequence[int]) -> bool:
    return len(set(lengths)) == 1


def _is_whole(tensor: torch.Tensor, buffer: Buffer) -> bool:
    """Tell whether a tensor's elements in order are all of its memory."""
    return (
        tensor.is_contiguous()
        and tensor.numel() * tensor.itemsize == buffer.layout.nbytes
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


class _Inputs(NamedTuple):
    """Values of tensors as they were when a collective was asked for, and their types."""

    values: list[Any]
    types: list[ArrayType]
    held: list[tuple[Buffer, Any]]  # buffers whose array nobody may take over until then

    def run(self, program: Program) -> list[Any]:
        """Launch a program on the values; whatever comes after may take over their memory."""
        results: list[Any] = executor.current().executable(program).run(self.values)
        with launch_lock:
            for buffer, array in self.held:
                if buffer.array is array:
                    buffer.shared = False
        return results


def _inputs(tensors: _Tensors) -> _Inputs:
    made = _Inputs([], [], [])
    with launch_lock:
        for given in tensors:
            tensor = given.detach()
            buffer = buffer_of(tensor.untyped_storage())
            if not _is_whole(tensor, buffer) or buffer.layout.dtype != tensor.dtype:
                tensor = tensor.resolve_conj().resolve_neg()
                tensor = tensor.clone(memory_format=torch.contiguous_format)
                buffer = buffer_of(tensor.untyped_storage())
            array = buffer.value()
            made.values.append(array)
            made.types.append(buffer.layout.type)
            if not buffer.shared:
                made.held.append((buffer, array))
                buffer.shared = True
    return made


def _keep(tensors: _Tensors, results: Sequence[Any]) -> None:
    """Make results the tensors' values; each result has its tensor's shape."""
    with launch_lock:
        for given, array in zip(tensors, results, strict=True):
            tensor = given.detach()
            buffer = buffer_of(tensor.untyped_storage())
            shape = tuple(tensor.shape)
            layout = Layout.of(shape, tensor.dtype)
            if _is_whole(tensor, buffer):
                if buffer.layout is not layout:
                    buffer.layout, buffer.natural = layout, None
                buffer.array, buffer.shared, buffer.freed = array, False, ""
            else:
                make = factory(shape, views.contiguous_strides(shape), tensor.dtype)
                tensor.copy_(make(Buffer(make.layout, array)))


def _padded(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    return torch.nn.functional.pad(flat, (0, elements - flat.numel()))


def _cut(output: torch.Tensor, kept: torch.Tensor) -> None:
    output.detach().copy_(kept[: output.numel()].view(output.shape))
