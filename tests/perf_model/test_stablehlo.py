"""Reading StableHLO: every form of module, inlined calls, loops, regions, provenance."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.perf_model.jax_programs import graph, mlp_step, module, spec
from torchtpu.perf_model import stablehlo
from torchtpu.perf_model.program import Graph, ProgramError, Provenance

IDENTITY = (
    "module { func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> } }"
)


def opcodes(program: Graph) -> list[str]:
    return [op.opcode for op in program.ops]


def test_text_bytecode_and_portable_artifact_read_like_the_object() -> None:
    from jaxlib.mlir.dialects import stablehlo as dialect

    source = module(mlp_step, [spec(16, 32), spec(32, 4)], spec(8, 16))
    expected = opcodes(stablehlo.read(source))
    assert (
        expected.count("dot_general") == 5
    )  # two forward, two for weights, one for the hidden layer
    bytecode = io.BytesIO()
    source.operation.write_bytecode(bytecode)
    assert opcodes(stablehlo.read(str(source))) == expected
    assert opcodes(stablehlo.read(bytecode.getvalue())) == expected
    version = dialect.get_current_version()
    portable = dialect.serialize_portable_artifact_str(str(source), version)
    assert opcodes(stablehlo.read(portable)) == expected


def test_calls_are_inlined_and_values_are_single_assignment() -> None:
    inner = jax.jit(lambda x: jnp.sin(x) * 2)
    program = graph(lambda x: inner(inner(x)), spec(8))
    assert opcodes(program).count("sine") == 2
    assert "call" not in opcodes(program)
    results = [r for op in program.ops for r in op.results]
    assert len(results) == len(set(results))


@pytest.mark.parametrize(("start", "stop", "trips"), [(3, 17, 14), (0, 1, 1), (0, 1000, 1000)])
def test_trip_count_of_a_counted_loop(start: int, stop: int, trips: int) -> None:
    program = graph(lambda x: lax.fori_loop(start, stop, lambda i, c: c * 2 + i, x), spec(8))
    assert [op.trip_count for op in program.ops if op.opcode == "while"] == [trips]


def test_trip_count_of_a_scan_with_captured_weights() -> None:
    def run(x: Any, w: Any) -> Any:
        return lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=7)[0]

    (loop,) = (op for op in graph(run, spec(4, 8), spec(8, 8)).ops if op.opcode == "while")
    assert loop.trip_count == 7
    assert all(len(body.inputs) == len(loop.operands) for body in loop.bodies)
    assert "dot_general" in opcodes(loop.bodies[1])


def test_data_dependent_loop_has_no_trip_count() -> None:
    program = graph(lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, x), spec(8))
    assert [op.trip_count for op in program.ops if op.opcode == "while"] == [None]


def test_structured_attributes() -> None:
    program = graph(lambda a, b: jnp.einsum("bmk,bkn->bmn", a, b), spec(2, 3, 4), spec(2, 4, 5))
    (dot,) = (op for op in program.ops if op.opcode == "dot_general")
    assert dot.ints("lhs_batch") == (0,)
    assert dot.ints("lhs_contract") == (2,)
    (reduce,) = (op for op in graph(lambda x: x.sum(1), spec(4, 8)).ops if op.opcode == "reduce")
    assert reduce.ints("dimensions") == (1,)
    assert reduce.text("reducer") == "add"


def test_donated_arguments() -> None:
    program = graph(lambda a, b: a + b, spec(8), spec(8), donate_argnums=0)
    assert program.donated == {program.inputs[0]}


def test_provenance_is_read_from_locations() -> None:
    where = Provenance(op="aten::add", module="model.head", source="train.py:31")
    text = (
        "module { func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
        f'  %0 = stablehlo.add %a, %a : tensor<4xf32> loc("{where.to_location()}"("x.py":1:1))\n'
        '  %1 = stablehlo.abs %0 : tensor<4xf32> loc("jit(f)/abs")\n'
        "  return %1 : tensor<4xf32> } }"
    )
    assert [op.provenance for op in stablehlo.read(text).ops] == [where, None]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("not a module", "does not parse"),
        (b"ML\xefR broken", "does not parse"),
        ("module {}", "no function"),
        (IDENTITY.replace("4x", "?x"), "dynamic shapes"),
        (IDENTITY.replace("tensor<4xf32>", "tensor<*xf32>"), "ranked"),
    ],
)
def test_what_cannot_be_read_says_why(source: str | bytes, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        stablehlo.read(source)


EVERYTHING: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "convolution": (
        lambda x, w: lax.conv_general_dilated(x, w, (2, 2), "SAME"),
        [spec(2, 3, 8, 8), spec(4, 3, 3, 3)],
    ),
    "sort": (jnp.argsort, [spec(8, 16)]),
    "top_k": (lambda x: lax.top_k(x, 3), [spec(8, 16)]),
    "scatter": (lambda x, i, u: x.at[i].add(u), [spec(9, 4), spec(3, dtype=jnp.int32), spec(3, 4)]),
    "gather_gradient": (
        jax.grad(lambda x, i: (x[i] ** 2).sum()),
        [spec(9, 4), spec(3, dtype=jnp.int32)],
    ),
    "pool_gradient": (
        jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID").sum()),
        [spec(8, 8)],
    ),
    "cumsum": (lambda x: jnp.cumsum(x, 1), [spec(4, 32)]),
    "fft": (jnp.fft.rfft, [spec(4, 32)]),
    "threefry": (lambda: jax.random.normal(jax.random.key(0), (16,)), []),
    "rng_bits": (lambda: jax.random.bits(jax.random.key(0, impl="rbg"), (16,)), []),
    "special": (
        lambda x: jax.scipy.special.gammaln(x) + jax.scipy.special.erf(x) + jnp.arctan2(x, x),
        [spec(64)],
    ),
    "switch": (
        lambda p, x: lax.switch(p, [lambda y: y @ y, jnp.sin], x),
        [spec(dtype=jnp.int32), spec(4, 4)],
    ),
    "complex": (lambda x: (x + 1j * x) @ (x - 2j * x), [spec(4, 4)]),
    "int8": (
        lambda a, b: lax.dot(a, b, preferred_element_type=jnp.int32),
        [spec(32, 32, dtype=jnp.int8)] * 2,
    ),
    "dense_constant": (lambda x: x + np.arange(100, dtype=np.float32), [spec(100)]),
    "empty": (lambda a, b: a @ b, [spec(0, 4), spec(4, 8)]),
}


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_everything_that_jax_emits_has_a_rule(name: str) -> None:
    from torchtpu.perf_model import chip, kernel_cost

    function, arguments = EVERYTHING[name]
    cost = kernel_cost.program_cost(graph(function, *arguments), chip.load("v6e"))
    assert not cost.unmodelled
    assert cost.kernels >= 1


def test_unknown_custom_call_is_unmodelled() -> None:
    from torchtpu.perf_model import chip, kernel_cost

    cost = kernel_cost.program_cost(graph(jnp.linalg.cholesky, spec(16, 16)), chip.load("v6e"))
    assert any("spotrf" in reason for reason in cost.unmodelled)
    assert 0 < cost.unmodelled_s <= cost.time_s
