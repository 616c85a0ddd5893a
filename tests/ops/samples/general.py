"""General ops: arithmetic, matrices, layers, resizing, random numbers, storages."""

from __future__ import annotations

from typing import Any

import torch

from tests.ops.samples.call import Call, call, ints, out, values


def made() -> list[tuple[str, Call]]:
    """Return overloads' names, several in a string where they share a call, with their calls."""
    return [
        *_core(),
        *_plain(),
        *_matrix(),
        *_layers(),
        *_resized(),
        *_drawn(),
        *_storages(),
    ]


def _core() -> list[tuple[str, Call]]:
    """The core overloads that torch takes apart before a recorder sees them, or never calls."""
    x, n, plane = values(3, 4), values(5, dtype=torch.int64), values(1, 2, 5, 4)
    strange = torch.tensor([-0.0, 0.0, float("nan"), float("inf"), -float("inf"), 0.5])
    channels = [values(2), values(2) / 2, values(2) / 3, values(2).abs() + 1]
    flipped = values(4, 3).t()
    return [
        ("avg_pool1d", call(values(2, 3, 8), [3], [2], [1])),
        ("adaptive_avg_pool1d", call(values(2, 3, 8), [3])),
        ("copy", call(x, values(4))),
        ("copy", call(n, values(5))),
        ("div.Scalar_mode", call(x, 0.3, rounding_mode="floor")),
        ("div.Scalar_mode", call(n, -3, rounding_mode="trunc")),
        ("_native_batch_norm_legit_no_training", call(plane, *channels, 0.1, 1e-5)),
        ("var.dim", call(x, [0], True)),
        ("var.dim", call(x, [1], False, True)),
        ("bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar", call(n, 6)),
        ("bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar", call(n > 0, True)),
        ("fmod.Scalar", call(x, -0.7)),
        ("fmod.Scalar", call(n, 4)),
        ("clamp clamp_ clamp_min clamp_min_ clamp_max clamp_max_", call(strange, 0.0)),
        ("clamp", call(strange, -0.0, 0.0)),
        ("clamp", call(x, float("nan"))),
        ("upsample_nearest2d.vec", call(plane, [3, 7], None)),
        ("upsample_nearest2d.vec", call(plane, None, [1.5, 0.5])),
        ("upsample_bilinear2d.vec", call(plane, [3, 7], True, None)),
        ("upsample_bilinear2d.vec", call(plane, None, False, [1.5, 0.5])),
        ("sym_size.int sym_stride.int", call(flipped, 1)),
        ("sym_numel sym_storage_offset sym_is_contiguous", call(flipped)),
    ]


