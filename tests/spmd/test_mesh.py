"""Meshes and specs, without a device."""

from __future__ import annotations

from typing import Any

import pytest

from torchtpu import spmd
from torchtpu.errors import TpuError

EIGHT = spmd.Mesh((2, 4), ("data", "tensor"))


def test_axes_are_handed_on_as_primes() -> None:
    assert EIGHT.size == 8
    assert EIGHT.parts == {
        "data": (("data", 2),),
        "tensor": (("tensor.0", 2), ("tensor.1", 2)),
    }
    assert spmd.Mesh((6,), ("x",)).parts == {"x": (("x.0", 2), ("x.1", 3))}


@pytest.mark.parametrize(
    ("spec", "inner"),
    [
        ((), ()),
        (("data",), (("data",),)),
        ((None, "tensor"), ((), ("tensor.0", "tensor.1"))),
        ((("tensor", "data"), None), (("tensor.0", "tensor.1", "data"),)),
        ((None, ()), ()),
    ],
)
def test_a_spec_there_and_back(spec: Any, inner: Any) -> None:
    assert EIGHT.inner(spec, (16, 16), "test") == inner
    expected = tuple(entry or None for entry in (*spec, None, None)[:2])
    assert EIGHT.outer(inner, 2) == expected


def test_a_part_of_an_axis_has_a_name() -> None:
    assert EIGHT.outer((("tensor.0",), ("tensor.1", "data")), 3) == (
        "tensor.0",
        ("tensor.1", "data"),
        None,
    )


def test_an_axis_of_one_device_splits_nothing() -> None:
    mesh = spmd.Mesh((1, 2), ("data", "tensor"))
    assert mesh.inner(("data", "tensor"), (3, 4), "test") == ((), ("tensor",))


@pytest.mark.parametrize(
    ("shape", "names"),
    [((), ()), ((2,), ("a", "b")), ((2, 2), ("a", "a")), ((2.0,), ("a",)), ((True,), ("a",)),
     ((2,), ("a.b",)), ((-1,), ("a",)), ((2,), (3,))],
)  # fmt: skip
def test_meshes_that_are_none(shape: Any, names: Any) -> None:
    with pytest.raises(TpuError, match=r"\[spmd.Mesh\] expected sizes of 1 or more"):
        spmd.Mesh(shape, names)


def test_nothing_is_in_use_before_it_is() -> None:
    assert spmd.current_mesh() is None
