"""torchtpu.aot_compile: a function or a training step in the TPU compiler, on any machine."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from torchtpu import executor, targets
from torchtpu.aot import shardings as splits
from torchtpu.compiler.graph import buffer_or_none
from torchtpu.compiler.whole_step import WholeStep
from torchtpu.eager.capture import CannotCapture
from torchtpu.errors import TpuError
from torchtpu.private.torch import pytree
from torchtpu.targets import CompileReport

_LIMIT_S = 3600.0


def aot_compile(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    *,
    topology: str = "v6e:1x1",
    modules: Sequence[torch.nn.Module] = (),
    optimizers: Sequence[torch.optim.Optimizer] = (),
    mesh: Mapping[str, int] | None = None,
    shardings: Mapping[str, splits.Spec] | None = None,
    path: str | PathLike[str] | None = None,
    limit_s: float = _LIMIT_S,
) -> CompileReport:
    """Compile `fn(*args)` for a TPU topology with libtpu (extra `tpu`), without a TPU.

    fn: a module in its current mode, or a function of `modules` and `optimizers` such as a whole
    training step, traced once on tensors of device tpu whose contents do not matter (with
    TORCHTPU_SIM_NUMERICS=0 they need no memory). topology: such as "v5e:2x2" or "v6e:2x2"; one
    device is used unless a mesh is given (sizes by axis, as many devices as the topology has).
    shardings: by a regular expression of input names ("args.0", "layers.0.weight",
    "layers.0.weight.exp_avg"), the axis that each dim is split over; what matches none is on every
    device. path: a file for the executable. Returns what the compiler says of memory, costs and
    collectives; raises TpuError for what cannot be one program or be split so, and TargetError
    without libtpu or where it refuses the program.
    """
    own = splits.sharding(mesh, shardings)
    roots = (*modules, fn) if isinstance(fn, torch.nn.Module) else tuple(modules)
    for root in roots:
        for name, tensor in (*root.named_parameters(), *root.named_buffers()):
            if tensor.device.type != "tpu":
                raise TpuError(
                    f"[aot_compile] {name} is on {tensor.device}, expected tpu: .to('tpu')"
                )
    try:
        with WholeStep(fn, roots, optimizers).traced(*args) as traced:
            names = _names(traced.inputs, args, roots, optimizers)
    except CannotCapture as error:
        raise TpuError(f"[aot_compile] {error}") from error
    program = traced.program
    placed = splits.placed(own, own.of(names, program.inputs), traced.places)
    module, _ = executor.lower(program, targets.PLATFORMS[0], executor.matmul_precision(), **placed)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.mlirbc"
        with file.open("wb") as out:
            module.operation.write_bytecode(out)
        sizes = tuple(own.mesh.values()) or (1,)
        executable = None if path is None else Path(path).absolute()
        return targets.compile_for(file, topology, sizes, executable, limit_s)


def _names(
    inputs: Sequence[Any],
    args: Sequence[Any],
    modules: Sequence[torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
) -> list[str]:
    """What the program's inputs are called: those of no name are "constant" or "random keys"."""
    names: dict[int, str] = {}  # by the id of a buffer

    def name(tensor: Any, called: str) -> None:
        buffer = buffer_or_none(tensor)
        if buffer is not None:
            names.setdefault(id(buffer), called)

    parameters: dict[int, str] = {}
    for module in modules:
        for path, tensor in (*module.named_parameters(), *module.named_buffers()):
            name(tensor, path)
            name(tensor.grad, f"{path}.grad")
            parameters[id(tensor)] = path
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                name(value, f"{parameters.get(id(parameter), 'optimizer')}.{key}")
    for keys, leaf in pytree.tree_leaves_with_path(tuple(args)):
        name(leaf, "args" + re.sub(r"[\[\]'.]+", ".", pytree.keystr(keys)).rstrip("."))
    return [names.get(id(b), "constant") if b is not None else "constant" for b in inputs]
