"""The published rows, chips and decoders as the scripts that run the peers read them: straight from
the project's TOML files with the standard library, for those scripts run where torchtpu is not.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[2]
VALIDATION = ROOT / "perf_model" / "validation"
LISTED = 16  # rows of a group that a table lists; of more, every so many
Json = dict[str, Any]
T = TypeVar("T")


def _toml(path: Path) -> Json:
    with path.open("rb") as file:
        return tomllib.load(file)


def rows(kind: str) -> Iterator[Json]:
    """{id, chip, config} of every published row of a kind ("gemm", "serving")."""
    for path in sorted(VALIDATION.glob("*.toml")):
        data = _toml(path)
        for workload in data.get("workload", ()):
            if workload["kind"] == kind:
                for row in filter(is_compared, workload["rows"]):
                    yield {"id": row["id"], "chip": workload["chip"], "config": workload["config"]}
        if kind == "gemm" and "columns" in data:
            yield from _grid(data)


def is_compared(row: Mapping[str, Any]) -> bool:
    """Whether a row with `unit` and `metric` is the peers' to answer: not the times of single
    tokens and steps, and not what the host of the server bounds.
    """
    return row["unit"] != "ms" and not row["metric"].endswith("host_bound")


def _grid(data: Mapping[str, Any]) -> Iterator[Json]:
    for m, k, n, _ in data["rows"]:
        config = {"m": m, "k": k, "n": n, "dtype": data["dtype"]}
        yield {"id": data["name"].format(m=m, k=k, n=n), "chip": data["chip"], "config": config}


def chip(name: str) -> Json:
    """{"section.key": value} of a chip file; a quantity may be per chip or per core."""
    data = _toml(ROOT / "perf_model" / "chips" / f"{name}.toml")
    return {
        f"{section}.{key}": fact["value"]
        for section, facts in data.items()
        if isinstance(facts, dict)
        for key, fact in facts.items()
        if "value" in fact
    }


def devices_per_chip(facts: Mapping[str, Any]) -> int:
    """How many JAX devices one chip is."""
    return int(facts["structure.tensorcores"] // facts["structure.cores_per_device"])


def decoder(name: str) -> Json:
    """Sizes of a decoder of examples/llm.py."""
    return dict(_toml(ROOT / "examples" / "llm_models.toml")[name])


def option(arguments: Sequence[str], name: str, default: str = "") -> str:
    """The value of an option of a command line of examples/llm.py."""
    return arguments[arguments.index(name) + 1] if name in arguments else default


def sample(group: Sequence[T]) -> Sequence[T]:
    """All rows of a group, or of many every so many."""
    return group[:: max(1, -(-len(group) // LISTED))]


def command() -> str:
    """The command line of this process."""
    spec = sys.modules["__main__"].__spec__
    return shlex.join(["python", "-m", spec.name if spec else sys.argv[0], *sys.argv[1:]])


def write(path: str, peer: str, package: str, found: Sequence[Json], notes: Sequence[str]) -> None:
    """Writes what a peer says of the rows, in the form that table.py reads."""
    report = {
        "peer": peer,
        "version": version(package),
        "python": platform.python_version(),
        "command": command(),
        "notes": list(notes),
    }
    lines = ",\n".join(f"  {json.dumps(answer)}" for answer in found)
    head = json.dumps(report, indent=1).removesuffix("\n}")
    Path(path).write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")
