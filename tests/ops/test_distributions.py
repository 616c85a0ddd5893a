"""Every random op against its distribution: Kolmogorov-Smirnov, chi-square, moments, and edges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

COUNT = 10_000
LEAST = 1e-4  # of p-values: seeds are fixed, so a test that passes keeps passing
HALF = (torch.float16, torch.bfloat16)
FLOATS = (*HALF, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
Draw = Callable[[torch.dtype], torch.Tensor]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(20)


def blank(dtype: torch.dtype, count: int = COUNT) -> torch.Tensor:
    """An empty tensor of the device."""
    return torch.empty(count, dtype=dtype, device="tpu")


def full(value: float, dtype: torch.dtype) -> torch.Tensor:
    """COUNT equal elements."""
    return torch.full((COUNT,), value, dtype=dtype, device="tpu")


def host(values: torch.Tensor) -> Any:
    """The values as float64 of numpy."""
    return values.detach().cpu().double().numpy()


CONTINUOUS: dict[str, tuple[Draw, Any]] = {
    "rand": (lambda d: torch.rand(COUNT, dtype=d, device="tpu"), stats.uniform()),
    "rand_like": (lambda d: torch.rand_like(blank(d)), stats.uniform()),
    "uniform_": (lambda d: blank(d).uniform_(-3, 2), stats.uniform(-3, 5)),
    "randn": (lambda d: torch.randn(COUNT, dtype=d, device="tpu"), stats.norm()),
    "randn_like": (lambda d: torch.randn_like(blank(d)), stats.norm()),
    "normal_": (lambda d: blank(d).normal_(2, 3), stats.norm(2, 3)),
    "normal.Tensor_float": (lambda d: torch.normal(full(2, d), 0.5), stats.norm(2, 0.5)),
    "normal.float_Tensor": (lambda d: torch.normal(-1.0, full(0.5, d)), stats.norm(-1, 0.5)),
    "normal.Tensor_Tensor": (lambda d: torch.normal(full(1, d), full(2, d)), stats.norm(1, 2)),
    "normal.float_float": (
        lambda d: torch.normal(1.0, 2.0, (COUNT,), dtype=d, device="tpu"), stats.norm(1, 2)
    ),
    "exponential_": (lambda d: blank(d).exponential_(2.0), stats.expon(scale=0.5)),
    "cauchy_": (lambda d: blank(d).cauchy_(1.0, 2.0), stats.cauchy(1, 2)),
    "log_normal_": (lambda d: blank(d).log_normal_(0.5, 0.75), stats.lognorm(0.75, 0, np.exp(0.5))),
}  # fmt: skip
GAMMAS = (0.01, 0.7, 2.5, 200.0)


def goodness(values: Any, expected: Any, dtype: torch.dtype) -> float:
    """p-value of Kolmogorov-Smirnov; of chi-square on wide cells where rounding is coarse."""
    if dtype not in HALF:
        return float(stats.kstest(values, expected.cdf).pvalue)
    edges = expected.ppf(np.linspace(0, 1, 9)[1:-1])
    edges = torch.tensor(edges).to(dtype).double().numpy()  # cells that end where numbers are
    counts = np.histogram(values, [-np.inf, *edges, np.inf])[0]
    step = np.abs(edges) * torch.finfo(dtype).eps / 4  # numbers within half a step round to an edge
    parts = np.diff([0, *expected.cdf(edges - step), 1])
    return float(stats.chisquare(counts, parts * len(values)).pvalue)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name: str) -> None:
    draw, expected = CONTINUOUS[name]
    for drawn, dtype in [(draw(d), d) for d in FLOATS]:  # all drawn before one is read: one program
        assert drawn.dtype == dtype
        values = host(drawn)
        assert np.isfinite(values).all()
        assert goodness(values, expected, dtype) > LEAST, dtype


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_normal_has_half_the_variance_in_each_part(dtype: torch.dtype) -> None:
    drawn = torch.randn(COUNT, dtype=dtype, device="tpu").cpu()
    parts = (drawn.real.double().numpy(), drawn.imag.double().numpy())
    assert all(stats.kstest(p, stats.norm(0, np.sqrt(0.5)).cdf).pvalue > LEAST for p in parts)
    assert abs(np.corrcoef(*parts)[0, 1]) < 0.04


@pytest.mark.parametrize("shape", GAMMAS)
def test_gamma(shape: float) -> None:
    values = host(torch._standard_gamma(full(shape, torch.float32)))
    assert (values > 0).all()
    least = float(np.finfo(np.float32).tiny)
    expected = stats.gamma(shape)
    assert stats.kstest(values[values > least], expected.cdf).pvalue > LEAST or shape < 0.1
    assert (values > least).mean() == pytest.approx(1 - expected.cdf(least), abs=0.03)


def test_gamma_of_no_shape() -> None:
    shapes = torch.tensor([float("nan"), float("inf"), 0.0], device="tpu")
    assert str(torch._standard_gamma(shapes).tolist()) == "[nan, inf, 1.1754943508222875e-38]"


@pytest.mark.parametrize("shape", [1e-3, 0.5, 20.0])
def test_dirichlet(shape: float) -> None:
    drawn = host(torch._sample_dirichlet(torch.full((COUNT, 3), shape, device="tpu")))
    assert drawn.sum(-1) == pytest.approx(np.ones(COUNT), abs=1e-5)
    assert drawn.mean(0) == pytest.approx(np.full(3, 1 / 3), abs=0.03)
    expected = stats.beta(shape, 2 * shape)
    assert shape < 0.1 or stats.kstest(drawn[:, 0], expected.cdf).pvalue > LEAST


DISCRETE: dict[str, tuple[Draw, Any]] = {
    "bernoulli_.float": (lambda d: blank(d).bernoulli_(0.3), stats.bernoulli(0.3)),
    "bernoulli.p": (lambda d: torch.bernoulli(blank(d), 0.3), stats.bernoulli(0.3)),
    "bernoulli_.Tensor": (
        lambda d: blank(d).bernoulli_(full(0.3, torch.float64)), stats.bernoulli(0.3)
    ),
    "random_.to": (lambda d: blank(d).random_(10), stats.randint(0, 10)),
    "random_.from": (lambda d: blank(d).random_(3, 13), stats.randint(3, 13)),
    "randint": (lambda d: torch.randint(10, (COUNT,), dtype=d, device="tpu"), stats.randint(0, 10)),
    "randint.low": (
        lambda d: torch.randint(5, 9, (COUNT,), dtype=d, device="tpu"), stats.randint(5, 9)
    ),
    "randint_like": (lambda d: torch.randint_like(blank(d), 10), stats.randint(0, 10)),
    "geometric_": (lambda d: blank(d).geometric_(0.25), stats.geom(0.25)),
}  # fmt: skip


def chi_square(values: Any, expected: Any) -> float:
    """p-value over the numbers that are likely, and all others as one cell."""
    low, high = expected.ppf([0.001, 0.999])
    cells = np.arange(low, high + 1)
    parts = expected.pmf(cells)
    cells, parts = cells[parts * len(values) > 8], parts[parts * len(values) > 8]
    counts = [(values == c).sum() for c in cells]
    rest = len(values) - sum(counts)
    if parts.sum() < 1 - 1e-9:
        counts, parts = [*counts, rest], [*parts, 1 - parts.sum()]
    else:
        assert rest == 0
    return float(stats.chisquare(counts, np.array(parts) * len(values)).pvalue)


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete(name: str) -> None:
    draw, expected = DISCRETE[name]
    for drawn, dtype in [(draw(d), d) for d in (*FLOATS, *INTEGERS)]:
        assert drawn.dtype == dtype
        assert chi_square(host(drawn), expected) > LEAST, dtype


def test_random_reaches_the_largest_that_a_dtype_holds_exactly() -> None:
    for drawn, dtype in [(blank(d).random_(), d) for d in (*FLOATS, *INTEGERS)]:
        most = 2 / torch.finfo(dtype).eps if dtype.is_floating_point else _most(dtype)
        values = host(drawn)
        quarters = np.quantile(values, [0.25, 0.5, 0.75])
        assert quarters == pytest.approx(most * np.array([0.25, 0.5, 0.75]), rel=0.07)
        assert values.min() >= 0
        assert values.max() <= most


def _most(dtype: torch.dtype) -> int:
    return torch.iinfo(dtype).max


@pytest.mark.parametrize("mean", [0.3, 4.0, 9.9, 10.1, 60.0, 3000.0, 2e5])
def test_poisson(mean: float) -> None:
    values = host(torch.poisson(full(mean, torch.float32)))
    assert values.mean() == pytest.approx(mean, abs=5 * np.sqrt(mean / COUNT))
    assert values.var() == pytest.approx(mean, rel=0.08)
    if mean < 100:
        assert chi_square(values, stats.poisson(mean)) > LEAST
    else:
        smooth = values + np.random.default_rng(0).random(COUNT) - 0.5
        assert stats.kstest(smooth, stats.norm(mean, np.sqrt(mean)).cdf).pvalue > LEAST / 10


def test_poisson_of_no_mean() -> None:
    means = torch.tensor([0.0, float("nan"), -1.0, float("inf")], device="tpu")
    assert str(torch.poisson(means).tolist()) == "[0.0, nan, nan, inf]"


@pytest.mark.parametrize(("count", "prob"), [(1, 0.3), (10, 0.5), (50, 0.9), (1000, 0.02)])
def test_binomial(count: int, prob: float) -> None:
    drawn = torch.binomial(full(count, torch.float32), full(prob, torch.float32))
    assert chi_square(host(drawn), stats.binom(count, prob)) > LEAST


def test_binomial_edges() -> None:
    count = torch.tensor([[5.0], [0.0], [float("nan")]], device="tpu")
    prob = torch.tensor([0.0, 1.0], device="tpu")
    drawn = torch.binomial(count, prob)
    assert str(drawn.tolist()) == "[[0.0, 5.0], [0.0, 0.0], [nan, nan]]"
    with pytest.raises(ValueError, match="binomial only supports floating-point dtypes for count"):
        torch.binomial(count.long(), prob)


WEIGHTS = [0.5, 0.0, 1.0, 2.5, 0.0]


def test_multinomial_with_replacement() -> None:
    weights = [torch.tensor(WEIGHTS, dtype=d, device="tpu") for d in FLOATS]
    for drawn in [torch.multinomial(w, COUNT, True) for w in weights]:
        counts = np.bincount(drawn.cpu().numpy(), minlength=5)
        assert counts[1] == counts[4] == 0
        parts = np.array([0.5, 1.0, 2.5]) / 4 * COUNT
        assert stats.chisquare(counts[[0, 2, 3]], parts).pvalue > LEAST


def test_multinomial_without_replacement_orders_by_weight() -> None:
    weights = torch.tensor([WEIGHTS], device="tpu").expand(COUNT, 5)
    drawn = torch.multinomial(weights, 2).cpu().numpy()
    w = WEIGHTS
    pairs = {(i, j): w[i] / 4 * w[j] / (4 - w[i]) for i, j in permutations((0, 2, 3), 2)}
    counts = [(drawn == pair).all(-1).sum() for pair in pairs]
    assert sum(counts) == COUNT
    assert stats.chisquare(counts, [part * COUNT for part in pairs.values()]).pvalue > LEAST


def test_multinomial_of_many_categories_takes_little_memory() -> None:
    drawn = torch.multinomial(torch.ones(200_000, device="tpu"), 200_000, True).cpu().numpy()
    assert stats.kstest(drawn, stats.uniform(0, 200_000).cdf).pvalue > LEAST


@pytest.mark.usefixtures("strict")
def test_every_permutation_is_as_likely() -> None:
    rows = [tuple(torch.randperm(3, device="tpu").tolist()) for _ in range(600)]
    counts = Counter(rows)
    assert len(counts) == 6
    assert stats.chisquare([*counts.values()]).pvalue > LEAST


def test_permutations_in_every_dtype() -> None:
    dtypes = [*FLOATS, *INTEGERS]
    for drawn, dtype in [(torch.randperm(100, dtype=d, device="tpu"), d) for d in dtypes]:
        assert drawn.dtype == dtype
        assert sorted(drawn.tolist()) == list(range(100))
    assert torch.randperm(0, device="tpu").shape == (0,)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 2.0), (100.0, 101.0), (2.0, 2.0)])
def test_upper_bound_is_never_drawn(low: float, high: float) -> None:
    for drawn in [blank(d, 200_000).uniform_(low, high) for d in FLOATS]:
        values = host(drawn)
        assert values.min() >= low
        assert values.max() < high or low == high == values.max()


def test_what_rounds_up_to_the_bound_is_not_folded_onto_the_other_end() -> None:
    values = host(blank(torch.bfloat16, 200_000).uniform_(1, 2))  # steps of 2^-7
    assert (values == 1).mean() == pytest.approx(2**-8, rel=0.2)
    assert (values == 2 - 2**-7).mean() == pytest.approx(1.5 * 2**-7, rel=0.2)


@pytest.mark.parametrize("p", [0, 1])
def test_certain_outcomes(p: int) -> None:
    dtypes = [*FLOATS, torch.int64, torch.bool]
    chance = torch.full((1000,), float(p), device="tpu")
    drawn = [blank(d, 1000).bernoulli_(p) for d in dtypes]
    drawn += [blank(d, 1000).bernoulli_(chance) for d in dtypes]
    drawn += [torch.bernoulli(chance.to(d)) for d in FLOATS]
    assert all(torch.equal(d.cpu(), torch.full((1000,), p, dtype=d.dtype)) for d in drawn)


def test_whole_range_of_a_dtype() -> None:
    limits = {d: (torch.iinfo(d).min, _most(d)) for d in INTEGERS} | {torch.bool: (0, 1)}
    drawn = {d: blank(d).random_(low, None) for d, (low, _) in limits.items()}
    ends = {d: blank(d, 64).random_(high - 1, None) for d, (_, high) in limits.items()}
    for dtype, (low, high) in limits.items():
        spread = host(drawn[dtype])
        assert spread.mean() == pytest.approx((low + high) / 2, abs=0.03 * (high - low))
        assert spread.min() <= low + (high - low) * 0.01
        assert spread.max() >= high - (high - low) * 0.01
        assert sorted(set(ends[dtype].tolist())) == [high - 1, high]


def test_a_range_above_half_of_64_bits_is_even() -> None:
    values = host(blank(torch.int64).random_(-(2**62), 2**63 - 1))
    assert stats.kstest(values, stats.uniform(-(2.0**62), 1.5 * 2.0**63).cdf).pvalue > LEAST


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_dropouts(p: float) -> None:
    ones = [full(1, d) for d in FLOATS]
    drawn = [torch.dropout(x, p, True) for x in ones] + [torch.dropout_(x, p, True) for x in ones]
    for kept in drawn:
        scaled = torch.tensor(1 / max(1 - p, 0.1), dtype=kept.dtype).item()
        assert (host(kept) == 0).mean() == pytest.approx(p, abs=0.03)
        assert set(kept.cpu().tolist()) <= {0.0, scaled}


def test_alpha_dropout_keeps_mean_and_deviation() -> None:
    alpha = host(torch.alpha_dropout(torch.randn(COUNT, device="tpu"), 0.25, True))
    assert (alpha.mean(), alpha.std()) == (pytest.approx(0, abs=0.05), pytest.approx(1, abs=0.05))


@pytest.mark.parametrize("op", [torch.feature_dropout, torch.feature_alpha_dropout])
def test_feature_dropouts_drop_whole_planes(op: Any) -> None:
    drawn = op(torch.ones(50, 40, 3, device="tpu"), 0.5, True).cpu()
    assert torch.equal(drawn, drawn[..., :1].expand(-1, -1, 3))
    assert len(drawn.unique()) == 2
    assert (drawn[..., 0] == drawn.max()).float().mean().item() == pytest.approx(0.5, abs=0.06)


def test_complex_dropout() -> None:
    drawn, kept = torch.native_dropout(full(1, torch.complex64), 0.5, True)
    assert torch.equal(drawn.cpu(), kept.cpu() * (2 + 0j))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rrelu_slopes(dtype: torch.dtype) -> None:
    slopes = -host(torch.nn.functional.rrelu(full(-1, dtype), 0.1, 0.3, training=True))
    assert stats.kstest(slopes, stats.uniform(0.1, 0.2).cdf).pvalue > LEAST


def test_tails_of_half_precision_are_finite() -> None:
    for dtype in HALF:
        for drawn in (
            blank(dtype, 200_000).cauchy_(0, 1e4),
            blank(dtype, 200_000).log_normal_(5, 4),
            blank(dtype, 200_000).exponential_(1e-4),
        ):
            assert drawn.isfinite().all().item()


WRONG: dict[str, Callable[[str], Any]] = {
    "uniform_ order": lambda d: torch.empty(3, device=d).uniform_(2, 1),
    "uniform_ bounds": lambda d: torch.empty(3, device=d, dtype=torch.float16).uniform_(0, 1e6),
    "normal_": lambda d: torch.empty(3, device=d).normal_(0, -1),
    "normal": lambda d: torch.normal(torch.zeros(3, device=d), -1.0),
    "normal shapes": lambda d: torch.normal(torch.ones(2, device=d), torch.ones(3, device=d)),
    "exponential_": lambda d: torch.empty(3, device=d).exponential_(0),
    "geometric_": lambda d: torch.empty(3, device=d).geometric_(1),
    "cauchy_": lambda d: torch.empty(3, device=d).cauchy_(0, -1),
    "log_normal_": lambda d: torch.empty(3, device=d).log_normal_(0, -1),
    "bernoulli_": lambda d: torch.empty(3, device=d).bernoulli_(1.5),
    "bernoulli_ shapes": lambda d: torch.empty(3, device=d).bernoulli_(torch.ones(2, device=d)),
    "random_": lambda d: torch.empty(3, device=d).random_(4, 4),
    "randint": lambda d: torch.randint(0, 300, (3,), dtype=torch.uint8, device=d),
    "randint bool": lambda d: torch.randint(0, 3, (3,), dtype=torch.bool, device=d),
    "randint complex": lambda d: torch.randint(0, 3, (3,), dtype=torch.complex64, device=d),
    "randperm": lambda d: torch.randperm(300, dtype=torch.uint8, device=d),
    "randperm negative": lambda d: torch.randperm(-1, device=d),
    "multinomial none": lambda d: torch.multinomial(torch.ones(3, device=d), 0),
    "multinomial many": lambda d: torch.multinomial(torch.ones(2, 3, device=d), 4),
    "multinomial rank": lambda d: torch.multinomial(torch.ones(2, 3, 4, device=d), 1),
    "multinomial dtype": lambda d: torch.multinomial(torch.ones(3, device=d).long(), 1),
    "uniform_ dtype": lambda d: torch.empty(3, device=d, dtype=torch.int64).uniform_(),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_raise_what_the_cpu_raises(name: str) -> None:
    """Also where a right call of the same signature has been prepared already."""
    torch.empty(3, device="tpu").uniform_(1, 2).normal_(0, 2).exponential_(2).geometric_(0.5)
    torch.empty(3, device="tpu").cauchy_(0, 2).log_normal_(0, 1).bernoulli_(0.5).random_(3, 4)
    expected, found = (_error(WRONG[name], device) for device in ("cpu", "tpu"))
    assert found == expected


def _error(call: Callable[[str], Any], device: str) -> tuple[type[Exception], str] | None:
    try:
        call(device)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return type(error), str(error).splitlines()[0]
    return None


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_scalars_and_nothing(shape: tuple[int, ...]) -> None:
    x = torch.full(shape, 0.5, device="tpu")
    drawn = [
        torch.rand(shape, device="tpu"), torch.randint(3, shape, device="tpu"), torch.normal(x, x),
        torch.bernoulli(x), torch.poisson(x), torch.binomial(x, x), torch._standard_gamma(x),
        torch._sample_dirichlet(x), torch.dropout(x, 0.5, True), torch.rrelu(x, training=True),
        torch.empty_like(x).uniform_(), torch.empty_like(x).exponential_(),
    ]  # fmt: skip
    assert all(d.shape == shape and d.cpu().isfinite().all() for d in drawn)
