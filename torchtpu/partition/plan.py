"""The plan: programs to be run in order, and which values of the whole each takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torchtpu.program import Program

Run = Callable[[Sequence[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class Part:
    """One launch: the slots that it reads, writes, and those that nobody needs after it."""

    program: Program
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    drops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Parts in order; slots are numbers of values, those of the whole program's inputs first."""

    parts: tuple[Part, ...]
    outputs: tuple[int, ...]

    @property
    def programs(self) -> int:
        """How many different programs there are to compile."""
        return len({part.program for part in self.parts})

    @property
    def compiled_nodes(self) -> int:
        """How many nodes these programs have."""
        return sum(len(program.nodes) for program in {part.program for part in self.parts})

    def bind(self, compiled: Callable[[Program], Run]) -> Run:
        """Compile every part; return what takes the inputs of the whole and gives its outputs."""
        if len(self.parts) == 1:
            return compiled(self.parts[0].program)
        steps = [(compiled(p.program), p.takes, p.gives, p.drops) for p in self.parts]
        outputs = self.outputs

        def run(arrays: Sequence[Any]) -> list[Any]:
            values = dict(enumerate(arrays))
            for part, takes, gives, drops in steps:
                values.update(zip(gives, part([values[i] for i in takes]), strict=True))
                for i in drops:
                    del values[i]
            return [values[i] for i in outputs]

        return run


def whole(program: Program) -> Plan:
    """Return the plan of one part."""
    count = len(program.inputs)
    given = tuple(range(count, count + len(program.outputs)))
    return Plan((Part(program, tuple(range(count)), given, ()),), given)
