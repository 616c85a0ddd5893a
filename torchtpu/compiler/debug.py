"""What the option `debug_callback` is told of a compiled graph, under torch_tpu's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torchtpu import executor
from torchtpu.program import Program


@dataclass
class TpuCompileDebug:
    """The stages of one graph; the callback gets it again when the backward pass is compiled."""

    pre_autograd_fx_code: str = ""
    post_autograd_fx_inference_code: str = ""
    post_autograd_fx_forward_code: str = ""
    post_autograd_fx_backward_code: str = ""
    stablehlo_inference_text: str = ""
    stablehlo_forward_text: str = ""
    stablehlo_backward_text: str = ""
    compiled_executables: list[Any] = field(default_factory=list)

    def graph(self, which: str, code: str) -> None:
        """Note the FX graph of "forward", "backward" or "inference"."""
        setattr(self, f"post_autograd_fx_{which}_code", code)

    def program(self, which: str, program: Program) -> None:
        """Note the program of a graph."""
        current = executor.current()
        module, _ = executor.lower(program, current.target.platform, executor.matmul_precision())
        setattr(self, f"stablehlo_{which}_text", str(module))
        self.compiled_executables.append(current.executable(program))
