"""Random ops: distributions by moments and Kolmogorov-Smirnov, seeds, state, and independence."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

COUNT = 20_000


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(1234)


def blank(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An empty tensor of COUNT elements."""
    return torch.empty(COUNT, dtype=dtype, device="tpu")


CONTINUOUS: dict[str, tuple[Callable[[], torch.Tensor], stats.rv_continuous]] = {
    "rand": (lambda: torch.rand(COUNT, device="tpu"), stats.uniform()),
    "rand_float64": (lambda: torch.rand(COUNT, device="tpu", dtype=torch.float64), stats.uniform()),
    "uniform": (lambda: blank().uniform_(-3, 2), stats.uniform(-3, 5)),
    "randn": (lambda: torch.randn(COUNT, device="tpu"), stats.norm()),
    "normal_": (lambda: blank().normal_(2, 3), stats.norm(2, 3)),
    "normal": (
        lambda: torch.normal(torch.full((COUNT,), 2.0, device="tpu"), 0.5), stats.norm(2, 0.5)
    ),
    "exponential": (lambda: blank().exponential_(2.0), stats.expon(scale=0.5)),
    "cauchy": (lambda: blank().cauchy_(1.0, 2.0), stats.cauchy(1, 2)),
    "log_normal": (lambda: blank().log_normal_(0.5, 0.75), stats.lognorm(0.75, scale=np.exp(0.5))),
    "gamma": (
        lambda: torch._standard_gamma(torch.full((COUNT,), 2.5, device="tpu")), stats.gamma(2.5)
    ),
}  # fmt: skip
DISCRETE: dict[str, tuple[Callable[[], torch.Tensor], float, float]] = {
    "randint": (lambda: torch.randint(3, 13, (COUNT,), device="tpu"), 7.5, np.sqrt(99 / 12)),
    "random_to": (lambda: blank(torch.int32).random_(100), 49.5, np.sqrt(9999 / 12)),
    "random_int8": (lambda: blank(torch.int8).random_(), 63.5, np.sqrt((128**2 - 1) / 12)),
    "bernoulli_": (lambda: blank().bernoulli_(0.3), 0.3, np.sqrt(0.21)),
    "bernoulli": (
        lambda: torch.bernoulli(torch.full((COUNT,), 0.8, device="tpu")), 0.8, np.sqrt(0.16)
    ),
    "geometric": (lambda: blank().geometric_(0.25), 4.0, np.sqrt(12)),
    "poisson_small": (
        lambda: torch.poisson(torch.full((COUNT,), 3.5, device="tpu")), 3.5, np.sqrt(3.5)
    ),
    "poisson_large": (
        lambda: torch.poisson(torch.full((COUNT,), 60.0, device="tpu")), 60.0, np.sqrt(60)
    ),
    "multinomial": (
        lambda: torch.multinomial(torch.tensor([0.1, 0.2, 0.7], device="tpu"), COUNT, True),
        1.6, np.sqrt(0.1 * 1.6**2 + 0.2 * 0.6**2 + 0.7 * 0.4**2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distribution(name: str) -> None:
    draw, expected = CONTINUOUS[name]
    values = draw().cpu().double().numpy()
    assert stats.kstest(values, expected.cdf).pvalue > 1e-4
    assert np.isfinite(values).all()


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_moments(name: str) -> None:
    draw, mean, deviation = DISCRETE[name]
    values = draw().cpu().double().numpy()
    assert values.mean() == pytest.approx(mean, abs=5 * deviation / np.sqrt(COUNT))
    assert values.std() == pytest.approx(deviation, rel=0.05)


def test_half_open_interval_in_bfloat16() -> None:
    values = torch.rand(COUNT, dtype=torch.bfloat16, device="tpu").cpu()
    assert values.min() >= 0
    assert values.max() < 1


def test_integers_reach_both_ends_and_not_beyond() -> None:
    values = torch.randint(-2, 3, (COUNT,), device="tpu").cpu()
    assert sorted(set(values.tolist())) == [-2, -1, 0, 1, 2]


def test_wide_range_of_integers() -> None:
    values = torch.empty(COUNT, dtype=torch.int64, device="tpu").random_(-(2**60), 2**62).cpu()
    assert values.min() < -(2**59)
    assert values.max() > 2**61


def test_seed_gives_the_same_numbers() -> None:
    torch.manual_seed(7)
    first = [torch.rand(5, device="tpu").cpu(), torch.randn(5, device="tpu").cpu()]
    torch.manual_seed(7)
    again = [torch.rand(5, device="tpu").cpu(), torch.randn(5, device="tpu").cpu()]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_calls_are_independent() -> None:
    draws = [torch.rand(COUNT, device="tpu").cpu().numpy() for _ in range(3)]
    assert all(abs(np.corrcoef(a, b)[0, 1]) < 0.03 for a, b in pairwise(draws))
    assert abs(np.corrcoef(draws[0][1:], draws[0][:-1])[0, 1]) < 0.03
    assert len({float(d[0]) for d in draws}) == 3


def test_different_ops_do_not_share_bits() -> None:
    torch.manual_seed(3)
    a = torch.rand(1000, device="tpu").cpu()
    torch.manual_seed(3)
    _ = torch.randint(0, 2, (3,), device="tpu")
    b = torch.rand(1000, device="tpu").cpu()
    assert not torch.equal(a, b)


def test_a_generator_of_its_own() -> None:
    generator = torch.Generator(device="tpu")
    generator.manual_seed(11)
    state = generator.get_state()
    a = torch.randn(4, device="tpu", generator=generator).cpu()
    b = torch.randn(4, device="tpu", generator=generator).cpu()
    generator.set_state(state)
    assert torch.equal(torch.randn(4, device="tpu", generator=generator).cpu(), a)
    assert not torch.equal(a, b)
    default = torch.randn(4, device="tpu").cpu()
    torch.manual_seed(1234)
    assert torch.equal(torch.randn(4, device="tpu").cpu(), default)


def test_new_bounds_do_not_recompile() -> None:
    torch.randint(0, 5, (8,), device="tpu")
    torch.empty(8, device="tpu").uniform_(0.5, 1.5)
    before = torch.tpu._get_cache_stats()["num_compilations"]
    for high in range(6, 10):
        torch.randint(0, high, (8,), device="tpu")
        torch.empty(8, device="tpu").uniform_(0.25, high)
    assert torch.tpu._get_cache_stats()["num_compilations"] == before


def test_dropout_keeps_the_mean_and_its_gradient_is_the_mask() -> None:
    x = torch.ones(COUNT, device="tpu", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.25)
    y.sum().backward()
    assert y.mean().item() == pytest.approx(1, abs=0.03)
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), y.detach().cpu())
    assert sorted(set(y.detach().cpu().tolist())) == pytest.approx([0, 4 / 3])


def test_permutations() -> None:
    a, b = (torch.randperm(1000, device="tpu").cpu() for _ in range(2))
    assert torch.equal(a.sort().values, torch.arange(1000))
    assert not torch.equal(a, b)
    assert abs(np.corrcoef(a.numpy(), np.arange(1000))[0, 1]) < 0.2


def test_multinomial_without_replacement_draws_each_once_and_never_weight_zero() -> None:
    weights = torch.tensor([[0.1, 0.0, 0.6, 0.3], [1.0, 1.0, 1.0, 0.0]], device="tpu")
    drawn = torch.multinomial(weights, 3).cpu()
    assert [sorted(r) for r in drawn.tolist()] == [[0, 2, 3], [0, 1, 2]]


def test_rrelu_slopes_are_in_bounds() -> None:
    x = torch.full((COUNT,), -1.0, device="tpu")
    slopes = -torch.nn.functional.rrelu(x, 0.1, 0.3, training=True).cpu()
    assert slopes.min() >= 0.1
    assert slopes.max() <= 0.3
    assert slopes.mean().item() == pytest.approx(0.2, abs=0.005)
