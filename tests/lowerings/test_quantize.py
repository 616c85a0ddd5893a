"""Fake quantization and products with 8- and 4-bit weights against torch's CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.lowerings.pairs import compare

aten = torch.ops.aten
HALVES = torch.arange(-10, 10).repeat(4, 1) / 2


def _values() -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5) * 4
    x[0, 0, :3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_per_tensor(dtype: torch.dtype) -> None:
    op = aten.fake_quantize_per_tensor_affine_cachemask
    compare(op, None, _values().to(dtype), 0.13, 3, -8, 7)


def test_halves_go_where_the_zero_point_sends_them() -> None:
    compare(aten.fake_quantize_per_tensor_affine_cachemask, None, HALVES, 1.0, 1, -8, 7)
    for dtype in (torch.int32, torch.float32):
        channel = (torch.ones(4), torch.full((4,), 1, dtype=dtype))
        compare(aten.fake_quantize_per_channel_affine_cachemask, None, HALVES, *channel, 0, -8, 7)


@pytest.mark.parametrize("enabled", [0, 1])
def test_scale_and_switch_as_tensors(enabled: int) -> None:
    op = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    point = torch.tensor([2], dtype=torch.int32)
    x = _values().nan_to_num(0, 1, 1)
    compare(op, None, x, torch.tensor([0.2]), point, torch.tensor([enabled]), -8, 7)


@pytest.mark.parametrize("point", [[0, 1, 2, -3], [0.0, 1.0, 2.2, -3.0]])
def test_per_channel(point: list[float]) -> None:
    scales = (torch.tensor([0.1, 0.2, 0.05, 0.3]), torch.tensor(point))
    if scales[1].dtype == torch.int64:
        scales = (scales[0], scales[1].int())
    x = _values().nan_to_num(0, 1, 1)
    compare(aten.fake_quantize_per_channel_affine_cachemask, None, x, *scales, 1, -8, 7)


@pytest.mark.parametrize("point", [1.5, 2.5, -1.7, 20.0])
def test_learnable(point: float) -> None:
    x, grad = _values().nan_to_num(0, 1, 1), torch.randn(3, 4, 5)
    one = (torch.tensor([0.2]), torch.tensor([point]))
    many = (torch.tensor([0.1, 0.2, 0.05, 0.3]), torch.full((4,), point))
    compare(aten._fake_quantize_learnable_per_tensor_affine, None, x, *one, -8, 7, 0.5)
    compare(aten._fake_quantize_learnable_per_channel_affine, None, x, *many, 1, -8, 7, 0.5)
    backward = aten._fake_quantize_learnable_per_tensor_affine_backward
    compare(backward, None, grad, x, *one, -8, 7, 0.5)
    backward = aten._fake_quantize_learnable_per_channel_affine_backward
    compare(backward, None, grad, x, *many, 1, -8, 7, 0.5)


@pytest.mark.parametrize(
    ("symmetric", "per_row", "observes", "quantizes"),
    [(False, False, 1, 1), (True, True, 1, 1), (False, True, 1, 0), (True, False, 0, 1)],
)
def test_moving_average_observer(
    symmetric: bool, per_row: bool, observes: int, quantizes: int
) -> None:
    torch.manual_seed(0)
    count = 4 if per_row else 1
    state = [
        torch.full((count,), float("inf")),
        torch.full((count,), float("-inf")),
        torch.full((count,), 0.1),
        torch.zeros(count, dtype=torch.int32),
    ]
    bounds = (-128, 127) if symmetric else (0, 255)
    if not observes:
        state[:2] = [torch.tensor([-0.1]), torch.tensor([0.3])]
    flags = (torch.tensor([observes]), torch.tensor([quantizes]))
    for size in (1.0, 30.0):
        compare(
            aten._fused_moving_avg_obs_fq_helper,
            None,
            torch.randn(4, 6) * size + 1,
            *flags,
            *state,
            0.3,
            *bounds,
            0,
            per_row,
            symmetric,
            tolerance=1e-5,
            written=True,
        )


def test_observer_of_rows_that_has_seen_nothing() -> None:
    observe: Any = torch.fused_moving_avg_obs_fake_quant

    def seen(x: torch.Tensor) -> list[torch.Tensor]:
        floats = [torch.empty(0, device=x.device) for _ in range(3)]
        point = torch.empty(0, dtype=torch.int32, device=x.device)
        one = torch.ones(1, dtype=torch.int64, device=x.device)
        made = observe(x, one, one, *floats, point, 0.3, 0, 255, 0, True, False)
        return [made, *floats, point]

    compare(seen, None, torch.randn(4, 6))


def test_fake_quantize_has_a_gradient() -> None:
    x = _values().nan_to_num(0, 1, 1)
    grads = []
    for device in ("cpu", "tpu"):
        leaf = x.clone().to(device).requires_grad_()
        torch.fake_quantize_per_tensor_affine(leaf, 0.13, 3, -8, 7).square().sum().backward()
        assert leaf.grad is not None
        grads.append(leaf.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_of_8_bits(dtype: torch.dtype) -> None:
    weight = torch.randint(-128, 128, (8, 16), dtype=torch.int8)
    tensors = (torch.randn(3, 16).to(dtype), weight, torch.rand(8).to(dtype))
    compare(
        aten._weight_int8pack_mm, None, *tensors, tolerance=1e-4 if dtype.itemsize == 4 else 2e-2
    )


def _on_cpu(
    x: torch.Tensor, weight: torch.Tensor, group: int, scales: torch.Tensor
) -> torch.Tensor:
    packed = aten._convert_weight_to_int4pack_for_cpu(weight, 2)
    made: torch.Tensor = aten._weight_int4pack_mm_for_cpu(x, packed, group, scales)
    return made


def _in_tiles(
    x: torch.Tensor, weight: torch.Tensor, group: int, scales: torch.Tensor
) -> torch.Tensor:
    pairs = (weight[:, ::2] << 4 | weight[:, 1::2]).to(torch.uint8)
    packed = aten._convert_weight_to_int4pack(pairs, 4)
    made: torch.Tensor = aten._weight_int4pack_mm(x, packed, group, scales)
    return made


@pytest.mark.parametrize("group", [32, 64])
def test_weights_of_4_bits(group: int) -> None:
    torch.manual_seed(0)
    weight = torch.randint(0, 16, (64, 128), dtype=torch.int32)
    x, scales = torch.randn(5, 128), torch.randn(128 // group, 64, 2)
    for fn in (_on_cpu, _in_tiles):
        compare(fn, _on_cpu, x, weight, group, scales, tolerance=1e-3)


def test_the_packed_words_hold_the_columns_of_a_lane() -> None:
    levels = torch.zeros(8, 64, dtype=torch.int32)
    levels[1, 2:4] = torch.tensor([5, 6])  # row 1, columns c and c + 1 of lane 4 * 1 + 1
    levels[1, 10] = 7  # c + 8
    pairs = (levels[:, ::2] << 4 | levels[:, 1::2]).to(torch.uint8)
    packed = aten._convert_weight_to_int4pack(pairs.to("tpu"), 2).cpu()
    assert packed.shape == (1, 2, 32, 1)
    assert packed[0, 0, 5, 0].item() == 5 | 7 << 4 | 6 << 16
    assert packed.count_nonzero() == 1


def test_an_int8_product_is_exact() -> None:
    left = torch.randint(-128, 128, (17, 32), dtype=torch.int8)
    right = torch.randint(-128, 128, (32, 8), dtype=torch.int8)
    compare(torch._int_mm, None, left, right)
