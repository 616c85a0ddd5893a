"""Gradients by autograd through a formula on the CPU: the references of backward ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def gradients(fn: Callable[..., Any], grads: Any, *tensors: torch.Tensor) -> tuple[Any, ...]:
    """Return the gradients of fn's tensor arguments for gradients of its results."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in tensors]
        return torch.autograd.grad(fn(*leaves), leaves, grads)
