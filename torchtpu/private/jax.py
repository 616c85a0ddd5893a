"""Names of jax and jaxlib, which are untyped there; nothing is imported before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from torchtpu.private.versions import taken_from


@taken_from("jaxlib")
def register_dialects(registry: Any) -> None:
    """Add MLIR's own dialects that JAX uses to a registry."""
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext

    _jax_mlir_ext.register_dialects(registry)


@taken_from("jax")
def parse_module(text: str | bytes) -> Any:
    """Return an MLIR module of its text or bytecode."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
        return ir.Module.parse(text)


@taken_from("jax")
def cpu_client() -> Any:
    """Return a new client of XLA's CPU backend, whose programs run asynchronously."""
    from jax._src.lib import xla_client  # type: ignore[attr-defined]  # a re-export

    return xla_client.make_cpu_client(asynchronous=True)


@taken_from("jax")
def client_of(platform: str) -> Any:
    """Return JAX's own client of a platform; it is made at the first call."""
    from jax._src import xla_bridge

    return xla_bridge.get_backend(platform)


@taken_from("jax")
def let_absent(platform: str, why: str) -> None:
    """Let JAX find no device of a platform, which it looks for when it looks for all."""
    from jax._src import xla_bridge

    def refuse() -> Any:
        raise RuntimeError(why)

    known = xla_bridge._backend_factories
    if platform in known:
        known[platform] = replace(known[platform], factory=refuse, fail_quietly=True)


@taken_from("jax")
def arrays() -> Any:
    """Return what makes and awaits a device's arrays.

    They are ShapedArray, SingleDeviceSharding, result_handler, put and wait.
    """
    from jax._src import core, sharding_impls
    from jax._src.lib import xla_client  # type: ignore[attr-defined]  # a re-export

    xla: Any = vars(xla_client)["_xla"]
    return SimpleNamespace(
        ShapedArray=core.ShapedArray,
        SingleDeviceSharding=sharding_impls.SingleDeviceSharding,
        result_handler=_handler(xla_client.array_result_handler),
        put=xla.batched_device_put,
        wait=xla.batched_block_until_ready,
    )


def _handler(make: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """What makes an array of a result; before jax 0.12 its checks have to be turned off."""

    def handler(aval: Any, sharding: Any) -> Any:
        try:
            return make(aval, sharding, committed=True, _skip_checks=True)
        except TypeError:
            return make(aval, sharding, committed=True)

    return handler


@taken_from("jax")
def device_list(devices: Sequence[Any]) -> Any:
    """Return devices as clients take them."""
    from jax._src.lib import xla_client  # type: ignore[attr-defined]  # a re-export

    return xla_client.DeviceList(tuple(devices))


@taken_from("jax")
def compile_options(devices: Sequence[Any] = ()) -> Any:
    """Return XLA's options for a program of one device, or partitioned over several."""
    from jax._src import compiler

    if not devices:
        return compiler.get_compile_options(num_replicas=1, num_partitions=1)
    return compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=np.array([[d.id for d in devices]]),
    )


@taken_from("jax")
def initialize_lapack() -> None:
    """Find the functions behind jaxlib's LAPACK calls, as JAX does when it traces the first one."""
    from jax._src.lax import linalg

    linalg.initialize_lapack()


@taken_from("jax")
def tpu_svd() -> tuple[Any, Any]:
    """Return the primitive of singular values, and JAX's lowering rule of it for platform tpu."""
    import jax
    from jax._src.tpu.linalg import svd

    return jax.lax.linalg.svd_p, svd._svd_tpu_lowering_rule


@taken_from("jax")
def eig_primitive() -> Any:
    """Return the primitive of eigenvalues of general matrices."""
    from jax._src.lax import linalg

    return linalg.eig_p


@taken_from("jax")
def lu() -> tuple[Any, Any, Any]:
    """Return the primitive of LU factors, JAX's rule for platform tpu, and its form in JAX ops."""
    from jax._src.lax import linalg

    return linalg.lu_p, linalg._lu_tpu_lowering_rule, linalg._lu_python


@taken_from("jax")
def trace_settings() -> dict[str, Any]:
    """Return JAX's settings of this thread that a trace depends on, by name."""
    from jax._src import config

    known = dict(zip(config.trace_context_names(), config.trace_context(), strict=True))
    known["jax_default_prng_impl"] = config.config.values["jax_default_prng_impl"]
    return known
