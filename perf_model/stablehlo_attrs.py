"""MLIR attributes as plain Python values: what the cost rules need of each StableHLO op."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any  # jaxlib's MLIR bindings are untyped

from torchtpu.perf_model.program import NO_ATTRS, AttrValue, ProgramError

_SKIPPED = frozenset(
    {"value", "mhlo.sharding", "sdy.sharding", "mhlo.frontend_attributes", "backend_config"}
)
_MAX_ELEMENTS = 64  # windows, paddings and permutations; anything longer is data


def dot_attrs(attr: Any) -> dict[str, AttrValue]:
    """`#stablehlo.dot` -> lhs/rhs batching and contracting dimensions."""
    from jaxlib.mlir.dialects import stablehlo

    dims = stablehlo.DotDimensionNumbers(attr)
    return {
        "lhs_batch": tuple(dims.lhs_batching_dimensions),
        "rhs_batch": tuple(dims.rhs_batching_dimensions),
        "lhs_contract": tuple(dims.lhs_contracting_dimensions),
        "rhs_contract": tuple(dims.rhs_contracting_dimensions),
    }


def conv_attrs(attr: Any) -> dict[str, AttrValue]:
    """`#stablehlo.conv` -> which dimension of lhs, rhs and result is batch, feature, spatial."""
    from jaxlib.mlir.dialects import stablehlo

    dims = stablehlo.ConvDimensionNumbers(attr)
    return {
        "lhs_spatial": tuple(dims.input_spatial_dimensions),
        "lhs_feature": int(dims.input_feature_dimension),
        "rhs_spatial": tuple(dims.kernel_spatial_dimensions),
        "rhs_in": int(dims.kernel_input_feature_dimension),
        "rhs_out": int(dims.kernel_output_feature_dimension),
        "out_spatial": tuple(dims.output_spatial_dimensions),
        "out_feature": int(dims.output_feature_dimension),
    }


def _gather(attr: Any) -> dict[str, AttrValue]:
    from jaxlib.mlir.dialects import stablehlo

    return {"index_vector_dim": int(stablehlo.GatherDimensionNumbers(attr).index_vector_dim)}


def _scatter(attr: Any) -> dict[str, AttrValue]:
    from jaxlib.mlir.dialects import stablehlo

    return {"index_vector_dim": int(stablehlo.ScatterDimensionNumbers(attr).index_vector_dim)}


def _precision(attr: Any) -> dict[str, AttrValue]:
    from jaxlib.mlir.dialects import stablehlo

    return {"precision": tuple(str(stablehlo.PrecisionAttr(a).value) for a in attr)}


def _direction(attr: Any) -> dict[str, AttrValue]:
    from jaxlib.mlir.dialects import stablehlo

    return {"comparison_direction": str(stablehlo.ComparisonDirectionAttr(attr).value)}


def _algorithm(attr: Any) -> dict[str, AttrValue]:
    return {"algorithm": str(attr)}


def _groups(attr: Any) -> dict[str, AttrValue]:
    """Replica groups [groups, members]: the first one, which the others are translations of."""
    groups, members = attr.type.shape
    return {"group": tuple(int(attr[i]) for i in range(members)), "groups": int(groups)}


def _pairs(attr: Any) -> dict[str, AttrValue]:
    """(source, target) pairs, flat."""
    return {"pairs": tuple(int(attr[i]) for i in range(len(attr)))}


def _kernel_cost(attr: Any) -> dict[str, AttrValue]:
    """What a Mosaic kernel says it costs: `cost_estimate` of the JSON text of its backend_config.

    Attributes kernel_flops, kernel_transcendentals and kernel_bytes_accessed; none without it.
    """
    text = getattr(attr, "value", "")
    if not isinstance(text, str) or '"cost_estimate"' not in text:
        return {}
    estimate = json.loads(text)["custom_call_config"]["cost_estimate"]
    names = ("flops", "transcendentals", "bytes_accessed")
    return {f"kernel_{name}": int(estimate[name]) for name in names if name in estimate}


def _kernel_tiles(attr: Any) -> dict[str, AttrValue]:
    """Of a Mosaic kernel's metadata `tile_flops`: FLOPs of its tiles, masked pairs included."""
    names = [entry if isinstance(entry, str) else entry.name for entry in attr]
    if "kernel_metadata" not in names:
        return {}
    said = json.loads(attr["kernel_metadata"].value)
    return {"kernel_tile_flops": int(said["tile_flops"])} if "tile_flops" in said else {}


