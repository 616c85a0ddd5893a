"""Slices, wrap rules, product names, device numbers and meshes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from jax.experimental import mesh_utils

from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.network import slices, topology
from torchtpu.perf_model.network.mesh import lay_mesh
from torchtpu.perf_model.network.topology import Coords, Topology, TopologyError


# Google Cloud TPU documentation, pages v5e, v6e, v5p, tpu7x; MaxText accelerator_to_spec_map.py.
@pytest.mark.parametrize(
    ("name", "wraps"),
    [
        ("v6e:1x1", (False, False)),
        ("v6e:8x8", (False, False)),
        ("v6e:8x16", (False, True)),
        ("v5e:16x16", (True, True)),
        ("v5p:2x2x4", (False, False, False)),
        ("tpu7x:2x4x4", (False, False, False)),
        ("v4:4x4x4", (True, True, True)),
        ("tpu7x:16x16x36", (True, True, True)),
        ("v5p:16x20x28", (True, True, True)),
    ],
)
def test_wraps(name: str, wraps: tuple[bool, ...]) -> None:
    assert topology.from_name(name).wraps == wraps


# MaxText accelerator_to_spec_map.py (Apache-2.0), read on 2026-11-30: what product names mean.
@pytest.mark.parametrize(
    ("name", "shape", "chip_count", "devices"),
    [
        ("v6e-256", (16, 16), 256, 256),
        ("v6e-8", (2, 4), 8, 8),
        ("v5litepod-16", (4, 4), 16, 16),
        ("v4-384", (4, 4, 12), 192, 192),
        ("v5p-1024", (8, 8, 8), 512, 512),
        ("v5p-12288", (16, 16, 24), 6144, 6144),
        ("tpu7x-128", (4, 4, 4), 64, 128),
        ("tpu7x-1536", (8, 8, 12), 768, 1536),
        ("tpu7x-9216", (12, 16, 24), 4608, 9216),
        ("tpu7x-18432", (16, 24, 24), 9216, 18432),
    ],
)
def test_product_names(name: str, shape: tuple[int, ...], chip_count: int, devices: int) -> None:
    found = topology.from_name(name)
    assert (found.shape, found.chips, found.devices) == (shape, chip_count, devices)


def test_the_naming_trap_is_named() -> None:
    hint = topology.naming_hint("tpu7x-128")
    assert hint == "tpu7x-128 counts TensorCores: it has 64 chips (tpu7x:4x4x4)"
    assert topology.naming_hint("v6e-256") == ""


@pytest.mark.parametrize(
    ("chip", "shape", "says"),
    [
        ("v6e", "8x4", "did you mean 4x8?.*expected one of 1x1, 2x2, 2x4"),
        ("v6e", "32x32", "a pod has 256 chips; use slices for more"),
        ("v6e", "4x4x4", "v6e is a 2-D torus"),
        ("v5p", "4x4x6", "multiples of 4, up to 8,960 chips"),
        ("v5p", "four", "expected sizes such as 4x8"),
        ("v5p", "0x4x4", "expected sizes such as 4x8"),
        ("tpu7x", "tpu7x-100", "counts TensorCores, 2 a chip: tpu7x-100 would be 50 chips"),
        ("v6e", "v5p-8", "is a slice of v5p, not v6e"),
        ("v5p", "4x4x4_twisted", "cannot be twisted, expected n x n x 2n"),
        ("v6e", "16x16_twisted", "cannot be twisted"),
        ("8i", "4x4", "not public as a torus"),
    ],
)
def test_an_impossible_slice_says_the_rule(chip: str, shape: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        topology.load(chips.load(chip), shape)


def test_a_twisted_torus_and_a_count_of_slices() -> None:
    assert topology.from_name("v5p:4x4x8_twisted").twisted
    assert topology.from_name("v6e-16", slices=3).devices == 48
    assert topology.from_name("2xv6e-256") == topology.from_name("v6e:16x16", slices=2)
    assert topology.from_name(topology.from_name("2xv5p-128").name).chips == 128
    with pytest.raises(TopologyError, match="at least one slice"):
        topology.from_name("v6e-16", slices=0)


def test_every_listed_slice_fits_the_pod_and_its_rule_names_a_source() -> None:
    for name, rule in slices.rules().items():
        chip = chips.load(name)
        assert rule.source in chips.sources()
        for shape in topology.legal_shapes(chip):
            assert math.prod(shape) <= chip.value("ici.pod_chips")
            assert len(shape) == rule.dimensions


def test_coords_are_the_inverse_of_device_numbers() -> None:
    for found in (topology.from_name("tpu7x:2x2x4", slices=2), topology.from_name("v6e:4x8")):
        assert [found.device(found.coords(d)) for d in range(found.devices)] == list(
            range(found.devices)
        )
    with pytest.raises(TopologyError, match="no device 32, expected 0 to 31"):
        topology.from_name("v6e:4x8").coords(32)


def test_devices_are_numbered_as_the_compiler_does() -> None:
    """Ids and order of jax.devices() for v6e:4x4 and tpu7x:2x2x2, libtpu 0.0.42, 2026-11-30."""
    v6e, tpu7x = topology.from_name("v6e:4x4"), topology.from_name("tpu7x:2x2x2")
    assert v6e.coords(4) == Coords(0, 0, 1, 0, 0)
    assert v6e.rank_order[:12] == (0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13)
    assert tpu7x.coords(9) == Coords(0, 0, 0, 1, 1)
    assert tpu7x.rank_order == tuple(range(16))


@pytest.mark.parametrize(
    ("name", "hosts"), [("v6e:16x16", 32), ("v6e:2x2", 1), ("v5p:4x4x4", 16), ("v5e:4x8", 4)]
)
def test_hosts(name: str, hosts: int) -> None:
    assert topology.from_name(name, slices=2).hosts == 2 * hosts


@dataclass(frozen=True)
class _Device:
    """What jax's mesh_utils asks of a device."""

    id: int
    coords: tuple[int, int, int]
    core_on_chip: int
    device_kind: str
    platform: str = "tpu"
    process_index: int = 0


