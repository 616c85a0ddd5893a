"""Target tpu: a PJRT plugin, which is libtpu on a machine that has a TPU."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchtpu.targets import LAUNCH_VARIABLES, plugin, tpu_rules
from torchtpu.targets.base import Executable, Settings, Target, TargetError
from torchtpu.targets.pjrt import PjrtTarget
from torchtpu.targets.tpu_compiler import library as libtpu

_PLATFORM = "tpu"  # as libtpu calls its own
_GOOGLE_PCI_VENDOR = "0x1ae0"
_NO_CHIPS = frozenset({"0x001f", "0x0042"})  # Google's virtual disk and network card
_INSTEAD = "set TORCHTPU_TARGET=cpu for numerics or TORCHTPU_TARGET=sim for a simulated TPU"


def absent() -> str:
    """Say why no TPU can be used on this machine, in one line; empty where one can."""
    if plugin.named(os.environ):
        return ""
    if not chips():
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
    world = settings.world
    if world is not None and world.size > 1 and not other:
        os.environ.update(slice_variables(world.rank, world.size, os.environ))
    library = other or libtpu()
    try:
        client = plugin.client(library, timeout_s=settings.start_timeout_s, apart=bool(other))
    except TargetError as error:
        raise TargetError(f"[tpu] {error}; {_INSTEAD}") from error
    return _TpuTarget(client, name="tpu", platform=client.platform, axes=settings.mesh)


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


def slice_variables(rank: int, size: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return how libtpu is told that this process drives one chip of a slice of `size`.

    TargetError where the launch has not said where the others are, or says it of another world.
    """
    missing = [name for name in LAUNCH_VARIABLES if not environment.get(name)]
    if missing:
        raise TargetError(
            "[tpu] missing required environment variables for distributed training: "
            f'{", ".join(missing)}; eval "$(python -m torch.tpu.distributed)" before torchrun, or '
            "call torch.tpu.distributed.set_tpu_launch_env() before processes are started"
        )
    addresses, topology = (environment[name] for name in LAUNCH_VARIABLES)
    all_of = addresses.split(",")
    if len(all_of) != size:
        raise TargetError(
            f"[{LAUNCH_VARIABLES[0]}] expected an address for each of {size} ranks, got "
            f"{len(all_of)}: {addresses!r}"
        )
    return {
        "CLOUD_TPU_TASK_ID": str(rank),
        "TPU_PROCESS_ADDRESSES": addresses,
        "TPU_PROCESS_BOUNDS": topology,
        "TPU_PROCESS_PORT": all_of[rank].rpartition(":")[2],
        "TPU_CHIPS_PER_PROCESS_BOUNDS": ",".join("1" for _ in topology.split(",")),
        "TPU_VISIBLE_DEVICES": environment.get("LOCAL_RANK", str(rank)),
    }


def chips() -> int:
    """Return how many TPU chips this host has."""
    drivers = len(list(Path("/dev").glob("accel[0-9]*")))
    if drivers:
        return drivers
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    google = [v for v in vendors if v.read_text().strip() == _GOOGLE_PCI_VENDOR]
    return sum(v.with_name("device").read_text().strip() not in _NO_CHIPS for v in google)
