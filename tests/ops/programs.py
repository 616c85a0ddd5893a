"""Random programs: made line by line as they run on the CPU, then run on the device and compared.

A program is the text of its lines, so a difference is reported as code to run. Values are small
numbers, on which most ops are exact in every dtype; a storage that holds a rounded number is known
as such, compared within a tolerance, and kept away from ops that jump (comparisons, floor).
"""

from __future__ import annotations

import math
import string
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch

from tests.ops.templates import TEMPLATES, Template

T = TypeVar("T")

MAX_LINES = 12
SHAPES = ((), (1,), (3,), (0,), (2, 3), (3, 3), (2, 1), (1, 3), (0, 3), (2, 3, 2), (1, 1, 2))
DTYPES = (
    "float32",
    "float32",
    "int64",
    "bool",
    "float64",
    "bfloat16",
    "int32",
    "uint8",
    "complex64",
)
NUMBERS = ("2", "-1", "0", "0.5", "True", "3")
INDICES = ("0", "-1", "1:", "::2", ":1", "...", "None", "1:1", "..., 0", "..., ::2", "[0, -1]")
STRIDES = ("", "", "", ".mT.contiguous().mT", ".repeat(2)[::2]", ".expand(2, {shape})")
VALUES = (
    (1, 2, 3),
    (-1, 0, 2, 1),
    (0,),
    (0.5, -2, 1),
    (-0.0, "nan", 1, "inf", "-inf"),
)
_EXACT_BELOW = {4: 2.0**20, 8: 2.0**20, 2: 2.0**7, 1: 1.0}  # by the bytes of a real number


class Draw(Protocol):
    """A source of choices: a random number generator, or hypothesis."""

    def __call__(self, options: Sequence[T], /) -> T:
        """Return one of the options."""


@dataclass(frozen=True)
class Line:
    """A line of a program: its text, the variable it makes or writes, those that it reads."""

    text: str
    target: str = ""
    sources: tuple[str, ...] = ()
    rounds: bool = False


@dataclass
class State:
    """What lines have made on one device, and the types of the errors they raised."""

    device: str
    scope: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scope |= {"torch": torch, "device": self.device}

    def run(self, text: str) -> str:
        """Run a line; return and keep the type of what it raises, or nothing."""
        raised = ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(text, self.scope)
        except Exception as error:
            raised = type(error).__name__
        self.errors.append(raised)
        return raised

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the variables that are tensors, by name."""
        return {n: v for n, v in self.scope.items() if isinstance(v, torch.Tensor)}

    def numbers(self) -> dict[str, Any]:
        """Return what was read from tensors, by name."""
        return {n: v for n, v in self.scope.items() if n[0] == "n" and n[1:].isdigit()}


class Program:
    """Lines and what they gave on the CPU."""

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        self.lines: list[Line] = []
        self.cpu = State("cpu")
        self.largest = 1.0
        self.coarsest = torch.finfo(torch.float32).eps
        self._rounded: set[int] = set()  # torch's addresses of storages
        for line in lines:
            self.append(line)

    def text(self) -> str:
        """Return code that runs on its own."""
        return "\n".join(["import torch", 'device = "tpu"', *(line.text for line in self.lines)])

    def append(self, line: Line, *, even_if_it_raises: bool = True) -> bool:
        """Run a line on the CPU and keep it; tell whether it was kept."""
        if self.cpu.run(line.text) and not even_if_it_raises:
            self.cpu.errors.pop()
            return False
        self.lines.append(line)
        self._account(line)
        return True

    def is_rounded(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor's memory holds results that may differ in their last bits."""
        return tensor.untyped_storage()._cdata in self._rounded

    def tolerance(self) -> float:
        """Return the absolute error that rounded numbers may have."""
        return 256 * self.coarsest * self.largest

    def _account(self, line: Line) -> None:
        made = self.cpu.scope.get(line.target)
        if not isinstance(made, torch.Tensor) or not (
            made.is_floating_point() or made.is_complex()
        ):
            return
        size = made.detach().resolve_conj().to(torch.complex128).abs()
        size = size[size.isfinite()]
        largest = size.max().item() if size.numel() else 0.0
        self.largest = max(self.largest, largest)
        sources = [self.cpu.scope.get(n) for n in line.sources]
        inexact = any(isinstance(s, torch.Tensor) and self.is_rounded(s) for s in sources)
        real = made.dtype.itemsize // (2 if made.is_complex() else 1)
        if line.rounds or inexact or largest > _EXACT_BELOW[real]:
            self._rounded.add(made.untyped_storage()._cdata)
            self.coarsest = max(self.coarsest, torch.finfo(made.dtype).eps)


