"""What the process compiled: the latest programs of each op, and how a new one differs."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

from torchtpu import config, logs
from torchtpu.errors import TpuError
from torchtpu.program import Program
from torchtpu.recompiles.entries import Entry, entries, ops
from torchtpu.recompiles.hints import hint
from torchtpu.recompiles.report import Recompile, Recompiles, at, table

_MAX_ROWS = 1000  # the latest recompiles
_MAX_NODES = 1 << 15  # of all remembered programs; families that compiled longest ago go first
_PER_FAMILY = 64  # nodes of one family's programs: 64 of one op, 4 of a long one
_AT_LEAST = 4
_ABSENT = "absent"


class CompileLimitError(TpuError):
    """TORCHTPU_MAX_COMPILES is reached; the text says what recompiled."""


class _Known(NamedTuple):
    program: Program
    precision: str
    line: str
    nodes: int


class History:
    """What was compiled, in bounded memory; costs nothing but at a compile."""

    def __init__(self) -> None:
        self.compiles = 0
        self.rows: deque[Recompile] = deque(maxlen=_MAX_ROWS)
        self.programs: Counter[str] = Counter()  # name -> recompiles, also of rows gone since
        self.user_line: Callable[[], str] = str  # set by the eager layer, which knows frames
        self._families: OrderedDict[Any, deque[_Known]] = OrderedDict()
        self._nodes = 0
        self._lock = Lock()

    def note(self, program: Program, precision: str) -> None:
        """Take down a compile that is about to happen; CompileLimitError where it is too many."""
        with self._lock:
            known = _Known(program, precision, self.user_line(), len(program.nodes))
            row = self._explain(known)
            if row is not None:
                self.rows.append(row)
                self.programs[row.program] += 1
                logs.recompiles.info("%s", row)
            self._check_limit(program)
            self.compiles += 1
            self._remember(known)

    def summary(self) -> tuple[list[Recompile], int, int]:
        """Return the latest recompiles, and how many compiles and recompiles there were."""
        return list(self.rows), self.compiles, sum(self.programs.values())

    def clear(self) -> None:
        """Forget what was compiled, but not how many programs."""
        with self._lock:
            self.rows.clear()
            self.programs.clear()
            self._families.clear()
            self._nodes = 0

    def _explain(self, new: _Known) -> Recompile | None:
        family = self._families.get(_family(new.program))
        if not family:
            return None
        now = entries(new.program, new.precision)
        nearest: tuple[tuple[int, bool], dict[Entry, tuple[Any, Any]], str] | None = None
        for known in reversed(family):
            found = _differences(known, new, now)
            distance = (len(found), known.line != new.line)
            if nearest is None or distance < nearest[0]:
                nearest = distance, found, known.line
        assert nearest is not None, "a family holds a program"
        _, found, line = nearest
        entry, (before, value) = next(iter(found.items()), (Entry("", "nothing"), ("", "")))
        return Recompile(
            program=_name(new.program),
            entry=str(entry),
            expected=before,
            got=value,
            differing=len(found),
            line=new.line,
            earlier_line=line,
            hint=hint(entry.kind, before, value),
        )

    def _check_limit(self, program: Program) -> None:
        limit = config.get("max_compiles")
        if 0 < limit <= self.compiles:
            raise CompileLimitError(
                f"[TORCHTPU_MAX_COMPILES] expected at most {limit} compiles in this process, got "
                f"one more, of {_name(program)}{at(self.user_line())}; keep shapes and static "
                f"arguments constant, or raise the limit. {table(*self.summary(), 5)}"
            )

    def _remember(self, known: _Known) -> None:
        key = _family(known.program)
        family = self._families.setdefault(key, deque())
        self._families.move_to_end(key)
        family.append(known)
        self._nodes += known.nodes
        while len(family) > max(_AT_LEAST, _PER_FAMILY // max(known.nodes, 1)):
            self._nodes -= family.popleft().nodes
        while self._nodes > _MAX_NODES and len(self._families) > 1:
            _, gone = self._families.popitem(last=False)
            self._nodes -= sum(k.nodes for k in gone)


def _family(program: Program) -> str:
    """Programs of one op are compared by op, longer ones by the first few of their ops."""
    return program.name


def _name(program: Program) -> str:
    names = ops(program)
    return names[0] if len(names) == 1 else program.name


def _differences(known: _Known, new: _Known, now: dict[Entry, Any]) -> dict[Entry, tuple[Any, Any]]:
    """The entries that differ, the first of them the one to name."""
    before_ops, now_ops = ops(known.program), ops(new.program)
    if before_ops != now_ops:
        length = max(len(before_ops), len(now_ops))
        at = [(_op(before_ops, i), _op(now_ops, i)) for i in range(length)]
        return {Entry(f"op {i}", "op"): (b, n) for i, (b, n) in enumerate(at) if b != n}
    before = entries(known.program, known.precision)
    found = {
        e: (_value(e, before), _value(e, now))
        for e in (now | before)
        if before.get(e, _ABSENT) != now.get(e, _ABSENT)
    }
    statics = {e: v for e, v in found.items() if e.kind == "value"}  # say more than what follows
    return statics | found


def _value(entry: Entry, known: dict[Entry, Any]) -> Any:
    """The value of an entry, or in words what is there instead."""
    if entry in known:
        return known[entry]
    if entry.kind == "value":
        return "an input" if any(e.argument == entry.argument for e in known) else "the default"
    return known.get(Entry(entry.argument, "value"), _ABSENT)


def _op(names: tuple[str, ...], index: int) -> str:
    return names[index] if index < len(names) else "the end"


history = History()


def explain_recompiles() -> Recompiles:
    """Return why programs were compiled again: which entry of the key differed, where, what to do.

    A recompile is a compile of an op (or, in fused mode and under torch.compile, of a list of ops)
    that was compiled before, with another key.
    """
    rows, compiles, _ = history.summary()
    return Recompiles(tuple(rows), compiles, dict(history.programs))
