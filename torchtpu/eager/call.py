"""A prepared call: the compiled program of a signature, its inputs, and where its results go."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from torchtpu import executor
from torchtpu.lowerings import Lowering
from torchtpu.program import Node, Program
from torchtpu.tensor import TensorFactory


class Scalar(NamedTuple):
    """A CPU tensor of no dims that takes part as a number, with the dtype it promotes by."""

    value: Any
    dtype: torch.dtype


class OutputsNeedResize(Exception):
    """out= tensors have another shape than the result; apply() resizes them as torch does."""

    def __init__(
        self, outputs: Sequence[tuple[torch.Tensor, tuple[int, ...], tuple[int, ...]]]
    ) -> None:
        super().__init__("out= needs another shape")
        self._outputs = outputs

    def apply(self) -> None:
        """Resize to the result's shape and strides, warning where one was not empty."""
        for out, shape, strides in self._outputs:
            torch.ops.aten._resize_output_.default(out, list(shape), out.device)
            if out.stride() != strides:
                out.as_strided_(shape, strides)


class Call:
    """A compiled signature: the buffers it reads and writes, how results become tensors."""

    __slots__ = (
        "_guard",
        "_unshared",
        "compiled",
        "extra_inputs",
        "factories",
        "factory",
        "key",
        "layout",
        "name",
        "number_types",
        "program",
        "reads",
        "returned",
        "run",
        "single",
        "sizes",
        "writes",
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
        self.extra_inputs = len(number_types) + key  # numbers and the random key, at the end
        self.factories = factories
        self.layout = factories[0].layout if factories else None
        self.factory = factories[0] if factories else None
        self.single = returned is None
        self.returned = returned or nothing
        self.program = program
        self.sizes = tuple(math.prod(type_.shape) for type_ in program.inputs)
        self._unshared: Call | None = None
        self._guard: Callable[..., Any] | None = None
        self.compiled = False
        self.run: Callable[[Sequence[Any]], list[Any]] = self._compile_and_run

    def _compile_and_run(self, arrays: Sequence[Any]) -> list[Any]:
        """Compile at the first launch: a mode that joins calls never needs this program alone."""
        self.use(executor.current().executable(self.program).run)
        return self.run(arrays)

    def use(self, run: Callable[[Sequence[Any]], list[Any]]) -> None:
        """Run the compiled program from now on."""
        self.run, self.compiled = run, True

    @property
    def unshared(self) -> Call:
        """The same call for buffers whose array another buffer holds too: without donation."""
        if self._unshared is None:
            other = object.__new__(Call)
            for slot in Call.__slots__:
                setattr(other, slot, getattr(self, slot))
            plain = replace(self.program, donated=())
            other.program = plain
            other.run, other.compiled = other._compile_and_run, False
            self._unshared = other
        return self._unshared

    def check_indices(self, arrays: Sequence[Any]) -> None:
        """Raise IndexError where an index among the arguments is out of range (debug mode)."""
        if self._guard is None:
            program = _index_check(self.program)
            self._guard = executor.current().executable(program).run if program else nothing
        answer = self._guard(arrays)
        if answer is None:
            return
        wrong, value, dim, size = executor.current().target.get(answer[0]).tolist()
        if wrong:
            raise IndexError(f"index {value} is out of bounds for dimension {dim} with size {size}")


def nothing(*_: Any) -> None:
    """Return None, whatever is given."""


def _index_check(program: Program) -> Program | None:
    """The part of a program that finds an index out of range; None where there are none."""
    values = len(program.inputs)
    for number, node in enumerate(program.nodes):
        if isinstance(node.fn, Lowering) and node.fn.bounds is not None:
            check = Node(f"{node.op}.indices", node.fn.first_out_of_range, (), node.kwargs, 1)
            return Program(program.inputs, (*program.nodes[:number], check), (values,))
        values += node.outputs
    return None
