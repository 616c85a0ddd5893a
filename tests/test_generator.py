"""Generators of device tpu: seeds, states, copies; the global one follows torch.manual_seed."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from torchtpu.errors import TpuError


def draw(generator: torch.Generator | None = None) -> list[float]:
    values: list[float] = torch.rand(4, device="tpu", generator=generator).tolist()
    return values


def test_seeds() -> None:
    generator = torch.Generator("tpu").manual_seed(3)
    first, second = draw(generator), draw(generator)
    assert first != second
    assert first == draw(torch.Generator("tpu").manual_seed(3))
    assert first != draw(torch.Generator("tpu").manual_seed(4))
    assert generator.initial_seed() == 3
    assert generator.seed() != 3


@pytest.mark.parametrize(
    "duplicate",
    [torch.Generator.clone_state, copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))],
    ids=["clone_state", "deepcopy", "pickle"],
)
def test_copies_continue_by_themselves(duplicate: object) -> None:
    generator = torch.Generator("tpu").manual_seed(5)
    draw(generator)
    other = duplicate(generator)  # type: ignore[operator]  # one of the three above
    assert other.device == torch.device("tpu", 0)
    assert other.initial_seed() == 5
    expected = draw(generator)
    assert draw(other) == expected


def test_state() -> None:
    generator = torch.Generator("tpu")
    state = generator.get_state()
    assert (state.dtype, state.device.type) == (torch.uint8, "cpu")
    first = draw(generator)
    generator.set_state(state)
    assert draw(generator) == first


def test_every_generator_is_a_generator() -> None:
    assert isinstance(torch.Generator("tpu"), torch.Generator)
    assert isinstance(torch.Generator(), torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert not isinstance(torch.ones(1), torch.Generator)
    assert torch.Generator().device.type == "cpu"
    assert torch.Generator(device="tpu:0").device == torch.device("tpu", 0)


def test_no_second_device() -> None:
    with pytest.raises(TpuError, match="expected device tpu:0, got tpu:1"):
        torch.Generator("tpu:1")


def test_in_place_and_out_of_place_ops_take_it() -> None:
    def values(seed: int) -> list[list[float]]:
        g = torch.Generator("tpu").manual_seed(seed)
        return [
            torch.empty(3, device="tpu").normal_(generator=g).tolist(),
            torch.randperm(5, device="tpu", generator=g).tolist(),
            torch.bernoulli(torch.full((8,), 0.5, device="tpu"), generator=g).tolist(),
            torch.randint(0, 9, (5,), device="tpu", generator=g).tolist(),
        ]

    assert values(1) == values(1)
    assert values(1) != values(2)


def test_manual_seed_reaches_the_device() -> None:
    torch.manual_seed(11)
    first = draw()
    torch.manual_seed(11)
    assert draw() == first
    assert torch.tpu.initial_seed() == 11


@pytest.mark.parametrize("devices", [None, [0]])
def test_fork_rng(devices: list[int] | None) -> None:
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=devices, device_type="tpu"):
        inside = draw()
    assert draw() == inside
