"""Index lists of sparse tensors."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("rows", [[0, 0, 2, 3], [], [4, 4, 4]])
@pytest.mark.parametrize("out_int32", [False, True])
def test_row_starts(rows: list[int], out_int32: bool) -> None:
    numbers = torch.tensor(rows, dtype=torch.int64)
    expected = torch._convert_indices_from_coo_to_csr(numbers, 5, out_int32=out_int32)
    actual = torch._convert_indices_from_coo_to_csr(numbers.to("tpu"), 5, out_int32=out_int32)
    assert actual.dtype == expected.dtype
    assert actual.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("starts", "columns"),
    [
        ([0, 2, 2, 3], [0, 3, 1]),
        ([[0, 2, 2, 3], [0, 0, 1, 3]], [[0, 3, 1], [1, 0, 2]]),
        ([0, 0], []),
    ],
)
@pytest.mark.parametrize("transpose", [False, True])
def test_row_numbers(starts: list[int], columns: list[int], transpose: bool) -> None:
    parts = [torch.tensor(v, dtype=torch.int64) for v in (starts, columns)]
    convert = torch._convert_indices_from_csr_to_coo
    expected = convert(*parts, transpose=transpose)
    actual = convert(*(p.to("tpu") for p in parts), transpose=transpose)
    assert actual.shape == expected.shape
    assert actual.tolist() == expected.tolist()


def test_out_variants_of_the_conversions() -> None:
    rows = torch.tensor([0, 0, 2, 3], device="tpu")
    out = torch.empty(6, dtype=torch.int64, device="tpu")
    torch._convert_indices_from_coo_to_csr(rows, 5, out=out)
    assert out.tolist() == [0, 2, 2, 3, 4, 4]
    back = torch.empty((2, 4), dtype=torch.int64, device="tpu")
    torch._convert_indices_from_csr_to_coo(out, torch.zeros_like(rows), out=back)
    assert back[0].tolist() == rows.tolist()
