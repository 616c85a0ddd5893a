"""The StableHLO that a graph was read from."""

from __future__ import annotations

import gc

import jax.numpy as jnp

from tests.perf_model.jax_programs import module, spec
from torchtpu.perf_model import bytecode, stablehlo


def test_a_graphs_module_is_kept_as_long_as_the_graph() -> None:
    made = module(jnp.tanh, spec(4, 4))
    graph = stablehlo.read(made)
    assert bytecode.kept(graph) is None
    before = len(bytecode._KEPT)
    bytecode.keep(graph, made)
    data = bytecode.kept(graph)
    assert data is not None
    assert [op.opcode for op in stablehlo.read(data).ops] == ["tanh"]
    del graph
    gc.collect()
    assert len(bytecode._KEPT) == before
