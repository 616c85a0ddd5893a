"""Compiled graphs with collectives: launched as one program where all members are about to.

A rank may log, pad or branch where others don't, and then its graph is another. So all of them say
first which program they are about to launch; where they differ, each runs its own op by op, and
the collectives in it meet one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from torchtpu import executor
from torchtpu.compiler import graph
from torchtpu.compiler.plan import Plan
from torchtpu.distributed.calling import Caller
from torchtpu.distributed.safe import is_marked
from torchtpu.eager.call import Call
from torchtpu.private import torch as private


def of(fx: torch.fx.Graph) -> Together | None:
    """Return who takes part in a graph's collectives: one group on the device, else None."""
    nodes = [n for n in fx.nodes if n.op == "call_function"]
    names = {name for node in nodes for name in _groups(node)}
    if not names:
        return None
    groups = [private.process_group(name) for name in names]
    if not all(isinstance(group, Caller) for group in groups):
        return None
    if len({group.members for group in groups}) > 1:
        return None
    return Together(groups[0], is_safe=any(map(is_marked, nodes)))


def _groups(node: torch.fx.Node) -> list[str]:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    named = zip(schema.arguments, node.args)  # noqa: B905  # trailing defaults are left out
    found = {a.name: value for a, value in named} | node.kwargs
    name = found.get("group_name")
    return [name] if isinstance(name, str) else []


def serve() -> None:
    """Let the compiler ask here."""
    graph.find_others = of


class Together:
    """The members of a group, as those who run one graph."""

    def __init__(self, group: Caller, *, is_safe: bool) -> None:
        """Take the group; is_safe: the user has promised that all ranks run the same."""
        self._group = group
        self._is_safe = is_safe
        self._latest: tuple[Any, Any] = None, None  # a call and a precision, and their key

    def _key(self, call: Call) -> Any:
        """Return the key of a program; hashing a graph at each launch would cost more than it."""
        of = call, executor.matmul_precision()
        if of != self._latest[0]:
            program = replace(call.program, donated=())  # memory is each one's own matter
            self._latest = of, executor.program_key(program, of[1])
        return self._latest[1]

    def run(
        self, name: str, plan: Plan | None, inputs: list[Any], buffers: Sequence[Any]
    ) -> list[Any] | None:
        """Run a plan if all members do; None: each runs its graph op by op."""
        about: Any = None
        if plan is not None:
            about = "safe" if self._is_safe else self._key(plan.call)
            if about is not None and not plan.call.compiled:  # the others wait from here on
                plan.call.use(executor.current().executable(plan.call.program).run)
        made: list[Any] = []

        def launch() -> list[Any]:
            assert plan is not None
            made.extend(plan.run(inputs, buffers))
            tensors = [t for t in made if isinstance(t, torch.Tensor) and t.device.type == "tpu"]
            return [t.untyped_storage()._tpu_buffer.array for t in tensors]  # type: ignore[attr-defined]

        return made if self._group.run_graph(about, name, launch) else None
