"""torchtpu.export: a module's forward pass as StableHLO, and its weights, in a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.export.passes import move_to_device_pass

from torchtpu import dtypes, executor, targets
from torchtpu.aot import directory
from torchtpu.aot.directory import Manifest, Value
from torchtpu.compiler import plan
from torchtpu.compiler.graph import buffer_or_none
from torchtpu.eager.capture import CannotCapture
from torchtpu.errors import TpuError
from torchtpu.private.torch import pytree
from torchtpu.tensor import from_host, to_host

_KINDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}
_NUMBERS = (bool, int, float, str, type(None))


class _Input(NamedTuple):
    """An input of torch's graph: a tensor of the module or an argument, or a number."""

    name: str
    kind: str
    value: Any


def export(
    module: torch.nn.Module,
    args: Sequence[Any],
    path: str | PathLike[str],
    kwargs: Mapping[str, Any] | None = None,
    *,
    platforms: Sequence[str] = targets.PLATFORMS[:1],
) -> None:
    """Write `module(*args, **kwargs)` as StableHLO with its weights to a new directory.

    The module may be on any device, in training or evaluation mode; torch.export traces it, so
    what that refuses is refused. Shapes and dtypes of tensors and the values of numbers are those
    of args; changed buffers are outputs of the program. platforms: of "tpu" and "cpu", whose
    lowerings the program carries. Raises TpuError where the program would draw random numbers,
    depends on values, or the directory is not empty. `torchtpu.load_exported` runs it.
    """
    traced = _traced(module, args, kwargs)
    inputs = _inputs(traced, (tuple(args), dict(kwargs or {})))
    graph, results = _captured(traced, inputs)
    program = graph.call.program
    with executor.torch_semantics(executor.matmul_precision()):
        artifact = _lowered(program, platforms)
    values, weights = _named(graph, inputs)
    arguments = [i for i in inputs if i.kind in ("argument", "number")]
    manifest = Manifest(
        platforms=tuple(artifact.platforms),
        inputs=tuple(values),
        outputs=tuple(_outputs(graph, inputs)),
        arguments=pytree.treespec_dumps(traced.call_spec.in_spec),
        leaves=tuple(_value(*i) for i in arguments),
        numbers={i.name: i.value for i in arguments if i.kind == "number"},
        results=pytree.treespec_dumps(traced.call_spec.out_spec),
        constants={n: r for n, r in enumerate(results) if not _is_tensor(r)},
    )
    directory.write(
        Path(path), manifest, weights, artifact.mlir_module_serialized, artifact.serialize()
    )


def _traced(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> ExportedProgram:
    for leaf in pytree.tree_leaves((tuple(args), dict(kwargs or {}))):
        if not isinstance(leaf, (torch.Tensor, *_NUMBERS)):
            raise TpuError(
                f"[export] arguments are tensors, numbers and texts, got {type(leaf).__name__}"
            )
    traced = torch.export.export(module, tuple(args), dict(kwargs or {}), strict=False)
    return move_to_device_pass(traced, "tpu")


def _inputs(traced: ExportedProgram, arguments: Any) -> list[_Input]:
    given = iter(pytree.tree_leaves(arguments))
    found = []
    for spec in traced.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            value = next(given)
            kind = "argument" if _is_tensor(value) else "number"
            found.append(_Input(spec.arg.name, kind, value))
        elif spec.kind in _KINDS:
            target = spec.target or ""
            known = traced.constants if target in traced.constants else traced.state_dict
            found.append(_Input(target, _KINDS[spec.kind], known[target].detach()))
        else:
            raise TpuError(f"[export] inputs of kind {spec.kind.name} cannot be exported")
    return found


def _captured(traced: ExportedProgram, inputs: Sequence[_Input]) -> tuple[plan.Plan, list[Any]]:
    """The program of torch's graph, and what the graph returns."""
    returned: list[Any] = []

    def forward(*values: Any) -> list[Any]:
        made = pytree.tree_leaves(traced.graph_module(*values), is_leaf=lambda v: v is None)
        returned.extend(made)
        return [_whole(v) for v in made if _is_tensor(v)]

    on_device = [_on_device(i.value) for i in inputs]
    buffers = [buffer_or_none(t) for t in on_device]
    try:
        with torch.no_grad():
            graph = plan.make("forward", forward, on_device, buffers)
    except CannotCapture as error:
        raise TpuError(f"[export] {error}") from error
    if graph.keys:
        raise TpuError(
            "[export] the module draws random numbers (dropout?), which an exported program "
            "cannot; call module.eval() first"
        )
    return graph, returned


def _whole(value: torch.Tensor) -> torch.Tensor:
    if value.device.type != "tpu":
        raise TpuError(
            f"[export] the module returns a tensor of device {value.device}, expected one that is "
            "computed from its arguments"
        )
    return value.clone(memory_format=torch.contiguous_format)


def _on_device(value: Any) -> Any:
    return from_host(value.detach().cpu().contiguous()) if _is_tensor(value) else value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _lowered(program: Any, platforms: Sequence[str]) -> Any:
    from jax import export as jax_export

    if not platforms or set(platforms) - set(targets.PLATFORMS):
        raise TpuError(f"[export] platforms are {targets.PLATFORMS}, got {tuple(platforms)}")
    exporting = jax_export.export(executor.jitted(program), platforms=tuple(platforms))
    return exporting(*executor.argument_types(program))


def _named(
    graph: plan.Plan, inputs: Sequence[_Input]
) -> tuple[list[Value], dict[str, torch.Tensor]]:
    """The inputs of the program in order, and the contents of those that are no arguments."""
    function_input = dict(graph.given)
    values, weights = [], {}
    for number in range(len(graph.call.program.inputs)):
        if number in function_input:
            name, kind, value = inputs[function_input[number]]
        else:  # a number, or a tensor that the function makes of none
            name, kind, value = f"constant.{number}", "constant", _contents(graph.fixed[number])
        values.append(_value(name, kind, value))
        if kind != "argument":
            weights[name] = value.cpu().contiguous().clone()
    return values, weights


def _outputs(graph: plan.Plan, inputs: Sequence[_Input]) -> list[Value]:
    results = [
        Value(name=f"result.{n}", kind="result", shape=f.shape, dtype=_spelled(f.layout.dtype))
        for n, f in enumerate(graph.factories)
    ]
    changed = [inputs[n] for n in graph.written]
    return results + [_value(i.name, i.kind, i.value) for i in changed]


def _value(name: str, kind: str, like: Any) -> Value:
    if not _is_tensor(like):
        return Value(name=name, kind=kind, shape=(), dtype=type(like).__name__)
    return Value(name=name, kind=kind, shape=tuple(like.shape), dtype=_spelled(like.dtype))


def _spelled(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _contents(array: Any) -> torch.Tensor:
    is_number = isinstance(array, (np.ndarray, np.generic))
    host = np.asarray(array) if is_number else executor.current().target.get(array)
    return to_host(host, dtypes.to_torch(host.dtype))
