"""Eigenvalues by QR steps beside LAPACK's: vectors are right where their matrix says so."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from torchtpu.targets import schur

_RANDOM = np.random.default_rng(0).normal
CASES = {
    "empty": np.zeros((0, 0)),
    "one": _RANDOM(size=(1, 1)),
    "two": _RANDOM(size=(2, 2)),
    "three": _RANDOM(size=(3, 3)),
    "thirty": _RANDOM(size=(30, 30)),
    "complex": _RANDOM(size=(6, 6)) + 1j * _RANDOM(size=(6, 6)),
    "zeros": np.zeros((4, 4)),
    "equal values": np.eye(4),
    "symmetric": np.add(*(lambda x: (x, x.T))(_RANDOM(size=(7, 7)))),
    "imaginary values": np.array([[0.0, -1.0], [1.0, 0.0]]),
    "a cycle": np.roll(np.eye(5), 1, axis=0),
    "triangular": np.triu(_RANDOM(size=(6, 6))),
    "blocks": np.kron(np.eye(3), [[0.0, 1.0], [-1.0, 0.0]]),
    "huge": 1e30 * _RANDOM(size=(5, 5)),
    "tiny": 1e-30 * _RANDOM(size=(5, 5)),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_vectors(name: str) -> None:
    a = CASES[name].astype(np.complex64 if name == "complex" else np.float32)
    values, vectors = map(np.asarray, jax.jit(schur.eig)(a))
    size = np.abs(a).max(initial=0) or 1.0
    error = np.abs(a.astype(complex) @ vectors - vectors * values).max(initial=0)
    assert error <= 1e-5 * size
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=0), np.ones(len(a)), rtol=1e-5)
    left = list(np.linalg.eigvals(a.astype(complex)))
    for value in values:  # each is one of LAPACK's, which are in another order
        nearest = min(left, key=lambda v: abs(v - value))
        assert abs(nearest - value) <= 1e-4 * size
        left.remove(nearest)


def test_a_defective_matrix_has_its_one_vector() -> None:
    values, vectors = map(
        np.asarray, jax.jit(schur.eig)(np.eye(8, k=1, dtype=np.float32) + np.eye(8))
    )
    np.testing.assert_allclose(values, np.ones(8))
    np.testing.assert_allclose(np.abs(vectors[0]), np.ones(8), rtol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_numbers_give_no_numbers(value: float) -> None:
    a = np.ones((3, 3), np.float32)
    a[1, 2] = value
    assert all(np.isnan(np.asarray(x)).all() for x in jax.jit(schur.eig)(a))


def test_is_the_rule_of_platform_tpu() -> None:
    from torchtpu import targets

    targets.register_rules()

    def both(a: Any) -> Any:
        return jax.numpy.linalg.eig(a), jax.numpy.linalg.eigvals(a)

    shape = jax.ShapeDtypeStruct((2, 3, 3), np.float32)
    text = jax.jit(both).trace(shape).lower(lowering_platforms=("tpu",)).as_text()
    assert "lapack" not in text
    assert "stablehlo.while" in text
