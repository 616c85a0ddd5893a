"""Peers, roofline and this project beside the published rows, as the Markdown of RESULTS.md.

Joins what the scripts of this folder wrote with the JSON of `torchtpu-perf validate`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.peers import roofline
from benchmarks.peers.published import Json, command, is_compared, sample
from torchtpu.perf_model.validation import kernels, serving, side_by_side
from torchtpu.perf_model.validation.rows import Row, rows

GROUPS = {
    "serving": "Serving",
    "gemm": "bfloat16 GEMMs on TPU7x and v6e, from 1024",
    "gemm_small": "bfloat16 GEMMs on TPU7x, 128 to 512",
    "gemm_f16": "float16 GEMMs on v4, from 1024",
    "gemm_f16_small": "float16 GEMMs on v4, 128 to 1024",
}
_LARGE = 1024  # of m, k and n
_LINE_ROWS = 4  # a line is fitted to so many rows at least
Line = tuple[float, float]  # (constant in s, factor) on a time


class JoinError(ValueError):
    """Files that do not belong together; the message says which and what to run again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """What one method says of the rows.

    values: by row id, in the row's unit. reasons: why it has none. fitted: its constants are
    fitted on the fit half already, so that it is not given a factor.
    """

    name: str
    values: Mapping[str, float]
    reasons: Mapping[str, str] = field(default_factory=dict)
    fitted: bool = False


def group_of(row: Row) -> str:
    """The key of GROUPS that a row of kind gemm or serving belongs to."""
    if row.kind == "serving" or row.metric != "gemm":
        return "serving" if row.kind == "serving" else row.metric
    return "gemm" if min(row.config[size] for size in "mkn") >= _LARGE else "gemm_small"


def compared() -> dict[str, Row]:
    """The GEMM and serving rows that the peers are asked for, by id."""
    chosen = (row for row in rows() if row.kind in ("gemm", "serving"))
    return {r.id: r for r in chosen if is_compared({"unit": r.unit, "metric": r.metric})}


def value_of(row: Row, seconds: float) -> float:
    """Seconds of a GEMM, or of all requests, as the row's quantity."""
    if row.kind == "gemm":
        return kernels.in_unit(row, seconds)
    rate = serving.Requests.of(row.config).tokens / seconds
    return rate / roofline.chips_used(row) if row.unit.endswith("/chip") else rate


def seconds_of(row: Row, value: float) -> float:
    """The inverse of value_of."""
    if row.unit == "us":
        return value / 1e6
    return value_of(row, value)  # a rate: work / seconds, so that it undoes itself


def peer_column(report: Json, known: Mapping[str, Row]) -> Column:
    """What a peer's script wrote. Raises JoinError where it was asked for other rows."""
    name, answers = f"{report['peer']} {report['version']}", report["rows"]
    for answer in answers:
        row = known.get(answer["id"])
        if row is None or dict(row.config) != answer["config"]:
            expected = "no such row" if row is None else dict(row.config)
            raise JoinError(
                f"[peers] {name}, {answer['id']}: perf_model/validation has {expected}, the file"
                f" has {answer['config']}; run `{report['command']}` again"
            )
    return Column(
        name=name,
        values={
            a["id"]: value_of(known[a["id"]], _seconds(known[a["id"]], a))
            for a in answers
            if "reason" not in a
        },
        reasons={a["id"]: a["reason"] for a in answers if "reason" in a},
    )


def _seconds(row: Row, answer: Json) -> float:
    if row.kind == "gemm":
        return float(answer["seconds"])
    return serving.seconds(row.config, answer["prefill_s"], answer["decode_s"])


