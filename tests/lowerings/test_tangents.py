"""Forward derivatives of the gated linear unit against torch's CPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.lowerings.pairs import compare

aten = torch.ops.aten


@pytest.mark.parametrize("dim", [0, -1])
def test_glu(dim: int) -> None:
    torch.manual_seed(0)
    x, dx = torch.randn(4, 6), torch.randn(4, 6)
    out = F.glu(x, dim)
    grad, dgrad = torch.randn_like(out), torch.randn_like(out)
    compare(aten.glu_jvp, None, out, x, dx, dim)
    grad_x = aten.glu_backward(grad, x, dim)
    compare(aten.glu_backward_jvp, None, grad_x, grad, x, dgrad, dx, dim)