def _jax_mesh(found: Topology, kind: str, sizes: tuple[int, ...]) -> np.ndarray:
    devices = []
    for number in found.rank_order:
        place = found.coords(number)
        devices.append(_Device(number, (place.x, place.y, place.z), place.core, kind))
    mesh = mesh_utils.create_device_mesh(sizes, devices=devices)
    numbers = [device.id for device in mesh.flatten()]
    return np.array(numbers).reshape(sizes)


@pytest.mark.parametrize(
    ("name", "kind", "sizes"),
    [
        ("v6e:16x16", "TPU v6 lite", (256,)),
        ("v6e:16x16", "TPU v6 lite", (16, 16)),
        ("v6e:8x16", "TPU v6 lite", (16, 8)),
        ("v6e:8x16", "TPU v6 lite", (8, 1, 16)),
        ("v5p:4x4x8", "TPU v5p", (8, 16)),
        ("v5p:4x4x8", "TPU v5p", (4, 8, 4)),
        ("v5p:8x8x8", "TPU v5p", (64, 8)),
        ("tpu7x:4x4x4", "TPU7x", (64, 2)),
        ("tpu7x:4x4x8", "TPU7x", (4, 64)),
        ("v4:4x4x4", "TPU v4", (16, 4)),
    ],
)
def test_a_mesh_is_laid_as_jax_lays_it(name: str, kind: str, sizes: tuple[int, ...]) -> None:
    found = topology.from_name(name)
    assert np.array_equal(lay_mesh(found, sizes), _jax_mesh(found, kind, sizes))


def test_a_mesh_that_splits_an_axis_is_row_major() -> None:
    mesh = lay_mesh(topology.from_name("v6e:4x4"), (2, 8))
    assert mesh.tolist() == [list(range(8)), list(range(8, 16))]


def test_slices_go_to_the_outermost_axis_that_they_divide() -> None:
    found = topology.from_name("v6e:4x4", slices=2)
    mesh = lay_mesh(found, (8, 4))
    assert [{found.coords(int(d)).slice for d in row} for row in mesh] == [{0}] * 4 + [{1}] * 4
    inner = lay_mesh(found, (4, 8), slice_sizes=(1, 2))
    assert {found.coords(int(d)).slice for d in inner[0]} == {0, 1}
    assert sorted(inner.flatten().tolist()) == list(range(32))


@pytest.mark.parametrize(
    ("sizes", "slice_sizes", "says"),
    [
        ((3, 5), None, "expected 32 devices, got 15"),
        ((32, 1), (1, 2), "cannot take 2 slices"),
        ((32,), (1, 2), "cannot take 2 slices"),
    ],
)
def test_a_mesh_that_does_not_fit(
    sizes: tuple[int, ...], slice_sizes: tuple[int, ...] | None, says: str
) -> None:
    with pytest.raises(TopologyError, match=says):
        lay_mesh(topology.from_name("v6e:4x4", slices=2), sizes, slice_sizes=slice_sizes)


def test_a_broken_rule_file_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"shapes": ["2x2"], "wrap": "all", "counts": "chips", "source": "doc_v5e"}
    monkeypatch.setattr(slices, "read_toml", lambda _path: {"v5e": table})
    with pytest.raises(slices.FactError, match=r"topologies.toml: v5e.*wrong \['wrap'\]"):
        slices.rules.__wrapped__()
