"""What the CPU's results leave open: order of equals, phases of eigenvectors, roundings between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

# Where `dim` stands behind the input. Sorts that are asked to be stable leave nothing open.
ORDERS = {"sort": 0, "argsort": 0, "topk": 1, "kthvalue": 1, "mode": 0, "msort": -1}
# The CPU rounds two-byte floats between the steps of these; the device rounds once, at the end.
ROUNDED_ONCE = frozenset(
    {
        *("addbmm", "addbmm_", "_foreach_add", "_foreach_add_", "linalg_matrix_exp"),
        *("grid_sampler_2d", "grid_sampler_2d_backward", "nn.functional.grid_sample"),
        *("grid_sampler_3d", "grid_sampler_3d_backward"),
    }
)
# Statistics of two-byte floats stay float32 here, as on CUDA: the backward needs them exact.
EXACT_STATISTICS = frozenset(
    {
        *("native_layer_norm", "native_batch_norm", "_native_batch_norm_legit"),
        "_batch_norm_with_update",
    }
)
# Results after the first are for the backward alone; torch's meta functions give them other shapes
# than its CPU kernels, and so does CUDA.
SAVED = frozenset({"_embedding_bag", "_embedding_bag_forward_only"})
HALF = (torch.bfloat16, torch.float16)
EIGENVECTORS = frozenset({"linalg.eigh", "linalg.eig", "_linalg_eigh", "linalg_eig"})  # second


def dim_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the dim that an op of ORDERS is called with, given what stands behind its input."""
    if name == "msort":
        return 0
    at = ORDERS[name]
    dim: int = kwargs.get("dim", args[at] if len(args) > at else -1)
    return dim


@dataclass(frozen=True)
class Ties:
    """Which of equal elements of `input` along `dim` an index names is open."""

    input: torch.Tensor
    dim: int

    def indices(self, got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Return wanted indices where `got` names equal elements, none of them twice; else got."""
        fits = got.shape == wanted.shape and got.dtype == torch.int64 and self.input.dim()
        return wanted if fits and self._same(got, wanted) else got

    def gradient(self, got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Return the wanted gradient where `got` exchanges those of equal elements, else got."""
        fits = got.shape == wanted.shape == self.input.shape and self.input.numel() > 1
        return wanted if fits and self._exchanged(got, wanted) else got

    def _same(self, got: torch.Tensor, wanted: torch.Tensor) -> bool:
        if got.dim() < self.input.dim():
            got, wanted = got.unsqueeze(self.dim), wanted.unsqueeze(self.dim)
        if got.dim() != self.input.dim() or not got.numel():
            return False
        size = self.input.shape[self.dim]
        if got.min() < 0 or got.max() >= size:
            return False
        ordered = got.sort(self.dim).values
        is_repeated = bool((ordered.diff(dim=self.dim) == 0).any())
        one, other = (self.input.gather(self.dim, i) for i in (got, wanted))
        return not is_repeated and torch.allclose(one, other, 0, 0, equal_nan=True)

    def _exchanged(self, got: torch.Tensor, wanted: torch.Tensor) -> bool:
        order = self.input.sort(self.dim).indices
        values = self.input.gather(self.dim, order)
        groups = (values.diff(dim=self.dim) != 0).cumsum(self.dim)
        groups = torch.cat([torch.zeros_like(groups.narrow(self.dim, 0, 1)), groups], self.dim)
        one, other = (
            torch.zeros(values.shape, dtype=torch.float64).scatter_add(
                self.dim, groups, g.gather(self.dim, order).double()
            )
            for g in (got, wanted)
        )
        return torch.equal(one, other)


def turned(wanted: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Return wanted columns of unit length, each times the unit number that makes it `got`'s.

    A v = w v holds for each of them alike. What is no matrix comes back as it is.
    """
    inexact = got.is_floating_point() or got.is_complex()
    if wanted.dim() < 2 or got.shape != wanted.shape or got.dtype != wanted.dtype or not inexact:
        return wanted
    inner = (wanted.conj() * got).sum(-2, keepdim=True)
    return wanted * torch.where(inner == 0, 1, torch.sgn(inner))


def written_alphas(
    alphas: torch.Tensor, input_lengths: Sequence[int], target_lengths: Sequence[int]
) -> torch.Tensor:
    """Return _ctc_loss's log alphas [B, T, 2 L + 1] with 0 where the CPU writes nothing."""
    times, states = (torch.arange(n) for n in alphas.shape[1:])
    steps, labels = (torch.as_tensor(n)[:, None, None] for n in (input_lengths, target_lengths))
    is_written = (times[:, None] < steps) & (states <= 2 * labels)
    return torch.where(is_written, alphas, 0)


def widened(value: object) -> object:
    """Return two-byte floats as float32, everything else as it is."""
    if isinstance(value, torch.Tensor) and value.dtype in HALF:
        return value.detach().float().requires_grad_(value.requires_grad)
    return value


def narrowed(exact: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return float32 as another tensor's two-byte float, everything else as it is."""
    return exact.to(like.dtype) if like.dtype in HALF else exact
