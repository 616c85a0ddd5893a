"""Special functions at the ends of their domains, where series and asymptotics do not reach."""

from __future__ import annotations

import pytest
import torch

INF, NAN = float("inf"), float("nan")
ENDS = torch.tensor([-1.0, -0.0, 0.0, 0.5, 1.0, 30.0, INF, NAN])


@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_incomplete_gamma_at_its_ends(name: str) -> None:
    fn = getattr(torch.special, name)
    actual = fn(ENDS[:, None].to("tpu"), ENDS.to("tpu")).cpu()
    torch.testing.assert_close(actual, fn(ENDS[:, None], ENDS), equal_nan=True)


@pytest.mark.parametrize("name", ["bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1"])
def test_bessel_functions_at_their_ends(name: str) -> None:
    fn = getattr(torch.special, name)
    expected, actual = fn(ENDS), fn(ENDS.to("tpu")).cpu()
    torch.testing.assert_close(actual, expected, equal_nan=True)
    assert torch.equal(actual.signbit()[1:3], expected.signbit()[1:3])
