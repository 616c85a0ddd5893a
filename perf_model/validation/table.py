"""Predicted beside published: errors by metric, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchtpu.perf_model.quantities import table
from torchtpu.perf_model.validation.rows import Row

Json = dict[str, object]
_SHOWN = 60  # rows of a metric that are listed; of more only the worst
_WORST = 10
_HEAD = ["row", "half", "predicted", "published", "unit", "error"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What an oracle says of a row, in the row's unit; None with the reason where it cannot."""

    row: Row
    predicted: float | None = None
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Predicted over published, less one."""
        return None if self.predicted is None else self.predicted / self.row.value - 1


def mean_abs_error_percent(answers: Sequence[Answer], half: str = "") -> float | None:
    """Mean of |predicted / published - 1| in %, of one half or of all; None without a row."""
    errors = [
        abs(answer.error)
        for answer in answers
        if answer.error is not None and half in ("", answer.row.half)
    ]
    return 100 * sum(errors) / len(errors) if errors else None


def by_metric(answers: Sequence[Answer]) -> Mapping[str, list[Answer]]:
    """The answers of each metric, in the order of the rows."""
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        found.setdefault(answer.row.metric, []).append(answer)
    return found


def to_json(oracles: Mapping[str, Sequence[Answer]]) -> Json:
    """{oracle: {metric: {mean_abs_error_percent, rows: [{id, predicted, published, ...}], ...}}}"""
    return {
        oracle: {metric: _metric_json(group) for metric, group in by_metric(answers).items()}
        for oracle, answers in oracles.items()
    }


def _metric_json(answers: Sequence[Answer]) -> Json:
    return {
        "mean_abs_error_percent": mean_abs_error_percent(answers),
        "held_out_mean_abs_error_percent": mean_abs_error_percent(answers, "held_out"),
        "rows": [_row_json(answer) for answer in answers if answer.predicted is not None],
        "unpredicted": [
            {"id": answer.row.id, "published": answer.row.value, "reason": answer.reason}
            for answer in answers
            if answer.predicted is None
        ],
    }


def _row_json(answer: Answer) -> Json:
    row, error = answer.row, answer.error
    assert error is not None
    return {
        "id": row.id,
        "predicted": answer.predicted,
        "published": row.value,
        "error_percent": 100 * error,
        "unit": row.unit,
        "chip": row.chip,
        "workload": row.workload,
        "half": row.half,
        "source": row.source,
        "trust": row.trust,
        "note": row.note,
    }


def render(oracles: Mapping[str, Sequence[Answer]], every_row: bool) -> str:
    """Text: a summary of each oracle's metrics, then the rows: all, or of many the worst."""
    lines: list[str] = []
    for oracle, answers in oracles.items():
        groups = by_metric(answers)
        lines += [f"oracle {oracle}", *(f"  {line}" for line in _summary(groups)), ""]
        for metric, group in groups.items():
            lines += [f"  {metric}", *(f"    {line}" for line in _listed(group, every_row)), ""]
    return "\n".join(lines)


def _summary(groups: Mapping[str, Sequence[Answer]]) -> list[str]:
    rows = [["metric", "rows", "predicted", "mean error, held out", "mean error, all"]]
    for metric, answers in groups.items():
        made = sum(answer.predicted is not None for answer in answers)
        held_out = _percent(mean_abs_error_percent(answers, "held_out"))
        everything = _percent(mean_abs_error_percent(answers))
        rows.append([metric, str(len(answers)), str(made), held_out, everything])
    return table(rows, frozenset({1, 2, 3, 4}))


def _listed(answers: Sequence[Answer], every_row: bool) -> list[str]:
    shown: Sequence[Answer] = answers
    if len(answers) > _SHOWN and not every_row:
        known = [answer for answer in answers if answer.predicted is not None]
        shown = sorted(known, key=lambda a: -abs(a.error or 0.0))[:_WORST]
    rows = [_HEAD, *(_cells(answer) for answer in shown)]
    left = len(answers) - len(shown)
    return table(rows, frozenset({2, 3, 5})) + ([f"and {left} with less error"] if left else [])


def _cells(answer: Answer) -> list[str]:
    row = answer.row
    if answer.predicted is None:
        return [row.id, row.half, "-", f"{row.value:.4g}", row.unit, answer.reason]
    error = f"{100 * (answer.error or 0.0):+.1f} %"
    return [row.id, row.half, f"{answer.predicted:.4g}", f"{row.value:.4g}", row.unit, error]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"
