"""Writes expressions of sizes (sympy, as torch makes them) as ops on the true sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import sympy
import torch
from torch.fx import Node

from torchtpu.compiler.padding.layout import Expr, Unpaddable
from torchtpu.private.torch import sympy_functions as functions

aten = torch.ops.aten


class SizeWriter:
    """True sizes as 0-dim tensors, each expression written once."""

    def __init__(self, emit: Callable[..., Node]) -> None:
        self._emit = emit
        self._written: dict[Expr, Node] = {}

    def define(self, symbol: Expr, node: Node) -> None:
        """Name the input that carries a symbol's true size."""
        self._written[symbol] = node

    def write(self, e: Expr) -> Node:
        """Return a 0-dim tensor with the expression's true value."""
        if e not in self._written:
            self._written[e] = self._write(e)
        return self._written[e]

    def _write(self, e: Expr) -> Node:
        if e.is_Integer:
            return self._emit(aten.full.default, [], int(e), dtype=torch.int64, **self._where())
        if e.is_number:
            return self._emit(aten.full.default, [], float(e), dtype=torch.float64, **self._where())
        if isinstance(e, (sympy.Add, sympy.Mul)):
            op = aten.add.Tensor if isinstance(e, sympy.Add) else aten.mul.Tensor
            first, *rest = _ordered(e)
            return reduce(lambda a, b: self._emit(op, a, self._operand(b)), rest, self.write(first))
        if isinstance(e, (sympy.Pow, functions.PowByNatural)) and e.args[1].is_Integer:
            base, power = self.write(e.args[0]), int(e.args[1])
            if power > 0:
                return reduce(lambda a, b: self._emit(aten.mul.Tensor, a, b), [base] * power)
        rule = _FUNCTIONS.get(e.func.__name__)
        if rule is None or e.is_Symbol:
            raise Unpaddable(f"the size {e} cannot be computed from the true sizes")
        return rule(self._emit, *[self.write(arg) for arg in e.args])

    def _operand(self, e: Expr) -> Any:
        return int(e) if e.is_Integer else self.write(e)

    def _where(self) -> dict[str, torch.device]:
        return {"device": next(iter(self._written.values())).meta["val"].device}


def _ordered(e: Expr) -> list[Expr]:
    """Return the terms with the constant last: the first operand has to be a tensor."""
    return sorted(e.args, key=lambda term: (bool(term.is_Integer), str(term)))


def _floor_divide(emit: Any, a: Node, b: Node) -> Node:
    quotient: Node = emit(aten.floor_divide.default, a, b)
    return quotient


def _true_divide(emit: Any, a: Node, b: Node) -> Node:
    wide: Node = emit(aten._to_copy.default, a, dtype=torch.float64)
    quotient: Node = emit(aten.div.Tensor, wide, b)
    return quotient


def _to_float(emit: Any, a: Node) -> Node:
    wide: Node = emit(aten._to_copy.default, a, dtype=torch.float64)
    return wide


def _root(emit: Any, a: Node) -> Node:
    root: Node = emit(aten.sqrt.default, _to_float(emit, a))
    return root


def _power(emit: Any, a: Node, b: Node) -> Node:
    power: Node = emit(aten.pow.Tensor_Tensor, _to_float(emit, a), b)
    return power


def _remainder(emit: Any, a: Node, b: Node) -> Node:
    rest: Node = emit(aten.remainder.Tensor, a, b)
    return rest


def _modular(emit: Any, a: Node, divisor: Node, modulus: Node) -> Node:
    return _remainder(emit, _floor_divide(emit, a, divisor), modulus)


def _most(emit: Any, *args: Node) -> Node:
    return reduce(lambda a, b: emit(aten.maximum.default, a, b), args)


def _least(emit: Any, *args: Node) -> Node:
    return reduce(lambda a, b: emit(aten.minimum.default, a, b), args)


def _to_int(name: str) -> Callable[..., Node]:
    def rule(emit: Any, a: Node) -> Node:
        whole = emit(getattr(aten, name).default, a)
        narrow: Node = emit(aten._to_copy.default, whole, dtype=torch.int64)
        return narrow

    return rule


_FUNCTIONS: dict[str, Callable[..., Node]] = {
    "FloorDiv": _floor_divide,
    "CleanDiv": _floor_divide,
    "IntTrueDiv": _true_divide,
    "FloatTrueDiv": _true_divide,
    "FloatPow": _power,
    "ToFloat": _to_float,
    "OpaqueUnaryFn_sqrt": _root,
    "Mod": _remainder,
    "PythonMod": _remainder,
    "ModularIndexing": _modular,
    "Max": _most,
    "Min": _least,
    "CeilToInt": _to_int("ceil"),
    "FloorToInt": _to_int("floor"),
    "TruncToInt": _to_int("trunc"),
}
