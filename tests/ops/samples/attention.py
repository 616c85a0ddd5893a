"""Attention under the names of CUDA's kernels, by softmax(scale * Q K^T + bias) V on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from tests.ops.samples.by_autograd import gradients
from tests.ops.samples.call import Call, call, out, values

_WIDTH, _F8 = 8, torch.float8_e4m3fn
_STARTS_Q, _STARTS_K = (torch.tensor(s, dtype=torch.int32) for s in ([0, 3, 8, 9], [0, 4, 10, 12]))
_PACKED = (_STARTS_Q, _STARTS_K, 5, 6)  # starts, and the longest of them


def made() -> list[tuple[str, Call]]:
    """Return overloads' names, several in a string where they share a call, with their calls."""
    found: list[tuple[str, Call]] = []
    for causal in (False, True):
        for family in (_flash, _flash_gradients, _efficient, _efficient_gradients, _cudnn):
            found += family(causal)
    return [*found, *_windows(), *_quantized(), *_dropped(), *_layers(), *_choices()]


def _dense() -> list[torch.Tensor]:
    """[B, H, S, D]."""
    return [values(2, 4, n, _WIDTH) / w for n, w in ((5, 1), (6, 2), (6, 3))]


def _rows() -> list[torch.Tensor]:
    """[B, S, H, D]."""
    return [t.transpose(1, 2).contiguous() for t in _dense()]


def _packed() -> list[torch.Tensor]:
    """[N, H, D]: three sequences behind each other."""
    return [values(n, 4, _WIDTH) / w for n, w in ((9, 1), (12, 2), (12, 3))]


def _attended(
    *tensors: Any,
    window: tuple[int | None, int | None] = (None, None),
    lower_right: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., S, D] -> the result and the log-sum-exp; windows lie around the diagonal."""
    query, key, value, bias = tensors if len(tensors) == 4 else (*tensors, None)
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    scores = scores if bias is None else scores + bias
    rows, columns = scores.shape[-2:]
    off = columns - rows if lower_right else 0
    step = torch.arange(columns) - (torch.arange(rows)[:, None] + off)
    for limit, beyond in zip(window, (-step, step), strict=True):
        if limit is not None:
            scores = scores.masked_fill(beyond > limit, -torch.inf)
    return scores.softmax(-1).nan_to_num(0) @ value, scores.logsumexp(-1)


def _one_by_one(*tensors: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """[N, H, D]: each sequence by itself; the log-sum-exp is [H, N]."""
    found = []
    for b in range(len(_STARTS_Q) - 1):
        rows, columns = (slice(*s[b : b + 2].tolist()) for s in (_STARTS_Q, _STARTS_K))
        places = zip(tensors, (rows, columns, columns), strict=True)
        parts = [t[c].transpose(0, 1) for t, c in places]
        found.append(_attended(*parts, **options))
    return torch.cat([r.transpose(0, 1) for r, _ in found]), torch.cat([s for _, s in found], 1)


def _of_rows(*tensors: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, S, H, D], and the log-sum-exp [B, H, S]."""
    made, sums = _attended(*(t.transpose(1, 2) for t in tensors[:3]), *tensors[3:], **options)
    return made.transpose(1, 2), sums


def _window(causal: bool) -> dict[str, Any]:
    return {"window": (None, 0 if causal else None)}


def _undrawn(*more: Any) -> tuple[Any, ...]:
    """The random state without dropout, and no picture of the mask."""
    state = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64)
    return *more, *state, torch.empty(0)


def _flash(causal: bool) -> list[tuple[str, Call]]:
    options, dense, rows = _window(causal), _dense(), _rows()

    def sdpa(*given: Any) -> Any:
        return *_attended(*given[:3], **options), *_undrawn(None, None, 5, 6)

    def forward(*given: Any) -> Any:
        return *(_of_rows if given[3] is None else _one_by_one)(*given[:3], **options), *_undrawn()

    def into(target: torch.Tensor, *given: Any) -> Any:
        made, sums = _of_rows(*given[:3], **options)
        target.copy_(made)
        return sums

    name, more = "_flash_attention_forward", (None, None, 5, 6, 0.0, causal, False)
    target = out(2, 5, 4, _WIDTH)
    return [
        ("_scaled_dot_product_flash_attention", call(*dense, 0.0, causal, reference=sdpa)),
        (name, call(*rows, *more, reference=forward)),
        (name, call(*_packed(), *_PACKED, 0.0, causal, False, reference=forward)),
        (f"{name}_no_dropout_inplace", call(target, *rows, *more, reference=into)),
    ]


