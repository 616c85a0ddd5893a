"""Devices of one process as a mesh."""

from __future__ import annotations

import numpy as np
import pytest

from torchtpu.private import jax as private
from torchtpu.targets import TargetError
from torchtpu.targets.meshes import DeviceMesh
from torchtpu.targets.pjrt import PjrtTarget

AXES = (("data", 2), ("tensor", 2))


@pytest.fixture(scope="module")
def target() -> PjrtTarget:
    return PjrtTarget(private.cpu_client(4), "cpu", "cpu", axes=AXES)


def test_arrays_lie_as_their_specs_say(target: PjrtTarget) -> None:
    assert isinstance(target.mesh, DeviceMesh)
    value = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    for spec, bytes_of_a_device in ((), 128), ((("data",),), 64), (((), ("tensor", "data")), 32):
        array = target.put(value, spec)
        assert target.mesh.spec(array) == spec
        assert target.mesh.bytes_of_a_device(array) == bytes_of_a_device
        assert np.array_equal(target.get(array), value)


def test_what_nobody_wrote_has_no_spec(target: PjrtTarget) -> None:
    assert target.mesh is not None
    array = target.put(np.zeros(3), None)
    assert target.mesh.spec(array) is None
    assert target.mesh.given(None) is target.mesh.sharding(())


def test_too_few_devices() -> None:
    with pytest.raises(TargetError, match=r"expected 4 devices of target cpu .*, got 2"):
        PjrtTarget(private.cpu_client(2), "cpu", "cpu", axes=AXES)


def test_the_mesh_is_part_of_what_decides_a_program(target: PjrtTarget) -> None:
    other = PjrtTarget(private.cpu_client(4), "cpu", "cpu", axes=(("data", 4),))
    assert ("mesh", "data=2,tensor=2") in (target.identity() or ())
    assert ("mesh", "data=4") in (other.identity() or ())