def _plain() -> list[tuple[str, Call]]:
    x, n = values(3, 4), values(5, dtype=torch.int64)
    mask = values(3, 4) > 0
    return [
        ("clamp_max clamp_max_", call(x, 0.5)),
        ("clamp_max.out", call(x, 0.5, out=out(3, 4))),
        ("xlogy_.Tensor", call(x, values(3, 4, low=0.1))),
        ("_logcumsumexp", call(x, 1)),
        ("_logcumsumexp.out", call(x, 1, out=out(3, 4))),
        ("_aminmax", call(x)),
        ("_aminmax.dim", call(x, 1, True)),
        ("isin.Tensor_Scalar", call(n, 3)),
        ("isin.Tensor_Scalar_out", call(n, 3, out=out(5, dtype=torch.bool))),
        ("isin.Scalar_Tensor", call(3, n)),
        ("isin.Scalar_Tensor_out", call(3, n, out=out(dtype=torch.bool))),
        ("__lshift__.Scalar __ilshift__.Scalar __rshift__.Scalar __irshift__.Scalar", call(n, 2)),
        ("__lshift__.Tensor __ilshift__.Tensor", call(n, ints(0, 1, 2, 3, 4))),
        ("__rshift__.Tensor __irshift__.Tensor", call(n, ints(0, 1, 2, 3, 4))),
        ("__ilshift__.Scalar __irshift__.Scalar", call(n.to(torch.uint8), 1)),
        ("conj_physical.out", call(torch.complex(x, x), out=out(3, 4, dtype=torch.complex64))),
        ("arange.start_out", call(1, 9, 2, out=out(4))),
        ("range.out", call(1, 9, 2, out=out(5))),
        ("linspace.out", call(1, 9, 5, out=out(5))),
        ("logspace.out", call(0, 2, 5, 3.0, out=out(5))),
        ("eye.out", call(3, out=out(3, 3))),
        ("eye.m_out", call(3, 4, out=out(3, 4))),
        ("masked_select.out", call(x, mask, out=out(0))),
        ("nonzero.out", call(mask, out=out(0, dtype=torch.int64))),
        ("renorm.out", call(x, 2.0, 0, 1.5, out=out(3, 4))),
        ("mvlgamma.out", call(values(3, 4, low=1.5), 2, out=out(3, 4))),
        ("norm.ScalarOpt_dim_dtype", call(x, 2, [1], True, dtype=torch.float64)),
        ("norm.dtype_out", call(x, 2, [1], True, dtype=torch.float32, out=out(3, 1))),
        ("_index_put_impl_", call(x.clone(), [ints(0, 2)], values(2, 4), True)),
        ("scatter.value_reduce scatter_.value_reduce", _scattered()),
        ("scatter.value_reduce_out", _scattered(out=out(3, 4))),
        ("unique_dim", call(ints(1, 2, 1, 2).reshape(2, 2), 0, True, True, True)),
        ("unique_dim_consecutive", call(ints(1, 2, 1, 2).reshape(2, 2), 0, True, True)),
        ("bucketize.Scalar", call(0.5, values(5).sort().values)),
        ("searchsorted.Scalar", call(values(5).sort().values, 0.5, right=True)),
        ("searchsorted.Scalar_out", _searched()),
        ("glu_jvp", call(values(3, 2), values(3, 4), values(3, 4) / 2, 1)),
        ("glu_backward_jvp", _jvp_of_glu()),
        ("_convert_indices_from_coo_to_csr", call(ints(0, 0, 2), 3)),
        ("_convert_indices_from_csr_to_coo", call(ints(0, 2, 2, 3), ints(1, 0, 2))),
        ("adaptive_avg_pool2d.out", call(values(1, 2, 5, 4), [2, 3], out=out(1, 2, 2, 3))),
        (
            "adaptive_avg_pool3d.out",
            call(values(1, 1, 3, 4, 5), [2, 2, 3], out=out(1, 1, 2, 2, 3)),
        ),
        ("linalg_eigvals.out", call(values(3, 3), out=out(3, dtype=torch.complex64))),
        ("_cummax_helper _cummin_helper", call(x, out(3, 4), out(3, 4, dtype=torch.int64), 1)),
        (
            "_convert_indices_from_coo_to_csr.out",
            call(ints(0, 0, 2), 3, out=out(4, dtype=torch.int64)),
        ),
        ("_convert_indices_from_csr_to_coo.out", _coordinates()),
    ]


def _scattered(**out: Any) -> Call:
    return call(values(3, 4), 0, ints(0, 2, 1, 0).reshape(1, 4), 2.5, reduce="multiply", **out)


def _searched() -> Call:
    return call(values(5).sort().values, 0.5, out=out(dtype=torch.int64))


def _jvp_of_glu() -> Call:
    x, grad = values(3, 4), values(3, 2)
    gradient = torch.ops.aten.glu_backward(grad, x, 1)
    return call(gradient, grad, x, grad / 2, x / 3, 1)


def _coordinates() -> Call:
    return call(ints(0, 2, 2, 3), ints(1, 0, 2), out=out(2, 3, dtype=torch.int64))


def _matrix() -> list[tuple[str, Call]]:
    half = torch.bfloat16
    a, b, c = (values(*s, dtype=half) for s in ((3, 4), (4, 5), (3, 5)))
    batched = [t.expand(2, *t.shape).contiguous() for t in (a, b, c)]
    whole = [values(17, 8, dtype=torch.int8), values(8, 8, dtype=torch.int8)]

    def widened(op: Any) -> Any:
        return lambda *args, **_: op(*(t.float() for t in args if isinstance(t, torch.Tensor)))

    f32 = torch.float32
    return [
        ("mm.dtype", call(a, b, f32, reference=widened(torch.mm))),
        ("bmm.dtype", call(*batched[:2], f32, reference=widened(torch.bmm))),
        ("addmm.dtype", call(c, a, b, f32, reference=widened(torch.addmm))),
        ("baddbmm.dtype", call(batched[2], *batched[:2], f32, reference=widened(torch.baddbmm))),
        ("_int_mm", call(*whole)),
        ("_int_mm.out", call(*whole, out=out(17, 8, dtype=torch.int32))),
        ("_addmm_activation", call(values(5), values(3, 4), values(4, 5), use_gelu=True)),
        ("_addmm_activation.out", call(values(5), values(3, 4), values(4, 5), out=out(3, 5))),
        ("linalg_cross.out", call(values(4, 3), values(4, 3) + 1, out=out(4, 3))),
    ]


