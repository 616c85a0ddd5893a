"""linalg.lstsq against torch's CPU: drivers, batches, vectors, missing rank, nothing at all."""

from __future__ import annotations

import pytest
import torch

from tests.lowerings.opinfo import check

DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


def _compare(a: torch.Tensor, b: torch.Tensor, driver: str | None, rcond: float | None) -> None:
    expected = torch.linalg.lstsq(a, b, rcond, driver=driver)
    found = torch.linalg.lstsq(a.to("tpu"), b.to("tpu"), rcond, driver=driver)
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got.cpu(), wanted)


@pytest.mark.parametrize("name", ["linalg.lstsq", "linalg.lstsq.grad_oriented"])
def test_opinfo(name: str) -> None:
    assert check(name, torch.float32, max_samples=4)


@pytest.mark.parametrize("driver", [*DRIVERS, None])
def test_shapes_of_every_driver(driver: str | None) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(2, 5, 2, dtype=torch.float64)
    _compare(a, b, driver, None)
    _compare(a.mT, b[:, :3], driver, None)
    _compare(a[:1], b, driver, None)
    _compare(a[0], b[0, :, 0], driver, None)
    _compare(a[:, :0], b[:, :0], driver, None)


@pytest.mark.parametrize("driver", ["gelsy", "gelsd", "gelss"])
def test_a_missing_rank_leaves_the_shortest_solution_and_no_residuals(driver: str) -> None:
    torch.manual_seed(0)
    a = torch.ones(5, 3, dtype=torch.float64)
    b = torch.randn(5, 2, dtype=torch.float64)
    found = torch.linalg.lstsq(a.to("tpu"), b.to("tpu"), driver=driver)
    expected = torch.linalg.lstsq(a, b, driver=driver)
    torch.testing.assert_close(found.solution.cpu(), expected.solution)
    assert found.rank.item() == 1
    assert found.residuals.shape == expected.residuals.shape == (0,)


@pytest.mark.parametrize("driver", ["gelsy", "gelsd"])
def test_rcond_decides_the_rank(driver: str) -> None:
    """Not beside torch's CPU, which starts gelsy with pivots that nobody has set."""
    a = torch.diag(torch.tensor([1.0, 1e-2, 1e-4], dtype=torch.float64)).to("tpu")
    found = torch.linalg.lstsq(a, torch.ones_like(a[:, :1]), 1e-3, driver=driver)
    torch.testing.assert_close(found.solution.cpu().flatten().tolist(), [1.0, 100.0, 0.0])
    assert found.rank.item() == 2


@pytest.mark.parametrize(
    ("a", "b", "driver"),
    [((3,), (3,), None), ((3, 3), (2, 3), None), ((3, 3), (3, 3), "other")],
)
def test_mistakes_in_torchs_words(
    a: tuple[int, ...], b: tuple[int, ...], driver: str | None
) -> None:
    with pytest.raises(RuntimeError) as expected:
        torch.linalg.lstsq(torch.ones(a), torch.ones(b), driver=driver)
    with pytest.raises(RuntimeError) as found:
        torch.linalg.lstsq(torch.ones(a, device="tpu"), torch.ones(b, device="tpu"), driver=driver)
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]
