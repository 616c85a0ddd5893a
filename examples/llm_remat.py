"""What a block keeps for backward: everything, its input only, or its input and named products."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

# Products that a policy may keep, in the order in which a block makes them.
NAMES = ("q", "k", "v", "attention", "out", "gate", "up", "down")
POLICIES: dict[str, frozenset[str] | None] = {
    "none": None,
    "full": frozenset(),
    "minimal": frozenset(NAMES) - {"attention"},
    "minimal_with_attention": frozenset(NAMES),
    "qkv": frozenset({"q", "k", "v"}),
    "out": frozenset({"out"}),
}

_aten = torch.ops.aten
# What is kept of a name: the product, not the casts and views around it.
_PRODUCTS = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.linear.default,
        _aten.matmul.default,
        _aten._int_mm.default,
        _aten._scaled_mm.default,
        _aten._grouped_mm.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_fused_attention_overrideable.default,
    }
)
# FSDP's hooks in a block name ranges: not as many forward as when backward computes it again.
SAC_IGNORED_OPS.update(
    {
        torch.ops.profiler._record_function_enter_new.default,
        torch.ops.profiler._record_function_exit._RecordFunction,
    }
)
_current = ""


@contextlib.contextmanager
def product(name: str) -> Iterator[None]:
    """Give a name to the products that are computed inside."""
    global _current
    before, _current = _current, name
    try:
        yield
    finally:
        _current = before


def kept_names(policy: str, extra: str = "") -> frozenset[str] | None:
    """Names that `policy`, a key of POLICIES, and the list `extra` keep; None: all of a block.

    Raises ValueError for a name that no product has.
    """
    names = POLICIES[policy]
    more = frozenset(filter(None, extra.split(",")))
    if unknown := sorted(more - set(NAMES)):
        raise ValueError(f"[llm] --save {', '.join(unknown)}: expected names of {', '.join(NAMES)}")
    return None if names is None else names | more


def run(kept: frozenset[str] | None, function: Callable[..., Any], *inputs: Any) -> Any:
    """Call `function`; compute again in backward what `kept` does not name."""
    if kept is None or not torch.is_grad_enabled():
        return function(*inputs)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if kept:
        choose = partial(_choose, kept)
        options["context_fn"] = partial(create_selective_checkpoint_contexts, choose)
    return checkpoint(function, *inputs, **options)


def _choose(kept: frozenset[str], _context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
    if op in _PRODUCTS and _current in kept:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