def _layers() -> list[tuple[str, Call]]:
    x, weight, bias = values(4, 3, 5), values(3), values(3) / 2
    indices, offsets = ints(0, 2, 1, 4, 4), ints(0, 2)
    gates = [values(2, 12), values(2, 12) / 2, values(2, 3)]
    return [
        ("_native_batch_norm_legit.no_stats", call(x, weight, bias, True, 0.1, 1e-5)),
        ("embedding_renorm_", call(values(5, 3), indices, 1.0, 2.0)),
        ("_embedding_bag_forward_only", call(values(5, 3), indices, offsets, False, 1)),
        ("_weight_norm_interface", call(values(4, 3), values(4, 1), 0)),
        ("_fused_rms_norm", call(values(4, 6), [6], values(6), 1e-5)),
        ("_masked_softmax", call(values(2, 2, 3, 3), values(3, 3) > 0.5, 3, 0)),
        ("_thnn_fused_lstm_cell", call(*gates, reference=_lstm_cell)),
    ]


def _lstm_cell(inputs: Any, hidden: Any, cell: Any) -> Any:
    """The formula of torch.nn.LSTMCell; the third result is the activated gates."""
    i, f, g, o = (inputs + hidden).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new = f * cell + i * g
    return o * new.tanh(), new, torch.cat((i, f, g, o), 1)


def _resized() -> list[tuple[str, Call]]:
    plane, volume = values(1, 2, 5, 4), values(1, 2, 3, 4, 5)
    made = []
    for name, x, pad in (
        ("reflection_pad2d", plane, [1, 2, 2, 1]),
        ("reflection_pad3d", volume, [1, 2, 2, 1, 1, 0]),
        ("replication_pad3d", volume, [1, 2, 2, 1, 1, 0]),
    ):
        padded = getattr(torch.ops.aten, name)(x, pad)
        made += [(name, call(x, pad)), (f"{name}_backward", call(padded / 3, x, pad))]
    for name, x, size, more in (
        ("_upsample_bicubic2d_aa", plane, [3, 7], [False]),
        ("_upsample_nearest_exact2d", plane, [3, 7], []),
        ("upsample_nearest3d", volume, [2, 7, 5], []),
        ("_upsample_nearest_exact3d", volume, [2, 7, 5], []),
    ):
        sized = getattr(torch.ops.aten, name)(x, size, *more)
        backward = call(sized / 3, size, list(x.shape), *more)
        made += [(name, call(x, size, *more)), (f"{name}_backward", backward)]
    return made


def _drawn() -> list[tuple[str, Call]]:
    x, p = values(3, 4), values(3, 4, low=0.0) / 2
    return [
        ("bernoulli_.Tensor", call(x, p, random=True)),
        ("native_dropout", call(x, 0.3, True, random=True)),
        ("random_", call(x, random=True)),
        ("random_.to", call(x, 5, random=True)),
        ("random_.from", call(x, 2, 5, random=True)),
        (
            "randperm.generator_out",
            call(5, generator=None, out=out(5, dtype=torch.int64), random=True),
        ),
        ("_standard_gamma", call(p + 0.5, random=True)),
        ("_standard_gamma_grad", call(p + 0.5, p + 0.2)),
        ("_sample_dirichlet", call(p + 0.5, random=True)),
        ("_dirichlet_grad", call(p + 0.1, p + 0.5, p + 2)),
        ("poisson", call(p * 4, random=True)),
        ("binomial", call(p * 0 + 9, p, random=True)),
    ]


def _storages() -> list[tuple[str, Call]]:
    return [
        ("_reshape_alias", call(values(3, 4), [4, 3], [3, 1])),
        ("set_.source_Tensor", call(values(2), values(3, 4))),
        ("set_", call(values(2))),
        ("is_set_to", call(values(2), values(2))),
    ]
