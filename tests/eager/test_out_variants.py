"""out= and in-place overloads without a functional twin, and what out= may not share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

_aten = torch.ops.aten


def _x(device: str, *shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.arange(1, 1 + count, dtype=torch.float32).view(shape).to(device)


def _out(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=device)


def _running(op: Any, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = torch.empty(5, device=device), torch.empty(5, device=device).long()
    op(_x(device, 5), values, indices, 0)
    return values, indices


_INDICES, _OFFSETS = torch.tensor([1, 2, 3, 4]), torch.tensor([0, 2])


def _bags(device: str) -> Any:
    """Indices, and what the forward op keeps of them."""
    indices = _INDICES.to(device)
    return indices, *_aten._embedding_bag(
        _x(device, 10, 4), indices, _OFFSETS.to(device), False, 1
    )[1:]


CASES: dict[str, Callable[[str], Any]] = {
    "arange": lambda d: torch.arange(1, 9, 2, out=_out(d, torch.int64)),
    "range": lambda d: _aten.range.out(1, 5, 2, out=_out(d)),
    "range halves": lambda d: _aten.range.out(0, 1, 0.25, out=_out(d, torch.float64)),
    "eye": lambda d: torch.eye(3, out=_out(d)),
    "eye.m": lambda d: torch.eye(3, 2, out=_out(d, torch.int32)),
    "linspace": lambda d: torch.linspace(0, 1, 5, out=_out(d)),
    "logspace": lambda d: torch.logspace(0, 1, 5, out=_out(d)),
    "mvlgamma": lambda d: torch.mvlgamma(_x(d, 3) + 1, 2, out=_out(d)),
    "conj_physical": lambda d: torch.conj_physical(_x(d, 3) * 1j, out=_out(d, torch.complex64)),
    "renorm": lambda d: torch.renorm(_x(d, 3, 2), 2, 0, 1, out=_out(d)),
    "masked_select": lambda d: torch.masked_select(_x(d, 5), _x(d, 5) > 2, out=_out(d)),
    "nonzero": lambda d: torch.nonzero(_x(d, 5) > 2, out=_out(d, torch.int64)),
    "cummax": lambda d: _running(_aten._cummax_helper, d),
    "cummin": lambda d: _running(_aten._cummin_helper, d),
    "ilshift": lambda d: _x(d, 3).int().__ilshift__(_x(d, 3).int()),
    "irshift": lambda d: _x(d, 3).int().__irshift__(1),
    "pool 2d": lambda d: _aten.adaptive_avg_pool2d.out(_x(d, 1, 4, 4), [2, 2], out=_out(d)),
    "pool 3d": lambda d: _aten.adaptive_avg_pool3d.out(_x(d, 1, 4, 4, 2), [2, 2, 1], out=_out(d)),
    "pool 3d backward": lambda d: _aten.adaptive_avg_pool3d_backward.grad_input(
        _x(d, 1, 2, 2, 2), _x(d, 1, 4, 4, 4), grad_input=_out(d)
    ),
    "pool 3d backward, out": lambda d: _aten._adaptive_avg_pool3d_backward.out(
        _x(d, 1, 2, 2, 2), _x(d, 1, 4, 4, 4), out=_out(d)
    ),
    "grid_sampler_3d_backward": lambda d: _aten.grid_sampler_3d_backward.out(
        *(_x(d, 1, 2, 2, 2, 2) / 50, _x(d, 1, 2, 3, 3, 3), _x(d, 1, 2, 2, 2, 3) / 50),
        *(0, 0, False, [True, True]),
        **{"out0": _out(d), "out1": _out(d)},
    ),
    "embedding_bag backward": lambda d: _aten._embedding_bag_dense_backward.out(
        _x(d, 2, 4), *_bags(d), 10, False, 1, None, out=_out(d)
    ),
    "embedding_bag weights": lambda d: _aten._embedding_bag_per_sample_weights_backward.out(
        _x(d, 2, 4), _x(d, 10, 4), _INDICES.to(d), _OFFSETS.to(d), _bags(d)[1], 0, out=_out(d)
    ),
    "unique_dim": lambda d: _aten.unique_dim(_x(d, 3, 2), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_cpu(name: str) -> None:
    expected, actual = CASES[name]("cpu"), CASES[name]("tpu")
    several = isinstance(expected, tuple)
    for e, a in zip(*((expected, actual) if several else ([expected], [actual])), strict=True):
        torch.testing.assert_close(a.cpu(), e)


def test_random_permutation() -> None:
    out = torch.empty(0, dtype=torch.int64, device="tpu")
    assert torch.randperm(6, out=out).sort().values.tolist() == list(range(6))


MISTAKES: dict[str, Callable[[str], Any]] = {
    "nonzero into floats": lambda d: torch.nonzero(_x(d, 3), out=_out(d)),
    "masked_select dtype": lambda d: torch.masked_select(
        _x(d, 3), _x(d, 3) > 1, out=_out(d, torch.int32)
    ),
    "conj_physical dtype": lambda d: torch.conj_physical(_x(d, 3) * 1j, out=_out(d)),
    "complex of two dtypes": lambda d: torch.complex(_x(d, 2), _x(d, 2).double()),
    "aminmax of two dtypes": lambda d: torch.aminmax(
        _x(d, 2, 3), dim=0, out=(_out(d), _out(d, torch.float64))
    ),
    "bucketize 2d": lambda d: torch.bucketize(_x(d, 2), _x(d, 2, 2)),
    "masked_scatter bytes": lambda d: _x(d, 3).masked_scatter(_x(d, 3).byte(), _x(d, 3)),
    "masked_select expanded": lambda d: torch.masked_select(
        _x(d, 3), _x(d, 3) > 1, out=_x(d, 1).expand(2)
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_the_words_of_the_cpu(name: str) -> None:
    texts = []
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError) as caught:
            MISTAKES[name](device)
        texts.append(str(caught.value).split("\n")[0])
    assert texts[0] == texts[1]


SHARED: dict[str, Callable[[torch.Tensor], Any]] = {
    "cat": lambda x: torch.cat((x, x), out=x),  # once doubled the memory until there was none
    "cat of one": lambda x: torch.cat((x, x[:0]), out=x),
    "masked_select": lambda x: torch.masked_select(x, x > 0, out=x),
    "gather": lambda x: torch.gather(x, 0, torch.arange(6).to(x.device), out=x),
    "take": lambda x: torch.take(x, torch.arange(3).to(x.device), out=x),
}


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_out_may_not_be_an_input(name: str, device: str) -> None:
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        SHARED[name](_x(device, 6))
