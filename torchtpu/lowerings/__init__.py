"""Lowerings of aten ops to StableHLO, as pure JAX functions in one file per family."""

from torchtpu.lowerings.registry import CallTypes, Lowering, lowering, table

__all__ = ["CallTypes", "Lowering", "lowering", "table"]
