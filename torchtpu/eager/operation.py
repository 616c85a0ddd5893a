"""An operation: one overload of an aten op and the lowering that computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torchtpu.eager.call import Call
from torchtpu.eager.prepare import Preparation
from torchtpu.eager.schema import Argument, Kind, arguments
from torchtpu.lowerings import Lowering


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One overload and the lowering that computes it.

    `functional` is the overload whose schema the lowering has; `op` is the same one or an in-place,
    out= or `_foreach_*_` variant of it, whose written arguments take the results.
    """

    op: Any
    functional: Any
    lowering: Lowering

    @cached_property
    def name(self) -> str:
        """The name for errors and reports, e.g. aten::add_.Tensor."""
        return str(self.op._schema.name) + (
            f".{self.op._overloadname}" if self.op._overloadname != "default" else ""
        )

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments of `op`."""
        return tuple(
            replace(a, kind=Kind.NUMBER) if a.name in self.lowering.numbers else a
            for a in arguments(self.op._schema)
        )

    @cached_property
    def constants(self) -> Mapping[str, frozenset[Any]]:
        """Values of number arguments that are compiled in: torch's defaults and the lowering's."""
        found: dict[str, frozenset[Any]] = dict(self.lowering.constants)
        for a in self.arguments:
            if a.name in self.lowering.static:
                found[a.name] = _Everything()
            elif a.kind == Kind.NUMBER and a.has_default and a.default is not None:
                found[a.name] = found.get(a.name, frozenset()) | {a.default}
        return found

    @cached_property
    def mutates(self) -> bool:
        """Whether the call writes to an argument."""
        return any(a.written for a in self.arguments) or bool(self.lowering.writes)

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Check a call by torch's meta functions, build its program and compile it."""
        bound = {a.name: v for a, v in zip(self.arguments, args, strict=False)} | dict(kwargs)
        if self.op is not self.functional:  # bernoulli_ has a default that bernoulli.p lacks
            missing = (a for a in self.arguments if a.name not in bound and a.default is not None)
            bound |= {a.name: a.default for a in list(missing)}
        return Preparation(self, bound).call()


class _Everything(frozenset[Any]):
    """The set of all values."""

    def __contains__(self, _: object) -> bool:
        return True
