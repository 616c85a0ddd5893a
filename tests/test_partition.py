"""Splitting: results stay, equal parts are one program, and nothing is overwritten too early."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.models import Gpt
from torchtpu import lowerings, targets
from torchtpu.eager.modes import EagerMode
from torchtpu.executor import Executor
from torchtpu.lowerings import CallTypes
from torchtpu.partition import Limits, Plan, partition
from torchtpu.partition.repeats import Stretch, stretches
from torchtpu.program import ArrayType, Node, Program, Ref
from torchtpu.targets import Executable

F32 = ArrayType((3,), np.dtype(np.float32))
SMALL = Limits(whole=30, largest_part=30, smallest_part=4, saved=8)


def _mix(a: Any, b: Any) -> Any:
    return a * 0.5 + b


def _bent(a: Any, by: int) -> Any:
    return a * (1 - 0.25 * by) - by


def _halves(a: Any) -> tuple[Any, Any]:
    return a * 0.25, a - 1


def _total(parts: tuple[Any, ...]) -> Any:
    return sum(parts[1:], parts[0])


class Builder:
    """Appends nodes and knows the numbers of their values."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.count = inputs
        self.nodes: list[Node] = []

    def add(self, fn: Any, *args: Any, outputs: int = 1) -> int:
        """Append a node; return its first value."""
        self.nodes.append(Node(fn.__name__, fn, args, (), outputs))
        self.count += outputs
        return self.count - outputs

    def program(self, outputs: Sequence[int], donated: Sequence[int] = ()) -> Program:
        return Program((F32,) * self.inputs, tuple(self.nodes), tuple(outputs), tuple(donated))


