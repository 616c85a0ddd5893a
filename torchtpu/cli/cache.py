"""`torchtpu-cache`: what the compile cache of this host, or another directory, holds."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchtpu import config
from torchtpu.cache.directory import Unusable
from torchtpu.cache.entry import VERSION, BadEntry, Entry
from torchtpu.cache.store import Found, Store
from torchtpu.cache.tiers import host_directory
from torchtpu.errors import ConfigError

EXIT_OK, EXIT_BAD, EXIT_ERROR = 0, 1, 2
_VERSIONS = ("torchtpu", "torch", "jax", "jaxlib")
_DAY_S = 86400.0


class _Store:
    """The store of a directory, which need not be there: then it is empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store = Store(path, shared=True) if (path / f"v{VERSION}").is_dir() else None

    def list(self) -> list[Found]:
        """Return the files, the last used one first."""
        found = self._store.list() if self._store else ()
        return sorted(found, key=lambda f: f.used_s, reverse=True)

    def about(self, found: Found) -> Entry | None:
        """Return what an entry says of itself; None where it is bad."""
        try:
            return self._store.about(found) if self._store else None
        except (BadEntry, OSError):
            return None

    def verify(self, found: Found) -> str:
        """Say what is wrong with an entry."""
        return self._store.verify(found) if self._store else ""


def _described(found: Found, entry: Entry | None) -> dict[str, Any]:
    known = dict(entry.entries) if entry else {}
    return {
        "program": entry.name if entry else "(not readable: see torchtpu-cache verify)",
        "digest": found.path.stem,
        "bytes": found.nbytes,
        "created_s": entry.created_s if entry else None,
        "used_s": found.used_s,
        "device": known.get("device", ""),
        "versions": {name: known.get(name, "") for name in _VERSIONS},
    }


def _list(store: _Store, arguments: argparse.Namespace) -> int:
    rows = [_described(found, store.about(found)) for found in store.list()]
    if arguments.format == "json":
        _write_json(rows)
        return EXIT_OK
    now = time.time()
    print(f"{'size':>9}  {'age':>6}  {'last use':>8}  {'jaxlib':8}  {'digest':12}  program")
    for row in rows:
        age = _ago(now - row["created_s"]) if row["created_s"] else "?"
        used, jaxlib = _ago(now - row["used_s"]), row["versions"]["jaxlib"]
        size, digest = _size(row["bytes"]), row["digest"][:12]
        print(f"{size:>9}  {age:>6}  {used:>8}  {jaxlib:8}  {digest:12}  {row['program']}")
    return EXIT_OK


def _stats(store: _Store, arguments: argparse.Namespace) -> int:
    found = store.list()
    versions = Counter(
        " ".join(f"{n} {v}" for n, v in _described(f, store.about(f))["versions"].items())
        for f in found
    )
    total = sum(f.nbytes for f in found)
    if arguments.format == "json":
        _write_json(
            {
                "directory": str(store.path),
                "entries": len(found),
                "bytes": total,
                "bound_bytes": config.get("cache_bytes"),
                "oldest_use_s": found[-1].used_s if found else None,
                "versions": dict(versions),
            }
        )
        return EXIT_OK
    print(f"{store.path}: {len(found)} programs, {_size(total)}")
    for text, count in versions.most_common():
        print(f"  {count} of {text}")
    return EXIT_OK


def _clear(store: _Store, arguments: argparse.Namespace) -> int:
    before = time.time() - arguments.unused_days * _DAY_S
    old = [f for f in store.list() if f.used_s <= before]
    for found in old:
        found.path.unlink(missing_ok=True)
    _report(arguments, {"removed": len(old), "bytes": sum(f.nbytes for f in old)})
    return EXIT_OK


def _verify(store: _Store, arguments: argparse.Namespace) -> int:
    found = store.list()
    bad = {f.path: wrong for f in found if (wrong := store.verify(f))}
    for path in bad if arguments.delete else ():
        path.unlink(missing_ok=True)
    about = {"intact": len(found) - len(bad), "bad": {str(p): why for p, why in bad.items()}}
    _report(arguments, about)
    return EXIT_BAD if bad else EXIT_OK


def _report(arguments: argparse.Namespace, about: dict[str, Any]) -> None:
    if arguments.format == "json":
        _write_json(about)
        return
    for name, value in about.items():
        if isinstance(value, dict):
            print(f"{name}: {len(value)}", *(f"  {k}: {v}" for k, v in value.items()), sep="\n")
        else:
            print(f"{name}: {_size(value) if name == 'bytes' else value}")


def _write_json(data: object) -> None:
    print(json.dumps(data, indent=2))


def _size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def _ago(seconds: float) -> str:
    for unit, length_s in (("d", _DAY_S), ("h", 3600.0), ("m", 60.0)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


_Run = Callable[[_Store, argparse.Namespace], int]
_COMMANDS: dict[str, tuple[_Run, str]] = {
    "ls": (_list, "list the programs, the last used one first"),
    "stats": (_stats, "count programs and bytes by version"),
    "clear": (_clear, "remove programs"),
    "verify": (_verify, "check every file; exit code 1 where some are bad"),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchtpu-cache", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="{" + ",".join(_COMMANDS) + "}")
    for name, (run, text) in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "--dir", type=Path, help="of a cache (default: this host's, by the settings)"
        )
        command.add_argument("--format", choices=("text", "json"), default="text")
        command.set_defaults(run=run)
        if name == "clear":
            command.add_argument(
                "--unused-days",
                type=float,
                default=0.0,
                metavar="N",
                help="only those without a use in N days",
            )
        if name == "verify":
            command.add_argument("--delete", action="store_true", help="remove the bad ones")
    return parser


def _directory() -> Path:
    name: str = config.get("cache_name")
    if name == "disabled":
        raise ConfigError("[TORCH_TPU_TIER2_COMPILATION_CACHE] is disabled; expected --dir")
    return host_directory(config.get("cache_dir")) / name


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0, 1 for bad entries, 2 with a message on stderr for a user error."""
    arguments = _parser().parse_args(argv)
    try:
        run: _Run = arguments.run
        return run(_Store(arguments.dir or _directory()), arguments)
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_OK
    except (ConfigError, Unusable, OSError) as error:
        print(error, file=sys.stderr)
        return EXIT_ERROR


if __name__ == "__main__":
    sys.exit(main())
