"""How valid elements lie in a padded dimension: an ordered product of atoms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy
import torch

from torchtpu.errors import TpuError
from torchtpu.private.torch import sympy_functions

Expr = Any  # sympy.Expr: a size in terms of the symbols; sympy carries no types
Symbol = Any  # sympy.Symbol: a size that varies
ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


class Unpaddable(Exception):
    """Why an op cannot run at bucket size; the pass adds the op and the user's line."""


class CannotPad(TpuError):
    """A graph has an op that is not exact at bucket size; compile it for its true size."""


@dataclass(frozen=True, slots=True)
class Atom:
    """A factor of a dimension: `extent` valid indices first, of `size` in all."""

    extent: Expr
    size: int

    @property
    def padded(self) -> bool:
        return bool(self.extent != self.size)


Dim = tuple[Atom, ...]  # major first, () where the size is 1; element valid where each digit is
Layout = tuple[Dim, ...]


def is_size(x: object) -> bool:
    """Tell whether a value is an expression of sizes."""
    return isinstance(x, sympy.Basic)


def expression_of(n: Any) -> Expr:
    """Return a number or a symbolic one as an expression; divisions that leave no rest are done."""
    if isinstance(n, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        n = n.node.expr
    return _divided(sympy.sympify(n))


@lru_cache(maxsize=4096)
def _divided(expression: Expr) -> Expr:
    def quotient(a: Expr, b: Expr) -> Expr:
        whole = sympy.cancel(a / b)
        exact = whole.is_polynomial() and all(c.is_Integer for c in sympy.Poly(whole).coeffs())
        return whole if exact else sympy_functions.FloorDiv(a, b)

    return expression.replace(sympy_functions.FloorDiv, quotient)


def product_of(factors: Iterable[Expr]) -> Expr:
    """Return the product of sizes."""
    return sympy.Mul(*factors)


def holds(statement: Expr, sizes: Mapping[Symbol, int]) -> bool:
    """Tell whether a statement about sizes is true of these; one left open is not."""
    return bool(statement.subs(sizes) == True)  # noqa: E712  # sympy's true


def equation(a: Expr, b: Expr) -> Expr:
    """Return the statement that two sizes are equal."""
    return sympy.Eq(a, b)


def extent(dim: Dim) -> Expr:
    """Return the true size of a dimension."""
    return sympy.Mul(*(atom.extent for atom in dim))


def size(dim: Dim) -> int:
    """Return the padded size of a dimension."""
    return math.prod(atom.size for atom in dim)


def sizes(layout: Iterable[Dim]) -> list[int]:
    """Return the padded shape."""
    return [size(dim) for dim in layout]


def padded(dim: Dim) -> bool:
    """Tell whether some index of the dimension is padding."""
    return any(atom.padded for atom in dim)


def leading(dim: Dim) -> bool:
    """Tell whether the valid elements come first, so that a position is a true index."""
    return not any(atom.padded for atom in dim[1:])


def static_dim(n: int) -> Dim:
    """Return a dimension without padding."""
    return () if n == 1 else (Atom(sympy.Integer(n), n),)


def canonical(atoms: Iterable[Atom]) -> Dim:
    """Return the atoms with static neighbours merged and size-1 atoms left out."""
    merged: list[Atom] = []
    for atom in atoms:
        if merged and not atom.padded and not merged[-1].padded:
            merged[-1] = Atom(merged[-1].extent * atom.extent, merged[-1].size * atom.size)
        elif atom.size != 1:
            merged.append(atom)
    return tuple(merged)


def same(a: Expr, b: Expr) -> bool:
    """Tell whether two sizes are equal for every value of the symbols."""
    return bool(a == b) or _zero(sympy.sympify(a) - sympy.sympify(b))


@lru_cache(maxsize=4096)
def _zero(difference: Expr) -> bool:
    return bool(sympy.expand(difference) == 0)


class Bucket:
    """The compiled size of every symbol; sizes of expressions follow."""

    def __init__(self, sizes: Mapping[Symbol, int]) -> None:
        self.sizes = dict(sizes)
        self.made: dict[Expr, int] = {}  # every size that a padded one was made for

    def size(self, expression: Expr) -> int:
        """Return the size at the bucket, which must bound the expression from above."""
        expression = sympy.sympify(expression)
        if expression.is_Integer:
            return int(expression)
        missing = sorted(str(s) for s in expression.free_symbols - self.sizes.keys())
        if missing:
            raise Unpaddable(f"size {expression} depends on {', '.join(missing)}, without a bucket")
        if not _grows(expression):
            raise Unpaddable(f"size {expression} does not grow with its symbols")
        if expression not in self.made:
            self.made[expression] = int(expression.subs(self.sizes))
        return self.made[expression]

    def dim(self, expression: Expr) -> Dim:
        """Return the dimension of a true size whose valid elements come first."""
        expression = sympy.sympify(expression)
        if expression.is_Integer:
            return static_dim(int(expression))
        factor, rest = sympy.expand(expression).as_content_primitive()
        if not factor.is_Integer or factor <= 0:
            factor, rest = ONE, expression
        return canonical([Atom(rest, self.size(rest)), Atom(factor, int(factor))])

    def layout(self, shape: Iterable[Expr]) -> Layout:
        """Return the layout of a true shape whose valid elements come first in each dimension."""
        return tuple(self.dim(n) for n in shape)


def _grows(e: Expr) -> bool:
    """Tell whether a size never falls when a symbol rises."""
    if e.is_Symbol or (e.is_Integer and e >= 0):
        return True
    if isinstance(e, sympy.Add):
        return all(term.is_number or _grows(term) for term in e.args)
    if isinstance(e, (sympy_functions.FloorDiv, sympy_functions.CleanDiv)):
        return bool(e.args[1].is_Integer and e.args[1] > 0) and _grows(e.args[0])
    if isinstance(e, (sympy_functions.Max, sympy_functions.Min, sympy.Max, sympy.Min)):
        return all(term.is_Integer or _grows(term) for term in e.args)
    if isinstance(e, sympy.Pow):
        return bool(e.exp.is_Integer and e.exp > 0) and _grows(e.base)
    return isinstance(e, sympy.Mul) and all(map(_grows, e.args))


def regroup(atoms: Sequence[Atom], shape: Sequence[Expr]) -> Layout | None:
    """Return the layout after a reshape to the true `shape`, or None where atoms would break."""
    left = list(reversed(atoms))
    dims: list[Dim] = []
    for wanted in shape:
        taken = _take(left, sympy.sympify(wanted))
        if taken is None:
            return None
        dims.append(canonical(taken))
    return tuple(dims) if not left else None


def _take(left: list[Atom], rest: Expr) -> list[Atom] | None:
    taken: list[Atom] = []
    while rest != 1:
        if not left:
            return None
        atom = left.pop()
        quotient = _divide(rest, atom.extent)
        if quotient is None and not atom.padded:
            common = math.gcd(atom.size, int(_content(rest)))
            if common == 1:
                return None
            left.append(Atom(atom.extent / common, atom.size // common))
            atom = Atom(sympy.Integer(common), common)
            quotient = _divide(rest, atom.extent)
        if quotient is None:
            return None
        taken.append(atom)
        rest = quotient
    return taken


def _content(e: Expr) -> Expr:
    factor = sympy.expand(e).as_content_primitive()[0]
    return factor if factor.is_Integer else ONE


@lru_cache(maxsize=4096)
def _divide(whole: Expr, part: Expr) -> Expr | None:
    """Return whole / part where that is a polynomial with whole coefficients."""
    if whole == part:
        return ONE
    quotient = sympy.cancel(whole / part)
    denominator = sympy.fraction(sympy.together(quotient))[1]
    return quotient if denominator == 1 else None


def groups(before: Sequence[Expr], after: Sequence[Expr]) -> list[tuple[range, range]]:
    """Return the smallest runs of dims, before and after a reshape, with the same product."""
    ends, cuts = _products(after), []
    for product, i in _products(before).items():
        if product in ends and product != 1:
            cuts.append((i, ends[product]))
    cuts = [*cuts[:-1], (len(before), len(after))]
    found, i, j = [], 0, 0
    for end, stop in cuts:
        found.append((range(i, end), range(j, stop)))
        i, j = end, stop
    return found


def _products(shape: Sequence[Expr]) -> dict[Expr, int]:
    """Return each product of leading sizes, and how many dims it takes at least."""
    product: Expr = ONE
    found: dict[Expr, int] = {}
    for i, n in enumerate(shape):
        product = sympy.expand(product * n)
        found.setdefault(product, i + 1)
    return found
