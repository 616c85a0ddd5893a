"""Stitching a step's calls into one graph."""

from __future__ import annotations

import pytest

from torchtpu.perf_model.program import Graph, GraphBuilder, Provenance
from torchtpu.perf_model.trace import Buffer, Call, StepTrace, TraceError, buffer_kinds, stitch


def add() -> Graph:
    builder = GraphBuilder()
    x, y = builder.input((256,), "f32"), builder.input((256,), "f32")
    return builder.build((builder.op("add", (x, y), (256,), "f32"),))


ADD = add()
LIVE = {1: Buffer(size_bytes=1024, kind="parameter"), 2: Buffer(size_bytes=1024, kind="input")}


def trace(*calls: Call, after: frozenset[int] = frozenset({4})) -> StepTrace:
    return StepTrace(calls=calls, live_before=LIVE, live_after=after)


def call(inputs: tuple[int, ...], output: int, op: str = "aten::add") -> Call:
    return Call(graph=ADD, inputs=inputs, outputs=(output,), provenance=Provenance(op=op))


def test_calls_share_values_and_keep_their_provenance() -> None:
    graph = stitch(trace(call((1, 2), 3, "aten::add"), call((3, 1), 4, "aten::sub")))
    assert len(graph.inputs) == 2
    assert graph.ops[1].operands == (graph.ops[0].results[0], graph.inputs[0])
    assert [op.provenance.op for op in graph.ops if op.provenance] == ["aten::add", "aten::sub"]
    assert graph.outputs == graph.ops[1].results


def test_inputs_that_die_in_the_step_are_donated() -> None:
    graph = stitch(trace(call((1, 2), 4), after=frozenset({1, 4})))
    assert graph.donated == {graph.inputs[1]}


def test_reading_an_unknown_buffer_is_an_error() -> None:
    with pytest.raises(TraceError, match=r"call 1 \(aten::mul\) reads buffer 9"):
        stitch(trace(call((1, 2), 3), call((3, 9), 4, "aten::mul")))


def test_wrong_arity_is_an_error() -> None:
    with pytest.raises(TraceError, match="expected 2 inputs and 1 outputs, got 1 and 1"):
        stitch(trace(call((1,), 3)))


def test_fingerprint_ignores_names_but_not_structure() -> None:
    one = trace(call((1, 2), 3), call((3, 1), 4))
    renamed = StepTrace(
        calls=(call((11, 12), 13), call((13, 11), 14)),
        live_before={11: LIVE[1], 12: LIVE[2]},
        live_after=frozenset({14}),
        name="another",
    )
    other = trace(call((1, 2), 3), call((3, 2), 4))
    assert one.fingerprint() == renamed.fingerprint() != other.fingerprint()
    kept = trace(call((1, 2), 3), call((3, 1), 4), after=frozenset({3, 4}))
    assert kept.fingerprint() != one.fingerprint()


def test_kinds_follow_memory_that_is_reused() -> None:
    updated = Call(graph=ADD, inputs=(1, 2), outputs=(4,), reuse=((0, 0),))
    assert buffer_kinds(trace(updated))[4] == "parameter"
