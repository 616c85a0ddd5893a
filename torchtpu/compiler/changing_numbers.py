"""Numbers that change between calls, in ops that torch cannot give them to as tensors.

Dynamo makes a number that changes an input (a SymFloat), such as the learning rate under a
schedule. AOTAutograd turns it into a tensor where it is an operand of plain arithmetic; in ops on
lists and as an op's factor it would compile a graph per value. Here they become plain arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
Rule = Callable[..., Tensor]


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return rules by overload; each declines where no number changes."""
    rules: dict[Any, Callable[..., Any]] = {
        _aten.add.Tensor: _changing("alpha", _RULES["add"]),
        _aten.sub.Tensor: _changing("alpha", _RULES["sub"]),
        _aten._foreach_add.List: _on_lists("alpha", _RULES["add"]),
        _aten._foreach_sub.List: _on_lists("alpha", _RULES["sub"]),
        _aten.addcmul.default: _changing("value", _RULES["addcmul"]),
        _aten.addcdiv.default: _changing("value", _RULES["addcdiv"]),
        _aten.lerp.Scalar: _changing("weight", _RULES["lerp"]),
    }
    for name, rule in _OF_LISTS.items():
        packet = getattr(_aten, f"_foreach_{name}")
        rules[packet.Scalar] = rules[packet.ScalarList] = _on_lists("", rule)
    return rules


def _changing(keyword: str, rule: Rule) -> Callable[..., Any]:
    """Apply a rule where its last argument, which may come by keyword, changes."""

    def run(*args: Any, **kwargs: Any) -> Any:
        given = (*args, kwargs[keyword]) if keyword in kwargs else args
        return rule(*given) if isinstance(given[-1], torch.SymFloat) else NotImplemented

    return run


def _on_lists(keyword: str, rule: Rule) -> Callable[..., Any]:
    """Apply a rule to each tensor; the last argument is a number, or one per tensor."""

    def run(*args: Any, **kwargs: Any) -> Any:
        *lists, last = (*args, kwargs[keyword]) if keyword in kwargs else args
        numbers = last if isinstance(last, (tuple, list)) else [last] * len(lists[0])
        if not any(isinstance(n, torch.SymFloat) for n in numbers):
            return NotImplemented
        return [rule(*each) for each in zip(*lists, numbers, strict=True)]

    return run


_RULES: dict[str, Rule] = {
    "add": lambda self, other, alpha: self + other * alpha,
    "sub": lambda self, other, alpha: self - other * alpha,
    "addcmul": lambda self, one, two, value: self + one * two * value,
    "addcdiv": lambda self, one, two, value: self + one / two * value,
    "lerp": lambda self, end, weight: self + (end - self) * weight,
}
_OF_LISTS: dict[str, Rule] = {
    "add": lambda self, scalar: self + scalar,
    "sub": lambda self, scalar: self - scalar,
    "mul": lambda self, scalar: self * scalar,
    "div": lambda self, scalar: self / scalar,
    **{name: _RULES[name] for name in ("addcmul", "addcdiv", "lerp")},
}
