"""torch.autocast("tpu"): which ops compute in the lower dtype and which in float32."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from torchtpu.private import torch as private

# The lists follow torch's own for accelerators: matmul-like ops gain from the lower dtype, ops that
# sum many terms or have a large range need float32, ops of several tensors take the widest.
_LOWER = (
    "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d.input "
    "conv_transpose3d.input conv1d.padding conv2d.padding conv3d.padding mm bmm addmm addmv "
    "addr matmul linear baddbmm addbmm mv chain_matmul linalg_multi_dot linalg_vecdot einsum "
    "prelu scaled_dot_product_attention _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell "
    "gru_cell rnn_tanh_cell rnn_relu_cell"
)
_FLOAT32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan "
    "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm "
    "group_norm rms_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity "
    "poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div "
    "l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss "
    "soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits "
    "dist pdist cdist renorm logsumexp norm.Scalar norm.ScalarOpt_dim "
    "norm.names_ScalarOpt_dim softmax.int log_softmax.int cumprod cumsum prod prod.dim_int "
    "sum sum.dim_IntList"
)
_WIDEST = (
    "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot "
    "vdot cat stack"
)

_library: torch.library.Library | None = None
_others: torch.library.Library | None = None


def register() -> None:
    """Register the casting rules on AutocastPrivateUse1; everything else falls through."""
    global _library, _others
    if _library is not None:
        return
    _others = torch.library.Library("_", "IMPL")
    _others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _default_to_bfloat16()
    _library = torch.library.Library("aten", "IMPL")
    for names, dtype_of in ((_LOWER, _lower), (_FLOAT32, _float32), (_WIDEST, _widest)):
        for name in names.split():
            packet, _, which = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet, None), which or "default", None)
            if op is not None:
                _library.impl(name, _rule(op, dtype_of), "AutocastPrivateUse1")


_thread = threading.local()


def _default_to_bfloat16() -> None:
    """Start every thread at bfloat16: torch keeps the dtype per thread and starts each at float16.

    TPUs have no float16 units.
    """
    get, assign = torch.get_autocast_dtype, torch.set_autocast_dtype

    @functools.wraps(get)
    def get_autocast_dtype(device_type: str) -> torch.dtype:
        if device_type == "tpu" and not hasattr(_thread, "chosen"):
            set_autocast_dtype("tpu", torch.bfloat16)
        return get(device_type)

    @functools.wraps(assign)
    def set_autocast_dtype(device_type: str, dtype: torch.dtype) -> None:
        if device_type == "tpu":
            _thread.chosen = True
        assign(device_type, dtype)

    torch.get_autocast_dtype = get_autocast_dtype
    torch.set_autocast_dtype = set_autocast_dtype


def _rule(
    op: Any, dtype_of: Callable[[list[torch.Tensor]], torch.dtype | None]
) -> Callable[..., Any]:
    keys: Any = private.DispatchKey
    key = private.DispatchKeySet(keys.AutocastPrivateUse1)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = dtype_of(list(_floating([args, kwargs])))
        with private.ExcludeDispatchKeyGuard(key):
            if dtype is None:
                return op(*args, **kwargs)
            return op(*_cast(args, dtype), **_cast(kwargs, dtype))

    return kernel


def _lower(_: list[torch.Tensor]) -> torch.dtype:
    return torch.get_autocast_dtype("tpu")


def _float32(tensors: list[torch.Tensor]) -> torch.dtype | None:
    return (
        torch.float32 if any(t.dtype in (torch.bfloat16, torch.float16) for t in tensors) else None
    )


def _widest(tensors: list[torch.Tensor]) -> torch.dtype | None:
    found = {t.dtype for t in tensors}
    if len(found) < 2:
        return None
    return torch.float32 if torch.float32 in found else _lower(tensors)


def _floating(value: Any) -> Any:
    """Yield the tensors that autocast casts: floating point on tpu, and no float64."""
    if isinstance(value, torch.Tensor):
        if (
            value.device.type == "tpu"
            and value.is_floating_point()
            and value.dtype != torch.float64
        ):
            yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _floating(v)
    elif isinstance(value, dict):
        for v in value.values():
            yield from _floating(v)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if any(True for _ in _floating(value)) else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(v, dtype) for v in value)
    if isinstance(value, dict):
        return {k: _cast(v, dtype) for k, v in value.items()}
    return value
