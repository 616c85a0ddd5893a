"""A compiled graph: an FX graph captured once per kind of input, and run as one program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from torchtpu import executor
from torchtpu.compiler import plan
from torchtpu.compiler.options import Options
from torchtpu.eager.capture import CannotCapture
from torchtpu.private.torch import disable_current_modes, pytree
from torchtpu.program import Program
from torchtpu.tensor import from_host, place_of

log = logging.getLogger("torchtpu")
_MAX_PLANS = 256  # of one graph; sizes that never come again are forgotten


class Others(Protocol):
    """The processes that take part in a graph's collectives."""

    def run(
        self, name: str, plan: plan.Plan | None, inputs: list[Any], buffers: Sequence[Any]
    ) -> list[Any] | None:
        """Run a plan if all of them are about to; None: each runs its graph op by op."""


def _nobody(_graph: torch.fx.Graph) -> Others | None:
    return None


find_others: Callable[[torch.fx.Graph], Others | None] = _nobody  # torchtpu.distributed knows them


class CompiledGraph:
    """Runs an FX graph of aten ops on device tensors; takes and returns flat lists.

    The graph is captured at the first call with inputs of a kind (layouts, views, Python numbers).
    What cannot be captured (values read on the host, ops on CPU tensors) runs op by op.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        name: str,
        options: Options,
        captured: Callable[[Program], None],
    ) -> None:
        self._boxed_call = True  # AOTAutograd hands over a list, and keeps nothing of it
        self._module = module
        self._name = name
        self._options = options
        self._captured = captured  # is told of each program
        self._keeps_to_cpu = _keeps_to_cpu(module.graph)
        self._others = find_others(module.graph)
        self._plans: dict[Any, plan.Plan | None] = {}
        self._compiling: dict[Any, Any] = {}  # kind of input -> a job in another thread

    def __call__(self, inputs: list[Any]) -> Any:
        """Run on a flat list of tensors and Python numbers; the list is emptied."""
        if self._keeps_to_cpu:
            return self._module(*inputs)
        moved = [_on_device(value) for value in inputs]
        buffers = [buffer_or_none(value) for value in moved]
        kind = kind_of(moved, buffers)
        try:
            known = self._plans[kind]
        except KeyError:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            known = self._plans[kind] = self._capture(moved, buffers)
            if known and self._options.async_compile:
                self._compiling[kind] = executor.current().start(known.call.program)
        is_ready = known is not None and not (self._compiling and self._compiles(kind))
        if self._others is not None:
            made = self._others.run(self._name, known if is_ready else None, inputs, buffers)
            return self._module(*inputs) if made is None else made
        if known is None or not is_ready:
            return self._module(*inputs)
        return known.run(inputs, buffers)

    def _compiles(self, kind: Any) -> bool:
        job = self._compiling.get(kind)
        if job is None or not job.ready():
            return job is not None
        del self._compiling[kind]
        return False

    def _capture(self, inputs: Sequence[Any], buffers: Sequence[Any]) -> plan.Plan | None:
        if any(isinstance(t, torch.Tensor) and t.device.type != "tpu" for t in inputs):
            log.info("%s runs op by op: it has inputs on other devices than tpu", self._name)
            return None
        try:
            with disable_current_modes(), torch.no_grad():
                made = plan.make(self._name, self._module, inputs, buffers)
        except CannotCapture as error:
            log.info("%s runs op by op: %s", self._name, error)
            return None
        self._captured(made.call.program)
        return made


def kind_of(inputs: Sequence[Any], buffers: Sequence[Any]) -> Any:
    """Return what a captured program depends on: views and layouts of tensors, other values.

    buffers: those of the tensors among the inputs, None for the rest.
    """
    kind = [
        _constant(value) if buffer is None else buffer.natural or place_of(buffer, value)
        for value, buffer in zip(inputs, buffers, strict=True)
    ]
    if len(set(map(id, buffers))) < len(buffers):
        seen: dict[int, int] = {}
        kind.append(tuple(seen.setdefault(id(b), len(seen)) for b in buffers))
    return tuple(kind)


def _keeps_to_cpu(graph: torch.fx.Graph) -> bool:
    """Tell whether a graph changes tensors of the CPU, or returns new ones."""
    for node in graph.nodes:
        if node.op == "output":
            made = (n for n in pytree.tree_leaves(node.args) if isinstance(n, torch.fx.Node))
            return any(_is_on_cpu(n) and n.op != "placeholder" for n in made)
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable and _is_on_cpu(node.args[0]):
            return True
    return False


def _is_on_cpu(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _constant(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.device
    return value.__class__, repr(value) if value.__class__ is float else value


def buffer_or_none(value: Any) -> Any:
    """Return the buffer of a device tensor, None for anything else."""
    try:
        return value.untyped_storage()._tpu_buffer
    except AttributeError:
        return None


def _on_device(value: Any) -> Any:
    """A CPU scalar is an input like any other: Dynamo makes one of a Python float that changes."""
    if isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu":
        return from_host(value)
    return value
