"""The executor: one compile for one program, on the target that the configuration names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.test_program import PROGRAM
from torchtpu import config, executor, storage, targets
from torchtpu.cache import environment
from torchtpu.executor import Executor
from torchtpu.lowerings import CallTypes
from torchtpu.lowerings.registry import table
from torchtpu.program import ArrayType, Node, Program, Ref

F32 = ArrayType((2, 3), np.dtype(np.float32))


def full(shape: tuple[int, ...], donated: tuple[int, ...] = ()) -> Program:
    """A program that the disk keeps: its function is one of torchtpu's."""
    scalar = ArrayType((), np.dtype(np.float32))
    return Program((scalar,), (Node("full", storage._full, (Ref(0), shape), (), 1),), (1,), donated)


def power(exponent: Any) -> Program:
    """A program with a static number."""
    types = CallTypes(np.dtype(np.float32), (F32,))
    arguments = (("self", Ref(0)), ("exponent", exponent))
    row = table()["aten::pow.Tensor_Scalar"]
    return Program((F32,), (Node(row.name, row, (types,), arguments, 1),), (1,))


@pytest.fixture(autouse=True)
def _sources_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_STARTED_S", math.inf)  # by who edits while tests run


@pytest.fixture(scope="module")
def cpu() -> Executor:
    return Executor(targets.create("cpu"))


def test_a_program_compiles_once(cpu: Executor) -> None:
    first = cpu.executable(PROGRAM)
    assert cpu.executable(PROGRAM) is first
    assert (cpu.cache.stats.compilations, cpu.cache.stats.hits) == (1, 1)
    assert cpu.cache.stats.per_program == {"mul_Tensor+split_Tensor+sum": 1}


def test_a_program_runs(cpu: Executor) -> None:
    argument = cpu.target.put(np.full((2, 3), 0.5, np.float32))
    total, doubled = cpu.executable(PROGRAM).run([argument])
    assert cpu.target.get(total) == 60
    np.testing.assert_array_equal(cpu.target.get(doubled), np.ones((2, 3)))


def test_numbers_that_python_finds_equal_are_other_programs(cpu: Executor) -> None:
    keys = {executor.program_key(power(n), "highest") for n in (1, 1.0, True, 0.0, -0.0)}
    assert len(keys) == 5
    assert cpu.executable(power(2)) is not cpu.executable(power(2.0))
    nans = {executor.program_key(power(float("nan")), "highest") for _ in range(2)}
    assert len(nans) == 1


def test_every_part_of_a_program_is_in_its_key() -> None:
    base = full((2,))
    (node,) = base.nodes
    others = [
        Program((F32,), base.nodes, base.outputs),
        Program(base.inputs, (Node("other", *_rest(node)),), base.outputs),
        Program(base.inputs, (Node("full", storage._resized, *_rest(node)[1:]),), base.outputs),
        Program(base.inputs, base.nodes, (0,)),
        full((2,), donated=(0,)),
        full((3,)),
    ]
    keys = {executor.program_key(p, "highest") for p in [base, *others]}
    keys.add(executor.program_key(base, "default"))
    assert len(keys) == 8


def _rest(node: Node) -> tuple[Any, ...]:
    return node.fn, node.args, node.kwargs, node.outputs


def _made(spec: str, folder: Path, numerics: bool = True) -> Executor:
    """An executor as of a new process: nothing in memory."""
    with config.override(cache_dir=str(folder), cache_name="test"):
        return Executor(targets.create(spec, targets.Settings(numerics=numerics)))


@pytest.mark.parametrize("spec", ["cpu", "sim:v5e"])
def test_the_next_process_loads(tmp_path: Path, spec: str) -> None:
    for compilations, loads in ((2, 0), (0, 2)):
        made = _made(spec, tmp_path)
        (result,) = made.executable(full((2, 2))).run([made.target.put(np.float32(3))])  # type: ignore[arg-type]
        np.testing.assert_array_equal(made.target.get(result), np.full((2, 2), 3, np.float32))
        argument = made.target.put(np.array([[1, 2, 3], [4, 5, 6]], np.float32))
        (result,) = made.executable(power(2)).run([argument])
        np.testing.assert_array_equal(made.target.get(result), [[1, 4, 9], [16, 25, 36]])
        stats = made.cache.stats
        assert (stats.compilations, stats.traces) == (compilations, compilations)
        assert stats.host_hits == loads


def test_a_loaded_program_takes_donated_inputs(tmp_path: Path) -> None:
    program = Program((F32,), power(2).nodes, (1,), (0,))
    for _ in range(2):
        made = _made("cpu", tmp_path)
        given = made.target.put(np.full((2, 3), 3, np.float32))
        (result,) = made.executable(program).run([given])
        assert made.target.get(result).sum() == 54
        assert given.is_deleted()
    assert made.cache.stats.host_hits == 1


def test_cpu_and_sim_do_not_take_each_others(tmp_path: Path) -> None:
    for spec in ("cpu", "sim:v5e"):
        made = _made(spec, tmp_path)
        made.executable(full((2, 2)))
        assert made.cache.stats.compilations == 1


def test_the_clock_of_a_loaded_program_is_that_of_a_compiled_one(tmp_path: Path) -> None:
    spent = []
    for _ in range(2):
        made = _made("sim:v5e", tmp_path)
        start = made.target.clock_s()
        made.executable(full((512, 512))).run([made.target.put(np.float32(3))])  # type: ignore[arg-type]
        made.target.wait([])
        end = made.target.clock_s()
        assert start is not None
        assert end is not None
        spent.append(end - start)
    assert made.cache.stats.host_hits == 1
    assert spent[0] == spent[1] > 0


def test_abstract_programs_are_not_kept(tmp_path: Path) -> None:
    made = _made("sim:v5e", tmp_path, numerics=False)
    made.executable(full((2, 2)))
    assert not list(tmp_path.rglob("*.exe"))


def test_functions_of_others_are_not_kept(tmp_path: Path) -> None:
    for _ in range(2):
        made = _made("cpu", tmp_path)
        made.executable(PROGRAM)  # of the tests' own functions
        assert (made.cache.stats.compilations, made.cache.stats.unpersistable) == (1, 1)
    assert not list(tmp_path.rglob("*.exe"))


def test_an_executable_with_an_address_of_this_process_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax

    def called(value: Any, shape: tuple[int, ...]) -> Any:
        struct: Any = jax.ShapeDtypeStruct
        return jax.pure_callback(lambda v: np.full(shape, v), struct(shape, value.dtype), value)

    called.__module__, called.__qualname__ = "torchtpu.storage", "_full"
    monkeypatch.setattr(executor, "program_key", lambda *_: (("program", "calls back"),))
    program = full((2,))
    (node,) = program.nodes
    made = _made("cpu", tmp_path)
    made.executable(Program(program.inputs, (Node("call", called, *_rest(node)[1:]),), (1,)))
    assert made.cache.stats.unpersistable == 1
    kept = [f for f in tmp_path.rglob("*.exe") if b"calls back" in f.read_bytes()]
    assert not kept  # a list of the process's programs may be there
