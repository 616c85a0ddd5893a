"""Preparation of a call: from an op and its arguments to a program, done once per signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from torchtpu import dtypes, executor, views
from torchtpu.eager.meta import MetaResult, result_type, run_meta
from torchtpu.eager.schema import Argument, Kind, arguments
from torchtpu.errors import LoweringError
from torchtpu.generator import random_key
from torchtpu.lowerings import CallTypes, Lowering
from torchtpu.program import ArrayType, Node, Program, Ref
from torchtpu.storage import Buffer, Layout, buffer_of
from torchtpu.tensor import TensorFactory, factory, view_of

_KEY_TYPE = ArrayType((4,), np.dtype(np.uint32))
_HALF = (np.dtype(np.float16), dtypes.to_numpy(torch.bfloat16))


_UNIFORM = frozenset({"aten::fill_", "aten::zero_"})  # one value: elements may share their memory


class Scalar(NamedTuple):
    """A CPU tensor of no dims that takes part as a number, with the dtype it promotes by."""

    value: Any
    dtype: torch.dtype


class OutputsNeedResize(Exception):
    """out= tensors have another shape than the result; apply() resizes them as torch does."""

    def __init__(self, outputs: Sequence[tuple[torch.Tensor, tuple[int, ...]]]) -> None:
        super().__init__("out= needs another shape")
        self._outputs = outputs

    def apply(self) -> None:
        """Resize, with torch's warning where an output was not empty."""
        for out, shape in self._outputs:
            torch.ops.aten._resize_output_.default(out, list(shape), out.device)


class Call:
    """A compiled signature: which buffers it reads and writes and how its results become tensors."""

    __slots__ = (
        "_guard", "_unshared", "capsule", "factories", "key", "layout", "name", "number_types", "program",
        "reads", "returned", "run", "single", "writes",
    )

    def __init__(
        self,
        name: str,
        program: Program,
        *,
        reads: tuple[int, ...] | None,
        writes: tuple[tuple[int, int], ...],
        number_types: tuple[np.dtype[Any], ...],
        key: bool,
        factories: tuple[TensorFactory, ...],
        returned: Callable[..., Any] | None,
    ) -> None:
        self.name = name
        self.reads = reads  # indices of the buffers that are inputs; None: all, in order
        self.writes = writes  # (buffer, output) pairs
        self.number_types = number_types
        self.key = key
        self.factories = factories
        self.layout = factories[0].layout if factories else None
        self.capsule = factories[0].capsule if factories else _nothing
        self.single = returned is None
        self.returned = returned or _nothing
        self.program = program
        self._unshared: Call | None = None
        self._guard: Callable[..., Any] | None = None
        self.run: Callable[[Sequence[Any]], list[Any]] = self._compile_and_run

    def _compile_and_run(self, arrays: Sequence[Any]) -> list[Any]:
        """Compile at the first launch: a mode that joins calls never needs this program alone."""
        self.run = executor.current().executable(self.program).run
        return self.run(arrays)

    @property
    def extra_inputs(self) -> int:
        """Inputs that are no tensors: numbers and the random key, at the end."""
        return len(self.number_types) + self.key

    @property
    def unshared(self) -> Call:
        """The same call for buffers whose array another buffer holds too: without donation."""
        if self._unshared is None:
            other = object.__new__(Call)
            for slot in Call.__slots__:
                setattr(other, slot, getattr(self, slot))
            plain = Program(self.program.inputs, self.program.nodes, self.program.outputs)
            other.program = plain
            other.run = other._compile_and_run
            self._unshared = other
        return self._unshared

    def check_indices(self, arrays: Sequence[Any]) -> None:
        """Raise IndexError where an index among the arguments is out of range (debug mode)."""
        if self._guard is None:
            program = _index_check(self.program)
            self._guard = executor.current().executable(program).run if program else _nothing
        answer = self._guard(arrays)
        if answer is None:
            return
        wrong, value, dim, size = executor.current().target.get(answer[0]).tolist()
        if wrong:
            raise IndexError(f"index {value} is out of bounds for dimension {dim} with size {size}")

    @staticmethod
    def random_key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the next uint32[4] key of the generator among the arguments as a device array."""
        given = (v for v in (*args, *kwargs.values()) if isinstance(v, torch._C.Generator))
        return executor.current().target.put(random_key(next(given, None)))


def _nothing(*_: Any) -> None:
    return None


def _index_check(program: Program) -> Program | None:
    """The part of a program that finds an index out of range; None where its op has none to check."""
    values = len(program.inputs)
    for number, node in enumerate(program.nodes):
        if isinstance(node.fn, Lowering) and node.fn.bounds is not None:
            check = Node(f"{node.op}.indices", node.fn.first_out_of_range, (), node.kwargs, 1)
            return Program(program.inputs, (*program.nodes[:number], check), (values,))
        values += node.outputs
    return None


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One overload and the lowering that computes it.

    `functional` is the overload whose schema the lowering has; `op` is the same one or an in-place,
    out= or `_foreach_*_` variant of it, whose written arguments take the results.
    """

    op: Any
    functional: Any
    lowering: Lowering

    @cached_property
    def name(self) -> str:
        """The name for errors and reports, e.g. aten::add_.Tensor."""
        return str(self.op._schema.name) + (
            f".{self.op._overloadname}" if self.op._overloadname != "default" else ""
        )

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments of `op`."""
        return tuple(
            replace(a, kind=Kind.NUMBER) if a.name in self.lowering.numbers else a
            for a in arguments(self.op._schema)
        )

    @cached_property
    def constants(self) -> Mapping[str, frozenset[Any]]:
        """Values of number arguments that are compiled in: torch's defaults and the lowering's."""
        found: dict[str, frozenset[Any]] = dict(self.lowering.constants)
        for a in self.arguments:
            if a.name in self.lowering.static:
                found[a.name] = _Everything()
            elif a.kind == Kind.NUMBER and a.has_default and a.default is not None:
                found[a.name] = found.get(a.name, frozenset()) | {a.default}
        return found

    @cached_property
    def mutates(self) -> bool:
        """Whether the call writes to an argument."""
        return any(a.written for a in self.arguments) or bool(self.lowering.writes)

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Check a call by torch's meta functions, build its program and compile it."""
        bound = {a.name: v for a, v in zip(self.arguments, args, strict=False)} | dict(kwargs)
        if self.op is not self.functional:  # bernoulli_ has a default that bernoulli.p lacks
            missing = (a for a in self.arguments if a.name not in bound and a.default is not None)
            bound |= {a.name: a.default for a in list(missing)}
        return _Preparation(self, bound).call()


