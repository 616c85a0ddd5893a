"""The plain roofline of the published rows: peak FLOP/s and peak HBM bandwidth of the chip, nothing
else (Williams et al. 2009).
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers.published import decoder, option
from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.validation.rows import Row
from torchtpu.perf_model.validation.side_by_side import peak_roofline_s

_BYTES = {"int8": 1, "": 2}


def seconds(row: Row) -> float:
    """Of a GEMM, or of the batch of requests of a serving row."""
    if row.kind == "gemm":
        return peak_roofline_s(row)
    config = row.config
    prefill_s, decode_s = prefill(row, config["prefill"]), decode(row, config["decode"])
    return float(config["batch"] * prefill_s + config["output_tokens"] * decode_s)


def chips_used(row: Row) -> float:
    """Chips that serve together: a rank is one device, of which a chip may have two."""
    ranks = int(option(row.config["decode"], "--tensor", "1"))
    return ranks / chips.load(row.chip).devices_per_chip


def prefill(row: Row, arguments: Sequence[str]) -> float:
    """max(2 x parameters x tokens / peak FLOP/s, bytes of the weights / bandwidth), seconds."""
    tokens = int(option(arguments, "--batch")) * int(option(arguments, "--seq"))
    return _roofline(row, arguments, tokens, cache_bytes=0.0)


def decode(row: Row, arguments: Sequence[str]) -> float:
    """As prefill, of one token per sequence, with the cache read once."""
    sizes = decoder(option(arguments, "--model"))
    batch, length = int(option(arguments, "--batch")), int(option(arguments, "--seq"))
    head = sizes.get("head_dim", sizes["width"] // sizes["heads"])
    element = _BYTES["int8" if option(arguments, "--cache-dtype") == "int8" else ""]
    cache_bytes = 2.0 * sizes["layers"] * sizes["kv_heads"] * head * element * batch * length
    return _roofline(row, arguments, batch, cache_bytes)


def _roofline(row: Row, arguments: Sequence[str], tokens: int, cache_bytes: float) -> float:
    chip: Chip = chips.load(row.chip)
    devices = chips_used(row) * chip.devices_per_chip
    parameters = float(decoder(option(arguments, "--model"))["parameters"])
    weight_bytes = parameters * _BYTES[option(arguments, "--quantize")]
    moved_s = (weight_bytes + cache_bytes) / (chip.hbm_bytes_per_s * devices)
    return max(2 * parameters * tokens / (chip.peak_flops_per_s() * devices), moved_s)
