"""The flash kernels of platform tpu: Pallas' interpreter beside torch's CPU, and the TPU compiler.

A case a day of the long list; TORCHTPU_TEST_ALL=1 takes all.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import pallas as pl
from torch.nn import functional as F

from tests.daily import ALL, PART
from torchtpu import config, executor
from torchtpu.lowerings import attention, attention_tpu
from torchtpu.lowerings.attention_tpu import cost, sizes
from torchtpu.program import ArrayType, Node, Program, Ref


@dataclass(frozen=True, kw_only=True)
class Case:
    """An attention: batch, heads and key heads, rows and columns, widths of keys and values."""

    heads: tuple[int, int] = (2, 1)
    length: tuple[int, int] = (250, 300)
    width: tuple[int, int] = (64, 64)
    causal: bool = False
    dtype: torch.dtype = torch.float32
    mask: tuple[int, int, int] | None = None  # batches, heads, rows
    boolean: bool = False
    scale: float | None = None
    batch: int = 1


CASES = [
    Case(length=(300, 600), width=(80, 48), causal=True, scale=0.3),
    Case(batch=2, mask=(2, 1, 250), boolean=True, dtype=torch.bfloat16),
    Case(length=(600, 300), causal=True, heads=(4, 2), dtype=torch.bfloat16),
    Case(length=(512, 256), causal=True, heads=(1, 1), width=(128, 128)),
    Case(length=(130, 700), heads=(3, 1), width=(96, 96), dtype=torch.bfloat16),
    Case(length=(256, 512), width=(192, 128), causal=True, heads=(2, 2)),
    Case(length=(256, 256), width=(256, 256), dtype=torch.bfloat16),
    Case(mask=(1, 2, 250)),
    Case(batch=2, mask=(2, 1, 1), boolean=True, length=(300, 300)),
    Case(length=(128, 1024), causal=True),
    Case(length=(1024, 128), causal=True, dtype=torch.bfloat16),
]
_DAILY = CASES if ALL else [CASES[0], CASES[1], CASES[2 + PART % (len(CASES) - 2)]]


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that run on the CPU, in blocks so small that the arrays have several."""
    monkeypatch.setattr(pl, "pallas_call", partial(pl.pallas_call, interpret=True))
    monkeypatch.setattr(sizes, "_BLOCK", {2: 128, 4: 128})
    monkeypatch.setattr(sizes, "_STREAM", 256)


def _tensors(case: Case) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Query, key, value, and the gradient of the result; and the mask."""
    torch.manual_seed(0)
    (heads, key_heads), (rows, columns) = case.heads, case.length
    shapes = [
        (heads, rows, case.width[0]),
        (key_heads, columns, case.width[0]),
        (key_heads, columns, case.width[1]),
        (heads, rows, case.width[1]),
    ]
    tensors = [torch.randn(case.batch, *s).to(case.dtype) for s in shapes]
    if case.mask is None:
        return tensors, None
    seen = torch.rand(*case.mask, columns) > 0.3
    if case.mask[2] > 1:
        seen[:, :, 3] = False  # a row that sees nothing
    if case.boolean:
        return tensors, seen
    return tensors, torch.randn(seen.shape).masked_fill(~seen, -torch.inf).to(case.dtype)


def _expected(case: Case) -> list[torch.Tensor]:
    """Result, log-sum-exp and gradients, in float64 by torch's CPU."""
    (*inputs, grad), mask = _tensors(case)
    q, k, v = (x.double().requires_grad_() for x in inputs)
    if mask is not None and mask.is_floating_point():
        mask = mask.double()
    out = F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=case.causal, scale=case.scale, enable_gqa=True
    )
    out.nan_to_num().backward(grad.double())
    with torch.no_grad():
        scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT
        scores = scores * (q.shape[-1] ** -0.5 if case.scale is None else case.scale)
        if case.causal:
            scores = scores.masked_fill(torch.ones(case.length).triu(1).bool(), -torch.inf)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if case.boolean else scores + mask
    grads = [x.grad for x in (q, k, v) if x.grad is not None]
    return [out.detach(), scores.logsumexp(-1), *grads]


def _array(tensor: torch.Tensor) -> jax.Array:
    if tensor.dtype == torch.bfloat16:
        return jnp.asarray(tensor.float().numpy(), jnp.bfloat16)
    return jnp.asarray(tensor.numpy())