def _flash_gradients(causal: bool) -> list[tuple[str, Call]]:
    options, state = _window(causal), _undrawn()[:2]
    found = []
    for name, plain, tensors, starts in (
        ("_scaled_dot_product_flash_attention_backward", _attended, _dense(), (None, None, 5, 6)),
        ("_flash_attention_backward", _of_rows, _rows(), (None, None, 5, 6)),
        ("_flash_attention_backward", _one_by_one, _packed(), _PACKED),
    ):
        reference = _gradients(plain, options)
        result, sums = plain(*tensors, **options)
        grad, empty = result.cos(), torch.empty(0, dtype=torch.int32)
        given = [empty if s is None else s for s in starts]
        args = (grad, *tensors, result, sums, *given, 0.0, causal, *state)
        found.append((name, call(*args, reference=reference)))
    return found


def _gradients(plain: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    def reference(grad: torch.Tensor, *given: Any) -> Any:
        return gradients(lambda *t: plain(*t, **options)[0], grad, *given[:3])

    return reference


def _padded(sums: torch.Tensor) -> torch.Tensor:
    return F.pad(sums, (0, -sums.shape[-1] % 32), value=torch.inf)


def _bias() -> torch.Tensor:
    return values(2, 1, 5, 6).abs()


def _efficient(causal: bool) -> list[tuple[str, Call]]:
    """Causal is from the first key (mask type 1), or from the last (2)."""
    found: list[tuple[str, Call]] = []
    none = (torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64))

    def sdpa(*given: Any) -> Any:
        made, sums = _attended(*given[:4], **_window(causal), lower_right=False)
        return made, _padded(sums) if given[4] else sums[..., :0], *none

    for bias, wants_sums in ((None, True), (_bias(), False)):
        args = (*_dense(), bias, wants_sums, 0.0, causal)
        found.append(("_scaled_dot_product_efficient_attention", call(*args, reference=sdpa)))
    for mask_type in (1, 2) if causal else (0,):
        options = {**_window(causal), "lower_right": mask_type == 2}

        def forward(*given: Any, options: Any = options) -> Any:
            made, sums = _of_rows(*given[:4], **options)
            return made, _padded(sums), *none, 5, 6

        args = (*_rows(), _bias(), None, None, None, None, 0.0, mask_type, True)
        found.append(("_efficient_attention_forward", call(*args, reference=forward)))
    return found


def _efficient_gradients(causal: bool) -> list[tuple[str, Call]]:
    options = {**_window(causal), "lower_right": False}
    none = (torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64))

    def through(plain: Any) -> Any:
        return lambda grad, *given: gradients(lambda *t: plain(*t, **options)[0], grad, *given[:4])

    (dense, d_sums), (rows, r_sums) = (
        plain(*tensors, _bias(), **options)
        for plain, tensors in ((_attended, _dense()), (_of_rows, _rows()))
    )
    state = (dense, _padded(d_sums), *none, 0.0, [True] * 4, causal)
    more = (None, None, 5, 6, _padded(r_sums), 0.0, *none, int(causal), True)
    return [
        (
            "_scaled_dot_product_efficient_attention_backward",
            call(dense.cos(), *_dense(), _bias(), *state, reference=through(_attended)),
        ),
        (
            "_efficient_attention_backward",
            call(rows.cos(), *_rows(), _bias(), rows, *more, reference=through(_of_rows)),
        ),
    ]


def _cudnn(causal: bool) -> list[tuple[str, Call]]:
    options, bias = {**_window(causal), "lower_right": False}, _bias()
    none = (torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64))

    def forward(*given: Any) -> Any:
        made, sums = _attended(*given[:4], **options)
        return made, sums.unsqueeze(-1), None, None, 5, 6, *none, None

    def backward(grad: torch.Tensor, *given: Any) -> Any:
        return gradients(lambda *t: _attended(*t, bias, **options)[0], grad, *given[:3])

    result, sums = _attended(*_dense(), bias, **options)
    state = (result, sums.unsqueeze(-1), *none, bias, None, None, 5, 6, 0.0, causal)
    gradient = call(result.cos(), *_dense(), *state, reference=backward)
    inner = (bias, None, None, 5, 6, True, 0.0, causal)
    sdpa = call(*_dense(), bias, True, 0.0, causal, reference=forward)
    return [
        ("_scaled_dot_product_cudnn_attention", sdpa),
        ("_cudnn_attention_forward", call(*_dense(), *inner, reference=forward)),
        ("_scaled_dot_product_cudnn_attention_backward _cudnn_attention_backward", gradient),
    ]


