"""Preparation of a call: from an op and its arguments to a program, done once per signature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from torchtpu import dtypes, executor, sharding, views
from torchtpu.eager.call import Call, OutputsNeedResize, Scalar, nothing
from torchtpu.eager.meta import MetaResult, result_type, run_meta
from torchtpu.eager.schema import Kind
from torchtpu.errors import LoweringError
from torchtpu.lowerings import CallTypes
from torchtpu.program import ArrayType, Node, Program, Ref
from torchtpu.storage import Buffer, Layout, buffer_of
from torchtpu.tensor import TensorFactory, factory, view_of

if TYPE_CHECKING:
    from torchtpu.eager.operation import Operation

_KEY_TYPE = ArrayType((4,), np.dtype(np.uint32))
_HALF = (np.dtype(np.float16), dtypes.to_numpy(torch.bfloat16))
_OVERLAP = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
    "single memory location. Please clone() the tensor before performing the operation."
)
_APART = frozenset(f"aten::{n}" for n in ("cat", "gather", "kthvalue", "take"))  # out= is no input
_UNIFORM = frozenset({"aten::fill_", "aten::zero_"})  # one value: elements may share their memory


class _Write(NamedTuple):
    buffer: int
    view: views.View
    output: int


_WIDE = (torch.float64, torch.complex128)


class Preparation:
    """The working state of one `Operation.prepare`."""

    def __init__(self, operation: Operation, bound: dict[str, Any]) -> None:
        self.operation = operation
        self.lowering = operation.lowering
        self.bound = bound
        self.mutates = operation.mutates
        self.buffers: list[Buffer] = []  # as the kernel collects them
        self.tensors: list[tuple[int, views.View]] = []
        self.numbers: list[Any] = []
        self.nodes: list[Node] = []

    def call(self) -> Call:
        operation = self.operation
        meta = run_meta(operation.op, operation.functional, self.bound, mutates=self.mutates)
        self._check_outputs(meta)
        self.compute = self._compute_type(meta)
        self.gives_wide = any(m is not None and m.dtype in _WIDE for m in meta.outputs)
        placed = {n: self._place(n, v) for n, v in self.bound.items() if self._arrives(n)}
        written = self._written()
        reads = self._reads(written)
        self._number_inputs(reads)
        arguments = {n: self._build(p) for n, p in placed.items()}
        outputs = self._lower(arguments, meta)
        returns_new = not written or bool(self.lowering.writes)
        finals, factories = self._results(outputs, meta if returns_new else None)
        contents = self._new_contents(outputs, written)
        writes = [(buffer, len(finals) + i) for i, buffer in enumerate(contents)]
        finals += [ref.index for ref in contents.values()]
        donated = tuple(sorted(self.inputs[b] for b in contents if b in self.inputs))
        inputs = [self.buffers[i].layout.type for i in reads]
        inputs += self.number_types + ([_KEY_TYPE] if self.lowering.key else [])
        program = Program(tuple(inputs), tuple(self.nodes), tuple(finals), donated)
        return Call(
            operation.name,
            program,
            reads=None if reads == list(range(len(self.buffers))) else tuple(reads),
            writes=tuple(writes),
            number_types=tuple(t.dtype for t in self.number_types),
            key=self.lowering.key,
            factories=tuple(factories),
            returned=_counting(operation, _returner(operation, meta)),
        )

    def _check_outputs(self, meta: MetaResult) -> None:
        outs = [a.name for a in self.operation.arguments if a.is_out]
        wrong = [
            (self.bound[n], m.shape, m.strides)
            for n, m in zip(outs, meta.outputs, strict=False)
            if m is not None and tuple(self.bound[n].shape) != m.shape
        ]
        if wrong:
            written = {id(buffer_of(out.untyped_storage())) for out, *_ in wrong}
            inputs = (v for n, v in self.bound.items() if n not in outs)
            if any(written & _buffers_of(v) for v in inputs):  # a resize would change the input
                raise RuntimeError(_OVERLAP)
            raise OutputsNeedResize(wrong)

    def _compute_type(self, meta: MetaResult) -> np.dtype[Any] | None:
        if self.lowering.compute == "as_is":
            return None
        if self.lowering.compute == "output":
            first = next(m for m in meta.outputs if m is not None)
            return dtypes.to_numpy(first.dtype)
        return dtypes.to_numpy(result_type(self.bound.values()))

    def _arrives(self, name: str) -> bool:
        argument = next(a for a in self.operation.arguments if a.name == name)
        return argument.kind != Kind.IGNORED and not argument.is_out

    def _place(self, name: str, value: Any) -> Any:
        """Number the buffers and numbers of an argument in the order the kernel meets them."""
        argument = next(a for a in self.operation.arguments if a.name == name)
        if isinstance(value, torch.Tensor):
            return self._place_tensor(value)
        if argument.kind == Kind.TENSORS:
            return tuple(self._place_tensor(v) if v is not None else None for v in value)
        if argument.kind == Kind.NUMBERS and value is not None:
            return self._place_number(tuple(value))
        if argument.kind in (Kind.NUMBER, Kind.TENSOR) and value is not None:
            special = self.operation.constants.get(name, frozenset())
            if argument.kind == Kind.NUMBER and (type(value) is bool or value in special):
                return value
            return self._place_number(value)
        return _static(value)

    def _place_tensor(self, tensor: torch.Tensor) -> Any:
        if tensor.device.type != "tpu":
            return self._place_number(Scalar(tensor.item(), tensor.dtype))
        buffer = buffer_of(tensor.untyped_storage())
        if buffer.freed and not buffer.layout.nbytes and tensor.numel():
            buffer.value()  # raises
        known = next((i for i, b in enumerate(self.buffers) if b is buffer), None)
        if known is None or not self.mutates:
            self.buffers.append(buffer)
            known = len(self.buffers) - 1
        self.tensors.append((known, view_of(tensor)))
        return _TensorAt(known, view_of(tensor))

    def _place_number(self, value: Any) -> Any:
        self.numbers.append(value)
        return _NumberAt(len(self.numbers) - 1)

    def _written(self) -> list[_Write]:
        """(buffer, view, output) of each write."""
        found: list[_Write] = []
        outputs = count()
        for a in self.operation.arguments:
            output = self.lowering.writes.get(a.name)
            if not a.written and output is None:
                continue
            value = self.bound.get(a.name)
            targets = value if isinstance(value, (list, tuple)) else [value]
            for tensor in targets:
                if tensor is None:
                    continue
                view = view_of(tensor)
                if views.overlaps(view) and self.operation.op._schema.name not in _UNIFORM:
                    raise RuntimeError(
                        "unsupported operation: more than one element of the written-to tensor "
                        "refers to a single memory location. Please clone() the tensor before "
                        "performing the operation."
                    )
                read = list(self.tensors)
                place = self._place_tensor(tensor)
                found.append(
                    _Write(place.buffer, view, next(outputs) if output is None else output)
                )
                self._check_overlaps(found[-1], read)
        return found

    def _check_overlaps(self, write: _Write, read: Sequence[tuple[int, views.View]]) -> None:
        apart = self.operation.op._schema.name in _APART
        for buffer, view in read:
            same = apart and view == write.view
            if buffer == write.buffer and (same or views.partly_overlap(write.view, view)):
                raise RuntimeError(_OVERLAP)

    def _reads(self, written: list[_Write]) -> list[int]:
        """Buffers that are inputs: all but those without contents that are only written whole."""
        whole = {
            b
            for b, view, _ in written
            if views.covers(view, self.buffers[b].layout.shape, self.buffers[b].layout.type.dtype)
        }
        if executor.current().mesh is not None:
            whole = set()  # what is written lies as it did before
        names = self.lowering.shape_only
        used = {
            p.buffer
            for n, v in self.bound.items()
            if n not in names and self._arrives(n)
            for p in _tensor_places(self, v)
        }
        return [i for i in range(len(self.buffers)) if i in used or i not in whole]

    def _number_inputs(self, reads: list[int]) -> None:
        self.inputs = {buffer: i for i, buffer in enumerate(reads)}
        self.number_types = [
            ArrayType(np.shape(_plain(v)), self._number_type(v)) for v in self.numbers
        ]
        self.first_number = len(reads)
        self.values = len(reads) + len(self.numbers) + bool(self.lowering.key)

    def _number_type(self, value: Any) -> np.dtype[Any]:
        if isinstance(value, tuple) and not isinstance(value, Scalar):
            kinds = {type(v) for v in value}
            sample: Any = next((t for t in (complex, float, int, bool) if t in kinds), float)()
        else:
            sample = _plain(value)
        if self.compute is not None and self.compute.kind not in "b":
            is_half = self.compute in _HALF or (
                self.compute.itemsize < 2 and self.compute.kind == "V"
            )
            return np.dtype(np.float32) if is_half else self.compute
        wide = self.gives_wide or any(
            (v.dtype.itemsize == 8 and v.dtype.kind == "f") or v.dtype.itemsize == 16
            for _, v in self.tensors
        )
        if isinstance(sample, bool):
            return np.dtype(np.bool_)
        if isinstance(sample, int):
            return np.dtype(np.int64)
        if isinstance(sample, complex):
            return np.dtype(np.complex128 if wide else np.complex64)
        return np.dtype(np.float64 if wide else np.float32)

    def _build(self, place: Any) -> Any:
        """Return the node argument of a placed one, with view reads where they are needed."""
        if type(place) is _TensorAt:
            layout = self.buffers[place.buffer].layout
            if place.buffer not in self.inputs:
                return self._node("aten::empty", _undefined, (place.view,), 1)[0]
            source = Ref(self.inputs[place.buffer])
            if _is_whole(layout, place.view):
                return source
            return self._node("view", views.read, (source, place.view), 1)[0]
        if type(place) is _NumberAt:
            return Ref(self.first_number + place.position)
        if type(place) is tuple and any(isinstance(p, (_TensorAt, _NumberAt)) for p in place):
            return tuple(self._build(p) for p in place)
        return place

    def _node(
        self, op: str, fn: Callable[..., Any], args: tuple[Any, ...], outputs: int
    ) -> list[Ref]:
        self.nodes.append(Node(op, fn, args, (), outputs))
        first, self.values = self.values, self.values + outputs
        return [Ref(first + i) for i in range(outputs)]

    def _lower(self, arguments: dict[str, Any], meta: MetaResult) -> list[Ref]:
        types: list[ArrayType | None] = [
            None if m is None else ArrayType(m.shape, dtypes.to_numpy(m.dtype))
            for m in meta.outputs
        ]
        extra = len(self.lowering.writes)
        if extra:
            by_output = {o: self.bound.get(n) for n, o in self.lowering.writes.items()}
            for o in sorted(by_output):
                tensor = by_output[o]
                types.append(
                    None
                    if tensor is None
                    else ArrayType(tuple(tensor.shape), dtypes.to_numpy(tensor.dtype))
                )
        key = (Ref(self.first_number + len(self.numbers)),) if self.lowering.key else ()
        call = CallTypes(self.compute, tuple(types))
        names = [n for n in self.lowering.parameters if n in arguments]
        unknown = set(arguments) - set(names)
        if unknown:
            raise LoweringError(f"[{self.operation.name}] the lowering lacks {sorted(unknown)}")
        self.nodes.append(
            Node(
                self.operation.name,
                self.lowering,
                (call, *key),
                tuple((n, arguments[n]) for n in names),
                len(types),
            )
        )
        first, self.values = self.values, self.values + len(types)
        return [Ref(first + i) for i in range(len(types))]

    def _results(
        self, outputs: list[Ref], meta: MetaResult | None
    ) -> tuple[list[int], list[TensorFactory]]:
        """Values of the new tensors, in their physical order, and what makes tensors of them."""
        finals: list[int] = []
        factories: list[TensorFactory] = []
        for ref, m in zip(outputs, meta.outputs if meta else (), strict=False):
            if m is None:
                continue
            make = factory(m.shape, m.strides, m.dtype)
            if make.order is None:
                make = factory(m.shape, views.contiguous_strides(m.shape), m.dtype)
            if not make.is_row_major:
                ref = self._node("view", _to_order, (ref, make.order), 1)[0]
            factories.append(make)
            finals.append(ref.index)
        return finals, factories

    def _new_contents(self, outputs: list[Ref], written: list[_Write]) -> dict[int, Ref]:
        """New value of each written buffer: all writes to it, one after the other."""
        latest: dict[int, Ref] = {}
        for buffer, view, output in written:
            layout = self.buffers[buffer].layout
            base = latest.get(buffer)
            if base is None and buffer in self.inputs:
                base = Ref(self.inputs[buffer])
            args = (base, view, outputs[output], layout.shape, layout.type.dtype)
            latest[buffer] = self._node("view", _write, args, 1)[0]
        if executor.current().mesh is not None:
            for buffer, ref in latest.items():
                both = ref, Ref(self.inputs[buffer])
                latest[buffer] = self._node("view", sharding.keep, both, 1)[0]
        return latest


class _TensorAt(NamedTuple):
    buffer: int
    view: views.View


class _NumberAt(NamedTuple):
    position: int


def _tensor_places(preparation: Preparation, value: Any) -> list[_TensorAt]:
    values = value if isinstance(value, (list, tuple)) else [value]
    found = []
    for v in values:
        if isinstance(v, torch.Tensor) and v.device.type == "tpu":
            buffer = buffer_of(v.untyped_storage())
            found += [
                _TensorAt(i, view_of(v)) for i, b in enumerate(preparation.buffers) if b is buffer
            ]
    return found


def _buffers_of(value: Any) -> set[int]:
    values = value if isinstance(value, (list, tuple)) else [value]
    tensors = (v for v in values if isinstance(v, torch.Tensor) and v.device.type == "tpu")
    return {id(buffer_of(t.untyped_storage())) for t in tensors}


def _is_whole(layout: Layout, view: views.View) -> bool:
    return (
        layout.shape == view.shape
        and layout.type.dtype == view.dtype
        and view.offset == 0
        and view.strides == views.contiguous_strides(view.shape)
    )


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Scalar) else value


def _static(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return dtypes.to_numpy(value)
    return tuple(value) if isinstance(value, list) else value


def _undefined(view: views.View) -> Any:
    import jax.numpy as jnp

    return jnp.zeros(view.shape, view.dtype)


def _to_order(array: Any, order: tuple[int, ...]) -> Any:
    return array.transpose(order)


def _write(base: Any, view: views.View, value: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    from torchtpu.lowerings.registry import convert

    return views.write(base, view, convert(value, view.dtype), shape, dtype)


def _counting(
    operation: Operation, returned: Callable[..., Any] | None
) -> Callable[..., Any] | None:
    """Let the versions of the tensors of `_foreach_*_` grow: autograd counts no writes there.

    Not those of running statistics: autograd saves them before they are written, as on the CPU.
    """
    if returned is None or not operation.op._schema.name.startswith("aten::_foreach_"):
        return returned
    unseen = {a.name for a in operation.arguments if a.written}
    places = [(i, a.name) for i, a in enumerate(operation.arguments) if a.name in unseen]

    def count_and_return(made: Any, args: Any, kwargs: Any) -> Any:
        for position, name in places:
            written = args[position] if position < len(args) else kwargs.get(name)
            if written is not None:
                torch.autograd.graph.increment_version(written)
        return returned(made, args, kwargs)

    return count_and_return


def _returner(operation: Operation, meta: MetaResult) -> Callable[..., Any] | None:
    """Return what makes the op's result from new buffers; None for one plain new tensor."""
    written = [a for a in operation.arguments if a.written]
    if written and not operation.lowering.writes:
        if not operation.op._schema.returns:
            return nothing
        names = tuple(a.name for a in written)
        returns = len(operation.op._schema.returns)
        positions = {a.name: i for i, a in enumerate(operation.arguments)}

        def written_arguments(_made: Any, args: Any, kwargs: Any) -> Any:
            values = [kwargs[n] if n in kwargs else args[positions[n]] for n in names[:returns]]
            return values[0] if len(values) == 1 else tuple(values)

        return written_arguments
    if meta.single and not operation.lowering.writes:
        return None
    present = [m is not None for m in meta.outputs]
    as_list = meta.is_list

    def new_tensors(made: list[Buffer], _args: Any, _kwargs: Any) -> Any:
        tensors = iter(made)
        found = [
            _tensor(next(tensors), m) if p else None
            for p, m in zip(present, meta.outputs, strict=True)
        ]
        if meta.single:
            return found[0]
        if meta.lengths:
            rest = iter(found)
            return tuple([next(rest) for _ in range(n)] for n in meta.lengths)
        return found if as_list else tuple(found)

    return new_tensors


def _tensor(buffer: Buffer, meta: Any) -> torch.Tensor:
    make = factory(meta.shape, meta.strides, meta.dtype)
    if make.layout is not buffer.layout:
        make = factory(meta.shape, views.contiguous_strides(meta.shape), meta.dtype)
    return make(buffer)
