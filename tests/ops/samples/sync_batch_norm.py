"""Parts of synchronized batch normalization, by batch normalization of the whole on the CPU."""

from __future__ import annotations

from typing import Any

import torch

from tests.ops.samples.call import Call, call, out, values

_EPS = 1e-5
aten = torch.ops.aten


def made() -> list[tuple[str, Call]]:
    """Return overloads' names, several in a string where they share a call, with their calls."""
    return [*_statistics(), *_elements(), *_gathered(), *_gradients()]


def _input() -> torch.Tensor:
    return values(6, 4, 3)


def _over(x: torch.Tensor) -> tuple[int, ...]:
    return (0, *range(2, x.dim()))


def _stats(x: Any, eps: float) -> Any:
    wide = x if x.dtype == torch.float64 else x.float()
    return wide.mean(_over(x)), (wide.var(_over(x), correction=0) + eps).rsqrt()


def _statistics() -> list[tuple[str, Call]]:
    x, running = _input(), [values(4), values(4, low=0.5)]
    return [
        ("batch_norm_stats", call(x, _EPS, reference=_stats)),
        ("batch_norm_stats", call(x.bfloat16(), _EPS, reference=_stats)),
        ("batch_norm_stats", call(values(5, 4), 0.1, reference=_stats)),
        ("batch_norm_update_stats", call(x, *running, 0.3)),
        ("batch_norm_update_stats", call(x, None, None, 0.3)),
    ]


def _elements() -> list[tuple[str, Call]]:
    x, mean, invstd, affine = _input(), values(4) / 3, values(4, low=0.5), [values(4), values(4)]
    half = [x.bfloat16(), *affine, mean, invstd, _EPS]
    into = call(x, *affine, mean, invstd, _EPS, out=out(6, 4, 3), reference=_applied_into)
    return [
        ("batch_norm_elemt", call(x, *affine, mean, invstd, _EPS, reference=_applied)),
        ("batch_norm_elemt", call(x, None, None, mean, invstd, _EPS, reference=_applied)),
        ("batch_norm_elemt", call(*half, reference=_applied)),
        ("batch_norm_elemt.out", into),
    ]


def _applied(x: Any, weight: Any, bias: Any, mean: Any, invstd: Any, eps: float) -> Any:
    """Batch normalization in evaluation with these statistics."""
    running = (mean, invstd.pow(-2) - eps)
    made = torch.batch_norm(x.float(), weight, bias, *running, False, 0.0, eps, False)
    return made.to(x.dtype)


def _applied_into(*args: Any, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(_applied(*args))


def _gathered() -> list[tuple[str, Call]]:
    x, running = _input(), [values(4), values(4, low=0.5)]
    found = []
    for name, at, counts in (
        ("batch_norm_gather_stats", 3, 9),
        ("batch_norm_gather_stats_with_counts", 2, torch.tensor([6.0, 12.0])),
    ):
        parts = [_stats(part, _EPS) for part in (x[:at], x[at:])]
        means, stds = (torch.stack(list(kind)) for kind in zip(*parts, strict=True))
        for known in (running, [None, None]):
            given = (x, means, stds, *known, 0.1, _EPS, counts)
            found.append((name, call(*given, reference=_whole)))
    return found


def _whole(x: Any, means: Any, stds: Any, *rest: Any) -> Any:
    """The statistics of all parts together are those of x."""
    running_mean, running_var, momentum, eps, _ = rest
    given = (x, None, None, running_mean, running_var, True, momentum, eps)
    return torch.native_batch_norm(*given)[1:]


def _gradients() -> list[tuple[str, Call]]:
    x, weight, grad = _input(), values(4, low=0.5), _input().cos()
    stats = _stats(x, _EPS)
    found = []
    for scale in (weight, None):
        all_sums = _sums(grad, x, *stats, scale, *[True] * 3)
        for mask in ([True, True, True], [False, True, False]):
            given = (grad, x, *stats, scale, *mask)
            found.append(("batch_norm_backward_reduce", call(*given, reference=_sums)))
        counts = torch.tensor([6, 12], dtype=torch.int32)
        given = (grad, x, *stats, scale, *all_sums[:2], counts)
        found.append(("batch_norm_backward_elemt", call(*given, reference=_of_input)))
    return found


def _backward(grad: Any, x: Any, mean: Any, invstd: Any, weight: Any) -> Any:
    given = (grad, x, weight, None, None, mean, invstd, True, _EPS, [True, True, True])
    return aten.native_batch_norm_backward(*given)


def _sums(grad: Any, x: Any, mean: Any, invstd: Any, weight: Any, *mask: Any) -> Any:
    """The sum of grad * (x - mean) is the weight's gradient without its factor invstd."""
    _, of_weight, of_bias = _backward(grad, x, mean, invstd, torch.ones_like(mean))
    found = (of_bias, of_weight / invstd, of_weight, of_bias)
    wanted = (mask[0], mask[0], mask[1], mask[2])
    return tuple(f if w else None for f, w in zip(found, wanted, strict=True))


def _of_input(grad: Any, x: Any, mean: Any, invstd: Any, weight: Any, *_: Any) -> Any:
    return _backward(grad, x, mean, invstd, weight)[0]
