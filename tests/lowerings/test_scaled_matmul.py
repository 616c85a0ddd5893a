"""Products of 8-bit floats and of groups against torch's CPU, or against plain float products."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
import torch

from tests.lowerings.pairs import compare
from torchtpu.lowerings import scaled_matmul

aten = torch.ops.aten
F8 = torch.float8_e4m3fn


def _operands(
    rows: int = 32, depth: int = 64, columns: int = 48
) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, depth).to(F8), torch.randn(columns, depth).to(F8).t()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, F8], ids=str)
def test_one_scale(dtype: torch.dtype) -> None:
    scales = (torch.tensor(0.05), torch.tensor(2.0))
    tolerance = {4: 1e-4, 2: 2e-2, 1: 7e-2}[dtype.itemsize]
    compare(
        lambda a, b, s, t: aten._scaled_mm(a, b, s, t, out_dtype=dtype),
        None,
        *_operands(),
        *scales,
        tolerance=tolerance,
    )


def test_a_scale_of_each_row_and_a_bias() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor, *scales: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = aten._scaled_mm(a, b, *scales, out_dtype=torch.bfloat16)
        return made

    rows, columns = torch.rand(32, 1), torch.rand(1, 48)
    compare(fn, None, *_operands(), rows, columns, torch.randn(48).bfloat16(), tolerance=2e-2)


def test_sizes_that_cuda_rejects_and_both_kinds_of_8_bits() -> None:
    left, right = _operands(3, 7, 5)
    one = torch.tensor(1.0)

    def fn(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = aten._scaled_mm(a, b, s, s, out_dtype=torch.float32)
        return made

    compare(fn, None, left, right, one)
    compare(fn, None, left, right.to(torch.float8_e5m2), one)
    compare(fn, None, left[:0], right, one)
    with pytest.raises(RuntimeError, match=r"cannot be multiplied \(3x7 and 6x5\)"):
        fn(left.to("tpu"), right[:6].to("tpu"), one.to("tpu"))


def test_both_kinds_of_8_bits_go_to_the_matrix_unit_as_they_are() -> None:
    left, right = jnp.ones((3, 7), jnp.float8_e5m2), jnp.ones((7, 5), jnp.float8_e4m3fn)
    one = jnp.ones((1, 1))
    text = jax.jit(scaled_matmul._product).lower(left, right, one, one).as_text()
    assert re.search(r"dot_general.*x7xf8E5M2>.*x5xf8E4M3FN>.* -> tensor<3x5xf32>", text)


def test_out_and_the_second_version() -> None:
    def first(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        aten._scaled_mm.out(a, b, s, s, out_dtype=torch.float32, out=out)
        return out

    def second(
        a: torch.Tensor, b: torch.Tensor, s: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        none: list[int] = []
        lists = ([s], [0], none, [s], [0], none, None, torch.float32)
        aten._scaled_mm_v2.out(a, b, *lists, out=out)
        return out

    for fn in (first, second):
        compare(fn, None, *_operands(), torch.tensor(0.5), torch.empty(0))


def test_blocks_of_128() -> None:
    a, b = _operands(256, 256, 384)
    of_a, of_b = torch.rand(256, 2), torch.rand(2, 3)
    right = b.float() * of_b.repeat_interleave(128, 0).repeat_interleave(128, 1)
    expected = (a.float() * of_a.repeat_interleave(128, 1)) @ right
    on = [t.to("tpu") for t in (a, b, of_a, of_b)]
    first = aten._scaled_mm(*on, out_dtype=torch.float32)
    padded = torch.cat([of_b, torch.zeros(2, 3)]).to("tpu")
    second = aten._scaled_mm_v2(
        on[0], on[1], [on[2]], [4], [], [padded], [5], [], None, torch.float32
    )
    torch.testing.assert_close(first.cpu(), expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(second.cpu(), expected, rtol=1e-4, atol=1e-3)


def _swizzled(scale: torch.Tensor) -> torch.Tensor:
    """[R, C] -> flat tiles of 128 x 4 in which rows 0, 32, 64 and 96 stand together."""
    rows, columns = scale.shape
    tiles = scale.view(torch.uint8).view(rows // 128, 4, 32, columns // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(-1).view(torch.float8_e8m0fnu)


def test_blocks_of_32_whose_scales_are_powers_of_two() -> None:
    a, b = _operands(128, 128, 256)
    exponents = [torch.randint(120, 132, (n, 4), dtype=torch.uint8) for n in (128, 256)]
    of_a, of_b = (e.view(torch.float8_e8m0fnu) for e in exponents)
    left = a.float() * of_a.float().repeat_interleave(32, 1)
    expected = left @ (b.float() * of_b.float().repeat_interleave(32, 1).t())
    scales = [_swizzled(s).to("tpu") for s in (of_a, of_b)]
    on = (a.to("tpu"), b.to("tpu"))
    first = aten._scaled_mm(*on, *scales, out_dtype=torch.float32)
    lists = ([scales[0]], [3], [1], [scales[1]], [3], [1])
    second = aten._scaled_mm_v2(*on, *lists, None, torch.float32)
    for made in (first, second):
        torch.testing.assert_close(made.cpu(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_groups(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ends = torch.tensor([8, 8, 24], dtype=torch.int32)
    rows, stack = torch.randn(24, 16).to(dtype), torch.randn(3, 16, 24).to(dtype)
    wide, tall = torch.randn(3, 8, 16).to(dtype), torch.randn(16, 24).to(dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for left, right, offs in (
        (rows, stack, ends),
        (wide, tall, ends),
        (tall, rows, ends),
        (wide, stack, None),
    ):
        compare(aten._grouped_mm, None, left, right, offs, tolerance=tolerance)


def test_a_grouped_product_has_gradients() -> None:
    def grads(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        leaves = [
            t.to(device).requires_grad_() for t in (torch.randn(8, 16), torch.randn(2, 16, 8))
        ]
        offs = torch.tensor([3, 8], dtype=torch.int32, device=device)
        aten._grouped_mm(*leaves, offs).square().sum().backward()
        return [t.grad.cpu() for t in leaves if t.grad is not None]

    for a, e in zip(grads("tpu"), grads("cpu"), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4)


def test_groups_of_8_bit_floats() -> None:
    torch.manual_seed(0)
    x, stack = torch.randn(8, 16).to(F8), torch.randn(3, 24, 16).to(F8).transpose(1, 2)
    rows, columns = torch.rand(8), torch.rand(3, 24)
    offs = torch.tensor([2, 2, 8], dtype=torch.int32)
    left, right = x.float() * rows[:, None], stack.float() * columns[:, None, :]
    expected = torch._grouped_mm(left, right, offs=offs).bfloat16()
    x, stack, rows, columns, offs = (t.to("tpu") for t in (x, stack, rows, columns, offs))
    first = aten._scaled_grouped_mm(x, stack, rows, columns, offs)
    second = aten._scaled_grouped_mm_v2(x, stack, [rows], [1], [], [columns], [1], [], offs)
    for made in (first, second):
        torch.testing.assert_close(made.cpu(), expected, rtol=2e-2, atol=2e-2)
