"""`python -m torchtpu.lowerings`: which aten overloads the device has, how, and in which dtypes."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "lowerings"
MEASURED = _FOLDER / "dtypes.json"
DOCUMENT = _FOLDER / "SUPPORT.md"
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
    given = parser.parse_args(arguments)
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
