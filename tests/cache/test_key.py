"""Keys: named lists, their digests, and where two differ."""

from __future__ import annotations

import pytest

from torchtpu.cache.encoding import Unencodable
from torchtpu.cache.key import Key, hashed

KEY = Key((("program", "abc"), ("jax", "1")))


@pytest.mark.parametrize(
    "other",
    [
        (("program", "abc"), ("jax", "2")),
        (("program", "abc"), ("jaxlib", "1")),
        (("jax", "1"), ("program", "abc")),
        (("program", "abc"),),
        (("program", "abcjax"), ("", "1")),
        (("program", "abc"), ("jax", "1"), ("jax", "1")),
    ],
)
def test_another_list_is_another_digest(other: tuple[tuple[str, str], ...]) -> None:
    assert Key(other).digest != KEY.digest


def test_the_digest_is_the_same_everywhere() -> None:
    assert Key((("program", "abc"), ("jax", "1"))).digest == KEY.digest
    assert KEY.digest == "1dfc69f18b5a0e1e4784ebe2bd7249620d48e1dc0d172d5795ae825fdd284bd9"


def test_a_difference_is_named() -> None:
    other = Key((("program", "abc"), ("jax", "2"), ("numpy", "3")))
    assert KEY.differs_in(other.entries) == ["jax", "numpy"]
    assert KEY.differs_in(KEY.entries) == []


def test_values_are_hashed_one_by_one() -> None:
    one, two = hashed([("a", (1, 2)), ("b", 0.0)]), hashed([("a", (1, 2)), ("b", -0.0)])
    assert one[0] == two[0]
    assert one[1] != two[1]
    with pytest.raises(Unencodable):
        hashed([("a", object())])
