"""Names of torch, each found when it is first asked for: some of their modules load for long."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchtpu.private.versions import names_of

if TYPE_CHECKING:  # what type checkers see of the names
    from torch._C import DisableTorchFunctionSubclass as DisableTorchFunctionSubclass
    from torch._C import DispatchKey as DispatchKey
    from torch._C import DispatchKeySet as DispatchKeySet
    from torch._C import Generator as Generator
    from torch._C._acc import DeviceGuard as DeviceGuard
    from torch._C._acc import PrivateUse1Hooks as PrivateUse1Hooks
    from torch._C._autograd import DeviceType as DeviceType
    from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
    from torch._dynamo import trace_rules as trace_rules
    from torch._dynamo.backends.common import aot_autograd as aot_autograd
    from torch._functorch._aot_autograd.autograd_cache import (
        BypassAOTAutogradCache as BypassAOTAutogradCache,
    )
    from torch._functorch._aot_autograd.schemas import (
        SerializableAOTDispatchCompiler as SerializableAOTDispatchCompiler,
    )
    from torch._functorch.partitioners import (
        min_cut_rematerialization_partition as min_cut_rematerialization_partition,
    )
    from torch._guards import TracingContext as TracingContext
    from torch._guards import detect_fake_mode as detect_fake_mode
    from torch._inductor import codecache as codecache
    from torch._inductor.output_code import OutputCode as OutputCode
    from torch._ops import OpOverload as OpOverload
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch.fx._graph_pickler import GraphPickler as GraphPickler
    from torch.utils import _pytree

    pytree = _pytree
    from torch.utils._sympy.numbers import int_oo as int_oo

    def current_graph_task_id() -> int: ...
    def has_kernel(name: str, key: str) -> bool: ...
    def privateuse1_name() -> str: ...


_NAMES = {
    "BypassAOTAutogradCache": "torch._functorch._aot_autograd.autograd_cache",
    "DataDependentOutputException": "torch._subclasses.fake_tensor",
    "DeviceGuard": "torch._C._acc",
    "DeviceType": "torch._C._autograd",
    "DisableTorchDispatch": "torch._C:_DisableTorchDispatch",
    "DisableTorchFunctionSubclass": "torch._C",
    "DispatchKey": "torch._C",
    "DispatchKeySet": "torch._C",
    "ExcludeDispatchKeyGuard": "torch._C:_ExcludeDispatchKeyGuard",
    "FakeTensor": "torch._subclasses.fake_tensor",
    "FakeTensorMode": "torch._subclasses.fake_tensor",
    "Generator": "torch._C",
    "GraphPickler": "torch.fx._graph_pickler",
    "GraphPicklerOptions": "torch.fx._graph_pickler:Options",
    "HashStore": "torch._C._distributed_c10d",
    "OpOverload": "torch._ops",
    "OutputCode": "torch._inductor.output_code",
    "OffsetBasedRNGTracker": "torch.distributed.tensor._random",
    "PrivateUse1Hooks": "torch._C._acc",
    "SerializableAOTDispatchCompiler": "torch._functorch._aot_autograd.schemas",
    "TorchCompileInductorWrapper": "torch:_TorchCompileInductorWrapper",
    "TracingContext": "torch._guards",
    "all_op_names": "torch._C:_dispatch_get_all_op_names",
    "aot_autograd": "torch._dynamo.backends.common",
    "codecache": "torch._inductor.codecache:",
    "create_work": "torch._C._distributed_c10d:_create_work_from_future",
    "current_autograd_node": "torch._C:_current_autograd_node",
    "current_graph_task_id": "torch._C:_current_graph_task_id",
    "ddp": "torch.nn.parallel.distributed:",
    "decomposition_table": "torch._decomp",
    "detect_fake_mode": "torch._guards",
    "dtensor_shards": "torch.distributed.tensor._random:_calc_shard_info",
    "disable_current_modes": "torch.utils._python_dispatch:_disable_current_modes",
    "enable_python_dispatcher": "torch._dispatch.python",
    "dtensor_random": "torch.distributed.tensor._random:",
    "engine_run_backward": "torch.autograd.graph:_engine_run_backward",
    "from_dlpack": "torch._C:_from_dlpack",
    "functorch_config": "torch._functorch.config:",
    "gloo": "torch._C._distributed_c10d:ProcessGroupGloo",
    "has_kernel": "torch._C:_dispatch_has_kernel_for_dispatch_key",
    "int_oo": "torch.utils._sympy.numbers",
    "is_overrideable_sdp_enabled": "torch._C:_get_overrideable_sdp_enabled",
    "min_cut_rematerialization_partition": "torch._functorch.partitioners",
    "privateuse1_name": "torch._C:_get_privateuse1_backend_name",
    "process_group": "torch._C._distributed_c10d:_resolve_process_group",
    "pytree": "torch.utils._pytree:",
    "rendezvous_handlers": "torch.distributed.rendezvous:_rendezvous_handlers",
    "semi_structured_conversions": "torch.sparse._semi_structured_conversions:",
    "sequence_nr": "torch._C._autograd:_get_sequence_nr",
    "setup_privateuse1": (
        "torch.utils.backend_registration:_setup_privateuseone_for_python_backend"
    ),
    "sympy_functions": "torch.utils._sympy.functions:",
    "tensor_str": "torch._tensor_str:",
    "trace_rules": "torch._dynamo.trace_rules:",
}  # ours -> module, or module:name there (module: for the module itself)


def __getattr__(name: str) -> Any:
    """Find a name of torch; UnknownVersion where this release has it no more."""
    if name not in _NAMES:
        raise AttributeError(f"[torchtpu.private.torch] no name {name!r}")
    module, colon, theirs = _NAMES[name].partition(":")
    import_module("torch")  # one that cannot be imported at all lacks no name
    with names_of("torch"):
        found = _module(module)
        if theirs or not colon:
            found = getattr(found, theirs or name)
    globals()[name] = found
    return found


def _module(path: str) -> Any:
    """Import a module; those of torch._C are attributes that only look like modules."""
    if not path.startswith("torch._C"):
        return import_module(path)
    import torch

    found: Any = torch._C
    for part in path.removeprefix("torch._C").split(".")[1:]:
        found = getattr(found, part)
    return found