def our_columns(reports: Sequence[Json], known: Mapping[str, Row]) -> Iterator[Column]:
    """A column per oracle of what `torchtpu-perf validate --format json` printed, in one run or in
    several. Raises JoinError.
    """
    for oracle in dict.fromkeys(oracle for report in reports for oracle in report):
        metrics = [metric for report in reports for metric in report.get(oracle, {}).values()]
        made = [answer for metric in metrics for answer in metric["rows"]]
        missed = [answer for metric in metrics for answer in metric["unpredicted"]]
        for answer in made + missed:
            _check_published(answer, known)
        yield Column(
            name=f"torchtpu, {oracle}",
            values={answer["id"]: answer["predicted"] for answer in made},
            reasons={answer["id"]: answer["reason"] for answer in missed},
            fitted=True,
        )


def _check_published(answer: Json, known: Mapping[str, Row]) -> None:
    row = known.get(answer["id"])
    if row is None or row.value != answer["published"]:
        expected = "no such row" if row is None else row.value
        raise JoinError(
            f"[peers] {answer['id']}: perf_model/validation has {expected}, the file has"
            f" {answer['published']}; run torchtpu-perf validate again"
        )


def own_columns(chosen: Sequence[Row]) -> list[Column]:
    """The roofline, and the TPU compiler's estimates that compiler.toml holds."""
    peaks = {row.id: value_of(row, roofline.seconds(row)) for row in chosen}
    gemms = [row for row in chosen if row.kind == "gemm"]
    compiled = {row.id: side_by_side.compiler_s(row) for row in gemms}
    values = {row.id: value_of(row, s) for row in gemms if (s := compiled[row.id]) is not None}
    return [
        Column(name="peak roofline", values=peaks),
        Column(name="libtpu's cycles", values=values),
    ]


def mapped(column: Column, chosen: Sequence[Row], line: Line) -> Column:
    """The column with every time t taken for line[0] + line[1] t."""
    constant_s, factor = line
    values = {
        row.id: value_of(row, constant_s + factor * seconds_of(row, column.values[row.id]))
        for row in chosen
        if row.id in column.values
    }
    return replace(column, values=values)


def error_percent(column: Column, chosen: Sequence[Row]) -> float | None:
    """Mean of |predicted / published - 1| in %, of the rows that the column has; None without."""
    errors = [
        abs(column.values[row.id] / row.value - 1) for row in chosen if row.id in column.values
    ]
    return 100 * sum(errors) / len(errors) if errors else None


def factor_of(column: Column, fit: Sequence[Row]) -> Line | None:
    """(0, factor): of the factors on the column's times that make one row exact, the one with the
    least mean error on all of them; None without a row.
    """
    fit = [row for row in fit if row.id in column.values]
    times = ((seconds_of(r, r.value), seconds_of(r, column.values[r.id])) for r in fit)
    lines = [(0.0, published / predicted) for published, predicted in times]
    errors = {line: error_percent(mapped(column, fit, line), fit) or 0.0 for line in lines}
    return min(errors, key=errors.__getitem__, default=None)


def line_of(column: Column, fit: Sequence[Row]) -> Line | None:
    """(constant in s, factor) by least squares of relative errors; None for few rows."""
    fit = [row for row in fit if row.id in column.values]
    if len(fit) < _LINE_ROWS:
        return None
    published = np.array([seconds_of(row, row.value) for row in fit])
    predicted = np.array([seconds_of(row, column.values[row.id]) for row in fit])
    terms = np.stack([1 / published, predicted / published], axis=1)
    constant_s, factor = np.linalg.lstsq(terms, np.ones(len(fit)))[0]
    return float(constant_s), float(factor)


def render(columns: Sequence[Column], known: Mapping[str, Row], every_row: bool) -> str:
    """Markdown: a section per group with its errors, then its rows."""
    sections = []
    for key, name in GROUPS.items():
        chosen = [row for row in known.values() if group_of(row) == key]
        shown = [c for c in columns if any(row.id in {**c.values, **c.reasons} for row in chosen)]
        listed = chosen if every_row else sample(chosen)
        sections += [f"## {name}: {len(chosen)} rows", "", *_errors(shown, chosen), ""]
        sections += [*_rows(shown, listed), *_reasons(shown, chosen), ""]
    return "\n".join(sections)


