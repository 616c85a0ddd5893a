"""Lowering rules of JAX for platform tpu, where the TPU compiler does not survive their output."""

from __future__ import annotations

from functools import cache
from typing import Any

from torchtpu.private import jax as private


@cache
def register() -> None:
    """Put our rules in the place of JAX's, once.

    The one for singular values, traced under x64, multiplies float32 by an int64 diagonal of
    signs: libtpu ends the process at that product. Traced without x64, the signs are int32.
    """
    import jax
    from jax.interpreters import mlir

    primitive, rule = private.tpu_svd()

    def narrow(ctx: Any, operand: Any, **options: Any) -> Any:
        is_wide = ctx.avals_in[0].dtype.name in ("float64", "complex128")
        with jax.enable_x64(is_wide):
            return rule(ctx, operand, **options)

    mlir.register_lowering(primitive, narrow, platform="tpu")
