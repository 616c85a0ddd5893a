"""torch.func._random against the algorithm that its documentation names, in whole numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch.func import _random

WORD = 2**32 - 1
uniform: Any = _random.uniform  # its annotation of sizes is that of one tuple
normal: Any = _random.normal


def _block(seed: int, offset: int) -> list[int]:
    """Philox 4x32-10 in Python's own numbers."""
    keys, counter = [seed & WORD, seed >> 32], [offset & WORD, offset >> 32, 0, 0]
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (second >> 32) ^ counter[1] ^ keys[0],
            second & WORD,
            (first >> 32) ^ counter[3] ^ keys[1],
            first & WORD,
        ]
        keys = [(keys[0] + 0x9E3779B9) & WORD, (keys[1] + 0xBB67AE85) & WORD]
    return counter


BLOCKS = [_block(42 + (7 << 32), i) for i in range(3)]


def _key() -> torch.Tensor:
    return _random.key(42 + (7 << 32)).to("tpu")


def test_the_known_answer_of_zeros() -> None:
    assert _block(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_split_and_fold_in() -> None:
    keys = _random.split(_key(), 3).cpu()
    assert keys.tolist() == [[b[0] | b[1] << 32, b[2] | b[3] << 32] for b in BLOCKS]
    assert _random.fold_in(_key(), 2).cpu().tolist() == keys[2].tolist()


def test_uniform_takes_the_low_bits() -> None:
    words = [w for b in BLOCKS for w in b][:7]
    drawn = uniform(_key(), 7).cpu()
    assert drawn.tolist() == [(w & 0xFFFFFF) / 2**24 for w in words]
    half = uniform(_key(), 7, dtype=torch.bfloat16).cpu()
    assert half.tolist() == [(w & 0xFF) / 2**8 for w in words]
    wide = uniform(_key(), 3, dtype=torch.float64).cpu()
    pairs = [(b[i] << 32 | b[i + 1]) & (2**53 - 1) for b in BLOCKS for i in (0, 2)][:3]
    assert wide.tolist() == [p / 2**53 for p in pairs]
    assert uniform(_key(), 0).shape == (0,)


def test_normal_has_its_moments() -> None:
    for dtype in (torch.float32, torch.float64):
        drawn = normal(_key(), 20000, mean=1.0, std=2.0, dtype=dtype).cpu()
        assert abs(drawn.mean().item() - 1) < 0.06
        assert abs(drawn.std().item() - 2) < 0.05


def test_a_batch_of_keys_draws_row_by_row() -> None:
    keys = _random.split(_key(), 2)
    drawn = normal(keys.reshape(2, 1, 2), 2, 6).cpu()
    for row, key in zip(drawn, keys, strict=True):
        assert row.tolist() == normal(key, 6).cpu().tolist()
