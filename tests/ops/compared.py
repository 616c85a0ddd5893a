"""A program on the device beside the CPU: what differs, and the fewest lines that still differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations, product
from typing import Any

import torch

from tests.ops.programs import Program, State, history


def difference(program: Program, mode: Any) -> str:
    """Run a program on the device in an eager mode; say what differs from the CPU, or nothing."""
    with torch.tpu.set_eager_mode(mode):
        device = State("tpu")
        for number, line in enumerate(program.lines):
            raised, wanted = device.run(line.text), program.cpu.errors[number]
            if raised != wanted and {raised, wanted} != _EITHER:
                expected = wanted or "no error"
                return f"{line.text!r} expected {expected}, got {raised or 'no error'}"
        try:
            return next(_differences(program, device, folds=mode != _DEFER_NEVER), "")
        except Exception as error:  # of a recorded program that only now runs
            return f"reading the results raised {error!r}"


# One is a subclass of the other: a line with two mistakes may name either.
_EITHER = {"RuntimeError", "NotImplementedError"}


def reduced(program: Program, mode: Any) -> Program:
    """Leave lines out as long as the rest still differs."""
    changed = True
    while changed:
        changed = False
        for number in reversed(range(len(program.lines))):
            shorter = _without(program, number)
            if "NameError" not in shorter.cpu.errors and difference(shorter, mode):
                program, changed = shorter, True
    return program


def _without(program: Program, number: int) -> Program:
    """The program without a line and without the lines that need what it makes."""
    gone, left = {program.lines[number].target}, list(program.lines[:number])
    makes = program.lines[number].text.startswith(f"{program.lines[number].target} = ")
    for line in program.lines[number + 1 :]:
        if makes and (gone & set(line.sources) or any(f"{n}." in line.text for n in gone)):
            if line.text.startswith(f"{line.target} = "):
                gone.add(line.target)
            continue
        left.append(line)
    return Program(left)


def _differences(program: Program, device: State, *, folds: bool) -> Iterator[str]:
    ours, theirs = device.tensors(), program.cpu.tensors()
    for name, expected in theirs.items():
        wanted, found = _properties(expected), _properties(ours[name])
        for what in wanted:
            if found[what] != wanted[what] and not (
                what == "strides" and found[what] == _meta_strides(program, name)
            ):
                yield f"{name}: expected {what} {wanted[what]}, got {found[what]}"
    for (one, other), (what, related) in product(permutations(theirs, 2), _RELATIONS.items()):
        holds = related(theirs[one], theirs[other])
        if related(ours[one], ours[other]) != holds:
            yield f"{one} and {other}: expected {what} {holds}, got {not holds}"
    any_zero = (*_ANY_ZERO, *(_FOLDED if folds else ()))
    signs = not any(word in program.text() for word in any_zero)
    for name, expected in theirs.items():
        if history(expected) == "RuntimeError":  # nobody may read it, on the device either
            continue
        tolerance = program.tolerance() if program.is_rounded(expected) else 0.0
        yield from _values(name, ours[name], expected, tolerance, signs=signs)
        if expected.is_leaf:
            yield from _gradients(f"{name}.grad", ours[name], expected, program.tolerance())
    for name, expected in program.cpu.numbers().items():
        yield from _numbers(name, device.scope[name], expected)


def _meta_strides(program: Program, name: str) -> Any:
    """Strides by torch's meta functions, which break ties otherwise where operands are cast."""
    meta = State("meta")
    for line in program.lines:
        meta.run(line.text)
    made = meta.scope.get(name)
    return _properties(made)["strides"] if isinstance(made, torch.Tensor) else None


def _gradients(
    name: str, ours: torch.Tensor, theirs: torch.Tensor, tolerance: float
) -> Iterator[str]:
    if ours.grad is not None and theirs.grad is not None:
        yield from _values(name, ours.grad, theirs.grad, tolerance)
    elif (ours.grad is None) != (theirs.grad is None):
        yield f"{name}: expected {theirs.grad}, got {ours.grad}"


# The CPU's kernels of sums and of complex numbers are no standard for the signs of zeros. Of 0.0
# and -0.0 its extrema return either: the first in a loop, the second in vector instructions.
_ANY_ZERO = (
    *("sum", "@", "mm(", "complex", "mean", "backward"),
    *("maximum(", "minimum(", "fmax(", "fmin(", "amax(", "amin(", "aminmax(", ".max(", ".min("),
)
# XLA drops the addition of a zero that it can compute, though -0.0 + 0.0 is 0.0.
_FOLDED = ("add", "sub", " + ", " - ", "+=")
_DEFER_NEVER = torch.tpu.EagerMode.DEFER_NEVER
_RELATIONS = {
    "same object": lambda a, b: a is b,
    "same memory": lambda a, b: a.untyped_storage()._cdata == b.untyped_storage()._cdata,
    "base": lambda a, b: a._is_view() and a._base is b,
}


def _properties(t: torch.Tensor) -> dict[str, Any]:
    return {
        "dtype": t.dtype,
        "shape": tuple(t.shape),
        "strides": [s for n, s in zip(t.shape, t.stride(), strict=True) if t.numel() and n > 1],
        "storage offset": t.storage_offset() if t.numel() else 0,
        "version": t._version,
        "conj": t.is_conj(),
        "neg": t.is_neg(),
        "view": t._is_view(),
        "leaf": history(t) != "RuntimeError" and t.is_leaf,
        "requires_grad": t.requires_grad,
        "grad_fn": history(t),
    }


def _values(
    name: str,
    ours: torch.Tensor,
    theirs: torch.Tensor,
    tolerance: float,
    *,
    signs: bool = False,
) -> Iterator[str]:
    got, expected = ours.detach().cpu(), theirs.detach()
    if not _close(got, expected, tolerance, signs):
        yield f"{name}: expected {expected.tolist()}, got {got.tolist()}"


def _close(got: torch.Tensor, expected: torch.Tensor, tolerance: float, signs: bool) -> bool:
    got, expected = got.resolve_conj().resolve_neg(), expected.resolve_conj().resolve_neg()
    if not (got.is_floating_point() or got.is_complex()):
        return torch.equal(got, expected)
    if got.is_complex():
        unknown = expected.isnan() & got.isnan()  # in which part of a number is open
        got, expected = (torch.view_as_real(t.masked_fill(unknown, 0)) for t in (got, expected))
    if not signs:  # one over a zero of either sign
        got = torch.where(got.isinf() & expected.isinf(), expected, got)
    tolerance = max(tolerance, torch.finfo(got.dtype).tiny)  # denormal numbers may be flushed
    if not torch.allclose(got.double(), expected.double(), 0.0, tolerance, equal_nan=True):
        return False
    return (
        not signs
        or tolerance > torch.finfo(got.dtype).tiny
        or torch.equal(got.nan_to_num(0.0).signbit(), expected.nan_to_num(0.0).signbit())
    )


def _numbers(name: str, got: Any, expected: Any) -> Iterator[str]:
    same = got == expected or repr(got) == repr(expected)
    if isinstance(expected, str):
        same = "".join(got.split()).replace(",device='tpu:0'", "") == "".join(expected.split())
    if not same and not (isinstance(expected, float) and math.isnan(expected) and math.isnan(got)):
        yield f"{name}: expected {expected!r}, got {got!r}"
