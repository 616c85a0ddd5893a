"""Strided views: alone against numpy, and as torch's views against its CPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import Tensor

from torchtpu import views
from torchtpu.storage import buffer_of
from torchtpu.tensor import view_of

RANDOM_VIEWS = 60
CHAINS = 24


def random_view(rng: random.Random, elements: int) -> views.View:
    """Return a view of up to four dims in a buffer, with broadcast and overlapping dims."""
    while True:
        rank = rng.randint(0, 4)
        shape = tuple(rng.choice([0, 1, 2, 3, 4, 6]) for _ in range(rank))
        strides = tuple(rng.choice([0, 1, 2, 3, 4, 6, 8, 12, 24]) for _ in range(rank))
        view = views.View(shape, strides, rng.randint(0, 7), np.dtype(np.float32))
        if views.needed_elements(view) <= elements:
            return view


def strided(array: np.ndarray[Any, Any], view: views.View) -> np.ndarray[Any, Any]:
    """Return the view of a flat array as numpy makes it."""
    steps = [s * array.itemsize for s in view.strides]
    start = view.offset if 0 not in view.shape else 0
    return np.lib.stride_tricks.as_strided(array[start:], view.shape, steps)


@pytest.mark.parametrize("physical", [(48,), (4, 12), (2, 3, 8)])
def test_read_equals_numpy(physical: tuple[int, ...]) -> None:
    rng = random.Random(str(physical))
    wanted = [random_view(rng, 48) for _ in range(RANDOM_VIEWS)]
    base = np.arange(48, dtype=np.float32)
    results = jax.jit(lambda b: [views.read(b, v) for v in wanted])(base.reshape(physical))
    for view, result in zip(wanted, results, strict=True):
        np.testing.assert_array_equal(np.asarray(result), strided(base, view), str(view))


@pytest.mark.parametrize("physical", [(48,), (4, 12), (2, 3, 8)])
def test_write_equals_numpy(physical: tuple[int, ...]) -> None:
    rng = random.Random(str(physical))
    wanted = [
        v for v in (random_view(rng, 48) for _ in range(3 * RANDOM_VIEWS)) if not views.overlaps(v)
    ]
    base = np.arange(48, dtype=np.float32)
    values = [
        -1 - np.arange(np.prod(v.shape, dtype=int), dtype=np.float32).reshape(v.shape)
        for v in wanted
    ]

    @jax.jit
    def written(b: Any) -> list[Any]:
        return [
            views.write(b, view, value, physical, np.dtype(np.float32))
            for view, value in zip(wanted, values, strict=True)
        ]

    for view, value, result in zip(wanted, values, written(base.reshape(physical)), strict=True):
        expected = base.copy()
        strided(expected, view)[...] = value
        np.testing.assert_array_equal(np.asarray(result).ravel(), expected, str(view))


def test_overlaps_never_misses_one() -> None:
    rng = random.Random(0)
    for _ in range(500):
        view = random_view(rng, 64)
        elements = strided(np.arange(64), view).ravel()
        if len(set(elements.tolist())) < elements.size:
            assert views.overlaps(view), view


NO_GATHER: dict[str, Callable[[Tensor], Tensor]] = {
    "transpose": lambda t: t.transpose(1, 2),
    "permute": lambda t: t.permute(2, 0, 1),
    "select": lambda t: t[:, 3],
    "last element": lambda t: t[:, -1, -1],
    "slice": lambda t: t[1:3, 2:5],
    "step": lambda t: t[:, ::2, 1::3],
    "narrow": lambda t: t.narrow(2, 4, 4),
    "chunk of qkv, heads first": lambda t: t.chunk(3, -1)[1].reshape(4, 6, 2, 2).transpose(1, 2),
    "unbind": lambda t: t.unbind(1)[2],
    "diagonal of a slice": lambda t: t[:, :4, :4][0],
    "expand": lambda t: t[:, :1].expand(4, 6, 12),
    "unsqueeze and flatten": lambda t: t.unsqueeze(1).flatten(2),
    "windows that do not overlap": lambda t: t.unfold(2, 3, 3),
    "part of a flat buffer": lambda t: t.view(-1)[7:91].view(7, 12),
    "transposed part of a flat buffer": lambda t: t.view(-1)[7:91].view(7, 12).t(),
    "view of a transpose": lambda t: t.permute(1, 0, 2).view(6, 4, 3, 4),
}


@pytest.mark.parametrize("name", NO_GATHER)
def test_common_views_are_slices(name: str) -> None:
    base = torch.empty(4, 6, 12, device="tpu")
    layout, view = buffer_of(base.untyped_storage()).layout.type, view_of(NO_GATHER[name](base))
    struct: Any = jax.ShapeDtypeStruct
    argument = struct(layout.shape, layout.dtype)
    text = jax.jit(lambda b: views.read(b, view)).lower(argument).as_text()
    assert "gather" not in text
    if not views.overlaps(view):
        value = struct(view.shape, view.dtype)
        write = jax.jit(lambda b, v: views.write(b, view, v, layout.shape, layout.dtype))
        assert "scatter" not in write.lower(argument, value).as_text()


STEPS: list[Callable[[Tensor, random.Random], Tensor]] = [
    lambda t, r: t.transpose(0, -1),
    lambda t, r: t[1:] if t.shape[0] > 1 else t,
    lambda t, r: t[..., ::2],
    lambda t, r: t.select(r.randrange(t.dim()), 0) if t.dim() > 1 else t,
    lambda t, r: t.unsqueeze(r.randint(0, t.dim())),
    lambda t, r: t.narrow(-1, t.shape[-1] // 2, t.shape[-1] - t.shape[-1] // 2),
    lambda t, r: t.unfold(0, min(2, t.shape[0]), 2),
    lambda t, r: t.diagonal(0, 0, -1) if t.dim() > 1 else t,
    lambda t, r: t.squeeze(),
    lambda t, r: t.reshape(-1) if t.is_contiguous() else t.t() if t.dim() == 2 else t,
    lambda t, r: t.chunk(2, -1)[-1],
    lambda t, r: t.view(torch.int32).view(torch.float32),
]
WRITES: list[Callable[[Tensor, random.Random], object]] = [
    lambda t, r: t.add_(1),
    lambda t, r: t.mul_(-2),
    lambda t, r: t.copy_(torch.arange(t.shape[-1] if t.dim() else 1, device=t.device).sum()),
    lambda t, r: t.fill_(r.randint(0, 9)),
    lambda t, r: torch.add(t, t, out=t),
]


def chain(device: str, seed: int) -> list[Tensor]:
    """Make views of views and write through them; the same for the same seed."""
    rng = random.Random(seed)
    base = torch.arange(48.0, device=device).reshape(
        rng.choice([(48,), (6, 8), (2, 4, 6), (3, 1, 4, 4)])
    )
    if rng.random() < 0.3 and base.dim() == 4:
        base = base.to(memory_format=torch.channels_last)
    view, seen = base, []
    for _ in range(5):
        view = rng.choice(STEPS)(view, rng) if view.dim() else view
        if rng.random() < 0.5:
            rng.choice(WRITES)(view, rng)
        seen.append(view)
    return [base, *seen]


@pytest.mark.parametrize("seed", range(CHAINS))
def test_chains_of_views_equal_cpu(seed: int) -> None:
    for ours, theirs in zip(chain("tpu", seed), chain("cpu", seed), strict=True):
        assert ours.stride() == theirs.stride()
        assert ours.storage_offset() == theirs.storage_offset()
        assert torch.equal(ours.cpu(), theirs)


SAME_ON_BOTH: dict[str, Callable[[str], Any]] = {
    "as_strided reads overlapping windows": lambda d: torch.arange(5.0, device=d).as_strided(
        (3, 3), (1, 1)
    ),
    "as_strided broadcasts": lambda d: torch.arange(5.0, device=d).as_strided((2, 2), (0, 1), 1),
    "unfold": lambda d: torch.arange(24.0, device=d).reshape(4, 6).unfold(1, 2, 2).unfold(0, 2, 1),
    "unfold of a number": lambda d: torch.tensor(3.0, device=d).unfold(0, 1, 1),
    "fill_ of an expanded tensor": lambda d: torch.arange(3.0, device=d).expand(2, 3).fill_(4),
    "channels_last": lambda d: (
        torch.arange(24.0, device=d).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)[0, 1]
    ),
    "number": lambda d: torch.tensor(3.0, device=d).add_(1).view(1, 1).expand(2, 3),
    "no elements": lambda d: torch.empty(0, 3, device=d).add_(1).t().reshape(3, 0).sum(0),
    "bytes of float64": lambda d: torch.arange(4.0, device=d, dtype=torch.float64)[1:].view(
        torch.uint8
    ),
    "view to a larger dtype": lambda d: (
        torch.arange(16, device=d, dtype=torch.int32).view(2, 8).view(torch.int64)
    ),
    "write as bytes": lambda d: bytes_written(d),
    "write as real": lambda d: complex_written(d),
    "bool as bytes": lambda d: torch.tensor([True, False], device=d).view(torch.uint8),
    "out= with another shape": lambda d: torch.add(
        torch.ones(3, device=d), 1, out=torch.empty(0, device=d)
    ),
    "out= a transposed one": lambda d: out_transposed(d),
    "set_": lambda d: bound(d, torch.float32, 1, (2,), (2,)),
    "resize_": lambda d: torch.arange(6.0, device=d)[2:].resize_(2, 2),
    "resize_ that grows": lambda d: torch.arange(6.0, device=d).resize_(8)[:6],
    "writes to parts": lambda d: parts(d),
    "is_set_to": lambda d: [torch.ones(2, device=d).is_set_to(t) for t in two_names(d)],
}


def bound(device: str, dtype: torch.dtype, *where: Any) -> Tensor:
    made: Any = torch.empty(0, dtype=dtype, device=device)
    result: Tensor = made.set_(torch.arange(5.0, device=device), *where)
    return result


def bytes_written(device: str) -> Tensor:
    x = torch.arange(4.0, device=device)
    x.view(torch.uint8)[2].fill_(64)
    return x


def complex_written(device: str) -> list[Tensor]:
    x = torch.tensor([1 + 2j, 3 - 1j], device=device)
    torch.view_as_real(x)[0].mul_(2)
    torch.view_as_complex(torch.view_as_real(x))[1:].mul_(1j)
    x.real.add_(1)
    return [x.resolve_conj(), x.conj().imag.resolve_neg()]


def out_transposed(device: str) -> Tensor:
    out = torch.zeros(3, 2, device=device)
    torch.mm(
        torch.ones(2, 3, device=device), torch.arange(9.0, device=device).view(3, 3), out=out.t()
    )
    return out


def parts(device: str) -> Tensor:
    x = torch.arange(24.0, device=device).reshape(4, 6)
    for i, part in enumerate(x.chunk(3, 1)):
        part.mul_(i)
    x.diagonal().fill_(-1)
    x[1:3, ::2] = torch.tensor([9.0, 8.0, 7.0])
    x[-1] = x[0]
    return x


def two_names(device: str) -> list[Tensor]:
    x = torch.ones(2, device=device)
    return [x, x.view(2)]


@pytest.mark.parametrize("name", SAME_ON_BOTH)
def test_view_equals_cpu(name: str) -> None:
    ours, theirs = SAME_ON_BOTH[name]("tpu"), SAME_ON_BOTH[name]("cpu")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, check_device=False)


def test_is_set_to() -> None:
    x = torch.arange(6.0, device="tpu")
    assert x.is_set_to(x.view(6))
    assert not x.is_set_to(x[1:])
    assert not x.is_set_to(torch.arange(6.0, device="tpu"))


SAME_ERRORS: dict[str, Callable[[str], Any]] = {
    "write to an expanded tensor": lambda d: torch.arange(3.0, device=d).expand(2, 3).add_(1),
    "copy to an expanded tensor": lambda d: (
        torch.zeros(3, device=d).expand(2, 3).copy_(torch.ones(2, 3))
    ),
    "as_strided out of bounds": lambda d: torch.arange(5.0, device=d).as_strided((3, 3), (3, 1)),
    "as_strided negative stride": lambda d: torch.arange(5.0, device=d).as_strided((3,), (-1,)),
    "as_strided negative offset": lambda d: torch.arange(5.0, device=d).as_strided((2,), (1,), -1),
    "as_strided ranks": lambda d: torch.arange(5.0, device=d).as_strided((2,), (1, 1)),
    "view of the wrong size": lambda d: torch.arange(24.0, device=d).view(5, 5),
    "part of a flat buffer": lambda t: t.view(-1)[7:91].view(7, 12),
    "transposed part of a flat buffer": lambda t: t.view(-1)[7:91].view(7, 12).t(),
    "view of a transpose": lambda d: torch.ones(4, 6, device=d).t().view(24),
    "view of an odd slice": lambda d: torch.arange(9, device=d, dtype=torch.int32)[1:].view(
        torch.int64
    ),
    "complex of three": lambda d: torch.view_as_complex(torch.ones(2, 3, device=d)),
    "unfold too far": lambda d: torch.arange(7.0, device=d).unfold(0, 9, 2),
    "index out of range": lambda d: torch.arange(3.0, device=d)[5],
    "negative step": lambda d: torch.arange(3.0, device=d)[::-1],
    "more bytes than there are": lambda d: torch.empty_strided((2**62, 4), (4, 1), device=d),
    "set_ another dtype": lambda d: bound(d, torch.int32),
    "leaf in place": lambda d: torch.ones(3, device=d, requires_grad=True)[0].add_(1),
}


@pytest.mark.parametrize("name", SAME_ERRORS)
def test_error_equals_cpus(name: str) -> None:
    with pytest.raises(Exception, match=r".") as theirs:
        SAME_ERRORS[name]("cpu")
    with pytest.raises(type(theirs.value)) as ours:
        SAME_ERRORS[name]("tpu")
    assert str(ours.value).split(" and strides")[0] == str(theirs.value).split(" and strides")[0]
    assert (torch.ones(2, device="tpu") + 1).tolist() == [2, 2]
