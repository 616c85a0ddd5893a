"""Compile-time hygiene: no lowering's program grows with its data, and every one is short.

Each lowering of the table is traced on abstract inputs made up from its schema, of n and of 4n
elements a side: as many operations must come out, and few lines of StableHLO on the large input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch

from torchtpu.eager.schema import Kind, arguments, overload
from torchtpu.errors import LoweringError
from torchtpu.lowerings import CallTypes, Lowering, table
from torchtpu.program import ArrayType

SMALL, LARGE = 24, 96
MAX_LINES = 200
MAX_CHARACTERS = 60_000  # constants as large as the data are longer; as long as a side, not
PARTS = 6  # the table is measured in as many tests
KEY = jax.ShapeDtypeStruct((4,), np.uint32)


class Shapes(NamedTuple):
    """How inputs are made up: tensors of one rank and dtype, ints of one value."""

    rank: int
    dtype: str
    number: int


TRIED = (
    *(Shapes(rank, "float32", number) for rank in (2, 4, 1, 3) for number in (1, 0)),
    *(Shapes(rank, "int32", 1) for rank in (2, 1)),
    Shapes(5, "float32", 1),
)


def _f(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


def _i(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int64)


def _resized(*ratio: int) -> Callable[[int], dict[str, Any]]:
    def given(n: int) -> dict[str, Any]:
        rank = len(ratio)
        output, whole = tuple(r * n for r in ratio), (2, 2, *(n,) * rank)
        made = {"output_size": output, "input_size": whole, "grad_output": _f(2, 2, *output)}
        return made if rank == 1 else {**made, "align_corners": False}

    return given


# What a schema does not say. Arguments that are not named here take the function's defaults.
BY_HAND: dict[str, Callable[[int], dict[str, Any]]] = {
    "aten::convolution": lambda n: {
        "input": _f(2, n, n, n), "weight": _f(n, n, 3, 3), "bias": _f(n), "stride": (1, 1),
        "padding": (1, 1), "dilation": (1, 1), "transposed": False, "output_padding": (0, 0),
        "groups": 1,
    },
    "aten::glu_backward": lambda n: {"grad_output": _f(n, n), "self": _f(n, 2 * n), "dim": 1},
    "aten::grid_sampler_2d": lambda n: {
        "input": _f(2, 3, n, n), "grid": _f(2, n, n, 2), "interpolation_mode": 0,
        "padding_mode": 0, "align_corners": False,
    },
    "aten::grid_sampler_2d_backward": lambda n: {
        "grad_output": _f(2, 3, n, n), "input": _f(2, 3, n, n), "grid": _f(2, n, n, 2),
        "interpolation_mode": 0, "padding_mode": 0, "align_corners": False,
        "output_mask": (True, True),
    },
    "aten::nll_loss_forward": lambda n: {
        "self": _f(n, n), "target": _i(n), "weight": None, "reduction": 1, "ignore_index": -100,
    },
    "aten::nll_loss2d_forward": lambda n: {
        "self": _f(2, n, n, n), "target": _i(2, n, n), "weight": None, "reduction": 1,
        "ignore_index": -100,
    },
    "aten::select_backward": lambda n: {
        "grad_output": _f(n), "input_sizes": (n, n), "dim": 0, "index": 1,
    },
    "aten::diagonal_backward": lambda n: {
        "grad_output": _f(n), "input_sizes": (n, n), "offset": 0, "dim1": 0, "dim2": 1,
    },
    "aten::select_scatter": lambda n: {"self": _f(n, n), "src": _f(n), "dim": 0, "index": 1},
    "aten::avg_pool2d_backward": lambda n: {
        "grad_output": _f(2, n, n, n), "self": _f(2, n, 2 * n, 2 * n), "kernel_size": (2, 2),
        "stride": (2, 2), "padding": (0, 0), "ceil_mode": False, "count_include_pad": True,
        "divisor_override": None,
    },
    "aten::col2im": lambda n: {
        "self": _f(2, 4 * n, n * n), "output_size": (2 * n, 2 * n), "kernel_size": (2, 2),
        "dilation": (1, 1), "padding": (0, 0), "stride": (2, 2),
    },
    "aten::linalg_lu_solve": lambda n: {
        "LU": _f(n, n), "pivots": jax.ShapeDtypeStruct((n,), np.int32), "B": _f(n, n),
    },
    "aten::linalg_householder_product": lambda n: {"input": _f(n, n), "tau": _f(n)},
    "aten::native_group_norm_backward": lambda n: {
        "grad_out": _f(2, n, n), "input": _f(2, n, n), "mean": _f(2, 2), "rstd": _f(2, 2),
        "weight": _f(n), "N": 2, "C": n, "HxW": n, "group": 2, "output_mask": (True, True, True),
    },
    "aten::native_batch_norm_backward": lambda n: {
        "grad_out": _f(2, n, n), "input": _f(2, n, n), "weight": _f(n), "running_mean": _f(n),
        "running_var": _f(n), "save_mean": _f(n), "save_invstd": _f(n), "train": True,
        "eps": 1e-5, "output_mask": (True, True, True),
    },
    "aten::fractional_max_pool2d": lambda n: {
        "self": _f(2, 3, 2 * n, 2 * n), "kernel_size": (2, 2), "output_size": (n, n),
        "random_samples": _f(2, 3, 2),
    },
    "aten::_thnn_fused_lstm_cell": lambda n: {
        "input_gates": _f(n, 4 * n), "hidden_gates": _f(n, 4 * n), "cx": _f(n, n),
    },
    "aten::_pdist_backward": lambda n: {
        "grad": _f(n * (n - 1) // 2), "self": _f(n, n), "p": 2.0, "pdist": _f(n * (n - 1) // 2),
    },
    "aten::upsample_bilinear2d": lambda n: {
        "self": _f(2, 2, n, n), "output_size": (2 * n, 2 * n), "align_corners": False,
    },
    "aten::_upsample_bilinear2d_aa": lambda n: {
        "self": _f(2, 2, n, n), "output_size": (2, 2), "align_corners": False,
    },
    "aten::upsample_nearest1d_backward": _resized(2),
    "aten::upsample_linear1d_backward": lambda n: {**_resized(2)(n), "align_corners": False},
    "aten::upsample_nearest2d_backward": lambda n: {
        k: v for k, v in _resized(2, 2)(n).items() if k != "align_corners"
    },
    "aten::upsample_bilinear2d_backward": _resized(2, 2),
    "aten::upsample_bicubic2d_backward": _resized(2, 2),
    "aten::_upsample_bilinear2d_aa_backward": _resized(2, 2),
    "aten::upsample_trilinear3d_backward": _resized(2, 2, 2),
    "torchtpu::all_reduce": lambda n: {
        "input": _f(n), "reduce": "sum", "group": (0, 1), "world": 2,
    },
    "torchtpu::reduce_scatter": lambda n: {
        "input": _f(2 * n), "reduce": "sum", "group": (0, 1), "world": 2,
    },
    "torchtpu::all_gather": lambda n: {"input": _f(n), "group": (0, 1), "world": 2},
    "torchtpu::all_to_all": lambda n: {"input": _f(2 * n), "group": (0, 1), "world": 2},
    "torchtpu::permute": lambda n: {"input": _f(n), "pairs": (0, 1, 1, 0), "world": 2},
}  # fmt: skip


def made_up(lowering: Lowering, how: Shapes, n: int) -> dict[str, Any]:
    """Arguments of a lowering: arrays of n elements a side, numbers, and what names suggest."""
    if lowering.name in BY_HAND:
        return BY_HAND[lowering.name](n)
    schema = overload(lowering.name)._schema
    kinds = {a.name: a.kind for a in arguments(schema)}
    types = {a.name: str(a.type) for a in schema.arguments}
    wanted = lowering.parameters[lowering.key :]
    return {
        name: _value(name, kinds[name], types[name], how, n)
        for name in wanted
        if name in kinds and name not in lowering.optional
    }


def _value(name: str, kind: Kind, type_: str, how: Shapes, n: int) -> Any:
    array = jax.ShapeDtypeStruct((n,) * how.rank, _dtype(name, how))
    if kind == Kind.TENSOR:
        return array
    if kind == Kind.TENSORS:
        return (array, array)
    if kind == Kind.NUMBER:
        return jax.ShapeDtypeStruct((), np.dtype(how.dtype))
    if kind == Kind.NUMBERS:
        return (1.0, 1.0)
    return _static(name, type_, how, n)


_INDICES = {"index", "indices", "target", "offsets", "offset2bag", "sorted_sequence_length"}
_MASKS = {"mask", "condition"}
_SIZES = {"size", "sizes", "input_sizes", "input_size", "self_size", "normalized_shape", "shape"}


def _dtype(name: str, how: Shapes) -> Any:
    if name in _MASKS:
        return np.dtype(bool)
    return np.dtype(np.int64 if name in _INDICES else how.dtype)


def _static(name: str, type_: str, how: Shapes, n: int) -> Any:
    if type_.startswith("Optional"):
        return None
    if type_ == "bool":
        return False
    if "int" in type_ and not type_.startswith("List"):
        return n if name in ("n", "N", "output_size", "length") else how.number
    if name in _SIZES:
        return (n,) * how.rank
    return (how.number,) * max(how.rank - 2, 1)


def traced(lowering: Lowering, how: Shapes, n: int) -> Any:
    """The traced program, or None where these inputs are not for this lowering."""
    given = made_up(lowering, how, n)
    arrays = {k: v for k, v in given.items() if _is_array(v)}
    static = {k: v for k, v in given.items() if k not in arrays}
    compute = None if lowering.compute == "as_is" else np.dtype(how.dtype)
    types = CallTypes(compute, _expected(lowering, given))

    def call(*key: Any, **arrays: Any) -> Any:
        return lowering(types, *key, **arrays, **static)

    with jax.enable_x64(True):
        try:
            return jax.jit(call).trace(*([KEY] * lowering.key), **arrays)
        except (*_NOT_FOR_IT, AssertionError):
            return None


_NOT_FOR_IT = (
    TypeError, ValueError, IndexError, ArithmeticError, NotImplementedError, AttributeError,
    KeyError, LoweringError, RuntimeError,
)  # fmt: skip


def _expected(lowering: Lowering, given: dict[str, Any]) -> tuple[ArrayType, ...] | None:
    """Types of the results where a lowering asks for them: of ops on lists, like the list."""
    first = next(iter(given.values()), None)
    if not lowering.name.startswith("aten::_foreach") or not isinstance(first, tuple):
        return None
    return tuple(ArrayType(a.shape, a.dtype) for a in first)


def _is_array(value: Any) -> bool:
    first = value[0] if isinstance(value, tuple) and value else value
    return isinstance(first, jax.ShapeDtypeStruct)


def operations(jaxpr: Any) -> int:
    """How many operations a program holds, those of its loops and calls too."""
    inner = (p for e in jaxpr.eqns for v in e.params.values() for p in _sequence(v))
    programs = [getattr(p, "jaxpr", p) for p in inner]
    return len(jaxpr.eqns) + sum(operations(p) for p in programs if hasattr(p, "eqns"))


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


class Size(NamedTuple):
    """Operations of the program on the small and on the large input, and its text on the large."""

    small: int
    large: int
    lines: int
    characters: int


def size(lowering: Lowering) -> Size | None:
    """Measure a lowering on the first inputs that it takes."""
    for how in TRIED[:1] if lowering.name in BY_HAND else TRIED:
        small = traced(lowering, how, SMALL)
        large = traced(lowering, how, LARGE) if small is not None else None
        if large is not None:
            with jax.enable_x64(True):
                text = str(large.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo"))
            counts = [operations(t.jaxpr.jaxpr) for t in (small, large)]
            return Size(counts[0], counts[1], text.count("\n"), len(text))
    return None


@cache
def sizes(part: int) -> dict[str, Size | None]:
    """Return the sizes of a part of all lowerings; None: no inputs were found for it."""
    torch.empty(0, device="tpu")  # enters the families that are no part of lowerings/
    return {name: size(table()[name]) for name in [*table()][part::PARTS]}


# Longer than MAX_LINES, but of a fixed length.
LONG = {
    "aten::poisson": "two rejection samplers, for small and for large means",
    "aten::binomial": "two samplers, and the threefry generator that jax.random draws from",
    "aten::_standard_gamma_grad": "one series and one continued fraction, each with derivatives",
    "aten::_dirichlet_grad": "a piecewise approximation: four regions of polynomials",
    "aten::_pdist_backward": "four formulas by p, chosen while the program runs",
    "aten::fractional_max_pool2d": "two window searches and a maximum with its place",
    "aten::grid_sampler_2d_backward": "four corners, each with a weight and two derivatives",
    "aten::igamma": "a series and a continued fraction",
    "aten::igammac": "a series and a continued fraction",
    "aten::linalg_ldl_factor_ex": "blocks of two kinds of pivots in one loop",
}
GROWING: dict[str, str] = {}  # name -> why its program may grow with its data


@pytest.mark.parametrize("part", range(PARTS))
def test_no_program_grows_with_its_data(part: int) -> None:
    found = {n: s for n, s in sizes(part).items() if s is not None}
    grown = {n for n, s in found.items() if s.small != s.large}
    assert {n: found[n] for n in grown - set(GROWING)} == {}
    assert set(GROWING) & set(found) <= grown, "an exception that is none any more"


@pytest.mark.parametrize("part", range(PARTS))
def test_every_program_is_short(part: int) -> None:
    found = {n: s for n, s in sizes(part).items() if s is not None}
    long = {n for n, s in found.items() if s.lines >= MAX_LINES or s.characters > MAX_CHARACTERS}
    assert {n: found[n] for n in long - set(LONG)} == {}
    assert set(LONG) & set(found) <= long, "an exception that is none any more"


def test_most_lowerings_are_measured() -> None:
    every = {n: s for part in range(PARTS) for n, s in sizes(part).items()}
    missing = [n for n, s in every.items() if s is None]
    assert len(missing) < len(every) / 5, missing
    assert [n for n in missing if n in BY_HAND] == []
    assert set(LONG) | set(GROWING) | set(BY_HAND) <= set(every)


def test_an_unrolled_loop_would_be_found() -> None:
    def unrolled(self: Any) -> Any:
        return sum(self[i] for i in range(self.shape[0]))

    found = size(Lowering(name="aten::sin", fn=unrolled, constants={}, writes={}))
    assert found is not None
    assert found.large > 3 * found.small
    assert found.lines > MAX_LINES
