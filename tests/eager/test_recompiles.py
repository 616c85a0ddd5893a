"""What compiles when: never again in a constant loop, never for a number that varies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytestmark = pytest.mark.usefixtures("strict")


def compiled_by(run: Callable[[], object]) -> int:
    """Programs that `run` compiles."""
    before = torch.tpu._get_cache_stats()["num_compilations"]
    run()
    return int(torch.tpu._get_cache_stats()["num_compilations"]) - int(before)


def _loop(step: Callable[[int], object], times: int = 5) -> list[int]:
    return [compiled_by(lambda i=i: step(i)) for i in range(times)]  # type: ignore[misc]


def test_the_same_ops_compile_once() -> None:
    x = torch.ones(7, 5, device="tpu")
    counts = _loop(lambda _: (x @ x.t()).relu().sum())
    assert counts[0] > 0
    assert counts[1:] == [0] * 4


@pytest.mark.parametrize("value", [lambda i: 0.1 + i, lambda i: i + 2])
@pytest.mark.parametrize("op", [torch.add, torch.mul, torch.div, torch.sub])
def test_a_varying_number_is_an_input(
    op: Callable[..., object], value: Callable[[int], float]
) -> None:
    x = torch.ones(3, device="tpu")
    assert _loop(lambda i: op(x, value(i)))[1:] == [0] * 4


def test_numbers_are_right_from_the_cache() -> None:
    x = torch.tensor([1.0, -2.0], device="tpu")
    for value in (0.0, -0.0, 1.0, 1, True, float("inf"), 3.5):
        expected = x.cpu() / value
        torch.testing.assert_close((x / value).cpu(), expected)
        assert torch.equal(torch.signbit((x / value).cpu()), torch.signbit(expected))


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad", "RMSprop"])
@pytest.mark.parametrize("foreach", [False, True])
def test_a_learning_rate_schedule_never_recompiles(name: str, foreach: bool) -> None:
    parameters = [torch.nn.Parameter(torch.ones(4, 3, device="tpu")) for _ in range(2)]
    optimizer = getattr(torch.optim, name)(parameters, lr=0.1, foreach=foreach)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(_: int) -> None:
        for p in parameters:
            p.grad = p.detach() * 0.5
        optimizer.step()
        schedule.step()

    assert _loop(step, 6)[2:] == [0] * 4


def test_matmul_precision_is_part_of_the_program() -> None:
    x = torch.ones(4, 4, device="tpu")
    x @ x
    before = torch.get_float32_matmul_precision()
    try:
        assert compiled_by(lambda: torch.set_float32_matmul_precision("medium")) == 0
        assert compiled_by(lambda: x @ x) == 1
    finally:
        torch.set_float32_matmul_precision(before)
    assert compiled_by(lambda: x @ x) == 0


def test_the_same_tensor_twice_in_an_in_place_call() -> None:
    a, g = torch.ones(3, device="tpu"), torch.full((3,), 2.0, device="tpu")
    for _ in range(3):  # aliased and plain calls of one signature, in turn
        a.addcmul_(g, g)
        a.addcmul_(g, g + 1)
        a.mul_(a)
        a.add_(-a)
        a.add_(1)
    assert a.tolist() == [1.0, 1.0, 1.0]