def _errors(columns: Sequence[Column], chosen: Sequence[Row]) -> Iterator[str]:
    shared = [row for row in chosen if all(row.id in column.values for column in columns)]
    parts = {
        "its rows": chosen,
        "its rows, held out": [row for row in chosen if row.half == "held_out"],
        f"the {len(shared)} rows of all": shared,
    }
    yield _line("mean absolute error", *(column.name for column in columns))
    yield "|---|" + "---:|" * len(columns)
    yield _line("rows", *(str(_count(column, chosen)) for column in columns))
    for label, part in parts.items():
        yield _line(label, *(_percent(error_percent(column, part)) for column in columns))
    fit = [row for row in chosen if row.half == "fit"]
    for name, fitter in {"a factor": factor_of, "a line": line_of}.items():
        lines = [None if column.fitted else fitter(column, fit) for column in columns]
        if any(lines):
            yield from _refitted(name, lines, columns, parts)


def _refitted(
    name: str,
    lines: Sequence[Line | None],
    columns: Sequence[Column],
    parts: Mapping[str, Sequence[Row]],
) -> Iterator[str]:
    yield _line(f"{name} on its time, of the fit half", *map(_mapping, lines))
    for label, part in parts.items():
        cells = (
            "-" if line is None else _percent(error_percent(mapped(column, part, line), part))
            for column, line in zip(columns, lines, strict=True)
        )
        yield _line(f"with it, {label}", *cells)


def _count(column: Column, chosen: Sequence[Row]) -> int:
    return sum(row.id in column.values for row in chosen)


def _rows(columns: Sequence[Column], chosen: Sequence[Row]) -> Iterator[str]:
    yield _line("row", "half", "published", "unit", *(column.name for column in columns))
    yield "|---|---|---:|---|" + "---:|" * len(columns)
    for row in chosen:
        cells = (_cell(column, row) for column in columns)
        yield _line(row.id, row.half, f"{row.value:.4g}", row.unit, *cells)


def _reasons(columns: Sequence[Column], chosen: Sequence[Row]) -> Iterator[str]:
    for column in columns:
        for row in chosen:
            if row.id in column.reasons:
                yield f"\n{row.id}, {column.name}: {column.reasons[row.id]}"


def _cell(column: Column, row: Row) -> str:
    if row.id not in column.values:
        return "none" if row.id in column.reasons else "-"
    value = column.values[row.id]
    return f"{value:.4g} ({100 * (value / row.value - 1):+.1f} %)"


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def _mapping(line: Line | None) -> str:
    if line is None:
        return "-"
    constant = f"{line[0] * 1e6:+.2f} us" if line[0] else ""
    return f"x {line[1]:.3f} {constant}".rstrip()


def _head(reports: Sequence[Json]) -> Iterator[str]:
    yield "# Published rows beside peers, roofline and torchtpu\n"
    yield f"Made by `{command()}`.\n"
    for report in reports:
        made = f"{report['peer']} {report['version']}, Python {report['python']}"
        yield f"- {made}, `{report['command']}`: {'; '.join(report['notes'])}."
    yield ""


def main() -> None:
    """Reads the files, prints the tables or, with --out, writes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", nargs="+", required=True, help="JSON of torchtpu-perf validate")
    parser.add_argument("--peers", nargs="*", default=[], help="JSON of genz.py and the like")
    parser.add_argument("--rows", action="store_true", help="list every row")
    parser.add_argument("--out", metavar="FILE", help="write there instead of printing")
    options = parser.parse_args()
    ours, peers = (
        [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
        for paths in (options.ours, options.peers)
    )
    known = compared()
    try:
        columns = [*own_columns(list(known.values())), *(peer_column(r, known) for r in peers)]
        columns += our_columns(ours, known)
    except JoinError as error:
        parser.error(str(error))
    text = "\n".join(_head(peers)) + "\n" + render(columns, known, options.rows)
    if options.out:
        Path(options.out).write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
