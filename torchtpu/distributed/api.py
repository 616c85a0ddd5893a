"""The module `torch.tpu.distributed`: launches, meshes and promises under torch_tpu's names."""

from __future__ import annotations

import sys
import types

from torchtpu.distributed import launch as environment
from torchtpu.distributed.launch import main, set_tpu_launch_env
from torchtpu.distributed.layout import topology_aware_mesh
from torchtpu.distributed.safe import is_spmd_safe, spmd_safe
from torchtpu.errors import TpuError

__all__ = [
    "environment",
    "is_spmd_safe",
    "set_tpu_launch_env",
    "spmd_safe",
    "topology_aware_mesh",
    "window_num_stripes",  # noqa: F822  # properties of _Module
    "window_stripe_chunk_mb",  # noqa: F822
]
__path__: list[str] = []  # so that torch.tpu.distributed.environment can be imported


class _Module(types.ModuleType):
    """Functions, and two settings that can be read and assigned.

    They bound how torch_tpu cuts a one-sided transfer into parallel ones. There are none here, so
    programs that set them run unchanged, and nothing else follows.
    """

    _num_stripes = 4
    _stripe_chunk_mb = 8

    @property
    def window_num_stripes(self) -> int:
        """Parallel parts of a transfer at most."""
        return self._num_stripes

    @window_num_stripes.setter
    def window_num_stripes(self, value: int) -> None:
        self._num_stripes = _positive("window_num_stripes", value)

    @property
    def window_stripe_chunk_mb(self) -> int:
        """MiB of a part at least."""
        return self._stripe_chunk_mb

    @window_stripe_chunk_mb.setter
    def window_stripe_chunk_mb(self, value: int) -> None:
        self._stripe_chunk_mb = _positive("window_stripe_chunk_mb", value)


def _positive(name: str, value: int) -> int:
    if type(value) is not int or value < 1:
        raise TpuError(f"[torch.tpu.distributed] expected {name} to be > 0, got {value!r}")
    return value


if __name__ == "__main__":
    main()
else:
    sys.modules[__name__].__class__ = _Module
