"""Target tpu: a PJRT plugin, which is libtpu on a machine that has a TPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchtpu.targets import plugin, tpu_rules
from torchtpu.targets.base import Executable, Settings, Target, TargetError
from torchtpu.targets.pjrt import PjrtTarget
from torchtpu.targets.tpu_compiler import library as libtpu

_PLATFORM = "tpu"  # as libtpu calls its own
_GOOGLE_PCI_VENDOR = "0x1ae0"
_INSTEAD = "set TORCHTPU_TARGET=cpu for numerics or TORCHTPU_TARGET=sim for a simulated TPU"


def absent() -> str:
    """Say why no TPU can be used on this machine, in one line; empty where one can."""
    if plugin.named(os.environ):
        return ""
    if not _has_chip():
        return f"no TPU: no Google PCI device (vendor {_GOOGLE_PCI_VENDOR}) and no /dev/accel* here"
    if not libtpu():
        return "no libtpu: pip install 'torchtpu[tpu]', or set TPU_LIBRARY_PATH"
    return ""


def create(_option: str, settings: Settings) -> Target:
    """Load the plugin and take its first local device; TargetError says why there is none.

    The library is the one that PJRT_NAMES_AND_LIBRARY_PATHS names `tpu`, else libtpu: that of
    TPU_LIBRARY_PATH or the installed package. The device files are looked at first: libtpu on a
    machine without a TPU asks a metadata server over the network and then aborts the process.
    """
    reason = absent()
    if reason:
        raise TargetError(f"[tpu] {reason}; {_INSTEAD}")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    other = plugin.named(os.environ)
    library = other or libtpu()
    try:
        client = plugin.client(library, timeout_s=settings.start_timeout_s, apart=bool(other))
    except TargetError as error:
        raise TargetError(f"[tpu] {error}; {_INSTEAD}") from error
    return _TpuTarget(client, name="tpu", platform=client.platform)


class _TpuTarget(PjrtTarget):
    def compile(
        self,
        module: Any,
        outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
        ranks: Sequence[int] = (),
    ) -> Executable:
        if self.platform == _PLATFORM:  # and no plugin that stands in for libtpu
            tpu_rules.check(module)
        return super().compile(module, outputs, ranks)


def _has_chip() -> bool:
    if any(Path("/dev").glob("accel[0-9]*")):
        return True
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    return any(v.read_text().strip() == _GOOGLE_PCI_VENDOR for v in vendors)
