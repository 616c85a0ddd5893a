"""Spellings of values: different values differ, and other processes spell the same."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import os
import random
import struct
import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from torchtpu import storage, views
from torchtpu.cache import encoding
from torchtpu.cache.encoding import Unencodable, encode
from torchtpu.lowerings import CallTypes
from torchtpu.lowerings.registry import Lowering, table
from torchtpu.program import ArrayType, Ref

F32 = np.dtype(np.float32)
OTHER_NAN = struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0]

DIFFERENT = [
    None, True, 1, 1.0, 1 + 0j, "1", b"1", False, 0, 0.0, -0.0, 0j, complex(0, -0.0), "", b"",
    (), ((),), ((), ()), (1,), (1.0,), (True,), (1, 2), (12,), ((1,), 2), (1, (2,)), ("1", "2"),
    ("12",), ("1,2",), ("1;", "2"), -1, 2**70, math.inf, -math.inf, math.nan, OTHER_NAN, ...,
    "None", "i1;", "N", frozenset(), frozenset({1}), frozenset({1, 2}), frozenset({1.5, "a"}), {},
    {"a": 1}, {"a": "1"}, {1: "a"}, F32, np.dtype(np.float64), np.dtype(ml_dtypes.bfloat16),
    np.dtype(">f4"), np.dtype("V2"), np.float32, np.float32(1), np.float64(1), np.int32(1),
    "float32", Ref(1), Ref(2), (Ref(1),),
    ArrayType((), F32), ArrayType((1,), F32), views.View((1,), (1,), 0, F32),
    views.View((1,), (0,), 1, F32), CallTypes(None, None), CallTypes(F32, None),
    CallTypes(None, (None,)), storage._full, storage._zeros, views.read, jnp.sin, jnp.cos,
]  # fmt: skip


def test_different_values_have_different_spellings() -> None:
    spellings = [encode(v) for v in DIFFERENT]
    assert len(set(spellings)) == len(DIFFERENT)


def test_no_spelling_begins_another() -> None:
    """So a sequence of spellings can be read in one way only."""
    ordered = sorted(encode(v) for v in DIFFERENT)
    assert not [a for a, b in itertools.pairwise(ordered) if b.startswith(a)]


def _random_value(source: random.Random, depth: int) -> Any:
    if depth and source.random() < 0.6:
        return tuple(_random_value(source, depth - 1) for _ in range(source.randrange(4)))
    text = "".join(source.choices("a1;:(N\u00e9\ud800", k=source.randrange(4)))
    return source.choice([None, True, text, text.encode("utf-8", "ignore"), source.randrange(3)])


def test_random_nests_are_spelled_equally_only_if_they_are_equal() -> None:
    source = random.Random(0)
    spelled: dict[bytes, str] = {}
    for _ in range(5000):
        value = _random_value(source, 3)
        assert spelled.setdefault(encode(value), repr(value)) == repr(value)
    assert len(spelled) > 1000


def test_equal_values_of_other_identity_are_spelled_alike() -> None:
    assert encode(("a" * 3, 10**9)) == encode((chr(97) * 3, int("1000000000")))
    assert encode(frozenset("abcdef")) == encode(frozenset("fedcba"))
    assert encode({"a": 1, "b": 2}) == encode({"b": 2, "a": 1})
    assert encode(torch.Size((2, 3))) == encode((2, 3))


def test_every_lowering_has_a_spelling_of_its_own() -> None:
    assert len({encode(row) for row in table().values()}) == len(table())
    bound = next(row for row in table().values() if row.bounds is not None)
    assert encode(bound.first_out_of_range) != encode(bound)


PRINT = """
import hashlib
from torchtpu.cache.encoding import encode
from torchtpu.lowerings.registry import Lowering, table
print(hashlib.sha256(b"".join(encode(table()[n]) for n in sorted(table()))).hexdigest())
"""


def test_another_process_spells_the_same() -> None:
    command = [sys.executable, "-c", PRINT]
    environment = os.environ | {"PYTHONHASHSEED": "77"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    here = hashlib.sha256(b"".join(encode(table()[n]) for n in sorted(table()))).hexdigest()
    assert done.stdout.strip() == here


def test_closures_are_told_apart_by_what_they_hold() -> None:
    made = [encoding._constant(f) for f in (encoding._named, encoding._function)]
    assert encode(made[0]) != encode(made[1])
    assert encode(made[0]) == encode(encoding._constant(encoding._named))
    assert encode(functools.partial(views.read, 1)) != encode(functools.partial(views.read, 2))


def _ours(x: int) -> int:
    return x


@functools.wraps(views.read)
def _dressed_up(*_: Any) -> None:
    return None


class _Thing:
    def __call__(self) -> None:
        return None


@pytest.mark.parametrize(
    "value",
    [
        _ours,
        lambda: None,
        _dressed_up,
        functools.partial(_ours, 1),
        (1, (_ours,)),
        Lowering(name="my::op", fn=_ours, constants={}, writes={}),
        _Thing,
        _Thing(),
        object(),
        [1],
        np.zeros(2),
        torch.float32,
        np.dtype([("a", "f4")]),
        type("Sub", (int,), {})(1),
    ],
    ids=lambda value: type(value).__name__,  # the same in every process
)
def test_what_has_no_canonical_spelling_is_an_error(value: Any) -> None:
    with pytest.raises(Unencodable, match=r"\[cache\]"):
        encode(value)


def test_what_contains_itself_is_an_error() -> None:
    nest: dict[str, Any] = {}
    nest["self"] = nest
    with pytest.raises(Unencodable, match="contains itself"):
        encode(nest)


def test_a_replaced_function_is_not_taken_for_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    before = encode(views.covers)
    monkeypatch.setattr(views, "covers", _ours)
    with pytest.raises(Unencodable):
        encode(views.covers)
    monkeypatch.undo()
    assert encode(views.covers) == before
