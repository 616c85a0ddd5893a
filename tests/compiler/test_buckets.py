"""Buckets: few sizes, every true size below one of them, and errors beyond the bounds."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from torchtpu.compiler.buckets import Bounds, BucketError, bounds_of, buckets


@pytest.mark.parametrize(
    ("low", "high", "number", "step", "expected"),
    [
        (2, 8, 4, 128, (2, 4, 8)),
        (2, 100, 8, 128, (2, 4, 8, 16, 32, 64, 100)),
        (2, 512, 8, 128, (2, 4, 8, 32, 64, 128, 256, 512)),
        (2, 1024, 4, 128, (8, 128, 512, 1024)),
        (1, 64, 1, 128, (64,)),
        (300, 600, 4, 128, (384, 512, 600)),
        (5, 5, 4, 128, (5,)),
        (10, 100, 8, 20, (16, 20, 40, 60, 80, 100)),
    ],
)
def test_bounded_sizes(
    low: int, high: int, number: int, step: int, expected: tuple[int, ...]
) -> None:
    found = buckets(Bounds(low=low, high=high), num_dynamic_buckets=number, bucket_size=step)
    assert found.sizes == expected


def test_every_size_fits_the_smallest_bucket_that_holds_it() -> None:
    for number in range(1, 9):
        for low, high in [(0, 7), (1, 1000), (2, 129), (100, 101)]:
            found = buckets(Bounds(low=low, high=high), num_dynamic_buckets=number)
            assert len(found.sizes) <= number
            assert list(found.sizes) == sorted(set(found.sizes))
            for size in range(low, high + 1):
                bucket = found.round_up(size)
                assert bucket == min(s for s in found.sizes if s >= size)


def test_without_a_bound_sizes_are_powers_of_two() -> None:
    found = buckets(Bounds())
    assert [found.round_up(n) for n in (2, 3, 64, 65, 5000)] == [2, 4, 64, 128, 8192]


@pytest.mark.parametrize("size", [1, 101])
def test_a_size_outside_the_bounds_names_the_dimension(size: int) -> None:
    with pytest.raises(BucketError, match=rf"size of batch .*expected 2 to 100, got {size}"):
        buckets(Bounds(low=2, high=100)).round_up(size, "batch")


@pytest.mark.parametrize(
    ("bounds", "number", "step", "message"),
    [
        (Bounds(), 9, 128, "expected 1 to 8, got 9"),
        (Bounds(), 0, 128, "expected 1 to 8, got 0"),
        (Bounds(), 4, 0, "expected a positive size, got 0"),
        (Bounds(low=5, high=4), 4, 128, "empty bounds.*got 5 to 4"),
    ],
)
def test_options_that_make_no_buckets(bounds: Bounds, number: int, step: int, message: str) -> None:
    with pytest.raises(BucketError, match=message):
        buckets(bounds, num_dynamic_buckets=number, bucket_size=step)


def test_bounds_are_those_of_mark_dynamic() -> None:
    found: dict[str, Bounds] = {}

    def compile_graph(graph: torch.fx.GraphModule, _inputs: object) -> object:
        found.update({str(s): b for s, b in bounds_of(graph).items()})
        return make_boxed_func(graph.forward)

    x = torch.ones(3, 4)
    torch._dynamo.mark_dynamic(x, 0, min=3, max=40)
    torch.compile(lambda x: x * 2, backend=aot_autograd(fw_compiler=compile_graph))(x)
    assert list(found.values()) == [Bounds(low=3, high=40)]