NO_HISTORY = ("NoneType", "RuntimeError")


def history(t: torch.Tensor) -> str:
    """Name a tensor's grad_fn, or the error that torch has for asking.

    What is assigned to `t[...]` is filled in on the CPU, and copied on every other device.
    """
    try:
        name = type(t.grad_fn).__name__
        return "CopyBackwards" if name.startswith("FillBackward") else name
    except RuntimeError:  # a view without gradients whose base was written with them
        return "RuntimeError"


class Maker:
    """Makes a random program: inputs first, then lines from the templates."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.program = Program()
        self._names = 0

    def make(self) -> Program:
        """Return a program of up to MAX_LINES lines."""
        for _ in range(self.draw((1, 2, 2, 3))):
            self._input()
        wanted = self.draw(range(2, MAX_LINES + 1))
        for _ in range(4 * wanted):
            if len(self.program.lines) >= wanted:
                break
            self._line(self.draw(TEMPLATES))
        self._backward()
        return self.program

    def _input(self) -> None:
        shape, dtype = self.draw(SHAPES), self.draw(DTYPES)
        count, pool = math.prod(shape), self.draw(VALUES)
        is_real = dtype in ("float32", "float64", "bfloat16")
        if not is_real:
            pool = tuple(abs(int(v)) for v in pool if not isinstance(v, str))
        values = [pool[i % len(pool)] for i in range(count)]
        listed = ", ".join(f"float('{v}')" if isinstance(v, str) else str(v) for v in values)
        name = self._new_name()
        text = f"{name} = torch.tensor([{listed}], dtype=torch.{dtype}, device=device)"
        strides = self.draw(STRIDES)
        if strides.startswith(".repeat"):
            text += strides
        text += f".reshape({shape})"
        if strides.startswith(".mT") and len(shape) > 1:
            text += strides
        if strides.startswith(".expand") and len(shape) < 3:
            text += f".expand{(2, *shape)}"
        if is_real and self.draw((False, False, False, False, True)):
            text += ".clone().requires_grad_()" if strides else ".requires_grad_()"
        self.program.append(Line(text, name))

    def _line(self, template: Template) -> None:
        holes = [h for _, h, _, _ in string.Formatter().parse(template.text) if h]
        found = self._tensors(template, set(holes))
        if found is None:
            return
        names = {hole: name for hole, name in found.items() if hole in holes}
        x = self.program.cpu.scope[found["x"]]
        filled = names | {h: self._fill(h, x) for h in holes if h not in names}
        line = Line(
            template.text.format(**filled),
            target=found["x"] if template.writes else filled.get("new", ""),
            sources=tuple(names.values()),
            rounds=template.kind == "rounds",
        )
        self.program.append(line, even_if_it_raises=self.draw((False, False, False, True)))

    def _tensors(self, template: Template, holes: set[str]) -> dict[str, str] | None:
        """Variables for the holes x, y, f and m; None where the program has none that fit."""
        tensors = self.program.cpu.tensors()
        if template.kind == "jumps":
            tensors = {n: t for n, t in tensors.items() if not self.program.is_rounded(t)}
        if "f" in holes:
            tensors = {n: t for n, t in tensors.items() if t.is_floating_point()}
        if not tensors:
            return None
        x = self.draw(tuple(tensors))
        found = {"x": x, "f": x}
        if "y" in holes:
            fitting = tuple(n for n, t in tensors.items() if _fits(tensors[x], t))
            found["y"] = self.draw(fitting if self.draw((True, True, False)) else tuple(tensors))
        if "m" in holes:
            masks = {n: t for n, t in tensors.items() if t.dtype == torch.bool}
            fitting = tuple(n for n, t in masks.items() if t.shape == tensors[x].shape)
            if not masks:
                return None
            found["m"] = self.draw(fitting or tuple(masks))
        return found if self._is_defined(template, tensors, found) else None

    def _is_defined(
        self, template: Template, tensors: dict[str, torch.Tensor], found: dict[str, str]
    ) -> bool:
        x = tensors[found["x"]]
        others = [tensors[found[h]] for h in ("y", "m") if h in found]
        if template.where is not None and not template.where(x, *others):
            return False
        if not template.writes:
            return True
        if "[{s}] = {y}" in template.text and any(_shared(x, t) for t in others):
            return False
        if _is_expanded(
            x
        ):  # torch rejects it, but for ops that don't ask and one that does nothing
            return _asks(template) and not any(_shared(x, t) for t in others)
        return len(set(_places(x))) == len(_places(x)) and not any(_entangled(x, t) for t in others)

    def _fill(self, hole: str, x: torch.Tensor) -> str:
        if hole in ("new", "number"):
            return self._new_name("t" if hole == "new" else "n")
        if hole in ("d", "e"):
            return str(self.draw(range(-x.dim(), x.dim())) if x.dim() else self.draw((0, -1)))
        if hole == "R":
            count = x.numel()
            halves = [(2, count // 2)] if count % 2 == 0 else [(3, count // 3)]
            return str(self.draw(((count,), (-1,), (1, count), (count, 1), *halves)))
        choices: dict[str, Sequence[str]] = {
            "k": NUMBERS,
            "s": INDICES,
            "S": [str(s) for s in SHAPES],
            "D": [f"torch.{d}" for d in DTYPES],
        }
        return self.draw(choices[hole])

    def _backward(self) -> None:
        tensors = self.program.cpu.tensors()
        results = tuple(
            n for n, t in tensors.items() if t.requires_grad and history(t) not in NO_HISTORY
        )
        if results:
            self.program.append(Line(f"{self.draw(results)}.sum().backward()"))

    def _new_name(self, letter: str = "t") -> str:
        self._names += 1
        return f"{letter}{self._names}"


def _fits(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Tell whether y broadcasts to the shape of x."""
    sizes = zip(reversed(x.shape), reversed(y.shape), strict=False)
    return y.dim() <= x.dim() and all(b in (a, 1) for a, b in sizes)