def _found(case: Case) -> list[np.ndarray[Any, Any]]:
    """The same by the kernels, interpreted."""
    tensors, mask = _tensors(case)
    q, k, v, grad = map(_array, tensors)
    bias = None if mask is None else _array(mask)
    of = attention_tpu.taken(q, k, v, bias, case.causal)
    assert of is not None

    def both(q: Any, k: Any, v: Any, bias: Any, grad: Any) -> Any:
        shared: dict[str, Any] = {"of": of, "precision": "highest"}
        out, lse = attention_tpu.forward_kernels(q, k, v, bias, case.scale, **shared)
        given = (grad, q, k, v, bias, out, lse, case.scale)
        wanted = (True, True, True)
        return out, lse, *attention_tpu.backward_kernels(*given, wanted=wanted, **shared)

    return [np.asarray(x, np.float64) for x in jax.jit(both)(q, k, v, bias, grad)]


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("case", _DAILY, ids=str)
def test_kernels_give_the_results_of_torch(case: Case) -> None:
    near = 1e-5 if case.dtype == torch.float32 else 1e-2
    for name, found, expected in zip(
        ("out", "lse", "dq", "dk", "dv"), _found(case), _expected(case), strict=True
    ):
        e = expected.nan_to_num(neginf=-np.inf).numpy()
        finite = np.isfinite(e)
        assert (np.isfinite(found) == finite).all(), name
        error = np.abs(found[finite] - e[finite]).max()
        assert error < near * np.abs(e[finite]).max(), name


# What takes kernels ---------------------------------------------------------------------------

_BASE = Case(length=(256, 256))


def _taken(case: Case) -> attention_tpu.Sizes | None:
    tensors, mask = _tensors(case)
    q, k, v, _ = map(_array, tensors)
    return attention_tpu.taken(q, k, v, None if mask is None else _array(mask), case.causal)


@pytest.mark.parametrize(
    ("change", "is_taken"),
    [
        ({}, True),
        ({"dtype": torch.bfloat16}, True),
        ({"dtype": torch.float16}, False),
        ({"length": (1, 256)}, False),
        ({"length": (1024, 77)}, False),
        ({"length": (197, 197)}, False),
        ({"width": (512, 64)}, False),
        ({"mask": (1, 1, 1)}, True),
    ],
)
def test_what_the_kernels_take(change: dict[str, Any], is_taken: bool) -> None:
    assert (_taken(replace(_BASE, **change)) is not None) is is_taken


def test_the_knob_turns_them_off() -> None:
    with config.override(attention="math"):
        assert _taken(_BASE) is None


def test_the_knob_is_in_the_key_of_a_program() -> None:
    array = ArrayType((1, 1, 256, 64), np.dtype(np.float32))
    args = (Ref(0), Ref(1), Ref(2), None, False, None)
    program = Program((array,) * 3, (Node("attention", attention.attention, args, (), 2),), (3, 4))
    usual = executor.program_key(program, "highest")
    with config.override(attention="math"):
        assert usual is not None
        assert executor.program_key(program, "highest") not in (None, usual)


def _program(case: Case, *, backward: bool = False) -> Program:
    """One attention, or its gradients, as a program."""
    tensors, _ = _tensors(case)
    types = tuple(ArrayType(a.shape, a.dtype) for a in map(_array, tensors))

    def forward(q: Any, k: Any, v: Any, _: Any) -> Any:
        return attention.attention(q, k, v, None, case.causal, None)

    def gradients(q: Any, k: Any, v: Any, grad: Any) -> Any:
        out, lse = attention.attention(q, k, v, None, case.causal, None)
        mask = (True, True, True, False)
        given = (grad, q, k, v, None, mask, out, lse, 0.0, case.causal, None, None, None)
        return attention.attention_backward(*given)[:3]

    fn, count = (gradients, 3) if backward else (forward, 2)
    node = Node(fn.__name__, fn, tuple(Ref(i) for i in range(4)), (), count)
    return Program(types, (node,), tuple(range(4, 4 + count)))


def _text(case: Case, platform: str, *, backward: bool = False, **placed: Any) -> str:
    module, _ = executor.lower(_program(case, backward=backward), platform, **placed)
    return str(module)


def test_only_platform_tpu_has_kernels() -> None:
    assert "custom_call" not in _text(_BASE, "cpu")
    text = _text(_BASE, "tpu", backward=True)
    assert re.findall(r'kernel_name = "(\w+)"', text) == [
        "torchtpu_flash_attention_forward",
        "torchtpu_flash_attention_backward_dq",
        "torchtpu_flash_attention_backward_dkv",
    ]
    assert "256x256xf32" not in text  # no matrix of scores


