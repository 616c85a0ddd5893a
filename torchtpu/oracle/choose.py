"""Which oracle an estimate asks: the model, the TPU compiler, or both side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtpu.oracle import compiler
from torchtpu.oracle.estimate import LibtpuOracle
from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.network.topology import Topology
from torchtpu.perf_model.report import Report
from torchtpu.perf_model.roofline import StepEstimate
from torchtpu.perf_model.trace import StepTrace
from torchtpu.targets import TargetError

MODEL, LIBTPU, BOTH = ORACLES = ("model", "libtpu", "both")


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """An oracle by name; `libtpu` is None where only the model is asked."""

    name: str
    libtpu: LibtpuOracle | None = None
    notes: tuple[str, ...] = ()

    def report(
        self,
        script: str,
        traces: Sequence[StepTrace],
        models: Sequence[StepEstimate],
        notes: Sequence[str],
    ) -> Report:
        """Return the report of a script's steps, whose estimates by the model are there."""
        steps, compared = tuple(models), tuple[StepEstimate, ...]()
        if self.libtpu is not None:
            steps = self.libtpu.estimate_steps(traces, models)
            compared = tuple(models) if self.name == BOTH else ()
        return Report(
            script=script,
            steps=steps,
            oracle=self.name,
            notes=(*notes, *self.notes),
            compared=compared,
        )


def chosen(name: str, chip: Chip, topology: Topology | None = None) -> Chosen:
    """Return the oracle of a name; "" is libtpu where it is installed and works, else the model.

    Raises TargetError for an oracle that was asked for by name and cannot work, ValueError for a
    name that is none.
    """
    if name and name not in ORACLES:
        raise ValueError(f"[oracle] expected one of {', '.join(ORACLES)}, got {name!r}")
    if name == MODEL or (not name and not compiler.installed()):
        return Chosen(name=MODEL)
    try:
        return Chosen(name=name or LIBTPU, libtpu=LibtpuOracle(chip, topology))
    except TargetError as error:
        if name:
            raise
        return Chosen(name=MODEL, notes=(f"oracle model, because libtpu does not work: {error}",))
