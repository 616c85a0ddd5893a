"""torch.compile(backend="tpu"): Dynamo's graph through AOTAutograd, a program each way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch

from torchtpu.compiler import changing_numbers, host_part, kept
from torchtpu.compiler.buckets import bounds_of
from torchtpu.compiler.debug import TpuCompileDebug
from torchtpu.compiler.dynamic import DynamicGraph
from torchtpu.compiler.graph import CompiledGraph
from torchtpu.compiler.options import Options
from torchtpu.private.torch import aot_autograd, min_cut_rematerialization_partition, trace_rules
from torchtpu.program import Program

_numbers = count()


_PACKAGE = Path(__file__).parent.parent
_TRACED = str(_PACKAGE / "distributed" / "safe.py")  # users call it in functions that they compile


def _left_alone(folder: Path) -> Iterator[str]:
    """Name all files and folders but the one that is traced, as prefixes of paths."""
    for entry in sorted(folder.iterdir()):
        path = f"{entry}/" if entry.is_dir() else str(entry)
        if path == _TRACED:
            continue
        if _TRACED.startswith(path):
            yield from _left_alone(entry)
        else:
            yield path


# Kernels run inside frames that Dynamo looks at.
trace_rules.SKIP_DIRS.extend(_left_alone(_PACKAGE))
for _name in ("jax", "jaxlib"):
    trace_rules.add(_name)


class TpuBackend:
    """The compiler function that Dynamo calls, with options of its own.

    Forward and backward become one program each; min-cut partitioning decides what forward keeps.
    """

    def __init__(self, **options: Any) -> None:
        self.options = Options.parse(options=options)

    def __call__(
        self, module: torch.fx.GraphModule, example_inputs: Sequence[Any], **settings: Any
    ) -> Callable[..., Any]:
        """Compile a graph; settings are `mode` and `options` of torch.compile."""
        options = Options.parse(**settings) if settings else self.options
        name = f"{options.custom_module_name or 'graph'}_{next(_numbers)}"
        debug = TpuCompileDebug(pre_autograd_fx_code=module.code)

        def make(graph: torch.fx.GraphModule, which: str, visible: int | None) -> Any:
            debug.graph(which, graph.code)

            def told(program: Program) -> None:
                if options.debug_callback is not None:
                    debug.program(which, program)
                    options.debug_callback(debug)

            def compiled(graph: torch.fx.GraphModule) -> CompiledGraph:
                return CompiledGraph(graph, f"{name}_{which}", options, told)

            if bounds_of(graph):
                return DynamicGraph(graph, compiled, options, visible)
            return host_part.compiled(graph, compiled)

        with kept.making(make, keep=options.serializable):
            compiled: Callable[..., Any] = _aot(make)(module, example_inputs)
        return compiled


def _aot(make: kept.Make) -> Any:
    return aot_autograd(
        fw_compiler=kept.compiler("forward", make),
        bw_compiler=kept.compiler("backward", make),
        inference_compiler=kept.compiler("inference", make),
        decompositions=changing_numbers.decompositions(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )


backend = TpuBackend()
