"""Run a script on a simulated chip with abstract buffers and estimate its steps."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchtpu import targets
from torchtpu.estimate import ranks
from torchtpu.oracle import choose
from torchtpu.oracle.choose import Chosen
from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.network.topology import Topology
from torchtpu.perf_model.network.topology import load as load_topology
from torchtpu.perf_model.report import Report
from torchtpu.perf_model.roofline import estimate_steps
from torchtpu.sim.step import StepSimulator


class ScriptError(Exception):
    """The script could not be estimated; the text names the script's line and the reason."""


def estimate_script(
    script: str,
    arguments: Sequence[str],
    *,
    chip: str,
    mode: str = "fused",
    max_steps: int = 4,
    topology: str = "",
    slices: int = 1,
    rank: int = 0,
    oracle: str = "",
) -> Report:
    """Run `script` with target sim and abstract buffers; return the estimate of its steps.

    chip: a name of perf_model/chips. mode: "fused" (a step is one program) or "strict" (an op is).
    topology: chips of one slice, such as "16x16"; the script is then rank `rank` of one process a
    device, as torchrun starts them. oracle: "model", "libtpu" or "both"; "" is libtpu where it is
    installed. The process must not have used the device yet.
    Raises UnknownChip, TopologyError and ScriptError.
    """
    facts = chips.load(chip).require_complete()
    network = _network(facts, topology, slices, rank)
    if not Path(script).is_file():
        raise ScriptError(f"[estimate] no such script: {script}")
    asked = _oracle(oracle, facts, network.topology if network else None)
    os.environ["TORCHTPU_TARGET"] = targets.simulated(chip)
    os.environ["TORCHTPU_SIM_NUMERICS"] = "0"
    if network is not None:
        local = network.topology.chips_per_host * facts.devices_per_chip
        ranks.imitate_torchrun(rank, network.devices, local)
    ranks.meet_nobody(rank, network.devices if network else 1)
    from torchtpu import register

    register()
    from torchtpu import executor
    from torchtpu.estimate.recorder import EnoughSteps, Recorder

    target = executor.current().target
    recorder = Recorder(target, max_steps)  # type: ignore[arg-type]  # it is simulated
    notes = []
    try:
        namespace = _run(script, arguments)
        recorder.finish()
        del namespace  # what the script's own variables hold was alive until here
    except EnoughSteps:
        notes.append(f"the script was stopped after {max_steps} steps (--steps N for more)")
    except SystemExit as leave:
        if leave.code not in (None, 0):
            raise ScriptError(f"[estimate] {script} exited with {leave.code!r}") from leave
        recorder.finish()
    except Exception as error:
        raise ScriptError(_what_failed(script, error)) from error
    finally:
        recorder.close()
    if not recorder.steps:
        raise ScriptError(
            f"[estimate] {script} launched nothing on device tpu; expected a model on "
            "device='tpu' and at least one step"
        )
    if recorder.read_at:
        places = ", ".join(f"{line} ({n}x)" for line, n in recorder.read_at.most_common(3))
        notes.append(f"values read on the host were zeros: {places}")
    models = estimate_steps(recorder.steps, facts, mode, network)
    try:
        return asked.report(" ".join([script, *arguments]), recorder.steps, models, notes)
    except targets.TargetError as error:
        raise ScriptError(str(error)) from error


def _oracle(name: str, chip: chips.Chip, topology: Topology | None) -> Chosen:
    try:
        return choose.chosen(name, chip, topology)
    except (targets.TargetError, ValueError) as error:
        raise ScriptError(str(error)) from error


def _network(chip: Chip, topology: str, slices: int, rank: int) -> StepSimulator | None:
    """Return what simulates many devices; None for one."""
    if not topology:
        if rank or slices != 1:
            raise ScriptError("[estimate] --rank and --slices are of a --topology; expected one")
        return None
    network = StepSimulator(load_topology(chip, topology, slices))
    if not 0 <= rank < network.devices:
        raise ScriptError(
            f"[estimate] --rank: expected 0 to {network.devices - 1}, the devices of "
            f"{network.name}, got {rank}"
        )
    return network


def _run(script: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run as `python script arguments` would; what it prints goes to stderr."""
    before = sys.argv, sys.path[:]
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before


def _what_failed(script: str, error: Exception) -> str:
    here = str(Path(script).resolve())
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if str(Path(f.filename).resolve()) == here
    ]
    line = f"{Path(script).name}:{frames[-1].lineno}" if frames else script
    notes = "".join(f"\n  {n}" for n in getattr(error, "__notes__", ()))
    return f"[estimate] the script raised at {line}: {type(error).__name__}: {error}{notes}"
