"""Arrays padded and cut on the host, and cuts as strided views."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._sympy.symbol import SymT, make_symbol

from torchtpu.compiler.padding.host import StridedCut, cut_host, pad_host, strided_cut
from torchtpu.compiler.padding.layout import Atom, Bucket, Dim, Layout, canonical, expression_of

N, M = (make_symbol(SymT.SIZE, i, positive=True, integer=True) for i in range(2))
BUCKET = Bucket({N: 8, M: 4})
TRUE = {N: 5, M: 3}


def fixed(n: int) -> Dim:
    return canonical([Atom(expression_of(n), n)])


PADDED_N, PADDED_M = BUCKET.dim(N), BUCKET.dim(M)
LAYOUTS: dict[str, tuple[Layout, StridedCut | None]] = {
    "leading": (
        (PADDED_N, fixed(3), PADDED_M),
        StridedCut(offset=0, sizes=(5, 3, 3), strides=(12, 4, 1)),
    ),
    "merged with a fixed minor": (
        ((*PADDED_N, *fixed(3)), PADDED_M),
        StridedCut(offset=0, sizes=(15, 3), strides=(4, 1)),
    ),
    "merged with a padded minor": ((canonical([*PADDED_N, *PADDED_M]), fixed(2)), None),
    "repeated": ((canonical([*fixed(2), *PADDED_N]),), None),
    "multiple": ((BUCKET.dim(2 * N + 2),), StridedCut(offset=0, sizes=(12,), strides=(1,))),
    "scalar": ((), StridedCut(offset=0, sizes=(), strides=())),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_cut_of_a_padded_array_is_the_array(name: str) -> None:
    layout, expected = LAYOUTS[name]
    cut = strided_cut(layout, TRUE)
    assert cut == expected
    shape = cut.sizes if cut else ((15, 2) if len(layout) == 2 else (10,))
    array = torch.arange(float(np.prod(shape))).reshape(shape)
    padded = pad_host(array, layout, TRUE, fill=-1)
    assert int((padded == -1).sum()) == padded.numel() - array.numel()
    assert torch.equal(cut_host(padded, layout, TRUE), array)
    np.testing.assert_array_equal(pad_host(array.numpy(), layout, TRUE, fill=-1), padded.numpy())


def test_padding_between_rows_vanishes_where_the_bucket_is_full() -> None:
    layout = (canonical([*PADDED_N, *PADDED_M]),)
    assert strided_cut(layout, {N: 5, M: 4}) == StridedCut(offset=0, sizes=(20,), strides=(1,))
    assert strided_cut(layout, {N: 1, M: 3}) == StridedCut(offset=0, sizes=(3,), strides=(1,))
    assert strided_cut(layout, {N: 5, M: 1}) == StridedCut(offset=0, sizes=(5,), strides=(4,))


def test_an_array_of_the_bucket_size_is_not_copied() -> None:
    array = torch.ones(8, 4)
    assert pad_host(array, (PADDED_N, PADDED_M), {N: 8, M: 4}) is array


def test_bfloat16_is_padded_too() -> None:
    padded = pad_host(torch.ones(5, dtype=torch.bfloat16), (PADDED_N,), TRUE)
    assert padded.tolist() == [1.0] * 5 + [0.0] * 3
