"""Ops that torch's own ops are made of: gradients and helpers under private names, and on lists."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.ops.samples.by_autograd import gradients
from tests.ops.samples.call import Call, call, ints, out, values

aten = torch.ops.aten
_DENSE = "_embedding_bag_dense_backward"


def made() -> list[tuple[str, Call]]:
    """Return overloads' names, several in a string where they share a call, with their calls."""
    return [
        *_bags(),
        *_norms(),
        *_softmaxes(),
        *_matrices(),
        *_plain(),
        *_lists(),
        *_scaled_lists(),
        *_validated(),
        *_sparse(),
        *_storages(),
    ]


def _bags() -> list[tuple[str, Call]]:
    weight, indices, offsets = values(5, 3), ints(0, 2, 1, 4, 4, 0), ints(0, 2, 2)
    scales, bags = values(6, low=0.5), ints(0, 0, 2, 2, 2, 2)
    found = []
    for mode, by_frequency, per_sample, padding in (
        (0, False, None, -1),
        (0, True, scales, 4),
        (1, False, None, 2),
        (1, True, None, -1),
        (2, False, None, -1),
    ):
        options = (by_frequency, mode, False, per_sample, False, padding)
        sizes, largest = aten._embedding_bag(weight, indices, offsets, *options)[2:]
        given = (indices, bags, sizes, largest, 5, by_frequency, mode, per_sample, padding)
        reference = _by_frequency if by_frequency else None
        found.append((_DENSE, call(values(3, 3), *given, reference=reference)))
    return found


def _by_frequency(grad: Any, indices: Any, *rest: Any) -> Any:
    """torch's CPU divides some rows by the count of another (2.13): here each by its own."""
    bags, sizes, largest, rows, _, *options = rest
    plain = aten._embedding_bag_dense_backward(
        grad, indices, bags, sizes, largest, rows, False, *options
    )
    return plain / indices.bincount(minlength=rows).clamp(min=1).unsqueeze(1)


def _norms() -> list[tuple[str, Call]]:
    x, weight, grad = values(4, 6), values(6), values(4, 6).cos()
    rstd = (x.square().mean(1, keepdim=True) + 1e-5).rsqrt()
    v, g = values(4, 3, 2), values(4, 1, 1)
    found = [
        ("_fused_rms_norm_backward", _rms(grad, x, rstd, weight, [True, True])),
        ("_fused_rms_norm_backward", _rms(grad, x, rstd, None, [True, False])),
    ]
    for dim, scale in ((0, g), (2, values(1, 1, 2))):
        _, norms = aten._weight_norm_interface(v, scale, dim)
        given = call(v.cos(), v, scale, norms, dim)
        found.append(("_weight_norm_interface_backward", given))
    return found


def _rms(grad: Any, x: Any, rstd: Any, weight: Any, mask: list[bool]) -> Call:
    def by_formula(grad: Any, x: Any, shape: Any, rstd: Any, weight: Any, mask: Any) -> Any:
        if weight is None:
            return gradients(lambda x: F.rms_norm(x, shape, None, 1e-5), grad, x)[0], None
        return gradients(lambda x, w: F.rms_norm(x, shape, w, 1e-5), grad, x, weight)

    return call(grad, x, [6], rstd, weight, mask, reference=by_formula)


def _softmaxes() -> list[tuple[str, Call]]:
    x, grad = values(2, 2, 3, 3), values(2, 2, 3, 3).cos()
    name, mask = "_masked_softmax_backward", values(2, 2, 3, 3) > 1.5
    unknown = torch.where(values(2, 2, 3, 3) < -1.5, torch.nan, grad)
    return [
        (name, call(grad, x.softmax(3), mask)),
        (name, call(unknown, x.softmax(3), mask)),
        (name, call(grad, x.softmax(1), mask, 1)),
        (name, call(grad, x.softmax(3).masked_fill(mask, 0), mask, 3)),
    ]


def _matrices() -> list[tuple[str, Call]]:
    x, square = values(2, 3, 3), values(3, 3)
    factor = square.tril() + 3 * torch.eye(3)
    coefficients = values(4, 2)
    return [
        ("_compute_linear_combination", call(x, coefficients)),
        ("_compute_linear_combination", call(x.to(torch.complex64), coefficients)),
        ("_compute_linear_combination.out", call(x, coefficients, out=values(4, 3, 3))),
        ("_cholesky_solve_helper", call(values(3, 2), factor, False)),
        ("_cholesky_solve_helper", call(values(2, 3, 2), factor.mT.expand(2, 3, 3), True)),
        ("_linalg_eigvals", call(square)),
        ("_linalg_eigvals", call(torch.complex(factor, square))),
        ("linalg__powsum", call(values(3, 4))),
        ("linalg__powsum", call(values(3, 4), 3, [1], True, dtype=torch.float64)),
        ("linalg__powsum", call(values(3, 4).to(torch.complex64), 0.5, [0])),
    ]