def _windows() -> list[tuple[str, Call]]:
    def reference(*given: Any, **_: Any) -> Any:
        return *_one_by_one(*given[:3], window=(2, 1)), *_undrawn()

    sizes: dict[str, Any] = {"window_size_left": 2, "window_size_right": 1}
    args = (*_packed(), *_PACKED, 0.0, False, False)
    return [("_flash_attention_forward", call(*args, **sizes, reference=reference))]


def _quantized() -> list[tuple[str, Call]]:
    """8-bit floats, each head scaled by a number of its own."""
    scales = [values(2, 4, low=0.5) for _ in range(3)]

    def wide(tensors: Any, shape: tuple[int, ...]) -> list[torch.Tensor]:
        scaled = (t.float() * s.reshape(shape) for t, s in zip(tensors, scales, strict=True))
        return [t.bfloat16().float() for t in scaled]

    def sdpa(*given: Any) -> Any:
        made, sums = _attended(*wide(given[:3], (2, 4, 1, 1)))
        return made.bfloat16(), sums, *_undrawn(None, None, 5, 6)[:-1], torch.empty(0).bfloat16()

    def forward(*given: Any) -> Any:
        made, sums = _of_rows(*wide(given[:3], (2, 1, 4, 1)))
        return made.bfloat16(), sums, *_undrawn()[:-1], torch.empty(0).bfloat16()

    dense, rows = ([t.to(_F8) for t in tensors] for tensors in (_dense(), _rows()))
    more = (None, None, 5, 6, 0.0, False, False)
    return [
        ("_scaled_dot_product_flash_attention.quantized", call(*dense, *scales, reference=sdpa)),
        ("_flash_attention_forward.quantized", call(*rows, *more, *scales, reference=forward)),
    ]


def _dropped() -> list[tuple[str, Call]]:
    def mask(target: torch.Tensor, *_: Any) -> torch.Tensor:
        return target.uniform_()

    args = (out(2, 4, 5, 6), 0.3, 5, 7)
    return [("_fill_mem_eff_dropout_mask_", call(*args, reference=mask, random=True))]


def _layers() -> list[tuple[str, Call]]:
    x, (qkv, proj, up, down) = values(2, 5, _WIDTH), _weights()
    vectors = [values(n) / 2 for n in (24, _WIDTH, _WIDTH, _WIDTH, _WIDTH, _WIDTH, 16, _WIDTH)]
    projections = (qkv, vectors[0], proj, vectors[1])
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    tail = (*vectors[2:6], up, vectors[6], down, vectors[7])
    attention, layer = "_native_multi_head_attention", "_transformer_encoder_layer_fwd"

    def whole(*given: Any) -> Any:
        return torch.ops.aten._native_multi_head_attention(*given[:9], None, False)[0]

    heads = (_WIDTH, 2)
    return [
        (attention, call(x, x, x, *heads, *projections)),
        (attention, call(x, x, x, *heads, *projections, padding, True, True, 1)),
        (attention, call(x, x, x, *heads, *projections, hidden, True, False, 0)),
        (layer, call(x, *heads, *projections, False, False, 1e-5, *tail)),
        (layer, call(x, *heads, *projections, True, True, 1e-5, *tail, hidden, 0)),
        ("_transform_bias_rescale_qkv", call(values(2, 5, 24), vectors[0], 2)),
        ("_triton_multi_head_attention", call(x, x, x, *heads, *projections, reference=whole)),
        ("_triton_scaled_dot_attention", call(*_dense(), reference=_result)),
    ]


def _weights() -> list[torch.Tensor]:
    return [values(*s) / 3 for s in ((24, _WIDTH), (_WIDTH, _WIDTH), (16, _WIDTH), (_WIDTH, 16))]


def _result(*tensors: torch.Tensor) -> torch.Tensor:
    return _attended(*tensors)[0]


def _choices() -> list[tuple[str, Call]]:
    """The program of the device where there is one for four dims, else torch's own steps."""
    backend = torch.nn.attention.SDPBackend
    found = []
    for tensors, chosen in (
        (_dense(), backend.OVERRIDEABLE),
        ([t[0] for t in _dense()], backend.MATH),
    ):
        reference = lambda *_, chosen=chosen: int(chosen.value)  # noqa: E731
        found.append(("_fused_sdp_choice", call(*tensors, reference=reference)))
    return found