def _is_expanded(x: torch.Tensor) -> bool:
    return any(n > 1 and s == 0 for n, s in zip(x.shape, x.stride(), strict=True)) and x.numel() > 0


def _asks(template: Template) -> bool:
    silent = ("tril_", "cumsum_", "index_", "foreach", "masked_fill_", "[{s}]", "[{m}]")
    return not any(name in template.text for name in silent)


def _entangled(x: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether a write to x and a read of another depend on the order of elements.

    Of two dense tensors that share a part torch says so itself, and the line is one that raises.
    """
    same = (x.shape, x.stride(), x.storage_offset()) == (
        other.shape,
        other.stride(),
        other.storage_offset(),
    )
    if not _shared(x, other) or same or not set(_places(x)) & set(_places(other)):
        return False
    dense = all(bool(torch.ops.aten.is_non_overlapping_and_dense(t)) for t in (x, other))
    return not (dense and x.dtype == other.dtype)


def _shared(x: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(x.untyped_storage()._cdata == other.untyped_storage()._cdata)


def _places(x: torch.Tensor) -> list[int]:
    """The bytes of the storage that belong to elements of x."""
    places = [int(x.storage_offset())]
    for size, stride in zip(x.shape, x.stride(), strict=True):
        places = [p + i * stride for p in places for i in range(size)]
    itemsize = x.dtype.itemsize
    return [p * itemsize + b for p in places for b in range(itemsize)] if itemsize > 1 else places
