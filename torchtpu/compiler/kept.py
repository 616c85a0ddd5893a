"""Compiled graphs that AOTAutograd's cache can keep for the next process.

The cache is torch's own, in the user's folder for Inductor; what it keeps of ours is the FX graph.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from torchtpu.cache import Unencodable, environment, tiers
from torchtpu.compiler import torch_sources
from torchtpu.compiler.buckets import bounds_of
from torchtpu.errors import TpuError
from torchtpu.private.torch import (
    BypassAOTAutogradCache,
    OutputCode,
    SerializableAOTDispatchCompiler,
    TracingContext,
    functorch_config,
)

# Makes what runs the graph of "forward", "backward" or "inference"; the number is how many of the
# results the user gets, None for all.
Make = Callable[[torch.fx.GraphModule, str, int | None], Callable[[list[Any]], Any]]

# What the first graph would wait for: a hash of torch's sources, and a module that Dynamo reads.
torch_sources.prefetch(tiers.host())
importlib.import_module("torch.distributed.tensor.experimental")

_make: Make | None = None  # for the graph that is compiled now


@contextmanager
def making(make: Make, *, keep: bool) -> Iterator[None]:
    """Compile a graph inside a `with` block, or load what an earlier process has kept of it."""
    global _make
    before, _make = _make, make
    try:
        with functorch_config.patch(
            bundled_autograd_cache=keep,
            enable_autograd_cache=keep,
            force_non_lazy_backward_lowering=True,  # costs nothing: XLA compiles at the first call
        ):
            yield
    finally:
        _make = before


def compiler(which: str, make: Make) -> SerializableAOTDispatchCompiler:
    """Return what AOTAutograd calls with its "forward", "backward" or "inference" graph."""

    def compile_(graph: torch.fx.GraphModule, _example_inputs: Sequence[Any]) -> KeptGraph:
        made = KeptGraph(which, graph, _visible() if which == "forward" else None)
        made.run = make(graph, which, made.visible)
        return made

    return SerializableAOTDispatchCompiler(KeptGraph, compile_)


def _visible() -> int:
    metadata = TracingContext.get().fw_metadata
    assert metadata is not None
    return int(metadata.num_forward_returns)


@dataclasses.dataclass
class KeptGraph(OutputCode):
    """A compiled graph and the FX graph that it can be made of again."""

    which: str
    graph: torch.fx.GraphModule | None
    visible: int | None
    run: Any = None
    pickled: bytes = b""
    sources: str = ""

    def __post_init__(self) -> None:
        self._boxed_call = True

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Run on a flat list, which is emptied."""
        return self.run(inputs)

    def prepare_for_serialization(self) -> None:
        """Keep the graph as bytes; called on a copy. Sizes that vary are not kept."""
        from torchtpu.private.torch import GraphPickler, GraphPicklerOptions

        assert self.graph is not None
        if bounds_of(self.graph):
            raise BypassAOTAutogradCache("its sizes vary")
        try:
            environment.entries()
        except Unencodable as reason:
            raise BypassAOTAutogradCache(str(reason)) from reason
        for node in self.graph.graph.nodes:
            for name in ("nn_module_stack", "source_fn_stack", "example_value"):
                node.meta.pop(name, None)
        self.pickled = GraphPickler.dumps(self.graph, GraphPicklerOptions(ops_filter=None))
        self.sources = environment.sources()
        self.graph = self.run = None

    def post_compile(self, *_: Any) -> None:
        """Make the graph again; raises where another version of this package has kept it."""
        if self.graph is not None:
            return
        if self.sources != environment.sources():
            raise TpuError("[torch.compile] the kept graph is of another version of torchtpu")
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        from torchtpu.private.torch import FakeTensorMode, GraphPickler

        graph = GraphPickler.loads(self.pickled, FakeTensorMode(shape_env=ShapeEnv()))
        assert isinstance(graph, torch.fx.GraphModule)
        assert _make is not None
        graph.recompile()
        self.graph, self.pickled, self.run = graph, b"", _make(graph, self.which, self.visible)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Take no notice: there is no Triton here."""