def _plain() -> list[tuple[str, Call]]:
    x, whole = values(3, 4), ints(3, -3, 5, -7)
    grad = values(1, 2, 2, 2, 3)
    split = [out(3, 1), out(3, 3)]
    return [
        ("remainder.Scalar_Tensor", call(2.5, x)),
        ("remainder.Scalar_Tensor", call(-5, whole)),
        ("remainder.Scalar_Tensor", call(1.0, torch.tensor([0.0, -0.0, torch.inf, torch.nan]))),
        ("normal.float_Tensor", call(1.5, x.abs(), random=True)),
        ("normal.float_Tensor", call(1.5, torch.zeros(3))),
        ("normal.float_Tensor_out", call(1.5, x.abs(), out=out(3, 4), random=True)),
        ("normal.float_Tensor_out", call(1.5, torch.zeros(3), out=out(3))),
        (
            "adaptive_avg_pool3d_backward.grad_input",
            call(grad, values(1, 2, 3, 4, 5), grad_input=out(0)),
        ),
        (
            "adaptive_avg_pool3d_backward.grad_input",
            call(grad[0], values(2, 3, 4, 5), grad_input=out(2, 3, 4, 5)),
        ),
        ("split_with_sizes_copy.out", call(x, [1, 3], 1, out=split)),
        ("split_with_sizes_copy.out", call(x, [0, 3], out=[out(0, 4), out(3, 4)])),
    ]


def _lists() -> list[tuple[str, Call]]:
    xs = [values(2, 3), values(4, 3), values(0, 3)]
    whole = [ints(1, 2, 3), ints(4)]
    return [
        ("_foreach_add.Tensor _foreach_add_.Tensor", call(xs, torch.tensor(1.5))),
        ("_foreach_add.Tensor _foreach_add_.Tensor", call(whole, torch.tensor(2), alpha=3)),
        ("_foreach_powsum.Scalar", call(xs)),
        ("_foreach_powsum.Scalar", call(xs, 3, torch.float64)),
        ("_foreach_pow.ScalarAndTensor", call(2.5, xs)),
        ("_foreach_pow.ScalarAndTensor", call(2, whole)),
    ]


def _validated() -> list[tuple[str, Call]]:
    name = "_validate_compressed_sparse_indices"
    rows, columns = ints(0, 2, 3), ints(0, 2, 1)
    batched = [t.expand(2, 3).contiguous() for t in (rows, columns)]
    return [
        (name, call(True, rows, columns, 2, 3, 3)),
        (name, call(False, *batched, 2, 3, 3)),
    ]


def _scaled_lists() -> list[tuple[str, Call]]:
    """Lists with a tensor of scalars, which stays on the CPU."""
    xs, ys, zs = ([values(n, 3, low=low) for n in (2, 4, 1)] for low in (-2.0, -1.0, 0.5))
    scalars = torch.tensor([0.5, -1.0, 2.0])

    def on_host(xs: Any, ys: Any, zs: Any, scalars: Any) -> Any:
        return xs, ys, zs, scalars.cpu()

    found = []
    for name in ("_foreach_addcdiv", "_foreach_addcmul"):
        both = f"{name}.Tensor {name}_.Tensor"
        found += [
            (both, call(xs, ys, zs, scalars, prepare=on_host)),
            (both, call(ys, xs, zs, scalars.double(), prepare=on_host)),
        ]
    return found


def _sparse() -> list[tuple[str, Call]]:
    added, factor = values(3, 5).to_sparse(), (values(3, 4) * (values(3, 4) > 0)).to_sparse()
    into = torch.empty((3, 5), layout=torch.sparse_coo)
    return [
        ("sspaddmm.out", call(added, factor, values(4, 5), out=into)),
        ("sspaddmm.out", call(added, factor, values(4, 5), beta=0.5, alpha=2, out=into)),
    ]


def _storages() -> list[tuple[str, Call]]:
    x, source, name = values(2), values(3, 4), "set_.source_Storage_storage_offset"

    def stored(x: Any, source: Any, *rest: Any) -> Any:
        return x, source.untyped_storage(), *rest

    stream = torch.Stream("tpu")
    return [
        ("set_.source_Storage", call(x, source, prepare=stored)),
        ("set_.source_Storage", call(values(2, dtype=torch.int32), source, prepare=stored)),
        (name, call(x, source, 2, [2, 3], [1, 3], prepare=stored)),
        (name, call(x, source, 1, [2, 3], prepare=stored)),
        ("record_stream", call(values(2), stream, reference=lambda *_: None)),
    ]
