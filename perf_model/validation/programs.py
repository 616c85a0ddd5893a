"""The programs that the kernel rows measure."""

from __future__ import annotations

from torchtpu.perf_model.program import Graph, GraphBuilder

_BINARY = frozenset({"add", "subtract", "multiply", "divide", "maximum"})


def matmul(m: int, k: int, n: int, dtype: str, result: str = "") -> Graph:
    """[m, k] x [k, n]; the result has the operands' dtype unless another is given."""
    builder = GraphBuilder()
    lhs, rhs = builder.input((m, k), dtype), builder.input((k, n), dtype)
    out = builder.op(
        "dot_general", (lhs, rhs), (m, n), result or dtype, lhs_contract=(1,), rhs_contract=(0,)
    )
    return builder.build((out,))


def copy(size_bytes: int) -> Graph:
    """Read and write an array of bytes."""
    return elementwise("negate", (size_bytes // 2,), "bf16")


def elementwise(opcode: str, shape: tuple[int, ...], dtype: str, times: int = 1) -> Graph:
    """An op of one operand, or of two that are inputs, applied `times` times in one kernel."""
    builder = GraphBuilder()
    value = builder.input(shape, dtype)
    other = (builder.input(shape, dtype),) if opcode in _BINARY else ()
    for _ in range(times):
        value = builder.op(opcode, (value, *other), shape, dtype)
    return builder.build((value,))
