"""torch.fft against torch's CPU."""

from __future__ import annotations

import pytest
import torch

from tests.lowerings.opinfo import check

NAMES = [
    f"fft.{name}"
    for name in (
        "fft",
        "ifft2",
        "fftn",
        "rfft",
        "irfft",
        "hfft",
        "ihfft",
        "rfft2",
        "irfftn",
        "fftshift",
    )
]


@pytest.mark.parametrize("name", [*NAMES, "stft"])
def test_transforms(name: str) -> None:
    assert check(name, torch.float32, max_samples=2) > 0


def test_complex_input_of_double_precision() -> None:
    assert check("fft.ifft", torch.complex128, max_samples=2) > 0


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_normalization(norm: str) -> None:
    x = torch.arange(6.0)
    found = torch.fft.irfft(torch.fft.rfft(x.to("tpu"), norm=norm), n=6, norm=norm)
    torch.testing.assert_close(found.cpu(), x)
