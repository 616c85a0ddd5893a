"""What may differ from the CPU, and what may not."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lowerings import open_results

_EQUALS = torch.tensor([[3.0, 1.0, 3.0, math.nan, 1.0, math.nan]])
_ORDER = torch.tensor([[1, 4, 0, 2, 3, 5]])


@pytest.mark.parametrize("indices", [[4, 1, 2, 0, 3, 5], [1, 4, 0, 2, 5, 3]])
def test_equal_elements_may_change_places(indices: list[int]) -> None:
    got = torch.tensor([indices])
    assert open_results.Ties(_EQUALS, -1).indices(got, _ORDER) is _ORDER


@pytest.mark.parametrize(
    "indices",
    [[0, 4, 1, 2, 3, 5], [1, 1, 0, 2, 3, 5], [1, 4, 0, 2, 3, 6], [-5, 4, 0, 2, 3, 5]],
    ids=["unequal", "twice", "too large", "negative"],
)
def test_wrong_indices_stay_wrong(indices: list[int]) -> None:
    got = torch.tensor([indices])
    assert open_results.Ties(_EQUALS, -1).indices(got, _ORDER) is got


def test_one_index_of_a_reduced_dim() -> None:
    ties = open_results.Ties(_EQUALS, 1)
    assert ties.indices(torch.tensor([2]), wanted := torch.tensor([0])) is wanted
    assert ties.indices(got := torch.tensor([1]), torch.tensor([0])) is got


def test_gradients_of_equal_elements_may_change_places() -> None:
    ties = open_results.Ties(torch.tensor([2.0, 1.0, 2.0]), 0)
    wanted = torch.tensor([1.0, 5.0, 3.0])
    assert ties.gradient(torch.tensor([3.0, 5.0, 1.0]), wanted) is wanted
    assert ties.gradient(got := torch.tensor([5.0, 1.0, 3.0]), wanted) is got


def test_eigenvectors_turn_and_nothing_else() -> None:
    vectors = torch.linalg.qr(torch.randn(4, 4, dtype=torch.complex128)).Q
    phases = torch.exp(1j * torch.arange(4, dtype=torch.float64))
    torch.testing.assert_close(open_results.turned(vectors, vectors * phases), vectors * phases)
    for wrong in (vectors * 2, vectors.flip(1), vectors.conj()):
        assert not torch.allclose(open_results.turned(vectors, wrong), wrong)


def test_log_alphas_count_within_lengths() -> None:
    found = open_results.written_alphas(torch.ones(2, 3, 5), [3, 1], [1, 2])
    assert found.sum((1, 2)).tolist() == [9, 5]
