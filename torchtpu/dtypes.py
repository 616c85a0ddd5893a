"""Which torch dtype is which XLA (numpy) dtype, and which DLPack type code it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch

from torchtpu.errors import TpuError


@dataclass(frozen=True, kw_only=True)
class DType:
    """One dtype under its three names."""

    torch: torch.dtype
    numpy: np.dtype[Any]
    dlpack_code: int  # DLDataTypeCode of dlpack.h 1.1

    @property
    def bits(self) -> int:
        """Size of one element in bits."""
        return self.torch.itemsize * 8


_TABLE = [
    (torch.bool, np.bool_, 6),
    (torch.uint8, np.uint8, 1),
    (torch.uint16, np.uint16, 1),
    (torch.uint32, np.uint32, 1),
    (torch.uint64, np.uint64, 1),
    (torch.int8, np.int8, 0),
    (torch.int16, np.int16, 0),
    (torch.int32, np.int32, 0),
    (torch.int64, np.int64, 0),
    (torch.float16, np.float16, 2),
    (torch.bfloat16, ml_dtypes.bfloat16, 4),
    (torch.float32, np.float32, 2),
    (torch.float64, np.float64, 2),
    (torch.complex64, np.complex64, 5),
    (torch.complex128, np.complex128, 5),
    (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn, 10),
    (torch.float8_e4m3fnuz, ml_dtypes.float8_e4m3fnuz, 11),
    (torch.float8_e5m2, ml_dtypes.float8_e5m2, 12),
    (torch.float8_e5m2fnuz, ml_dtypes.float8_e5m2fnuz, 13),
    (torch.float8_e8m0fnu, ml_dtypes.float8_e8m0fnu, 14),
]

_BY_TORCH = {t: DType(torch=t, numpy=np.dtype(n), dlpack_code=code) for t, n, code in _TABLE}
_BY_NUMPY = {row.numpy: row.torch for row in _BY_TORCH.values()}


def of(dtype: torch.dtype, op: str = "tpu") -> DType:
    """Return the table row of a torch dtype; TpuError where a TPU tensor cannot have it."""
    try:
        return _BY_TORCH[dtype]
    except KeyError:
        name = str(dtype).removeprefix("torch.")
        known = ", ".join(str(d).removeprefix("torch.") for d in _BY_TORCH)
        raise TpuError(
            f"{op}(): TorchTPU does not yet support dtype {name}; supported: {known}"
        ) from None


def to_numpy(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the numpy dtype of the same values."""
    return of(dtype).numpy


def to_torch(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the torch dtype of the same values; KeyError where a TPU tensor cannot have it."""
    return _BY_NUMPY[dtype]