def test_the_cpu_gets_the_program_that_it_gets_without_kernels() -> None:
    for backward in (False, True):
        with config.override(attention="math"):
            expected = _text(_BASE, "cpu", backward=backward)
        assert _text(_BASE, "cpu", backward=backward) == expected


def test_a_partitioned_program_keeps_the_ops() -> None:
    mesh = jax.sharding.AbstractMesh((2,), ("x",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "x"))
    text = _text(_BASE, "tpu", in_shardings=(split, None, None, split))
    assert "custom_call @tpu_custom_call" not in text
    assert "dot_general" in text


# What they cost -------------------------------------------------------------------------------


def test_costs() -> None:
    of = _taken(replace(_BASE, length=(4096, 4096), dtype=torch.bfloat16, heads=(8, 2)))
    assert of is not None
    causal = replace(of, causal=True)
    assert of.pairs == 8 * 4096 * 4096
    assert causal.pairs == 8 * 4096 * 4097 // 2
    cut = sizes.tiling(of, held=4096, streamed=4096, tiles=3)
    assert (cut.block, cut.chunk, cut.stream) == (512, 512, 2048)
    full = cost.over_columns(of, cut, products=128, held=0)
    half = cost.over_columns(causal, cut, products=128, held=0)
    assert full.flops == full.tile_flops == 2 * of.pairs * 128
    assert half.flops < half.tile_flops < 0.6 * full.tile_flops
    assert half.bytes_accessed < 0.8 * full.bytes_accessed
    k_and_v = 2 * 4096 * 64 * 2
    assert full.bytes_accessed == 8 * 8 * k_and_v  # once for each head and block of rows
    turned = cost.over_rows(causal, cut)
    assert turned.tile_flops == 2 * half.tile_flops  # four products of a tile beside two


def test_a_call_says_what_it_costs() -> None:
    text = _text(replace(_BASE, causal=True), "tpu")
    said = re.search(r"cost_estimate\\22: (\{.*?\})", text, re.DOTALL)
    beside = re.search(r'kernel_metadata = "(\{.*?\})"', text, re.DOTALL)
    assert said is not None
    assert beside is not None
    found, about = (
        json.loads(m.group(1).replace("\\22", '"').replace("\\0A", "")) for m in (said, beside)
    )
    pairs = 2 * 256 * 257 // 2
    assert (found["flops"], found["transcendentals"]) == (2 * pairs * 128, pairs)
    assert found["bytes_accessed"] == 4 * 256 * 64 * (2 * 2 + 2) + 4 * 256 * 2  # q, out, k, v; lse
    assert about == {
        "block": "256",
        "chunk": "256",
        "steps": "2",
        "stream": "256",
        "tile_flops": str(2 * 2 * 256 * 256 * 128),
    }


def test_blocks_fit_the_least_vmem() -> None:
    for itemsize, width in ((2, 64), (2, 256), (4, 128), (4, 256)):
        of = attention_tpu.Sizes(
            batch=1,
            heads=1,
            key_heads=1,
            rows=8192,
            columns=8192,
            width=width,
            value_width=width,
            itemsize=itemsize,
            causal=True,
        )
        cut = sizes.tiling(of, held=8192, streamed=8192, tiles=5)
        assert sizes._vmem_bytes(of, cut, 5) < sizes.VMEM_BYTES
        assert cut.block % sizes.LANES == cut.chunk % sizes.LANES == cut.stream % cut.chunk == 0


# The TPU compiler -----------------------------------------------------------------------------

COMPILE = """
from tests.lowerings.test_attention_tpu import Case, _program
from torchtpu import executor
from torchtpu.targets import compile_only
import torch
case = Case(length=(8192, 8192), heads=(4, 1), width=(128, 128), causal=True, dtype=torch.bfloat16)
compiler = compile_only.TpuCompiler("v6e:2x2")
module, _ = executor.lower(_program(case, backward=True), "tpu")
print(compiler.compile(module).temporary_bytes)
"""


@pytest.mark.usefixtures("libtpu")
@pytest.mark.timeout(300)
def test_the_tpu_compiler_takes_them_and_keeps_no_scores() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    scores = 4 * 8192 * 8192 * 2
    assert int(done.stdout.split()[-1]) < scores / 8
