"""What the estimate of a decode step counts of a cache in eight bits."""

from __future__ import annotations

from tests.estimate.test_estimate import report

SIZES = "--layers 1 --width 512 --heads 16 --kv-heads 16 --head-dim 128 --hidden 512"
NUMBERS = 2 * 16 * 4096 * 16 * 128  # of keys and values


def test_an_int8_cache_is_read_in_eight_bits_and_never_written_out_wider() -> None:
    text = f"--phase decode --steps 2 --vocabulary 256 {SIZES} --batch 16 --seq 4096"
    where = ("--chip", "v5e", "--oracle", "model", "examples/llm.py", "--")
    found = report(*where, *text.split(), "--kv-cache", "int8")
    assert NUMBERS < found["steps"][-1]["hbm_bytes"] < 1.5 * NUMBERS
