"""Fused mode: the same results as strict, few programs, and none after the first steps."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.eager.test_recompiles import compiled_by
from tests.models import CASES
from torchtpu import executor
from torchtpu.eager import fused as fused_mode
from torchtpu.eager.fused import Pending
from torchtpu.eager.modes import EagerMode
from torchtpu.errors import FreedStorageError
from torchtpu.program import Program

FUSED = EagerMode.DEFER_AND_FUSE


@pytest.fixture(autouse=True)
def fused() -> Iterator[None]:
    with torch.tpu.set_eager_mode(FUSED):
        yield


def _trainer(name: str = "mlp") -> Callable[[], torch.Tensor]:
    torch.manual_seed(0)
    if name == "mlp":
        model: nn.Module = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).to("tpu")
        inputs, targets = torch.randn(5, 6).to("tpu"), torch.tensor([0, 1, 2, 1, 0]).to("tpu")
        objective: Callable[..., torch.Tensor] = nn.functional.cross_entropy
    else:
        case = CASES[name]
        model, objective = case.build().to("tpu"), case.loss
        inputs, targets = (t.to("tpu") for t in case.batch())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step() -> torch.Tensor:
        loss = objective(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("name", ["mlp", "digits_conv", "gpt2"])
def test_losses_equal_strict(name: str) -> None:
    step = _trainer(name)
    found = [step() for _ in range(4)]
    with torch.tpu.set_eager_mode(EagerMode.DEFER_NEVER):
        step = _trainer(name)
        expected = [step().cpu() for _ in range(4)]
    torch.testing.assert_close([x.cpu() for x in found], expected, rtol=1e-4, atol=1e-4)


def test_a_step_is_one_program_and_compiles_only_at_first() -> None:
    step = _trainer()
    counts = [compiled_by(step) for _ in range(6)]
    assert counts[0] <= 2
    assert counts[2:] == [0] * 4


def test_reading_the_loss_now_and_then_compiles_nothing_new() -> None:
    step = _trainer()

    def ten_steps() -> None:
        for _ in range(9):
            step()
        step().item()

    ten_steps()
    ten_steps()
    assert compiled_by(ten_steps) == 0


def test_dead_values_are_not_computed_and_live_ones_are_right() -> None:
    x = torch.arange(4.0, device="tpu")
    kept = [x + i for i in range(3)]
    for _ in range(3):
        x * 5
    gc.collect()
    assert [k.tolist() for k in kept] == [[i, i + 1.0, i + 2.0, i + 3.0] for i in range(3)]


def test_in_place_changes_through_views_keep_their_order() -> None:
    x = torch.zeros(3, 4, device="tpu")
    before = x.clone()
    row, column = x[1], x[:, 2]
    row.add_(1)
    column.mul_(3).add_(row[2])
    after = x * 1
    row.zero_()
    assert before.sum().item() == 0
    assert after.tolist() == [[0, 0, 3.0, 0], [1, 1, 6.0, 1], [0, 0, 3.0, 0]]
    assert x.sum().item() == 6


def test_an_overwritten_input_is_donated_but_a_copy_of_it_is_not_lost() -> None:
    x = torch.ones(4, device="tpu")
    torch.tpu.synchronize()
    copy = x.clone()
    x.add_(1)
    torch.tpu.synchronize()
    x.add_(copy)
    assert (x.tolist(), copy.tolist()) == ([3.0] * 4, [1.0] * 4)


def test_a_loop_without_steps_settles() -> None:
    weight = torch.ones(8, 8, device="tpu")

    def loop() -> None:
        nonlocal weight
        for _ in range(300):
            weight = (weight @ weight).tanh()

    loop()
    loop()
    assert compiled_by(loop) == 0
    assert torch.isfinite(weight).all().item()


def test_inference_is_held_back_until_somebody_reads_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to("tpu")
    x = torch.ones(2, 4, device="tpu")
    with torch.no_grad():
        outputs = [model(x) for _ in range(3)]
        assert compiled_by(lambda: [model(x) for _ in range(5)]) == 0
    assert torch.equal(outputs[0].cpu(), outputs[2].cpu())


def test_an_evaluation_now_and_then_compiles_once() -> None:
    step, model = _trainer(), nn.Linear(6, 3).to("tpu")
    x = torch.ones(4, 6, device="tpu")

    def evaluate() -> None:
        with torch.no_grad():
            for _ in range(5):
                model(x).softmax(-1).sum()  # nobody reads it

    def turn() -> None:
        step()
        evaluate()
        step()

    turn()
    turn()
    assert compiled_by(turn) == 0


def test_reading_one_scalar_of_a_long_stream_compiles_a_program_once() -> None:
    def stream() -> float:
        x = torch.ones(31, device="tpu")
        for i in range(120):
            x = (x + i).sin()
        return x[3].item()

    assert compiled_by(stream) <= 2
    assert compiled_by(stream) == 0


def test_numbers_that_happen_to_be_equal_change_no_program() -> None:
    x = torch.ones(3, device="tpu")
    torch.tpu.synchronize()
    (x * 2.5 + 3.5).sum().item()
    assert compiled_by(lambda: (x * 4.5 + 4.5).sum().item()) == 0


def test_random_numbers_differ_from_call_to_call_and_repeat_with_the_seed() -> None:
    torch.manual_seed(1)
    first = torch.rand(4, device="tpu"), torch.rand(4, device="tpu")
    torch.manual_seed(1)
    second = torch.rand(4, device="tpu"), torch.rand(4, device="tpu")
    assert not torch.equal(first[0].cpu(), first[1].cpu())
    assert torch.equal(first[1].cpu(), second[1].cpu())


def test_a_long_loop_is_cut_and_stays_right() -> None:
    x = torch.ones(3, device="tpu")
    y = torch.ones(3, device="tpu")
    for i in range(1200):
        x = x * 0.999 + 1
        y[i % 3] += 1
    expected = torch.ones(3)
    for _ in range(1200):
        expected = expected * 0.999 + 1
    torch.testing.assert_close(x.cpu(), expected)
    assert y.tolist() == [401.0] * 3


def test_what_only_the_recording_holds_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_mode, "MAX_ELEMENTS", 5000)

    def held(turns: int) -> list[int]:
        total, found = torch.zeros(3, device="tpu"), []
        kept = torch.ones(9000, device="tpu")
        torch.tpu.synchronize()
        for n in range(turns):
            batch = torch.full((1000,), float(n)).to("tpu")
            total += batch.sum() + kept[0]
            pending = total.untyped_storage()._tpu_buffer.array
            found.append(len(pending.recording.arrays) if isinstance(pending, Pending) else 0)
        assert total[1].item() == 1000 * turns * (turns - 1) / 2 + turns
        return found

    found = held(40)
    assert 5 < max(found) < 12
    again: list[int] = []
    assert compiled_by(lambda: again.extend(held(40))) == 0
    assert again == found


def test_an_error_at_the_end_names_the_op_and_the_line_that_recorded_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lower = executor.lower

    def refuse(program: Program, *args: Any) -> Any:
        if any(node.op == "aten::sinh" for node in program.nodes):
            raise NotImplementedError("no hyperbolic sine today")
        return lower(program, *args)

    monkeypatch.setattr(executor, "lower", refuse)
    x = torch.ones(37, device="tpu")
    y = torch.sinh(x + 1)
    line = _line() - 1
    z = y * 2
    with pytest.raises(NotImplementedError) as caught:
        z.sum().item()
    assert caught.value.__notes__ == [
        f"[torchtpu] in aten::sinh, called from {Path(__file__).name}:{line}"
    ]
    with pytest.raises(FreedStorageError, match="no hyperbolic sine today"):
        z.cpu()
    assert x.sum().item() == 37  # what does not depend on it is there


def test_a_program_that_fails_only_as_a_whole_runs_op_by_op(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lower = executor.lower

    def refuse(program: Program, *args: Any) -> Any:
        if len(program.nodes) > 6:
            raise MemoryError("too large")
        return lower(program, *args)

    monkeypatch.setattr(executor, "lower", refuse)
    x = torch.ones(41, device="tpu")
    y = (x + 1).mul(3).add(1).mul(2).sub(2).div(2)
    assert y.sum().item() == 41 * 6
    assert "ran one by one: too large" in caplog.text


def _line() -> int:
    return sys._getframe(1).f_lineno


def test_forgotten_sequences_keep_no_programs_though_a_recording_is_open() -> None:
    with torch.tpu.set_eager_mode(FUSED):
        (torch.ones(3, device="tpu") * 3).cpu()
        pending = torch.ones(5, device="tpu") + 1  # its recording began at the root
        root = fused_mode._trie.root
        assert _programs(root)
        fused_mode._trie.forget()
        assert not _programs(root)
        assert torch.equal(pending.cpu(), torch.full((5,), 2.0))


def _programs(root: Any) -> int:
    states, found = [root], 0
    while states:
        state = states.pop()
        found += len(state.programs)
        states += state.next.values()
    return found
