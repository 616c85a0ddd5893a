"""torch.compile(backend="tpu"): what a compiled graph computes, changes and returns."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from torchtpu import executor


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(fn: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(fn, backend="tpu", **settings)
    return made


def gradient(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad.cpu()


def ramp(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def test_the_backend_is_listed() -> None:
    assert "tpu" in torch._dynamo.list_backends()


def test_forward_and_backward_are_one_program_each_and_agree_with_cpu() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    on_cpu, x = copy.deepcopy(model), ramp(4, 6)
    model.to("tpu")
    run = compiled(model, fullgraph=True)
    before = torch.tpu._get_cache_stats()["num_compilations"]
    loss = run(x.to("tpu")).square().mean()
    loss.backward()
    programs = {n for n in executor.current().cache.stats.per_program if n.startswith("graph_")}
    on_cpu(x).square().mean().backward()
    for ours, theirs in zip(model.parameters(), on_cpu.parameters(), strict=True):
        torch.testing.assert_close(gradient(ours), gradient(theirs), rtol=1e-4, atol=1e-6)
    assert torch.tpu._get_cache_stats()["num_compilations"] > before, programs


def test_a_second_call_compiles_nothing() -> None:
    run = compiled(nn.Linear(5, 3).to("tpu"))
    x = ramp(2, 5).to("tpu")
    for _ in range(3):  # the second one adds to gradients
        run(x).sum().backward()
    before = executor.current().cache.stats.traces
    run(x).sum().backward()
    assert executor.current().cache.stats.traces == before


def test_a_graph_break_reads_a_value_between_two_graphs() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y = y + 1 if y.sum().item() > 0 else y - 1
        return y * 3

    x = ramp(2, 3).to("tpu")
    torch.testing.assert_close(compiled(branch)(x).cpu(), branch(x).cpu())


def test_batch_norm_updates_its_buffers_in_the_program() -> None:
    norm = nn.BatchNorm1d(3).to("tpu")
    other, x = copy.deepcopy(norm), ramp(8, 3).to("tpu")
    run = compiled(norm, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(run(x).cpu(), other(x).cpu())
    torch.testing.assert_close(
        norm.state_dict()["running_var"].cpu(), other.state_dict()["running_var"].cpu()
    )
    assert norm.state_dict()["num_batches_tracked"].item() == 2


def test_inputs_are_changed_in_place_also_through_views() -> None:
    def change(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x[1:3].mul_(0)
        return x * 2

    x = ramp(4, 2).to("tpu")
    wanted = x.cpu()
    result, expected = compiled(change)(x), change(wanted)
    torch.testing.assert_close(x.cpu(), wanted)
    torch.testing.assert_close(result.cpu(), expected)


def test_two_halves_of_one_tensor_are_both_changed() -> None:
    def change(a: torch.Tensor, b: torch.Tensor) -> None:
        a.add_(1)
        b.mul_(3)

    x = torch.ones(4, device="tpu")
    compiled(change)(x[:2], x[2:])
    assert x.tolist() == [2, 2, 3, 3]


def test_results_that_are_views_share_memory_as_in_eager() -> None:
    def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return x.t(), x, y, y[1]

    x = ramp(3, 2).to("tpu")
    transposed, same, y, row = compiled(views)(x)
    assert same is x
    x.zero_()
    y.fill_(7)
    assert transposed.sum().item() == 0
    assert row.tolist() == [7, 7]


def test_inputs_may_be_parts_of_other_tensors() -> None:
    x = ramp(6, 6).to("tpu")
    double = compiled(lambda t: t * 2)
    for part in (x[1:4, 2:], x.t(), x[::2], x):
        torch.testing.assert_close(double(part).cpu(), part.cpu() * 2)


def test_dropout_draws_new_bits_each_call_and_those_of_eager_from_one_seed() -> None:
    drop, x = nn.Dropout(0.5), torch.ones(64, device="tpu")
    run = compiled(drop)
    torch.manual_seed(3)
    first, second = run(x), run(x)
    torch.manual_seed(3)
    assert (first != second).any()
    assert torch.equal(drop(x).cpu(), first.cpu())
    assert torch.equal(run(x).cpu(), second.cpu())


def test_a_float_argument_that_changes_is_an_input() -> None:
    scale = compiled(lambda x, s: x * s)
    x = ramp(5).to("tpu")
    for s in (1.0, 2.0, 3.5):
        torch.testing.assert_close(scale(x, s).cpu(), x.cpu() * s)
    before = executor.current().cache.stats.requests
    for s in (4.5, 5.5, 6.5):
        torch.testing.assert_close(scale(x, s).cpu(), x.cpu() * s)
    assert executor.current().cache.stats.requests == before


def test_ops_on_the_cpu_in_a_graph_run_op_by_op() -> None:
    both = compiled(lambda x, y: (x * 2, y + 1))
    for value in (1.0, 2.0):
        ours, theirs = both(torch.ones(3, device="tpu"), torch.full((2,), value))
        assert ours.tolist() == [2, 2, 2]
        assert theirs.tolist() == [value + 1] * 2


def test_what_depends_on_values_runs_op_by_op() -> None:
    x = ramp(9).to("tpu")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        positive = compiled(lambda t: t[t > 0] * 2, fullgraph=True)(x)
    torch.testing.assert_close(positive.cpu(), x.cpu()[x.cpu() > 0] * 2)


def test_tensors_made_inside_without_inputs() -> None:
    assert compiled(lambda: torch.arange(4, device="tpu") * 2)().tolist() == [0, 2, 4, 6]


def test_attention_with_its_gradient() -> None:
    q, k, v = (ramp(2, 3, 4, 8).mul(s).to("tpu").requires_grad_() for s in (1, 2, 3))
    attend = torch.nn.functional.scaled_dot_product_attention
    compiled(lambda q, k, v: attend(q, k, v, is_causal=True), fullgraph=True)(
        q, k, v
    ).sum().backward()
    ours = [gradient(t) for t in (q, k, v)]
    for t in (q, k, v):
        t.grad = None
    attend(q, k, v, is_causal=True).sum().backward()
    for mine, eager in zip(ours, (q, k, v), strict=True):
        torch.testing.assert_close(mine, gradient(eager), rtol=1e-4, atol=1e-5)


# The deprecation is that of a module which torch.optim imports under Dynamo, which also looks at
# the gradient of every tensor.
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_a_step_function_with_backward_and_optimizer() -> None:
    def train(device: str, wrap: Callable[..., Any]) -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(6, 2).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        x = ramp(4, 6).to(device)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = wrap(step)
        return [run(x).item() for _ in range(12)]

    torch.testing.assert_close(
        train("tpu", compiled), train("cpu", lambda fn: fn), rtol=1e-4, atol=1e-6
    )


def test_a_scalar_of_the_cpu_that_a_graph_changes_or_makes_stays_there() -> None:
    def count(x: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        step.add_(1)
        return x * step, step * 2

    run, step = compiled(count), torch.tensor(0.0)
    for n in (1.0, 2.0, 3.0):
        scaled, doubled = run(torch.ones(2, device="tpu"), step)
        assert step.item() == n
        assert scaled.tolist() == [n, n]
        assert doubled.device.type == "cpu"
        assert doubled.item() == 2 * n


def test_every_eager_mode_runs_compiled_graphs() -> None:
    run, x = compiled(lambda t: (t + 1) * 2), torch.ones(3, device="tpu")
    for mode in torch.tpu.EagerMode:
        with torch.tpu.set_eager_mode(mode):
            assert (run(x * 3) - 1).tolist() == [7, 7, 7], mode


def test_checkpoint_and_control_flow() -> None:
    x = ramp(4, 4).to("tpu").requires_grad_()
    point = torch.utils.checkpoint.checkpoint
    compiled(lambda t: point(lambda u: u.sin().sum(), t, use_reentrant=False))(x).backward()
    torch.testing.assert_close(gradient(x), x.detach().cpu().cos())
    chosen = compiled(lambda t: torch.cond(t.sum() > 100, torch.sin, torch.cos, (t,)))(x.detach())
    torch.testing.assert_close(chosen.cpu(), x.detach().cpu().cos())


LAZY: dict[str, Callable[[torch.Tensor], Any]] = {
    "a result": lambda z: (z * 2).conj(),
    "a value and its conjugate": lambda z: (lambda y: (y, y.conj(), y.T.conj()))(z * 2),
    "an input": lambda z: (z, z.conj(), z.T, z * 2),
}


@pytest.mark.parametrize("of", ["plain", "conjugate", "negative"])
@pytest.mark.parametrize("name", LAZY)
def test_what_stands_for_a_conjugate_or_a_negative(name: str, of: str) -> None:
    z = torch.randn(3, 4, dtype=torch.complex64, device="tpu")
    given = {"plain": z, "conjugate": z.conj(), "negative": z.conj().imag}[of]
    expected = pytree.tree_leaves(LAZY[name](given))
    found = pytree.tree_leaves(torch.compile(LAZY[name], backend="tpu")(given))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.is_conj(), ours.is_neg()) == (theirs.is_conj(), theirs.is_neg())
        torch.testing.assert_close(ours.cpu(), theirs.cpu())


def test_one_graph_tells_a_tensor_from_its_conjugate() -> None:
    double = torch.compile(lambda z: z * 2, backend="tpu")
    z = torch.randn(3, dtype=torch.complex64, device="tpu")
    for given in (z, z.conj(), z):
        torch.testing.assert_close(double(given).cpu(), given.cpu() * 2)


def test_ops_whose_parts_are_made_in_place() -> None:
    x = torch.rand(5, 6)
    ops: list[Callable[[torch.Tensor], Any]] = [
        lambda t: torch.quantile(t, 0.5, dim=1),
        lambda t: torch.stft(t[0], 4, window=torch.ones_like(t[0, :4]), return_complex=True).abs(),
        lambda t: torch.native_group_norm(t.reshape(5, 2, 3), None, None, 5, 2, 3, 2, 1e-5)[0],
        lambda t: torch.tensor_split(t, torch.tensor([1, 3]))[1],
    ]
    for op in ops:
        torch._dynamo.reset()
        found = torch.compile(op, backend="tpu")(x.to("tpu"))
        torch.testing.assert_close(found.cpu(), op(x))
