"""The plain roofline of the published rows: peak FLOP/s and peak HBM bandwidth of the chip, nothing
else (Williams et al. 2009).
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers.published import decoder, option
from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.chip import Chip
from torchtpu.perf_model.validation import serving
from torchtpu.perf_model.validation.rows import Row
from torchtpu.perf_model.validation.side_by_side import peak_roofline_s

_BYTES = {"int8": 1, "fp8": 1}  # of a weight or a cached number; 2 of any other


def seconds(row: Row) -> float:
    """Of a GEMM, or of all requests of a serving row."""
    if row.kind == "gemm":
        return peak_roofline_s(row)
    config = row.config
    prompts = int(option(config["prefill"], "--batch"))
    decode_s = [decode(row, step) for step in serving.decode_points(config)]
    return serving.seconds(config, prefill(row, config["prefill"]) / prompts, decode_s)


def chips_used(row: Row) -> float:
    """Chips that serve: a rank is one device, of which a chip may have two."""
    return _ranks(row.config["decode"]) / chips.load(row.chip).devices_per_chip


def prefill(row: Row, arguments: Sequence[str]) -> float:
    """max(2 x parameters x tokens / peak FLOP/s, bytes of the weights / bandwidth), seconds."""
    tokens = int(option(arguments, "--batch")) * int(option(arguments, "--seq"))
    return _roofline(row, arguments, tokens, cache_bytes=0.0)


def decode(row: Row, arguments: Sequence[str]) -> float:
    """As prefill, of one token per sequence, with the cache read once."""
    sizes = decoder(option(arguments, "--model"))
    batch, length = int(option(arguments, "--batch")), int(option(arguments, "--seq"))
    head = sizes.get("head_dim", sizes["width"] // sizes["heads"])
    element = _BYTES.get(option(arguments, "--kv-cache"), 2)
    cache_bytes = 2.0 * sizes["layers"] * sizes["kv_heads"] * head * element * batch * length
    return _roofline(row, arguments, batch, cache_bytes)


def _ranks(arguments: Sequence[str]) -> int:
    return int(option(arguments, "--tensor", "1")) * int(option(arguments, "--data", "1"))


def _roofline(row: Row, arguments: Sequence[str], tokens: int, cache_bytes: float) -> float:
    chip: Chip = chips.load(row.chip)
    devices = _ranks(arguments)
    parameters = float(decoder(option(arguments, "--model"))["parameters"])
    quantize, replicas = option(arguments, "--quantize"), int(option(arguments, "--data", "1"))
    weight_bytes = parameters * _BYTES.get(quantize, 2) * replicas
    moved_s = (weight_bytes + cache_bytes) / (chip.hbm_bytes_per_s * devices)
    peak = chip.peak_flops_per_s("f8e4m3fn" if quantize == "fp8" else "bf16")
    return max(2 * parameters * tokens / (peak * devices), moved_s)
