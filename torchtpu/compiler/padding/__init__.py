"""Graphs with sizes that vary, made to run at fixed ones; padding may hold anything."""

from torchtpu.compiler.padding import (  # each registers its rules
    indexing,
    nn,
    pooling,
    reductions,
    shapes,
)
from torchtpu.compiler.padding.layout import CannotPad, Layout
from torchtpu.compiler.padding.pad import origins, pad
from torchtpu.compiler.padding.result import Constant, PaddedGraph, PaddedTensor, Size

RULES = (indexing, nn, pooling, reductions, shapes)

__all__ = [
    "RULES",
    "CannotPad",
    "Constant",
    "Layout",
    "PaddedGraph",
    "PaddedTensor",
    "Size",
    "origins",
    "pad",
]
