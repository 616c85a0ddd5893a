"""Renders step estimates as text and as JSON with stable keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchtpu.perf_model.quantities import percent, rate, seconds, size, table
from torchtpu.perf_model.roofline import DearOp, StepEstimate

FORMAT_VERSION = 1
_BOUND_TEXT = {
    "mxu": "matrix unit (MXU)",
    "vpu": "vector units (VPU)",
    "hbm": "HBM bandwidth",
    "network": "the network",
    "launch": "launch overhead",
}
_MODULE_WIDTH = 40
Json = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The estimates of a script's steps, in order. `notes` are printed above them."""

    script: str
    steps: tuple[StepEstimate, ...]
    oracle: str = "model"
    notes: tuple[str, ...] = ()
    compared: tuple[StepEstimate, ...] = ()  # the model's estimates of the steps, beside libtpu's


@dataclass(frozen=True, kw_only=True, slots=True)
class Folded:
    """Consecutive steps with one and the same estimate; `first` and `last` count from 1."""

    first: int
    last: int
    estimate: StepEstimate

    @property
    def title(self) -> str:
        """ "step 1" or "steps 2-20, same program"."""
        if self.first == self.last:
            return f"step {self.first}"
        return f"steps {self.first}-{self.last}, same program"


_SAME_MEMORY = 1e-3  # a script that keeps each step's loss grows by some bytes a step


def fold(steps: Sequence[StepEstimate]) -> list[Folded]:
    """Join consecutive steps that run the same; the memory shown is that of the last one."""
    folded: list[Folded] = []
    for number, step in enumerate(steps, 1):
        last = folded[-1] if folded else None
        if last is not None and _runs_the_same(last.estimate, step):
            folded[-1] = Folded(first=last.first, last=number, estimate=step)
        else:
            folded.append(Folded(first=number, last=number, estimate=step))
    return folded


def _runs_the_same(one: StepEstimate, other: StepEstimate) -> bool:
    if one is other:
        return True
    grown = abs(one.memory.peak_bytes - other.memory.peak_bytes)
    return grown <= _SAME_MEMORY * one.memory.peak_bytes and replace(
        one, name="", memory=other.memory
    ) == replace(other, name="")


def render_text(report: Report) -> str:
    """The report as people read it."""
    head = f"{report.script}: estimate without a TPU, oracle {report.oracle}"
    lines = [head, *(f"note: {note}" for note in report.notes)]
    if not report.steps:
        lines.append("no step found: the script ran no program on the device")
    for folded in fold(report.steps):
        lines += ["", *_step_lines(folded, _beside(report, folded))]
    return "\n".join(lines) + "\n"


def _beside(report: Report, folded: Folded) -> StepEstimate | None:
    """The model's estimate of the steps, where the report compares two oracles."""
    return report.compared[folded.last - 1] if report.compared else None


def _step_lines(folded: Folded, model: StepEstimate | None) -> list[str]:
    step = folded.estimate
    rows = [
        ("predicted time", f"{seconds(step.time_s)} per step"),
        ("MFU", f"{percent(step.mfu)} of {rate(step.peak_flops_per_s, 'FLOP/s')} (bfloat16 peak)"),
        (
            "FLOP/s",
            f"achieved {rate(step.achieved_flops_per_s, 'FLOP/s')}, "
            f"attainable {rate(step.attainable_flops_per_s, 'FLOP/s')}",
        ),
        (
            "HBM bytes/s",
            f"achieved {rate(step.achieved_bytes_per_s, 'B/s')}, "
            f"attainable {rate(step.attainable_bytes_per_s, 'B/s')}",
        ),
        (
            "matmul FLOPs",
            f"{step.matmul_flops:.4g} per step, {size(int(step.hbm_bytes))} through HBM",
        ),
        ("bound by", f"{_BOUND_TEXT[step.bound]}: {_shares(step)}"),
        *([("network", _network(step))] if step.devices > 1 else []),
        ("unmodelled", _unmodelled(step)),
        ("HBM peak", _memory(step)),
        *(("hint", f"{hint} (x{count})") for hint, count in step.hints),
        *([("oracle model", _against(step, model))] if model else []),
        *(("libtpu", remark) for remark in step.remarks),
    ]
    title = f"{folded.title}: {step.chip}, {_devices(step)}, {step.mode} mode, {_count(step)}"
    return [title, *(f"  {name:<15} {text}" for name, text in rows), *_dearest(step.dearest)]


def _against(step: StepEstimate, model: StepEstimate) -> str:
    """What the model says, and libtpu's estimate as a multiple of it."""
    return (
        f"{seconds(model.time_s)} per step (libtpu / model {_ratio(step.time_s, model.time_s)}), "
        f"HBM peak {size(model.memory.peak_bytes)} "
        f"({_ratio(step.memory.peak_bytes, model.memory.peak_bytes)})"
    )


def _ratio(one: float, other: float) -> str:
    return f"{one / other:.2f}" if other else "-"


def _devices(step: StepEstimate) -> str:
    return "one device" if step.devices == 1 else f"{step.topology} ({step.devices} devices)"


