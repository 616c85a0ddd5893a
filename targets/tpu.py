"""Target tpu: the PJRT client of libtpu, on a machine that has a TPU."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from torchtpu.targets.base import Target, TargetError
from torchtpu.targets.pjrt import PjrtTarget

_GOOGLE_PCI_VENDOR = "0x1ae0"
_INSTEAD = "set TORCHTPU_TARGET=cpu for numerics or TORCHTPU_TARGET=sim for a simulated TPU"


def absent() -> str:
    """Say why no TPU can be used on this machine, in one line; empty where one can."""
    if not _has_chip():
        return f"no TPU: no Google PCI device (vendor {_GOOGLE_PCI_VENDOR}) and no /dev/accel* here"
    if not _has_library():
        return "no libtpu: pip install 'torchtpu[tpu]', or set TPU_LIBRARY_PATH"
    return ""


def create(_option: str, _numerics: bool = True) -> Target:
    """Load libtpu and take its first local chip; TargetError says why there is none.

    The device files are looked at first: libtpu on a machine without a TPU asks a metadata server
    over the network and then aborts the process.
    """
    reason = absent()
    if reason:
        raise TargetError(f"[tpu] {reason}; {_INSTEAD}")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    from jax._src import xla_bridge

    try:
        client = xla_bridge.get_backend("tpu")
    except RuntimeError as error:
        raise TargetError(f"[tpu] libtpu did not start: {error}; {_INSTEAD}") from error
    return PjrtTarget(client, name="tpu", platform="tpu")


def _has_library() -> bool:
    return bool(os.environ.get("TPU_LIBRARY_PATH") or importlib.util.find_spec("libtpu"))


def _has_chip() -> bool:
    if any(Path("/dev").glob("accel[0-9]*")):
        return True
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    return any(v.read_text().strip() == _GOOGLE_PCI_VENDOR for v in vendors)