class _Everything(frozenset[Any]):
    """The set of all values."""

    def __contains__(self, _: object) -> bool:
        return True


class _Preparation:
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
        placed = {n: self._place(n, v) for n, v in self.bound.items() if self._arrives(n)}
        written = self._written()
        reads = self._reads(written)
        self._number_inputs(reads)
        arguments = {n: self._build(p) for n, p in placed.items()}
        outputs = self._lower(arguments, meta)
        finals, writes, donated, factories = self._finish(outputs, written, meta, reads)
        inputs = [self.buffers[i].layout.type for i in reads]
        inputs += self.number_types + ([_KEY_TYPE] if self.lowering.key else [])
        program = Program(tuple(inputs), tuple(self.nodes), finals, donated)
        return Call(
            operation.name,
            program,
            reads=None if reads == list(range(len(self.buffers))) else tuple(reads),
            writes=writes,
            number_types=tuple(t.dtype for t in self.number_types),
            key=self.lowering.key,
            factories=factories,
            returned=_returner(operation, meta, self.mutates),
        )

    def _check_outputs(self, meta: MetaResult) -> None:
        outs = [a.name for a in self.operation.arguments if a.is_out]
        wrong = [
            (self.bound[n], m.shape)
            for n, m in zip(outs, meta.outputs, strict=False)
            if m is not None and tuple(self.bound[n].shape) != m.shape
        ]
        if wrong:
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
        """Number the buffers and numbers of an argument in the order in which the kernel meets them."""
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

    def _written(self) -> list[tuple[int, views.View, int]]:
        """(buffer, view, output) of each write."""
        found: list[tuple[int, views.View, int]] = []
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
                        "unsupported operation: more than one element of the written-to tensor refers "
                        "to a single memory location. Please clone() the tensor before performing the "
                        "operation."
                    )
                place = self._place_tensor(tensor)
                found.append((place.buffer, view, len(found) if output is None else output))
        return found

    def _reads(self, written: list[tuple[int, views.View, int]]) -> list[int]:
        """Buffers that are inputs: all but those without contents whose every use is a whole write."""
        whole = {
            b
            for b, view, _ in written
            if views.covers(view, self.buffers[b].layout.shape, self.buffers[b].layout.type.dtype)
        }
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
        self.number_types = [ArrayType(np.shape(_plain(v)), self._number_type(v)) for v in self.numbers]
        self.first_number = len(reads)
        self.values = len(reads) + len(self.numbers) + bool(self.lowering.key)

    def _number_type(self, value: Any) -> np.dtype[Any]:
        if isinstance(value, tuple) and not isinstance(value, Scalar):
            kinds = {type(v) for v in value}
            sample: Any = next((t for t in (complex, float, int, bool) if t in kinds), float)()
        else:
            sample = _plain(value)
        if self.compute is not None and self.compute.kind not in "b":
            is_half = self.compute in _HALF or self.compute.itemsize < 2 and self.compute.kind == "V"
            return np.dtype(np.float32) if is_half else self.compute
        wide = any(v.dtype.itemsize == 8 and v.dtype.kind == "f" or v.dtype.itemsize == 16
                   for _, v in self.tensors)
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

    def _node(self, op: str, fn: Callable[..., Any], args: tuple[Any, ...], outputs: int) -> list[Ref]:
        self.nodes.append(Node(op, fn, args, (), outputs))
        first, self.values = self.values, self.values + outputs
        return [Ref(first + i) for i in range(outputs)]

    def _lower(self, arguments: dict[str, Any], meta: MetaResult) -> list[Ref]:
        types: list[ArrayType | None] = [
            None if m is None else ArrayType(m.shape, dtypes.to_numpy(m.dtype)) for m in meta.outputs
        ]
        extra = len(self.lowering.writes)
        if extra:
            by_output = {o: self.bound.get(n) for n, o in self.lowering.writes.items()}
            for o in sorted(by_output):
                tensor = by_output[o]
                types.append(
                    None if tensor is None
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
                self.operation.name, self.lowering, (call, *key),
                tuple((n, arguments[n]) for n in names), len(types),
            )
        )
        first, self.values = self.values, self.values + len(types)
        return [Ref(first + i) for i in range(len(types))]

    def _finish(
        self,
        outputs: list[Ref],
        written: list[tuple[int, views.View, int]],
        meta: MetaResult,
        reads: list[int],
    ) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...], tuple[int, ...], tuple[TensorFactory, ...]]:
        finals: list[int] = []
        factories: list[TensorFactory] = []
        returns_new = not written or bool(self.lowering.writes)
        if returns_new:
            for ref, m in zip(outputs, meta.outputs, strict=False):
                if m is None:
                    continue
                make = factory(m.shape, m.strides, m.dtype)
                if make.order is None:
                    make = factory(m.shape, views.contiguous_strides(m.shape), m.dtype)
                if not make.is_row_major:
                    ref = self._node("view", _to_order, (ref, make.order), 1)[0]
                factories.append(make)
                finals.append(ref.index)
        latest: dict[int, Ref] = {}
        for buffer, view, output in written:
            layout = self.buffers[buffer].layout
            base = latest.get(buffer) or (
                Ref(self.inputs[buffer]) if buffer in self.inputs else None
            )
            args = (base, view, outputs[output], layout.shape, layout.type.dtype)
            latest[buffer] = self._node("view", _write, args, 1)[0]
        writes = []
        for buffer, ref in latest.items():
            writes.append((buffer, len(finals)))
            finals.append(ref.index)
        donated = tuple(sorted(self.inputs[b] for b in latest if b in self.inputs))
        return tuple(finals), tuple(writes), donated, tuple(factories)


class _TensorAt(NamedTuple):
    buffer: int
    view: views.View


class _NumberAt(NamedTuple):
    position: int


def _tensor_places(preparation: _Preparation, value: Any) -> list[_TensorAt]:
    values = value if isinstance(value, (list, tuple)) else [value]
    found = []
    for v in values:
        if isinstance(v, torch.Tensor) and v.device.type == "tpu":
            buffer = buffer_of(v.untyped_storage())
            found += [
                _TensorAt(i, view_of(v)) for i, b in enumerate(preparation.buffers) if b is buffer
            ]
    return found


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


def _returner(operation: Operation, meta: MetaResult, mutates: bool) -> Callable[..., Any] | None:
    """Return what makes the op's result from new buffers; None for one plain new tensor."""
    written = [a for a in operation.arguments if a.written]
    if written and not operation.lowering.writes:
        if not operation.op._schema.returns:
            return _nothing
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
        found = [_tensor(next(tensors), m) if p else None
                 for p, m in zip(present, meta.outputs, strict=True)]
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
