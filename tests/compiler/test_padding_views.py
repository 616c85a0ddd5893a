"""Random chains of views, scans and reductions: padding is followed through every layout."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.compiler.padded import check

Step = Callable[[torch.Tensor, int, int], torch.Tensor]
Factor = str | int  # "b", "s" or a fixed size


def _size(factors: tuple[Factor, ...], b: int, s: int) -> int:
    return math.prod(f if isinstance(f, int) else {"b": b, "s": s}[f] for f in factors)


class _Chain:
    """Draws steps that are valid for every b and s, following the factors of each dim."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.dims: list[tuple[Factor, ...]] = [("b",), ("s",), (2,), (3,)]
        self.draw.shuffle(self.dims)
        self.first = list(self.dims)
        self.steps: list[Step] = [self.draw_step() for _ in range(7)]

    def draw_step(self) -> Step:
        kinds = [self.permute, self.reshape, self.reshape, self.along, self.along, self.reduce]
        return self.draw.choice(kinds)()

    def permute(self) -> Step:
        order = list(range(len(self.dims)))
        self.draw.shuffle(order)
        self.dims = [self.dims[d] for d in order]
        return lambda x, b, s: x.permute(order)

    def reshape(self) -> Step:
        """Regroup the factors; one time in three in an order that the layout does not have."""
        factors = [factor for dim in self.dims for factor in dim]
        if self.draw.random() < 1 / 3:
            self.draw.shuffle(factors)
        groups: list[tuple[Factor, ...]] = []
        while factors:
            count = self.draw.randint(1, min(3, len(factors)))
            groups.append(tuple(factors[:count]))
            factors = factors[count:]
        self.dims = list(groups)
        return lambda x, b, s: x.reshape([_size(group, b, s) for group in groups])

    def along(self) -> Step:
        if not self.dims:
            return lambda x, b, s: x + 1
        d = self.draw.randrange(len(self.dims))
        operations: list[Callable[[torch.Tensor], torch.Tensor]] = [
            lambda x: x.cumsum(d) / 10,
            lambda x: x.flip(d),
            lambda x: x.softmax(d) + x,
            lambda x: x - x.mean(d, keepdim=True),
            lambda x: x.sort(d)[0],
            lambda x: x + x.argmax(d, keepdim=True),
            lambda x: torch.cat([x[(*_before(d), slice(1, None))], x[(*_before(d), slice(1))]], d),
        ]
        operation = self.draw.choice(operations)
        return lambda x, b, s: operation(x)

    def reduce(self) -> Step:
        if len(self.dims) < 3 or self.draw.random() < 0.5:
            return self.reshape()
        d = self.draw.randrange(len(self.dims))
        del self.dims[d]
        name = self.draw.choice(["sum", "mean", "amax", "amin", "logsumexp", "var"])
        return lambda x, b, s: getattr(x, name)(d)

    def __call__(self, x: torch.Tensor) -> Any:
        b, s = x.shape[self.first.index(("b",))], x.shape[self.first.index(("s",))]
        for step in self.steps:
            x = step(x, b, s)
        return x, x.sum(), x.reshape(-1).round(decimals=6).argmax()


def _before(d: int) -> tuple[slice, ...]:
    return (slice(None),) * d


@pytest.mark.parametrize("seed", range(24))
def test_chain(seed: int) -> None:
    chain = _Chain(seed)

    def make(b: int, s: int) -> list[torch.Tensor]:
        shape = [_size(dim, b, s) for dim in chain.first]
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(shape, generator=generator, dtype=torch.float64)]

    check(chain, make, true_sizes=[(8, 8), (2, 2), (3, 7)], tolerance=1e-8)
