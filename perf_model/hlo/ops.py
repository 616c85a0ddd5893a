"""Instructions of optimized HLO as ops of this package, so that its cost rules price them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from torchtpu.perf_model.hlo.reader import Instruction, Module
from torchtpu.perf_model.program import AttrValue, Op

# HLO's opcodes that differ from StableHLO's by more than - for _.
_NAMES = {
    "broadcast": "broadcast_in_dim",
    "bitcast": "reshape",
    "copy": "slice",  # an element of the result from an element of the operand
    "dot": "dot_general",
    "conditional": "case",
    "erf": "chlo.erf",
    "topk": "chlo.top_k",
}
# The compiler's own custom calls: moves of elements, or nothing at all.
_TARGETS = {
    "AllocateBuffer": "constant",
    "AssumeGatherIndicesInBound": "reshape",
    "ConcatBitcast": "reshape",
    "GatherScatterIndicesBitpacked": "slice",
    "PadToStatic": "slice",
    "X64Combine": "slice",
    "X64SplitHigh": "slice",
    "X64SplitLow": "slice",
}
_WINDOW = {
    "size": "window_dimensions",
    "stride": "window_strides",
    "lhs_dilate": "lhs_dilation",
    "rhs_dilate": "rhs_dilation",
}
_TILE_FLOPS = re.compile(r'"tile_flops":"(\d+)"')
_NUMBER = re.compile(r"-?\d+")


def renamed(opcode: str) -> str:
    """StableHLO's name of an HLO opcode."""
    return _NAMES.get(opcode, opcode.replace("-", "_"))


def op_of(
    module: Module, instruction: Instruction, operands: tuple[int, ...], results: tuple[int, ...]
) -> Op:
    """The op of an instruction on values that have numbers already."""
    return Op(
        opcode=_TARGETS.get(instruction.target) or renamed(instruction.opcode),
        operands=operands,
        results=results,
        attrs=_attributes(module, instruction),
    )


def _attributes(module: Module, instruction: Instruction) -> Mapping[str, AttrValue]:
    found = instruction.attributes
    attrs: dict[str, AttrValue] = dict(_own_attributes(instruction))
    if "dimensions" in found:
        attrs["dimensions"] = _integers(found["dimensions"])
        if instruction.opcode == "sort":
            attrs["dimension"] = _integers(found["dimensions"])[0]
        if instruction.opcode == "transpose":
            attrs["permutation"] = _integers(found["dimensions"])
    if "to_apply" in found:
        region = module.computations[instruction.called[-1]]
        attrs["reducer"] = renamed(region.root.opcode)
        attrs["region_ops"] = sum(i.opcode != "parameter" for i in region.instructions)
    if "dim_labels" in found:
        attrs.update(_convolution(instruction))
    elif "window" in found:
        attrs.update(_window(found["window"]))
    return attrs


def _own_attributes(instruction: Instruction) -> Iterator[tuple[str, AttrValue]]:
    """Yield what only some opcodes have."""
    found = instruction.attributes
    if instruction.opcode == "dot":
        for side in ("lhs", "rhs"):
            yield f"{side}_contract", _integers(found.get(f"{side}_contracting_dims", ""))
            yield f"{side}_batch", _integers(found.get(f"{side}_batch_dims", ""))
    if instruction.opcode == "custom-call":
        yield "call_target_name", instruction.target
        yield from _kernel(instruction)
    if instruction.opcode == "constant":
        yield "splat", "," not in instruction.literal
    if "operand_precision" in found:
        yield "precision", tuple(re.findall(r"\w+", found["operand_precision"].upper()))


def _kernel(instruction: Instruction) -> Iterator[tuple[str, AttrValue]]:
    """Yield what a Pallas kernel says of itself, as the reader of StableHLO names it."""
    if instruction.target != "tpu_custom_call":
        return
    yield "kernel_name", instruction.name.rstrip("0123456789").rstrip(".")
    said = instruction.config.get("custom_call_config") or {}
    for name, value in (said.get("cost_estimate") or {}).items():
        if str(value).isdigit():
            yield f"kernel_{name}", int(value)
    if tiles := _TILE_FLOPS.search(instruction.attributes.get("frontend_attributes", "")):
        yield "kernel_tile_flops", int(tiles[1])


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in _NUMBER.findall(text))


def _window(text: str) -> dict[str, AttrValue]:
    """`{size=3x3 pad=1_1x1_1 stride=2x2}` under StableHLO's names."""
    attrs: dict[str, AttrValue] = {}
    for key, value in re.findall(r"(\w+)=([\dx_-]+)", text):
        if key in _WINDOW:
            attrs[_WINDOW[key]] = tuple(int(n) for n in value.split("x"))
        elif key == "pad":
            attrs["padding"] = tuple(int(n) for pair in value.split("x") for n in pair.split("_"))
    return attrs


def _convolution(instruction: Instruction) -> dict[str, AttrValue]:
    """`bf01_oi01->bf01`: where batch, features and spatial dimensions are, and the window."""
    labels = instruction.attributes["dim_labels"]
    sides = re.fullmatch(r"([\w?]+)_([\w?]+)->([\w?]+)", labels)
    assert sides is not None, labels
    lhs, rhs, out = sides.groups()
    attrs = _window(instruction.attributes.get("window", ""))
    spatial = [c for c in lhs if c.isdigit()]
    attrs |= {
        "lhs_spatial": tuple(lhs.index(c) for c in spatial),
        "rhs_spatial": tuple(rhs.index(c) for c in spatial),
        "out_spatial": tuple(out.index(c) for c in spatial),
        "lhs_feature": lhs.index("f"),
        "rhs_in": rhs.index("i"),
        "rhs_out": rhs.index("o"),
        "out_feature": out.index("f"),
        "feature_group_count": int(instruction.attributes.get("feature_group_count", 1)),
        "batch_group_count": int(instruction.attributes.get("batch_group_count", 1)),
    }
    return attrs