_STRUCTURED: Mapping[tuple[str, str], Callable[[Any], dict[str, AttrValue]]] = {
    ("dot_general", "dot_dimension_numbers"): dot_attrs,
    ("dot_general", "algorithm"): _algorithm,
    ("dot_general", "precision_config"): _precision,
    ("dot", "precision_config"): _precision,
    ("convolution", "precision_config"): _precision,
    ("convolution", "dimension_numbers"): conv_attrs,
    ("dynamic_conv", "dimension_numbers"): conv_attrs,
    ("gather", "dimension_numbers"): _gather,
    ("compare", "comparison_direction"): _direction,
    ("scatter", "scatter_dimension_numbers"): _scatter,
    ("custom_call", "backend_config"): _kernel_cost,
    ("custom_call", "mhlo.frontend_attributes"): _kernel_tiles,
    ("all_gather", "replica_groups"): _groups,
    ("all_reduce", "replica_groups"): _groups,
    ("reduce_scatter", "replica_groups"): _groups,
    ("all_to_all", "replica_groups"): _groups,
    ("collective_permute", "source_target_pairs"): _pairs,
}


def _plain(attr: Any) -> AttrValue | None:
    """Integers, strings, symbols and short integer lists; None for everything else."""
    from jaxlib.mlir import ir

    if isinstance(attr, ir.BoolAttr | ir.IntegerAttr | ir.StringAttr | ir.FlatSymbolRefAttr):
        value = attr.value
        return value if isinstance(value, bool | int | str) else None
    if isinstance(attr, ir.DenseI64ArrayAttr | ir.DenseBoolArrayAttr):
        return tuple(int(v) for v in attr)
    if isinstance(attr, ir.DenseIntElementsAttr) and len(attr) <= _MAX_ELEMENTS:
        return tuple(int(attr[i]) for i in range(len(attr)))
    return None


def read_attrs(opcode: str, operation: Any) -> Mapping[str, AttrValue]:
    """The attributes of an operation that a cost rule may ask for."""
    attributes = operation.attributes
    if not len(attributes):
        return NO_ATTRS
    found: dict[str, AttrValue] = {}
    for entry in attributes:
        name = entry if isinstance(entry, str) else entry.name
        structured = _STRUCTURED.get((opcode, name))
        if name in _SKIPPED and structured is None:
            continue
        attr = attributes[name]
        if structured is not None:
            try:
                found.update(structured(attr))
            except (TypeError, ValueError, KeyError) as error:
                raise ProgramError(f"[{opcode}] cannot read attribute {name}: {attr}") from error
        elif (value := _plain(attr)) is not None:
            found[name] = value
    return found or NO_ATTRS


def constant_attrs(operation: Any, elements: int, dtype: str) -> Mapping[str, AttrValue]:
    """Of a constant: whether it is one repeated value, and the value of an integer scalar."""
    from jaxlib.mlir import ir

    try:
        attr = operation.attributes["value"]
    except TypeError:  # the bindings have no class for this element type (complex)
        return {"splat": elements == 1}
    if not isinstance(attr, ir.DenseElementsAttr):
        return NO_ATTRS
    found: dict[str, AttrValue] = {"splat": bool(attr.is_splat)}
    if (
        elements == 1
        and dtype.lstrip("u").startswith("i")
        and isinstance(attr, ir.DenseIntElementsAttr)
    ):
        found["value"] = int(attr[0])
    return found
