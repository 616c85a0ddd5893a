"""Names of jax and jaxlib, which are untyped there; nothing is imported before it is asked for."""

from __future__ import annotations

import atexit
import ctypes
import io
import socket
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
def ir_context() -> Any:
    """Return a new MLIR context that knows the dialects of JAX's programs."""
    from jax._src.interpreters import mlir

    return mlir.make_ir_context()


@taken_from("jaxlib")
def bytecode(module: Any) -> bytes:
    """Return a module as MLIR bytecode, for the same version of jaxlib."""
    text = io.BytesIO()
    module.operation.write_bytecode(text)
    return text.getvalue()


@taken_from("jax")
def portable(module: Any) -> bytes:
    """Return a StableHLO module as a portable artifact, which newer versions read too."""
    from jax._src.lib import xla_client  # type: ignore[attr-defined]  # a re-export
    from jaxlib.mlir.dialects import stablehlo

    xla: Any = vars(xla_client)["_xla"]
    version = stablehlo.get_version_from_compatibility_requirement(
        stablehlo.StablehloCompatibilityRequirement.WEEK_4
    )
    made: bytes = xla.mlir.serialize_portable_artifact(module, version, True)
    return made


@taken_from("jax")
def parse_portable(artifact: bytes) -> Any:
    """Return the module of a portable artifact."""
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client  # type: ignore[attr-defined]  # a re-export

    xla: Any = vars(xla_client)["_xla"]
    with mlir.make_ir_context():
        return xla.mlir.deserialize_portable_artifact(artifact)


@taken_from("jax")
def cpu_client(devices: int) -> Any:
    """Return a new client of XLA's CPU backend, whose programs run asynchronously."""
    from jax._src.lib import xla_client  # type: ignore[attr-defined]  # a re-export

    return xla_client.make_cpu_client(asynchronous=True, num_devices=devices)


_FOREVER_S = 1_000_000


@taken_from("jax")
def lone_runtime() -> Any:
    """Return a key-value store of XLA's distributed runtime that only this process is in.

    XLA ends a process whose store goes away: so each has its own, and hands on what is in it.
    """
    from jax._src.lib import xla_client  # type: ignore[attr-defined]  # a re-export

    xla: Any = vars(xla_client)["_xla"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    service = xla.get_distributed_runtime_service(address, 1, heartbeat_timeout=_FOREVER_S)
    keys = xla.get_distributed_runtime_client(
        address, 0, heartbeat_timeout=_FOREVER_S, shutdown_on_destruction=False
    )
    keys.connect()
    atexit.register(keys.shutdown)
    return SimpleNamespace(service=service, keys=keys)


@taken_from("jax")
def world_client(keys: Any, rank: int, size: int, host: str) -> Any:
    """Return a client of XLA's CPU backend, one of `size` whose collectives go over gloo.

    host: this machine's name or address, for the others. Blocks until `keys` has what all say.
    """
    from jax._src.lib import xla_client  # type: ignore[attr-defined]  # a re-export

    gloo = vars(xla_client)["_xla"].make_gloo_tcp_collectives(keys, hostname=host)
    return xla_client.make_cpu_client(
        asynchronous=True,
        distributed_client=keys,
        node_id=rank,
        num_nodes=size,
        collectives=gloo,
    )


def keep(client: Any) -> None:
    """Let a client live until the process is gone: nothing waits for its programs then."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


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
def output_specs(loaded: Any, mesh: Any) -> list[Any]:
    """Return the PartitionSpecs on a mesh of a loaded executable's results.

    Raises jax's errors for what no axes of the mesh can say.
    """
    from jax._src import sharding_impls

    found = loaded.get_output_shardings() or ()
    return [s for one in found for s in sharding_impls.parse_flatten_op_sharding(one, mesh)]


@taken_from("jax")
def primitive(name: str, shape: Callable[..., Any], emit: Callable[..., Any]) -> Any:
    """Return a new primitive: its result's type of its operand's, and what lowers it anywhere."""
    from jax._src import core, dispatch
    from jax.interpreters import mlir

    made = core.Primitive(name)
    made.def_impl(dispatch.apply_primitive)
    made.def_abstract_eval(shape)
    mlir.register_lowering(made, emit)
    return made


@taken_from("jax")
def replica_options(devices: Sequence[Any]) -> Any:
    """Return XLA's options for a program that each of some devices runs as it is written."""
    from jax._src import compiler

    return compiler.get_compile_options(
        num_replicas=len(devices),
        num_partitions=1,
        device_assignment=np.array([[d.id] for d in devices]),
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
def is_on_one_device(ctx: Any) -> bool:
    """Whether what a lowering rule is asked for is one device's own: nothing of it is partitioned.

    ctx: the rule's context. Inside a shard_map over all axes of a mesh each device has its part.
    """
    context = ctx.module_context.axis_context
    mesh = getattr(context, "mesh", None)
    if mesh is None:
        return int(getattr(context, "num_devices", 1)) == 1
    manual: frozenset[Any] = frozenset(context.manual_axes) | frozenset(mesh.manual_axes)
    return manual == frozenset(mesh.axis_names)


@taken_from("jax")
def matmul_precision() -> str | None:
    """Return what this thread's products of float32 are traced with, in JAX's words."""
    from jax._src import config

    found: str | None = config.default_matmul_precision.value
    return found


@taken_from("jax")
def trace_settings() -> dict[str, Any]:
    """Return JAX's settings of this thread that a trace depends on, by name."""
    from jax._src import config

    known = dict(zip(config.trace_context_names(), config.trace_context(), strict=True))
    known["jax_default_prng_impl"] = config.config.values["jax_default_prng_impl"]
    return known
