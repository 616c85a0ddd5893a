"""Reads the text of an optimized, scheduled HLO module, as the TPU compiler prints it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torchtpu.perf_model.hlo.shape import HloError, Shape, parse_prefix

_HEAD = re.compile(r"^(ENTRY )?%?([\w.$-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.$-]+) = ")
_OPCODE = re.compile(r"\s*([\w-]+)\(")
_OPERAND = re.compile(r"%([\w.$-]+)")
_NO_ESTIMATE = 2**60  # larger values stand for "unknown" in the compiler's output
_CALLS = ("calls", "to_apply", "body", "condition")
_CONFIG = "backend_config"


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction. `literal` is what stands in the parentheses of a constant or parameter."""

    name: str
    opcode: str  # as HLO spells it, "copy-start"
    shape: Shape
    operands: tuple[str, ...] = ()
    literal: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    is_root: bool = False

    @property
    def op_name(self) -> str:
        """The path of names that the program's locations gave it."""
        found = re.search(r'op_name="([^"]*)"', self.attributes.get("metadata", ""))
        return found[1] if found else ""

    @property
    def source(self) -> str:
        """FILE:LINE of the program, where the metadata has it."""
        text = self.attributes.get("metadata", "")
        file, line = (
            re.search(r'source_file="([^"]*)"', text),
            re.search(r"source_line=(\d+)", text),
        )
        return f"{file[1]}:{line[1]}" if file and line else ""

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The backend's configuration; empty where there is none, or it is no JSON."""
        try:
            found = json.loads(self.attributes.get(_CONFIG, "{}"))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def cycles(self) -> int | None:
        """The compiler's own estimate of cycles; None where it makes none."""
        window = self.config.get("window_config") or {}
        found = int(window.get("estimated_cycles") or 0)
        return found if 0 < found <= _NO_ESTIMATE else None

    @property
    def called(self) -> tuple[str, ...]:
        """Names of the computations that it calls: condition and body of a loop, branches."""
        found = [
            name
            for key in (*_CALLS, "branch_computations", "true_computation", "false_computation")
            for name in _OPERAND.findall(self.attributes.get(key, ""))
        ]
        return tuple(dict.fromkeys(found))

    @property
    def replica_groups(self) -> str:
        """The groups of a collective as they are printed: lists of ids, or an iota form."""
        return self.attributes.get("replica_groups", "")

    @property
    def algorithm(self) -> Mapping[str, Any]:
        """How the compiler does a collective: emitter, strategy, colours, phases."""
        found = self.config.get("collective_algorithm_config") or {}
        return found if isinstance(found, dict) else {}

    @property
    def target(self) -> str:
        """What a custom call calls."""
        return self.attributes.get("custom_call_target", "").strip('"')


@dataclass(frozen=True, kw_only=True)
class Computation:
    """Instructions in the order of the schedule."""

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """The instructions by name."""
        return {i.name: i for i in self.instructions}

    @cached_property
    def root(self) -> Instruction:
        """What it returns."""
        return next(i for i in self.instructions if i.is_root)

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """Its parameters in order."""
        found = [i for i in self.instructions if i.opcode == "parameter"]
        return tuple(sorted(found, key=lambda i: int(i.literal)))


@dataclass(frozen=True, kw_only=True)
class Module:
    """A module: its computations by name, and the name of the one that is run."""

    name: str
    computations: Mapping[str, Computation]
    entry_name: str

    @property
    def entry(self) -> Computation:
        """The computation that is run."""
        return self.computations[self.entry_name]

    def walk(self, computation: Computation | None = None) -> Iterator[Instruction]:
        """Yield the instructions of a computation (the entry) and those of all that it calls."""
        for instruction in (computation or self.entry).instructions:
            yield instruction
            for name in instruction.called:
                yield from self.walk(self.computations[name])

    def collectives(self) -> list[Instruction]:
        """The collectives, each once: of an asynchronous one its start."""
        return [i for i in self.walk() if is_collective(i)]

    def trip_count(self, loop: Instruction) -> int | None:
        """Iterations of a `while`; None where the condition compares with no constant.

        The counter of JAX's loops goes up by one; its start is read where it is a constant.
        """
        known = (loop.config.get("known_trip_count") or {}).get("n")
        if known is not None:
            return int(known)
        condition = self.computations[_OPERAND.findall(loop.attributes["condition"])[0]]
        bounds = [
            int(i.literal)
            for i in self.walk(condition)
            if i.opcode == "constant" and not i.shape.sizes and re.fullmatch(r"-?\d+", i.literal)
        ]
        compared = [i for i in self.walk(condition) if i.opcode == "compare"]
        if len(bounds) != 1 or len(compared) != 1:
            return None
        extra = compared[0].attributes.get("direction") in ("LE", "GE")
        return max(0, bounds[0] - self._start(loop, condition) + extra)

    def _start(self, loop: Instruction, condition: Computation) -> int:
        """What the counter starts from, where that is a constant; else 0."""
        read = [
            int(i.attributes["index"])
            for i in condition.instructions
            if i.opcode == "get-tuple-element" and not i.shape.sizes
        ]
        users = [c for c in self.computations.values() if loop.name in c.by_name]
        made = users[0].by_name.get(loop.operands[0]) if users else None
        if len(read) != 1 or made is None or made.opcode != "tuple":
            return 0
        first = users[0].by_name[made.operands[read[0]]]
        is_number = first.opcode == "constant" and first.literal.lstrip("-").isdigit()
        return int(first.literal) if is_number else 0


KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)


def is_collective(instruction: Instruction) -> bool:
    """Whether an instruction is, or starts, a collective."""
    return instruction.opcode.removesuffix("-start") in KINDS


def read(text: str) -> Module:
    """Read the text of an HLO module. Raises HloError with the line that cannot be read."""
    name = re.match(r"HloModule ([^\s,]+)", text)
    if name is None:
        raise HloError(f"[hlo] expected a text that starts with HloModule, got {text[:40]!r}")
    computations: dict[str, Computation] = {}
    entry, current = "", ""
    lines: list[tuple[int, str]] = []  # of the instructions of the current computation
    for number, line in enumerate(text.splitlines(), 1):
        if head := _HEAD.match(line):
            current, lines = head[2], []
            entry = current if head[1] else entry
        elif current and _INSTRUCTION.match(line):
            lines.append((number, line))
        elif current and line.rstrip() == "}" and (not lines or _is_closed(lines[-1][1])):
            found = tuple(_instruction(line, number) for number, line in lines)
            computations[current] = Computation(name=current, instructions=found)
            current = ""
        elif current and line.strip():
            if not lines:
                raise HloError(f"[hlo] line {number}: expected NAME = SHAPE OPCODE(OPERANDS)")
            start, before = lines[-1]  # an attribute may go on over several lines
            lines[-1] = start, f"{before} {line}"
    if not entry or current:
        raise HloError(f"[hlo] {name[1]}: the text ends before its entry computation does")
    return Module(name=name[1], computations=computations, entry_name=entry)


def _is_closed(line: str) -> bool:
    return line.count("{") == line.count("}")


def _instruction(line: str, number: int) -> Instruction:
    start = _INSTRUCTION.match(line)
    try:
        if start is None:
            raise HloError("expected NAME = SHAPE OPCODE(OPERANDS)")
        shape, rest = parse_prefix(line[start.end() :])
        opcode = _OPCODE.match(rest)
        if opcode is None:
            raise HloError("expected an opcode behind the shape")
        inside, rest = _balanced(rest[opcode.end() :])
        return Instruction(
            name=start[2],
            opcode=opcode[1],
            shape=shape,
            operands=tuple(_OPERAND.findall(inside)) if opcode[1] != "constant" else (),
            literal=inside,
            attributes=dict(_attributes(rest)),
            is_root=start[1] is not None,
        )
    except (HloError, ValueError, IndexError) as error:
        raise HloError(f"[hlo] line {number}: {error}: {line.strip()[:80]}") from error


def _balanced(text: str) -> tuple[str, str]:
    """Split behind the parenthesis that closes one opened before the text."""
    depth, quoted = 1, False
    for position, character in enumerate(text):
        if character == '"' and text[position - 1] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (character in "([{") - (character in ")]}")
            if not depth:
                return text[:position], text[position + 1 :]
    raise HloError("a parenthesis is not closed")


def _attributes(text: str) -> Iterator[tuple[str, str]]:
    """Yield the attributes `, name=value`, split at commas outside of brackets and quotes."""
    depth, quoted, start = 0, False, 0
    for position, character in enumerate(text + ","):
        if character == '"' and text[position - 1] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif character == "," and not depth:
            key, equals, value = text[start:position].strip().partition("=")
            if equals:
                yield key, value
            start = position + 1
        else:
            depth += (character in "([{") - (character in ")]}")
