"""Recompiles explained: which entry of the key differs, from which earlier program, what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import torch

import torchtpu
from torchtpu import config, recompiles
from torchtpu.program import ArrayType, Node, Program, Ref
from torchtpu.recompiles.history import _MAX_NODES, CompileLimitError, History

pytestmark = pytest.mark.usefixtures("strict")

STRICT, FUSED, DEBUG = (
    torch.tpu.EagerMode.DEFER_NEVER,
    torch.tpu.EagerMode.DEFER_AND_FUSE,
    torch.tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING,
)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    """Every program compiles: none in memory, on disk or in the history."""
    from torchtpu import executor

    torch.tpu.synchronize()
    torch.tpu._clear_cache()
    recompiles.history.clear()
    current = executor.current()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(current, "_place", lambda _: None)
        yield
        torch.tpu.synchronize()


def _tpu(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype).to("tpu")  # copied from the host: no program


def _last() -> recompiles.Recompile:
    return torchtpu.explain_recompiles().rows[-1]


CASES: list[tuple[Callable[[], object], str, object, object, str]] = [
    (lambda: [_tpu(n, 4).relu() for n in (32, 7)], "self.shape", (32, 4), (7, 4), "drop_last=True"),
    (lambda: [_tpu(4, n).relu() for n in (32, 7)], "self.shape", (4, 32), (4, 7), "buckets"),
    (
        lambda: [_tpu(4, dtype=d).relu() for d in (torch.float32, torch.bfloat16)],
        "self.dtype",
        "float32",
        "bfloat16",
        "autocast",
    ),
    (
        lambda: [_tpu(4, 4).sum(0), _tpu(4, 4).sum(1)],
        "dim.value",
        (0,),
        (1,),
        "a static argument changed",
    ),
    (
        lambda: [_tpu(4, 4).triu(k) for k in (0, 1)],
        "diagonal.value",
        "the default",
        1,
        "a Python number became a static argument",
    ),
    (
        lambda: [torch.cat([_tpu(2)] * n) for n in (2, 3)],
        "tensors.length",
        2,
        3,
        "number of tensors",
    ),
    (
        lambda: [t.exp() for base in [_tpu(4, 4)] for t in (base[:2], base[2:])],
        "self.offset",
        0,
        8,
        "index with a device tensor",
    ),
    (
        lambda: [t.exp() for base in [_tpu(4, 4)] for t in (base, base.t())],
        "self.strides",
        "absent",
        (1, 4),
        ".contiguous()",
    ),
]


@pytest.mark.parametrize(("run", "entry", "expected", "got", "hint"), CASES)
@pytest.mark.parametrize("mode", [STRICT, DEBUG])
def test_the_entry_that_differs_is_named(
    run: Callable[[], object], entry: str, expected: object, got: object, hint: str, mode: object
) -> None:
    with torch.tpu.set_eager_mode(mode):
        run()
        torch.tpu.synchronize()
    row = _last()
    assert (row.entry, row.expected, row.got) == (entry, expected, got)
    assert hint in row.hint
    assert row.line.startswith("test_history.py:")


def test_precision_and_donation_are_entries() -> None:
    x = _tpu(4, 4)
    x @ x
    with torch.tpu.precision(torch.tpu.Precision.DEFAULT):
        x @ x
    row = _last()
    assert (row.entry, row.expected, row.got) == ("matmul precision", "highest", "default")
    x.mul_(3)
    other = x.untyped_storage().clone()
    x.mul_(3)
    assert (_last().entry, _last().expected, _last().got) == ("donation", (0,), ())
    del other


def test_a_number_that_has_a_program_of_its_own() -> None:
    for exponent in (2.5, 2):
        _tpu(3).pow(exponent)
    row = _last()
    assert (row.entry, row.expected, row.got) == ("exponent.value", "an input", 2)


def test_the_first_op_that_differs_in_fused_mode() -> None:
    x = _tpu(3)
    with torch.tpu.set_eager_mode(FUSED):
        for last in (torch.exp, torch.sin):
            y = last((x * 2 + 1).relu().neg())
            y.tolist()
            z = last((x * 2 + 1).relu().neg().abs())
            z.tolist()
    row = _last()
    assert row.program == "mul_Tensor+add_Tensor+relu+neg+..."
    assert row.entry == "op 5.op"
    assert (row.expected, row.got) == ("aten::exp", "aten::sin")


def test_shapes_in_fused_mode_and_results_that_stay_alive() -> None:
    with torch.tpu.set_eager_mode(FUSED):
        for n in (8, 5):
            (_tpu(n) * 2).exp().tolist()
        row = _last()
        assert (row.entry, row.expected, row.got) == (
            "op 0 aten::mul.Tensor: self.shape",
            (8,),
            (5,),
        )
        kept = _tpu(5) * 2
        kept.exp().tolist()
    assert _last().entry == "outputs"
    assert "still alive" in _last().hint


def test_the_nearest_earlier_program_is_the_one_compared_with() -> None:
    for shape in ((8, 4), (64, 64), (8, 5)):
        _tpu(*shape).exp()
    _tpu(8, 5, dtype=torch.float16).exp()
    assert (_last().entry, _last().expected, _last().differing) == ("self.dtype", "float32", 2)


def test_an_evicted_program_differs_in_nothing() -> None:
    _tpu(3).exp()
    torch.tpu.synchronize()
    torch.tpu._clear_cache()
    _tpu(3).exp()
    assert _last().entry == "nothing"
    assert "evicted" in _last().hint


def test_nothing_is_noted_for_what_is_compiled() -> None:
    x = _tpu(3)
    for _ in range(5):
        x = x + 1
    assert recompiles.history.rows == recompiles.history.rows.__class__()
    assert str(torchtpu.explain_recompiles()).endswith(" 0 of them of ops compiled before")


def test_the_table_counts_and_sorts() -> None:
    for n in range(2, 6):
        _tpu(n).exp()
    _tpu(4, 4).sum(0), _tpu(4, 4).sum(1)
    text = str(torchtpu.explain_recompiles())
    assert ", 4 of them of ops compiled before:\n" in text
    assert text.index("3 x aten::exp at test_history.py:") < text.index("1 x aten::sum")
    assert torchtpu.explain_recompiles().programs == {"aten::exp": 3, "aten::sum.dim_IntList": 1}


def test_a_recompile_is_logged_when_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "torchtpu.recompiles"):
        for n in (3, 2):
            _tpu(n).exp()
    assert [r.name for r in caplog.records] == ["torchtpu.recompiles"]
    assert "self.shape: expected (3,) at test_history.py:" in caplog.text


@pytest.mark.parametrize("mode", [STRICT, FUSED])
def test_the_limit_says_what_recompiled(mode: object) -> None:
    limit = config.override(max_compiles=recompiles.history.compiles + 3)
    with torch.tpu.set_eager_mode(mode), limit:
        for n in range(2, 5):
            _tpu(n).exp().tolist()
        with pytest.raises(CompileLimitError) as raised:
            _tpu(5).exp().tolist()
    text = str(raised.value)
    assert "[TORCHTPU_MAX_COMPILES] expected at most" in text
    assert "one more, of aten::exp at test_history.py:" in text
    assert "2 x aten::exp at test_history.py:" in text
    assert "self.shape: expected (4,), got (5,)" in text
    _tpu(4).exp().tolist()  # compiled before the limit was reached


def _program(op: str, size: int, nodes: int) -> Program:
    chain = tuple(Node(op, abs, (Ref(i),), (), 1) for i in range(nodes))
    return Program((ArrayType((size,), torch.zeros(1).numpy().dtype),), chain, (nodes,))


def test_memory_is_bounded() -> None:
    history = History()
    for size in range(200):
        history.note(_program("aten::a", size, 1), "highest")
    assert len(history._families["a"]) == 64
    for op in range(40):
        for size in range(6):
            history.note(_program(f"aten::op{op}", size, 400), "highest")
    assert history._nodes <= _MAX_NODES
    assert history._nodes == sum(k.nodes for f in history._families.values() for k in f)
    assert "a" not in history._families
    assert (history.compiles, len(history.rows)) == (440, 399)
