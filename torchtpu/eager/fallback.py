"""Ops without a lowering: torch's decomposition, the CPU where that is allowed, or an error."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from functools import cache
from typing import Any

import torch

from torchtpu import config
from torchtpu.eager import blame
from torchtpu.eager.schema import arguments
from torchtpu.errors import UnsupportedOpError
from torchtpu.private.torch import pytree

_decomposing = threading.local()
counts: Counter[str] = Counter()  # op -> calls that ran on the CPU


def run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op that has no kernel of its own."""
    rule = decomposition(op)
    running = _decomposing.__dict__.setdefault("ops", set())
    if rule is not None and op not in running:  # some of torch's rules only lead back to the op
        running.add(op)
        try:
            result = rule(*args, **kwargs)
        finally:
            running.discard(op)
        if result is not NotImplemented:
            return result
    functional = functional_form(op)
    if functional is not None:
        return _from_functional(op, functional, args, kwargs)
    from torchtpu.eager.dispatch import full_name

    name = full_name(op)
    if config.get("fallback") == "error":
        error = UnsupportedOpError(name)
        blame.annotate(error, name)
        raise error
    if name not in counts:
        warnings.warn(
            f"[torchtpu] {name} has no lowering and runs on the CPU, first at {blame.user_line()}",
            stacklevel=2,
        )
    counts[name] += 1
    return _on_cpu(op, args, kwargs)


@cache
def decomposition(op: Any) -> Any:
    """Return torch's rule for an op, None where it has none."""
    from torchtpu.private.torch import decomposition_table

    return decomposition_table.get(op)


@cache
def functional_form(op: Any) -> Any:
    """Return the functional overload of an in-place or out= one, where that can be computed."""
    from torchtpu.eager.dispatch import derived, full_name
    from torchtpu.eager.schema import variants

    if not any(a.written for a in arguments(op._schema)):
        return None
    namespace, _, base = op._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base.removesuffix("_"), None)
    for which in packet.overloads() if packet is not None else ():
        found = getattr(packet, which)
        if any(a.written for a in arguments(found._schema)):
            continue
        in_place, out = variants(found)
        if op in in_place + out and (full_name(found) in derived or decomposition(found)):
            return found
    return None


def _from_functional(
    op: Any, functional: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    bound = {a.name: v for a, v in zip(arguments(op._schema), args, strict=False)} | kwargs
    inputs = {a.name: bound[a.name] for a in arguments(functional._schema) if a.name in bound}
    rule = decomposition(functional) or functional  # its parameters may have other names
    named = {a.name for a in functional._schema.arguments if a.kwarg_only}
    results = rule(
        *(v for n, v in inputs.items() if n not in named),
        **{n: v for n, v in inputs.items() if n in named},
    )
    written = [bound[a.name] for a in arguments(op._schema) if a.written]
    out: Any = kwargs.get("out")
    values = results if isinstance(results, (tuple, list)) else [results]
    for target, value in zip(written, values, strict=True):
        if target is out and target.shape != value.shape:
            torch.ops.aten._resize_output_.default(target, list(value.shape), value.device)
        target.copy_(value)
    return written[0] if len(written) == 1 else tuple(written)


def _on_cpu(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    moved: list[tuple[torch.Tensor, torch.Tensor]] = []

    def to_cpu(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "tpu":
            moved.append((value, value.cpu()))
            return moved[-1][1]
        if isinstance(value, torch.device) and value.type == "tpu":
            return torch.device("cpu")
        return value

    def to_device(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "cpu":
            original = next((t for t, c in moved if c is value), None)
            return value.to("tpu") if original is None else original
        return value

    result = op(*pytree.tree_map(to_cpu, args), **pytree.tree_map(to_cpu, kwargs))
    if any(a.written for a in arguments(op._schema)):
        for original, copy in moved:
            if original.shape != copy.shape:
                original.resize_(copy.shape)
            original.copy_(copy)
    return pytree.tree_map(to_device, result)
