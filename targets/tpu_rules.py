"""Lowering rules for platform tpu: those that JAX lacks, or whose output its compiler dies of."""

from __future__ import annotations

from functools import cache
from typing import Any

from torchtpu.private import jax as private
from torchtpu.targets.base import TargetError

_WIDE = ("float64", "complex128")


@cache
def register() -> None:
    """Give JAX our rules, once.

    Its own for singular values, traced under x64, multiplies float32 by an int64 diagonal of
    signs: libtpu ends the process at that product. Traced without x64, the signs are int32.
    Eigenvalues of general matrices JAX has on the CPU and CUDA only.
    """
    from jax.interpreters import mlir

    svd, rule = private.tpu_svd()
    mlir.register_lowering(svd, _narrow(rule), platform="tpu")
    lu, native, in_ops = private.lu()
    mlir.register_lowering(lu, _lu(native, mlir.lower_fun(in_ops)), platform="tpu")
    eig = mlir.lower_fun(_eig, multiple_results=True)
    mlir.register_lowering(private.eig_primitive(), _narrow(eig), platform="tpu")


def check(module: Any) -> None:
    """Raise TargetError for a module that the TPU compiler would not survive."""
    if "complex<f64>" in str(module):
        raise TargetError(
            "[tpu] expected no complex128, whose division, absolute value, QR factors and "
            "conversions end the process of the TPU compiler; use complex64"
        )


def _narrow(rule: Any) -> Any:
    """The rule, traced with the dtypes that its operand has and none wider."""
    import jax

    def narrow(ctx: Any, operand: Any, **options: Any) -> Any:
        with jax.enable_x64(ctx.avals_in[0].dtype.name in _WIDE):
            return rule(ctx, operand, **options)

    return narrow


def _lu(native: Any, in_ops: Any) -> Any:
    """The compiler's own LU factors are of 32 bits; wider ones by JAX's blocked form."""

    def rule(ctx: Any, operand: Any, **options: Any) -> Any:
        is_wide = ctx.avals_in[0].dtype.name in _WIDE
        return (in_ops if is_wide else native)(ctx, operand, **options)

    return rule


def _eig(operand: Any, **options: Any) -> list[Any]:
    import jax

    from torchtpu.targets import schur

    if operand.dtype.name in _WIDE:
        raise NotImplementedError(
            f"[eig] expected float32 or complex64 on platform tpu, got {operand.dtype.name}: its "
            "compiler has no QR factors of complex128"
        )
    if options["compute_left_eigenvectors"]:
        raise NotImplementedError("[eig] left eigenvectors are not computed on platform tpu")
    *batch, n, _ = operand.shape
    found = jax.vmap(schur.eig)(operand.reshape(-1, n, n))
    values, vectors = (x.reshape(*batch, *x.shape[1:]) for x in found)
    return [values, vectors] if options["compute_right_eigenvectors"] else [values]