def _network(step: StepEstimate) -> str:
    kinds = ", ".join(f"{kind} {seconds(time_s)}" for kind, time_s in step.network_s.items())
    return f"{kinds or 'no collectives'}; {seconds(step.exposed_s)} of it not hidden"


def _count(step: StepEstimate) -> str:
    programs = "program" if step.programs == 1 else "programs"
    return f"{step.programs} {programs}, {step.kernels} kernels"


def _shares(step: StepEstimate) -> str:
    ordered = sorted(step.shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {percent(share)}" for name, share in ordered if share > 0)


def _unmodelled(step: StepEstimate) -> str:
    if not step.unmodelled:
        return "nothing"
    reasons = "; ".join(f"{reason} (x{count})" for reason, count in step.unmodelled[:5])
    more = f"; {len(step.unmodelled) - 5} more" if len(step.unmodelled) > 5 else ""
    return f"{percent(step.unmodelled_share)} of the time, by memory traffic only: {reasons}{more}"


def _memory(step: StepEstimate) -> str:
    memory = step.memory
    verdict = "fits" if memory.fits else f"DOES NOT FIT, {size(-memory.headroom_bytes)} too much"
    parts = ", ".join(f"{kind} {size(count)}" for kind, count in memory.by_kind)
    origin = "" if step.memory_origin == "model" else f", by {step.memory_origin}"
    used = f"{size(memory.peak_bytes)} of {size(memory.usable_bytes)} usable"
    return f"{used}: {verdict}{origin} ({parts})"


def _shorten(text: str) -> str:
    return text if len(text) <= _MODULE_WIDTH else "..." + text[-(_MODULE_WIDTH - 3) :]


def _dearest(ops: Sequence[DearOp]) -> list[str]:
    if not ops:
        return []
    mixed = any(op.origin != "model" for op in ops)
    rows = [["op", "module", "source", "count", "time", "share", "bound", *(["by"] * mixed)]]
    rows += [
        [
            op.op,
            _shorten(op.module) or "-",
            _shorten(op.source) or "-",
            str(op.count),
            seconds(op.time_s),
            percent(op.share),
            op.bound,
            *([op.origin] * mixed),
        ]
        for op in ops
    ]
    return ["  dearest ops (fused neighbours included)"] + [
        f"    {line}" for line in table(rows, frozenset({3, 4, 5}))
    ]


def to_json(report: Report) -> Json:
    """The report as plain data: keys are stable within `format` and end in their unit."""
    return {
        "format": FORMAT_VERSION,
        "script": report.script,
        "oracle": report.oracle,
        "notes": list(report.notes),
        "steps": [_step_json(f, _beside(report, f)) for f in fold(report.steps)],
    }


def _model_json(step: StepEstimate, model: StepEstimate) -> Json:
    return {
        "time_s": model.time_s,
        "peak_bytes": model.memory.peak_bytes,
        "fits": model.memory.fits,
        "libtpu_over_model_time": step.time_s / model.time_s if model.time_s else None,
    }


def _step_json(folded: Folded, model: StepEstimate | None) -> Json:
    step = folded.estimate
    return {
        "oracle": step.oracle,
        "remarks": list(step.remarks),
        **({"model": _model_json(step, model)} if model else {}),
        "first_step": folded.first,
        "last_step": folded.last,
        "name": step.name,
        "chip": step.chip,
        "mode": step.mode,
        "devices": step.devices,
        "topology": step.topology,
        "network_s": dict(step.network_s),
        "exposed_s": step.exposed_s,
        "time_s": step.time_s,
        "matmul_flops": step.matmul_flops,
        "mfu": step.mfu,
        "peak_flops_per_s": step.peak_flops_per_s,
        "achieved_flops_per_s": step.achieved_flops_per_s,
        "attainable_flops_per_s": step.attainable_flops_per_s,
        "hbm_bytes": step.hbm_bytes,
        "achieved_bytes_per_s": step.achieved_bytes_per_s,
        "attainable_bytes_per_s": step.attainable_bytes_per_s,
        "bound": step.bound,
        "bound_shares": dict(step.shares),
        "programs": step.programs,
        "kernels": step.kernels,
        "unmodelled_share": step.unmodelled_share,
        "unmodelled": [{"reason": reason, "count": count} for reason, count in step.unmodelled],
        "hints": [{"hint": hint, "count": count} for hint, count in step.hints],
        "memory": {
            "peak_bytes": step.memory.peak_bytes,
            "usable_bytes": step.memory.usable_bytes,
            "headroom_bytes": step.memory.headroom_bytes,
            "fits": step.memory.fits,
            "origin": step.memory_origin,
            "by_kind_bytes": dict(step.memory.by_kind),
        },
        "dearest_ops": [
            {
                "op": op.op,
                "module": op.module,
                "source": op.source,
                "count": op.count,
                "time_s": op.time_s,
                "share": op.share,
                "bound": op.bound,
                "origin": op.origin,
            }
            for op in step.dearest
        ],
    }
