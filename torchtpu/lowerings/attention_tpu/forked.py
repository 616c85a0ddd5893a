"""A function of two forms: JAX ops anywhere, and kernels of its own on platform tpu.

Of programs that GSPMD partitions over several devices the ops stay: it cannot cut a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from torchtpu import targets
from torchtpu.private import jax as private

Array = Any


class Forked:
    """A function with kernels of its own on platform tpu; both forms return the same types.

    ops, kernels: called with the arrays (None where one is absent) and static arguments by name;
    kernels also with `precision`. results: their types, from the same arguments.
    """

    def __init__(
        self,
        name: str,
        *,
        ops: Callable[..., Sequence[Array]],
        kernels: Callable[..., Sequence[Array]],
        results: Callable[..., Sequence[Any]],
    ) -> None:
        def in_ops(*arrays: Array, given: tuple[bool, ...], precision: Any, **static: Any) -> Any:
            return ops(*_placed(arrays, given), **static)

        def in_kernels(*arrays: Array, given: tuple[bool, ...], **static: Any) -> Any:
            return kernels(*_placed(arrays, given), **static)

        def types(*avals: Any, given: tuple[bool, ...], precision: Any, **static: Any) -> Any:
            return results(*_placed(avals, given), **static)

        in_kernels.__name__ = name
        elsewhere = mlir.lower_fun(in_ops, multiple_results=True)
        self.primitive = private.primitive(name, types, elsewhere)
        self.primitive.multiple_results = True
        targets.register_kernels(self.primitive, _rule(in_kernels, elsewhere))

    def __call__(self, *arrays: Array | None, **static: Any) -> list[Array]:
        """Arguments and results are those of `ops`."""
        found: list[Array] = self.primitive.bind(
            *(a for a in arrays if a is not None),
            given=tuple(a is not None for a in arrays),
            precision=private.matmul_precision(),
            **static,
        )
        return found


def _placed(arrays: Sequence[Array], given: tuple[bool, ...]) -> list[Array | None]:
    """Put None back where no array was given."""
    left = iter(arrays)
    return [next(left) if is_given else None for is_given in given]


def _rule(in_kernels: Callable[..., Any], elsewhere: Any) -> Any:
    """The rule for platform tpu: kernels once per module and shape, with 32-bit indices."""
    called = jax.jit(in_kernels, static_argnames=("given", "precision", "of", "wanted"))

    def narrowed(*arrays: Array, **static: Any) -> Any:
        wide = np.dtype(np.float64)
        arrays = tuple(a.astype(jnp.float32) if a.dtype == wide else a for a in arrays)
        with jax.enable_x64(False):
            return called(*arrays, **static)

    kernels = mlir.lower_fun(narrowed, multiple_results=True)

    def rule(ctx: Any, *operands: Any, **static: Any) -> Any:
        of_one = private.is_on_one_device(ctx)
        return (kernels if of_one else elsewhere)(ctx, *operands, **static)

    return rule
