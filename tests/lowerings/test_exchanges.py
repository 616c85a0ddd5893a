"""Collectives as messages: every algorithm beside NumPy, on devices that vmap stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

from torchtpu.lowerings import exchanges
from torchtpu.lowerings.exchanges import Exchange

GROUPS = [
    [(0, 1)],
    [(0, 1, 2)],
    [(0, 1, 2, 3)],
    [(2, 0, 1)],  # in an order of its own
    [(0, 2), (1, 3)],
    [(0, 1, 2), (3, 4, 5)],
    [tuple(range(8))],
]
LENGTHS = (1, 5, 16, 40, 100)  # of a part; pieces are of 16 elements, small is up to 8
REDUCE = {"sum": np.add, "max": np.maximum, "bxor": np.bitwise_xor}


def _run(groups: Sequence[Sequence[int]], name: str, arrays: Any, *options: Any) -> Any:
    """Call a method of Exchange on every device; arrays: [devices, N]."""

    def on_device(array: Any) -> Any:
        def move(piece: Any, pairs: Sequence[tuple[int, int]]) -> Any:
            return jax.lax.ppermute(piece, "devices", tuple(pairs))

        def gather(piece: Any) -> Any:
            everything = jax.lax.all_gather(piece, "devices")
            own = np.zeros((len(everything), len(groups[0])), np.int64)
            for group in groups:
                own[list(group)] = group
            return everything[jax.numpy.asarray(own)[device]].reshape(-1)

        device = jax.lax.axis_index("devices")
        return getattr(Exchange(groups, move, gather, device), name)(array, *options)

    return np.asarray(jax.vmap(on_device, axis_name="devices")(arrays))


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "PIECE_BYTES", 64)
    monkeypatch.setattr(exchanges, "SMALL_BYTES", 32)


def _arrays(groups: Sequence[Sequence[int]], length: int) -> Any:
    devices = sum(len(group) for group in groups)
    return np.random.default_rng(length).integers(0, 99, (devices, length), dtype=np.int32)


@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_reductions(groups: list[tuple[int, ...]], length: int) -> None:
    given = _arrays(groups, length)
    for name, combine in REDUCE.items():
        found = _run(groups, "all_reduce", given, name)
        for group in groups:
            expected = combine.reduce(given[list(group)])
            for device in group:
                np.testing.assert_array_equal(found[device], expected)


@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_parts(groups: list[tuple[int, ...]], length: int) -> None:
    size = len(groups[0])
    given = _arrays(groups, size * length)
    kept = _run(groups, "reduce_scatter", given, "sum")
    swapped = _run(groups, "all_to_all", given)
    into = _run(groups, "all_to_all", given, np.zeros(size * length, np.int32))
    for group in groups:
        members = given[list(group)]
        total = members.sum(0).reshape(size, length)
        parts = members.reshape(size, size, length)
        for place, device in enumerate(group):
            np.testing.assert_array_equal(kept[device], total[place])
            np.testing.assert_array_equal(swapped[device], parts[:, place].reshape(-1))
            np.testing.assert_array_equal(into[device], parts[:, place].reshape(-1))