def _layered(seed: int) -> Program:
    """Layers forward, the same in reverse on saved values, updates, and nodes at random between."""
    rng = random.Random(seed)
    layers, per_layer = rng.randint(3, 9), rng.randint(4, 14)
    builder = Builder(2 * layers + 2)
    template = [(rng.randrange(4), rng.random(), rng.random()) for _ in range(per_layer)]

    def stage(hidden: int, known: list[int]) -> list[int]:
        local = [hidden, *known]
        for kind, x, y in template:
            a, b = local[int(x * len(local))], local[int(y * len(local))]
            if kind == 0:
                local.append(builder.add(_mix, Ref(a), Ref(b)))
            elif kind == 1:
                local.append(builder.add(_bent, Ref(a), int(3 * x)))
            elif kind == 2:
                local.append(builder.add(_halves, Ref(a), outputs=2) + (y > 0.5))
            else:
                local.append(builder.add(_total, (Ref(a), Ref(b), Ref(local[-1]))))
        return local

    def noise() -> None:
        for _ in range(rng.randrange(40)):
            builder.add(_mix, Ref(rng.randrange(builder.count)), Ref(rng.randrange(builder.count)))

    noise()
    hidden, saved = 0, []
    for layer in range(layers):
        saved.append(stage(hidden, [1, 2 + 2 * layer]))
        hidden = saved[-1][-1]
    noise()
    updates = []
    for layer in reversed(range(layers)):
        gradient = stage(hidden, [saved[layer][len(saved[layer]) // 2], 2 + 2 * layer])
        hidden = gradient[-1]
        updates.append(builder.add(_mix, Ref(3 + 2 * layer), Ref(gradient[-2])))
    extra = [rng.randrange(builder.count) for _ in range(4)]
    outputs = [*updates, hidden, *extra]
    donated = [3 + 2 * n for n in range(layers) if rng.random() < 0.8 and 3 + 2 * n not in extra]
    return builder.program(outputs, donated)


def _spoiling(program: Program) -> Any:
    """Run with numpy; memory that was donated holds NaN afterwards."""

    def run(arrays: Sequence[Any]) -> list[Any]:
        results = [np.array(r) for r in program(*arrays)]
        for i in program.donated:
            arrays[i][:] = np.nan
        return results

    return run


def _assert_same(program: Program, plan: Plan) -> None:
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(t.shape).astype(t.dtype) for t in program.inputs]
    expected = program(*given)
    inputs = [a.copy() for a in given]
    results = plan.bind(_spoiling)(inputs)
    for result, value in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, value)
    for i, (now, before) in enumerate(zip(inputs, given, strict=True)):
        assert i in program.donated or np.array_equal(now, before)
    assert len({id(r) for r in results}) == len(results)


@pytest.mark.parametrize("seed", range(40))
def test_results_stay_and_nothing_is_overwritten_early(seed: int) -> None:
    program = _layered(seed)
    _assert_same(program, partition(program, SMALL))


def test_random_programs_are_cut_into_bounded_parts() -> None:
    plans = [partition(_layered(seed), SMALL) for seed in range(40)]
    cut = [plan for plan in plans if len(plan.parts) > 1]
    assert len(cut) > 30
    assert sum(plan.programs < len(plan.parts) for plan in cut) > 20
    for plan in cut:
        assert all(len(p.program.nodes) <= SMALL.largest_part for p in plan.parts)


@pytest.mark.parametrize("seed", range(5))
def test_the_plan_follows_from_the_text(seed: int) -> None:
    assert partition(_layered(seed), SMALL) == partition(_layered(seed), SMALL)


@pytest.mark.parametrize("seed", range(10))
def test_values_are_dropped_at_their_last_use(seed: int) -> None:
    program = _layered(seed)
    plan = partition(program, SMALL)
    held = set(range(len(program.inputs)))
    taken = {v for part in plan.parts for v in part.takes}
    for number, part in enumerate(plan.parts):
        held |= set(part.gives)
        held -= set(part.drops)
        later = {v for after in plan.parts[number + 1 :] for v in after.takes}
        untouched = set(range(len(program.inputs))) - taken
        assert held <= later | set(plan.outputs) | untouched
        assert later <= held | {v for after in plan.parts[number + 1 :] for v in after.gives}


def _layers(builder: Builder, hidden: int, parameters: Sequence[int]) -> tuple[int, list[int]]:
    """Add layers of five nodes; return the last value and one from the middle of each."""
    middles = []
    for parameter in parameters:
        a = builder.add(_mix, Ref(hidden), Ref(parameter))
        b = builder.add(_halves, Ref(a), outputs=2)
        middles.append(builder.add(_bent, Ref(b + 1), 2))
        d = builder.add(_mix, Ref(middles[-1]), Ref(a))
        hidden = builder.add(_total, (Ref(hidden), Ref(d), Ref(b)))
    return hidden, middles


def test_layers_are_one_program_even_where_one_gives_more() -> None:
    builder = Builder(13)
    hidden, middles = _layers(builder, 0, range(1, 13))
    program = builder.program([middles[4], hidden])
    plan = partition(program, SMALL)
    assert (len(plan.parts), plan.programs) == (12, 1)
    assert len(plan.parts[0].program.outputs) == 2
    _assert_same(program, plan)


def test_repeats_that_stand_apart_are_one_program() -> None:
    builder = Builder(9)
    hidden, _ = _layers(builder, 0, range(1, 9))
    for by in range(11):
        hidden = builder.add(_bent, Ref(hidden), by)
    hidden, _ = _layers(builder, hidden, range(1, 9))
    program = builder.program([hidden])
    plan = partition(program, SMALL)
    assert (len(plan.parts), plan.programs) == (17, 2)
    _assert_same(program, plan)


def test_a_period_with_repetition_inside_is_split_again() -> None:
    builder = Builder(13)
    hidden = 0
    for _ in range(3):
        hidden, _ = _layers(builder, hidden, range(1, 13))
        for by in range(20):
            hidden = builder.add(_bent, Ref(hidden), by)
    plan = partition(builder.program([hidden]), SMALL)
    assert plan.programs == 2
    _assert_same(builder.program([hidden]), plan)


def test_the_last_reader_overwrites_what_the_whole_may() -> None:
    builder = Builder(13)
    hidden, _ = _layers(builder, 0, range(1, 13))
    last = builder.add(_mix, Ref(hidden), Ref(0))
    whole = partition(builder.program([last], donated=range(1, 13)), SMALL)
    lent = partition(builder.program([last]), SMALL)
    layer, other = whole.parts[1].program, lent.parts[1].program
    assert len(layer.donated) == 1  # of two that end here, one has an output to become
    assert len(other.donated) == 0  # the first layer reads input 0, which is not ours
    assert 0 not in {whole.parts[0].takes[n] for n in layer.donated}


def test_a_program_of_a_part_s_size_stays_as_it_is() -> None:
    builder = Builder(7)
    program = builder.program([_layers(builder, 0, range(1, 7))[0]])
    assert len(program.nodes) == SMALL.whole
    plan = partition(program, SMALL)
    assert [part.program for part in plan.parts] == [program]
    _assert_same(program, plan)


def test_little_repetition_is_no_reason_to_cut_what_may_be_one_part() -> None:
    builder = Builder(5)
    hidden, _ = _layers(builder, 0, range(1, 5))
    for by in range(40):
        hidden = builder.add(_bent, Ref(hidden), by)
    program = builder.program([hidden])
    roomy = replace(SMALL, largest_part=60)
    assert [part.program for part in partition(program, roomy).parts] == [program]
    assert len(partition(program, SMALL).parts) > 1


def test_what_does_not_repeat_is_cut_where_few_values_cross() -> None:
    builder = Builder(1)
    hidden = 0
    for group in range(4):
        wide = [builder.add(_bent, Ref(hidden), 20 * group + i) for i in range(19)]
        hidden = builder.add(_total, tuple(Ref(v) for v in wide))
    program = builder.program([hidden])
    plan = partition(program, SMALL)
    assert [len(part.program.nodes) for part in plan.parts] == [20] * 4
    assert all((len(part.takes), len(part.gives)) == (1, 1) for part in plan.parts)
    _assert_same(program, plan)


def test_outputs_that_are_inputs_or_twice_the_same_get_arrays_of_their_own() -> None:
    builder = Builder(13)
    hidden, middles = _layers(builder, 0, range(1, 13))
    program = builder.program([hidden, 3, middles[2], hidden, 3], donated=[3])
    _assert_same(program, partition(program, SMALL))


def test_dead_nodes_are_left_out() -> None:
    builder = Builder(13)
    hidden, _ = _layers(builder, 0, range(1, 13))
    _layers(builder, hidden, range(1, 13))
    plan = partition(builder.program([hidden]), SMALL)
    assert sum(len(part.program.nodes) for part in plan.parts) == 60


def test_stretches_are_maximal_and_of_every_frequent_period() -> None:
    sequence = np.array([9, 8, *([1, 2, 2, 3] * 5), 1, 2, 7, *([4, 4, 5] * 3)])
    found = stretches(sequence)
    assert Stretch(2, 24, 4) in found
    assert Stretch(25, 34, 3) in found
    assert Stretch(2, 24, 4).saved == 16


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_short_sequences_have_no_stretches_but_pairs(length: int) -> None:
    assert stretches(np.arange(length)) == []


@pytest.fixture(scope="module")
def cpu() -> Executor:
    return Executor(targets.create("cpu"))


def test_list_ops_repeat_by_position_with_each_its_own_number(cpu: Executor) -> None:
    table, size = lowerings.table(), 24
    shapes = [(2,), (3, 2)] * (size // 2)
    types = tuple(ArrayType(s, np.dtype(np.float32)) for s in shapes)
    numbers = ArrayType((size,), np.dtype(np.float64))
    call = CallTypes(np.dtype(np.float32), types)

    def apply(op: str, lists: int, first: int, second: int) -> Node:
        refs = [tuple(Ref(start + i) for i in range(size)) for start in (first, second)]
        others = refs[1] if lists == 2 else Ref(second)
        name = "other" if lists == 2 else "scalars"
        return Node(op, table[op], (call,), (("self", refs[0]), (name, others)), size)

    nodes = (
        apply("aten::_foreach_mul.ScalarList", 1, 0, size),
        apply("aten::_foreach_add.ScalarList", 1, size + 1, size),
        apply("aten::_foreach_mul.List", 2, 2 * size + 1, 0),
    )
    last = 4 * size + 1
    other = [Node("bent", _bent, (Ref(0),), (("by", by),), 1) for by in range(8)]
    outputs = (*range(last - size, last), *range(last, last + 8))
    program = Program((*types, numbers), (*nodes, *other), outputs)
    plan = partition(program, Limits(whole=10, smallest_part=6, saved=8))
    assert (len(plan.parts), plan.programs) == (13, 2)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(t.shape).astype(t.dtype) for t in program.inputs]
    results = plan.bind(lambda p: cpu.executable(p).run)([cpu.target.put(a) for a in given])
    for value, number, result in zip(given, given[-1], results, strict=False):
        expected = (value * number + number) * value
        np.testing.assert_allclose(cpu.target.get(result), expected, rtol=1e-5, atol=1e-6)


def _losses(device: str) -> list[float]:
    """Train four layers for three steps."""
    torch.manual_seed(0)
    model = Gpt(width=16, heads=2, depth=4).to(device)
    tokens = torch.arange(32, device=device).view(2, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(x) for x in losses]


def test_a_transformer_trains_on_a_program_for_each_kind_of_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[Plan] = []
    compiled = Executor.executable

    def executable(self: Executor, program: Program) -> Executable:
        plan = partition(program, Limits(whole=300, smallest_part=16))
        plans.append(plan)
        run = plan.bind(lambda p: compiled(self, p).run)
        return Executable(run=run, module="", nbytes=0)

    with torch.tpu.set_eager_mode(EagerMode.DEFER_AND_FUSE):
        monkeypatch.setattr(Executor, "executable", executable)
        monkeypatch.setattr("torchtpu.eager.fused.MAX_CALLS", 1 << 20)
        losses = _losses("tpu")
    np.testing.assert_allclose(losses, _losses("cpu"), rtol=1e-3)
    steady = max(plans, key=lambda plan: len(plan.parts))
    repeated = Counter(part.program for part in steady.parts)
    assert sorted(repeated.values())[-2:] == [4, 4]  # forward; backward with the optimizer
