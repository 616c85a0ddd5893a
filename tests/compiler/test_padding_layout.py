"""Atoms: sizes at the bucket, and what a reshape makes of a layout."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.symbol import SymT, make_symbol

from torchtpu.compiler.padding.layout import (
    Atom,
    Bucket,
    Unpaddable,
    canonical,
    expression_of,
    groups,
    leading,
    padded,
    regroup,
    same,
    size,
)

N, M = (make_symbol(SymT.SIZE, i, positive=True, integer=True) for i in range(2))
BUCKET = Bucket({N: 8, M: 4})
ATOM_N, ATOM_M = Atom(N, 8), Atom(M, 4)


def fixed(n: int) -> Atom:
    return Atom(expression_of(n), n)


@pytest.mark.parametrize(
    ("expression", "atoms"),
    [
        (expression_of(1), ()),
        (expression_of(6), (fixed(6),)),
        (N, (ATOM_N,)),
        (4 * N, (ATOM_N, fixed(4))),
        (4 * N + 4, (Atom(N + 1, 9), fixed(4))),
        (N * M, (Atom(N * M, 32),)),
        (FloorDiv(N - 1, 2) + 1, (Atom(FloorDiv(N - 1, 2) + 1, 4),)),
    ],
)
def test_a_size_is_padded_after_its_valid_elements(expression: Any, atoms: Any) -> None:
    dim = BUCKET.dim(expression)
    assert dim == atoms
    assert leading(dim)


@pytest.mark.parametrize("expression", [N - M, 20 - N, N % 3, N - 2 * M + 9])
def test_a_size_that_may_fall_as_its_symbols_rise_has_no_bound(expression: Any) -> None:
    with pytest.raises(Unpaddable, match="does not grow"):
        BUCKET.dim(expression)


def test_a_symbol_without_a_bucket() -> None:
    with pytest.raises(Unpaddable, match="depends on s1, without a bucket"):
        Bucket({N: 8}).dim(N + M)


@pytest.mark.parametrize(
    ("atoms", "shape", "expected"),
    [
        ([ATOM_N, ATOM_M], [N * M], [(ATOM_N, ATOM_M)]),
        ([ATOM_N, fixed(12)], [2 * N, 6], [(ATOM_N, fixed(2)), (fixed(6),)]),
        ([fixed(2), ATOM_N, fixed(6)], [4 * N, 3], [(fixed(2), ATOM_N, fixed(2)), (fixed(3),)]),
        ([ATOM_N, ATOM_M], [N, 1, M], [(ATOM_N,), (), (ATOM_M,)]),
        ([ATOM_N, ATOM_M], [M, N], None),
        ([ATOM_N, fixed(4)], [4, N], None),
        ([ATOM_N], [FloorDiv(N, 2), 2], None),
    ],
)
def test_regroup(atoms: list[Atom], shape: list[Any], expected: Any) -> None:
    found = regroup(atoms, [expression_of(n) for n in shape])
    assert found == (None if expected is None else tuple(expected))


def test_groups_are_the_smallest_runs_with_equal_products() -> None:
    found = groups([N, M, expression_of(6)], [N * M, expression_of(2), expression_of(3)])
    assert found == [(range(2), range(1)), (range(2, 3), range(1, 3))]
    assert groups([N, M], [M, N]) == [(range(2), range(2))]
    assert groups([N, expression_of(1)], [expression_of(1), N]) == [(range(2), range(2))]


def test_canonical_merges_what_has_no_padding() -> None:
    dim = canonical([fixed(2), fixed(1), fixed(3), ATOM_N, fixed(5)])
    assert dim == (fixed(6), ATOM_N, fixed(5))
    assert padded(dim)
    assert not leading(dim)
    assert size(dim) == 240


def test_same() -> None:
    assert same(2 * (N + 1), 2 * N + 2)
    assert not same(N, M)
