"""The table of what modes.py measured, and the bars that the modes have to keep."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Modes = Mapping[str, Mapping[str, Any]]  # mode -> name of a measurement -> value
REFERENCE = "torch_cpu"  # of losses
LOSS_ERROR = 1e-4  # relative
WARM_SHARE = 0.25  # of the cold first step


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A mode's training step, as a share of another mode's, is at most `limits` by model."""

    mode: str
    other: str
    limits: Mapping[str, float]


ALL = ("mlp", "gpt", "cnn")
BARS = (
    Bar(mode="fused", other="strict", limits={"mlp": 0.7, "gpt": 0.7, "cnn": 1.0}),
    Bar(mode="fused", other="compiled", limits={"gpt": 1.15}),
    Bar(mode="strict", other="debug", limits=dict.fromkeys(ALL, 1.0)),
    Bar(mode="trainer", other="jax", limits=dict.fromkeys(ALL, 1.10)),
)
WARM = ("fused", "compiled")


def ratio(a: Mapping[str, Any], b: Mapping[str, Any], what: str = "train") -> float:
    """Median over the rounds of a's time as a share of b's."""
    rounds = zip(a[f"{what}_rounds_ms"], b[f"{what}_rounds_ms"], strict=True)
    return float(statistics.median(x / y for x, y in rounds))


def loss_error(losses: list[float], expected: list[float]) -> float:
    """The largest relative difference; infinite where one is not a number."""
    errors = [abs(x - y) / max(abs(y), 1e-12) for x, y in zip(losses, expected, strict=True)]
    return max(e if e == e else float("inf") for e in errors)


def table(model: str, modes: Modes) -> str:
    """A line per mode; the spread is half the distance of the quartiles, in percent."""
    columns = (
        "train_ms", "+-%", "cpu_ms", "infer_ms", "+-%", "first_s", "second_s", "warm_s", "compiles",
        "warm", "late", "MiB", "loss_err",
    )  # fmt: skip
    widths = (10, 5, 8, 10, 5, 9, 10, 8, 10, 6, 6, 7, 10)
    head = "".join(f"{c:>{w}}" for c, w in zip(columns, widths, strict=True))
    lines = [f"{model:<5}{'mode':<14}{head}"]
    for mode, found in modes.items():
        cells = _cells(found, modes.get(REFERENCE))
        row = "".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))
        lines.append(f"{model:<5}{mode:<14}{row}")
    return "\n".join(lines)


def _cells(found: Mapping[str, Any], reference: Mapping[str, Any] | None) -> list[str]:
    error = loss_error(found["losses"], reference["losses"]) if reference else float("nan")
    return [
        f"{found['train_ms']:.2f}",
        f"{_spread(found['train_rounds_ms']):.0f}",
        f"{found['train_cpu_ms']:.2f}",
        f"{found['infer_ms']:.2f}",
        f"{_spread(found['infer_rounds_ms']):.0f}",
        f"{found['first_step_s']:.2f}",
        f"{found['second_step_s']:.2f}",
        f"{found.get('warm_first_step_s', float('nan')):.2f}",
        f"{found['compiles']}",
        f"{found.get('warm_compiles', '-')}",
        f"{sum(found['late_compiles'].values())}",
        f"{found['peak_rss_mib']:.0f}",
        f"{error:.0e}",
    ]


def _spread(rounds: list[float]) -> float:
    if len(rounds) < 4:
        return 50 * (max(rounds) - min(rounds)) / statistics.median(rounds)
    low, middle, high = statistics.quantiles(rounds, n=4)
    return 50 * (high - low) / middle


def check(results: Mapping[str, Modes]) -> list[str]:
    """A line per bar and model, PASS or FAIL; bars of modes that were not measured say so."""
    return [line for model, modes in results.items() for line in _lines(model, modes)]


def _lines(model: str, modes: Modes) -> Iterator[str]:
    for bar in BARS:
        if model in bar.limits:
            name = f"training: {bar.mode} / {bar.other}"
            both = bar.mode in modes and bar.other in modes
            value = ratio(modes[bar.mode], modes[bar.other]) if both else None
            yield _line(model, name, value, bar.limits[model])
    for mode in WARM:
        found = modes.get(mode, {})
        warm = found.get("warm_first_step_s")
        share = warm / found["first_step_s"] if warm is not None else None
        yield _line(model, f"first step: {mode} warm / cold", share, WARM_SHARE)
        yield _line(model, f"compiles: {mode} warm", found.get("warm_compiles"), 0)
    for mode, found in modes.items():
        for kind, count in found["late_compiles"].items():
            if count:
                yield _line(model, f"late compiles: {mode}, {kind} loop", count, 0)
        if REFERENCE in modes:
            error = loss_error(found["losses"], modes[REFERENCE]["losses"])
            if not error <= LOSS_ERROR:
                yield _line(model, f"losses: {mode} beside {REFERENCE}", error, LOSS_ERROR)
    late = sum(n for found in modes.values() for n in found["late_compiles"].values())
    yield _line(model, "late compiles: all modes and loops", late, 0)


def _line(model: str, name: str, value: float | None, limit: float) -> str:
    if value is None:
        return f"  -   {model:<5}{name:<44}{'not measured':>12}"
    verdict = "PASS" if value <= limit else "FAIL"
    return f"{verdict:<6}{model:<5}{name:<44}{value:>12.4g}  (at most {limit:g})"
