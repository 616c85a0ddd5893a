"""`python -m torchtpu.lowerings`: which aten overloads the device has, how, and in which dtypes."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[1] / "lowerings"
MEASURED = _FOLDER / "dtypes.json"
DOCUMENT = _FOLDER / "SUPPORT.md"
TPU = _FOLDER / "tpu.json"
HOW = ("lowering", "kernel", "composite", "decomposition", "fallback")


@dataclass(frozen=True, kw_only=True)
class Row:
    """An overload in the table."""

    overload: str
    how: str  # one of HOW
    by: str  # the functional form whose lowering or rule it is; "" for its own
    dtypes: tuple[str, ...]  # of the first tensor, in which results were found to be the CPU's


def rows(pattern: str = ".*") -> list[Row]:
    """Return the table of the overloads whose name after "aten::" matches a pattern wholly."""
    from torchtpu.eager.support import overloads, support

    wanted = re.compile(pattern)
    names = (n for n in overloads() if wanted.fullmatch(n.removeprefix("aten::")))
    return [Row(**asdict(support(n)), dtypes=tuple(measured().get(n, "").split())) for n in names]


@cache
def measured() -> dict[str, str]:
    """Return dtypes by overload, as `python -m tests.ops.overloads --write` has found them."""
    found: dict[str, str] = json.loads(MEASURED.read_text())
    return found


@dataclass(frozen=True, kw_only=True)
class OnTpu:
    """What the TPU compiler makes of a lowering's programs for one dtype of its tensors."""

    overload: str
    dtype: str
    refused: dict[str, str]  # by topology, the reason; empty where all compile


def on_tpu(pattern: str = ".*") -> list[OnTpu]:
    """Return the measured table of lowerings in the TPU compiler, for overloads as in `rows`."""
    wanted = re.compile(pattern)
    return [
        OnTpu(overload=name, dtype=dtype, refused=refused)
        for name, found in compiled()["lowerings"].items()
        if wanted.fullmatch(name.removeprefix("aten::"))
        for dtype, refused in found.items()
    ]


@cache
def compiled() -> dict[str, Any]:
    """Return versions, topologies and results that `tests.ops.tpu_compiles --write` found."""
    found: dict[str, Any] = json.loads(TPU.read_text())
    return found


def _print_on_tpu(pattern: str, form: str) -> int:
    table, about = on_tpu(pattern), compiled()
    topologies = about["topologies"]
    if form == "json":
        print(json.dumps({**about, "lowerings": [asdict(r) for r in table]}, indent=1))
        return 0
    if form == "markdown":
        print(
            f"| lowering | dtype | {' | '.join(topologies)} |\n|---|---{'|---' * len(topologies)}|"
        )
    for row in table:
        cells = [row.refused.get(t, "compiles") for t in topologies]
        if form == "markdown":
            print(f"| `{row.overload}` | {row.dtype} | {' | '.join(cells)} |")
        else:
            apart = [f"{t}: {cell}" for t, cell in zip(topologies, cells, strict=True)]
            said = cells[0] if len(set(cells)) == 1 else "; ".join(apart)
            print(f"{row.overload:48} {row.dtype:10} {said}")
    if form == "text":
        print(_share(table, about))
    return 0


def _share(table: Sequence[OnTpu], about: dict[str, Any]) -> str:
    """A line per dtype and topology, and the versions they hold for."""
    lines = []
    for dtype, topology in product(dict.fromkeys(r.dtype for r in table), about["topologies"]):
        rows = [r for r in table if r.dtype == dtype]
        right = sum(topology not in r.refused for r in rows)
        lines.append(f"{topology} {dtype}: {right} of {len(rows)} compile, {right / len(rows):.1%}")
    return "\n".join([*lines, ", ".join(f"{n} {v}" for n, v in about["versions"].items())])


def markdown(table: Sequence[Row]) -> str:
    """Return the table for people: one line per op, its overloads together."""
    by_op: defaultdict[str, list[Row]] = defaultdict(list)
    for row in table:
        by_op[row.overload.removeprefix("aten::").partition(".")[0]].append(row)
    lines = ["| op | how | dtypes | overloads |", "|---|---|---|---|"]
    for op, found in by_op.items():
        how = ", ".join(h for h in HOW if any(r.how == h for r in found))
        dtypes = " ".join(dict.fromkeys(d for r in found for d in r.dtypes))
        names = " ".join(r.overload.partition(".")[2] or "default" for r in found)
        lines.append(f"| `{op}` | {how} | {dtypes} | {names} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m torchtpu.lowerings", description=__doc__)
    parser.add_argument("--ops", default=".*", help='regular expression, e.g. "add.*"')
    parser.add_argument("--format", default="text", choices=("text", "json", "markdown"))
    parser.add_argument(
        "--by-hand",
        action="store_true",
        help="in-place and out= forms that are not derived, and why",
    )
    parser.add_argument(
        "--tpu", action="store_true", help="what the TPU compiler makes of each lowering"
    )
    given = parser.parse_args(arguments)
    if given.tpu:
        return _print_on_tpu(given.ops, given.format)
    if given.by_hand:
        return _print_by_hand()
    table = rows(given.ops)
    if given.format == "json":
        print(json.dumps([asdict(r) for r in table], indent=1))
        return 0
    if given.format == "markdown":
        print(markdown(table))
        return 0
    for row in table:
        by = f"{row.how} of {row.by}" if row.by else row.how
        print(f"{row.overload:48} {by:48} {' '.join(row.dtypes)}".rstrip())
    counts = Counter(r.how for r in table)
    print(f"{len(table)} overloads: " + ", ".join(f"{counts[h]} {h}" for h in HOW if counts[h]))
    return 0


def _print_by_hand() -> int:
    from torchtpu.eager import dispatch, support

    found = support.by_hand()
    for module, why in support.BY_HAND.items():
        names = sorted(n for n, m in found.items() if m == module)
        print(f"eager/{module}.py, {len(names)}: {why}")
        for name in names:
            print(f"    {name}")
    derived = set(dispatch.functional_forms) - set(dispatch.functional_forms.values()) - set(found)
    print(f"in-place and out= forms: {len(derived)} derived, {len(found)} by hand")
    return 0
