"""Registration of kernels with torch's dispatcher: a fallback, and the rest at first use.

`import torch` must stay quick, so jax is imported and the table is read when the first tensor is
made on the device: everything reaches `_fallback` until then.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchtpu.errors import LoweringError
from torchtpu.private import torch as private

_aten: torch.library.Library | None = None
_any: torch.library.Library | None = None
_lock = threading.RLock()
_installed = False
OTHER_LAYOUTS = ("SparsePrivateUse1", "SparseCsrPrivateUse1", "NestedTensorPrivateUse1")
derived: dict[str, Callable[..., Any]] = {}  # overload name -> kernel made from the table
functional_forms: dict[str, str] = {}  # overload name -> that of the lowering it is derived from


def register() -> None:
    """Claim the dispatch key PrivateUse1 for the fallback; idempotent."""
    global _any
    if _any is None:
        _any = torch.library.Library("_", "IMPL")
        _any.fallback(_fallback, "PrivateUse1")
        for key in OTHER_LAYOUTS:
            _any.fallback(_other_layout, key)


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    if not _installed:
        install()
        return op(*args, **kwargs)
    from torchtpu.eager import fallback

    return fallback.run(op, args, kwargs)


def _other_layout(op: Any, *args: Any, **kwargs: Any) -> Any:
    if not _installed:
        install()
        return op(*args, **kwargs)
    from torchtpu.eager import sparse

    return sparse.unsupported(op, args, kwargs)


def install() -> None:
    """Register the kernels of all lowerings, their in-place and out= variants, and the view ops."""
    global _aten, _installed
    with _lock:
        if _installed:
            return
        from torchtpu.eager import kernel

        written_by_hand = _hand_written()
        library = torch.library.Library("aten", "IMPL")
        for operation in operations():
            name = full_name(operation.op)
            derived[name] = kernel.make(operation)
            functional_forms[name] = operation.lowering.name
        for name, fn in (derived | written_by_hand).items():
            if name.startswith("aten::"):
                library.impl(name.removeprefix("aten::"), fn, "PrivateUse1")
        _install_composites(library)
        _install_other_layouts(library)
        _aten, _installed = library, True


def _install_composites(library: torch.library.Library) -> None:
    """Replace composites of torch: below autograd, and above it, where it derives their parts."""
    from torchtpu.eager import view_ops

    for name, fn in view_ops.COMPOSITES.items():
        for key in ("PrivateUse1", "AutogradPrivateUse1"):
            library.impl(name.removeprefix("aten::"), _annotated(name, fn), key)


def _install_other_layouts(library: torch.library.Library) -> None:
    from torchtpu.eager import nested, sparse, sparse_compressed, sparse_math, sparse_softmax

    del sparse_math, sparse_softmax  # they enter their kernels in sparse.KERNELS
    tables = (sparse.KERNELS, sparse_compressed.KERNELS, nested.KERNELS)
    for key, kernels in zip(OTHER_LAYOUTS, tables, strict=True):
        for name, fn in kernels.items():
            library.impl(name.removeprefix("aten::"), _annotated(name, fn), key)


def _hand_written() -> dict[str, Callable[..., Any]]:
    from torchtpu.eager import (
        attention,
        collectives,
        conjugate,
        copy_ops,
        ctc,
        dynamic,
        linalg,
        missing_meta,
        nested,
        out_variants,
        random_checks,
        schema,
        sharding,
        sparse,
        sparse_compressed,
        vendor,
        view_ops,
    )

    del (
        attention,
        collectives,
        conjugate,
        copy_ops,
        ctc,
        dynamic,
        missing_meta,
        out_variants,
        random_checks,
    )
    del linalg, nested, sharding, sparse, sparse_compressed, vendor
    return {n: _annotated(n, fn) for n, fn in view_ops.KERNELS.items() if schema.exists(n)}


def _annotated(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    from torchtpu.eager import blame

    @functools.wraps(fn)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            blame.annotate(error, name)
            raise

    return kernel


def operations() -> Iterator[Any]:
    """Yield an Operation for each lowering and for each variant of it that its schema implies."""
    from torchtpu.eager.operation import Operation
    from torchtpu.eager.schema import arguments, exists, overload, variants
    from torchtpu.lowerings import table

    for name, lowering in table().items():
        if not exists(name):
            continue
        functional = overload(name)
        known = {lowering.aliases.get(a.name, a.name) for a in arguments(functional._schema)}
        unknown = set(lowering.parameters[lowering.key :]) - known - lowering.optional
        if unknown:
            raise LoweringError(
                f"[{name}] the schema has no argument {sorted(unknown)}: {functional._schema}"
            )
        if _only_composite(name):
            raise LoweringError(
                f"[{name}] torch composes this op; a kernel would cut its gradient off"
            )
        yield Operation(op=functional, functional=functional, lowering=lowering)
        in_place, out = variants(functional)
        for variant in in_place + out:
            if full_name(variant) not in table():
                yield Operation(op=variant, functional=functional, lowering=lowering)


def _only_composite(name: str) -> bool:
    has = private.has_kernel
    return has(name, "CompositeImplicitAutograd") and not has(name, "Autograd")


def full_name(op: Any) -> str:
    """Return "aten::add.Tensor" of an OpOverload, "aten::mm" where the overload has no name."""
    which = "" if op._overloadname == "default" else f".{op._overloadname}"
    return f"{op._schema.name}{which}"
