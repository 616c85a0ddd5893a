"""From a program to a compiled executable: lower with JAX, compile on the target, cache."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from torchtpu import config, targets
from torchtpu.cache import ProgramCache
from torchtpu.program import ArrayType, Program
from torchtpu.targets import Executable, Target

_PRECISION = {"medium": "default", "high": "high", "highest": "highest"}


_matmul_precision = "highest"  # torch's default for float32 matmuls


class Executor:
    """Compiles programs for one target and remembers them."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.cache: ProgramCache[Executable] = ProgramCache(config.get("cache_entries"))

    def executable(self, program: Program) -> Executable:
        """Return the compiled program; the same program text compiles once."""
        key = (program, _matmul_precision)
        return self.cache.get(key, program.name, lambda: self._compile(program))

    def _compile(self, program: Program) -> Executable:
        start = time.perf_counter()
        module, outputs = lower(program, self.target.platform, _matmul_precision)
        executable = self.target.compile(module, [(t.shape, t.dtype) for t in outputs])
        self.cache.stats.compile_s += time.perf_counter() - start
        return executable


def lower(
    program: Program, platform: str, matmul_precision: str = "highest"
) -> tuple[Any, list[ArrayType]]:
    """Lower a program for a platform ("cpu", "tpu"); return its StableHLO module and output types.

    64-bit dtypes keep their torch meaning inside; the user's own JAX settings are not touched.
    """
    import jax

    arguments = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in program.inputs]

    def call(*inputs: Any) -> list[Any]:
        return program(*inputs)

    call.__name__ = call.__qualname__ = program.name
    with jax.enable_x64(True), jax.default_matmul_precision(matmul_precision):
        jitted = jax.jit(call, donate_argnums=program.donated, keep_unused=True)
        traced = jitted.trace(*arguments)
        module = traced.lower(lowering_platforms=(platform,)).compiler_ir("stablehlo")
    return module, [ArrayType(tuple(o.shape), o.dtype) for o in traced.out_info]


@cache
def current() -> Executor:
    """Return the process's executor; made, with its target, at the first use of the device."""
    for name in config.KNOBS:
        config.get(name)  # a wrong value is an error here, and not at some later op
    return Executor(targets.create(config.get("target"), numerics=config.get("sim_numerics")))


def set_float32_matmul_precision(precision: str) -> None:
    """Follow torch: "medium" is one bfloat16 pass on the MXU, "high" three, "highest" six."""
    global _matmul_precision
    _matmul_precision = _PRECISION[precision]
