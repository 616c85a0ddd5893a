"""Whole models padded under torch.compile, what `pad` returns, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

from tests.compiler.padded import B, PaddingBackend, S, capture, cut, run, run_uncut, with_garbage
from torchtpu.compiler.buckets import bounds_of
from torchtpu.compiler.padding import CannotPad, PaddedGraph, PaddedTensor, Size, pad


@pytest.fixture(autouse=True)
def _forget_dynamic_sizes() -> None:
    """Dynamo remembers, per function, which dims varied before."""
    torch._dynamo.reset()


class Transformer(nn.Module):
    """One block of a language model, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50, 16), nn.Embedding(16, 16)
        self.norm, self.qkv, self.head = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 50)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        b, t = x.shape
        h = self.tokens(x) + self.positions(torch.arange(t))
        q, k, v = (
            part.view(b, t, 2, 8).transpose(1, 2)  # [B, T, C] -> [B, H, T, D]
            for part in self.qkv(self.norm(h)).split(16, -1)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        logits = self.head(h + a.transpose(1, 2).reshape(b, t, 16))
        loss: Tensor = F.cross_entropy(logits.view(-1, 50), y.view(-1))
        return loss


class Convolutional(nn.Module):
    """Batch statistics over a varying batch; running statistics are updated."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(36, 10)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = F.cross_entropy(self.head(self.body(x).flatten(1)), y)
        return loss


class Perceptron(nn.Module):
    """Two layers and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return F.mse_loss(out, F.one_hot(y, 4).float()) + out.softmax(1).var()


Batch = tuple[Tensor, Tensor]
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Batch]]] = {
    "transformer": (
        Transformer,
        lambda b, t: (torch.randint(0, 50, (b, t)), torch.randint(0, 50, (b, t))),
    ),
    "convolutional": (
        Convolutional,
        lambda b, t: (torch.randn(b, 3, 6, 6), torch.randint(0, 10, (b,))),
    ),
    "perceptron": (Perceptron, lambda b, t: (torch.randn(b, 8), torch.randint(0, 4, (b,)))),
}


def _step(model: nn.Module, call: Any, batch: Batch) -> list[Tensor]:
    model.zero_grad()
    loss = call(*batch)
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [loss.detach(), *gradients, *[b.clone() for b in model.buffers()]]


DYNAMIC = {
    "transformer": ([0, 1], [0, 1]),
    "convolutional": ([0], [0]),
    "perceptron": ([0], [0]),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_without_padding(name: str) -> None:
    torch.manual_seed(0)
    make, batches = MODELS[name]
    model, other = make(), make()
    other.load_state_dict(model.state_dict())
    backend = PaddingBackend(lambda _symbol: 16)
    compiled = torch.compile(other, backend=backend)
    for sizes in [(3, 10), (2, 16), (15, 5), (7, 2)]:
        batch = batches(*sizes)
        for tensor, dims in zip(batch, DYNAMIC[name], strict=True):
            torch._dynamo.mark_dynamic(tensor, dims)
        torch.testing.assert_close(
            _step(other, compiled, batch), _step(model, model, batch), rtol=1e-4, atol=1e-5
        )
    assert len(backend.graphs) == 2
    assert len(backend.calls) == 8


def _pad(graph: GraphModule, bucket: int = 8, **options: Any) -> tuple[PaddedGraph, dict[Any, int]]:
    buckets = dict.fromkeys(bounds_of(graph), bucket)
    return pad(graph, buckets, **options), buckets


def test_the_module_has_fixed_sizes_and_takes_the_true_ones_last() -> None:
    graph = capture(lambda x: (x.view(-1, 4).sum(0) / x.shape[0], x + 1), [torch.ones(B, S, 4)])
    padded, _ = _pad(graph)
    inputs = padded.module.graph.find_nodes(op="placeholder")
    assert [tuple(n.meta["val"].shape) for n in inputs] == [(8, 8, 4), (), ()]
    assert [n.meta["val"].dtype for n in inputs[1:]] == [torch.int64, torch.int64]
    for node in padded.module.graph.nodes:
        if node.op != "output":
            assert not any(isinstance(n, torch.SymInt) for n in node.meta["val"].shape)
    assert [t.shape for t in padded.outputs if isinstance(t, PaddedTensor)] == [[4], [8, 8, 4]]
    assert list(padded.true_sizes([torch.ones(3, 6, 4)]).values()) == [3, 6]


def test_sizes_that_are_outputs_are_left_to_the_caller() -> None:
    graph = capture(lambda x: (x.shape[0] * x.shape[1], x.shape[1] // 2, x + 1), [torch.ones(B, S)])
    padded, _ = _pad(graph)
    first, second, _third = padded.outputs
    assert isinstance(first, Size)
    assert isinstance(second, Size)
    true = padded.true_sizes([torch.ones(3, 7)])
    assert (first.value(true), second.value(true)) == (21, 3)


def test_true_sizes_beyond_the_bucket_do_not_fit() -> None:
    graph = capture(lambda x: x[:, 1:] + 1, [torch.ones(B, S)])
    padded, _ = _pad(graph)
    rows, columns = padded.symbols
    assert padded.fits({rows: 8, columns: 8})
    assert not padded.fits({rows: 9, columns: 8})
    assert not padded.fits({rows: 8, columns: 0})


def test_what_a_decomposition_takes_for_granted_is_a_condition() -> None:
    """Pooling to 2 rows takes equal windows where the size is even; the example's is odd."""
    graph = capture(lambda x: F.adaptive_avg_pool2d(x, (2, 6)), [torch.ones(2, 3, S, 6)])
    first, _ = _pad(graph)
    second, _ = _pad(graph, 16)
    for padded in (first, second):
        (rows,) = padded.symbols
        assert padded.fits({rows: 5})
        assert not padded.fits({rows: 6})
    x = torch.randn(2, 3, 5, 6)
    torch.testing.assert_close(run(second, [x]), [F.adaptive_avg_pool2d(x, (2, 6))])


def test_saved_tensors_may_be_handed_on_as_they_lie() -> None:
    """[B * S, C] has padding between its rows: cutting it and padding it again are gathers."""
    torch.manual_seed(0)
    model, batch = Transformer(), MODELS["transformer"][1](3, 10)
    backend = PaddingBackend(lambda _symbol: 16)
    _step(model, torch.compile(model, backend=backend, dynamic=True), batch)
    forward, backward = backend.graphs
    saved = {node.name: i for i, node in enumerate(_results(forward))}
    first, _ = _pad(forward, 16, keep=range(len(saved)))
    names = [n.name for n in backward.graph.find_nodes(op="placeholder")]
    from_forward = {i: saved[n] for i, n in enumerate(names) if n in saved}
    specs = {i: first.outputs[j] for i, j in from_forward.items()}
    layouts = {i: spec.layout for i, spec in specs.items() if isinstance(spec, PaddedTensor)}
    second, _ = _pad(backward, 16, layouts=layouts)
    cut_again, _ = _pad(backward, 16)
    assert _gathers(second.module) == 0 < _gathers(cut_again.module)

    true = first.true_sizes(backend.calls[0])
    results = iter(run_uncut(first, backend.calls[0], true))
    uncut = [next(results) if isinstance(s, PaddedTensor) else None for s in first.outputs]
    already = {i: t for i, j in from_forward.items() if (t := uncut[j]) is not None}
    found = cut(second, run_uncut(second, backend.calls[1], true, already=already), true)
    torch.testing.assert_close(found, run(cut_again, backend.calls[1]))


def _results(graph: GraphModule) -> list[Any]:
    results: Any = graph.graph.output_node().args[0]
    return list(results)


def _gathers(graph: GraphModule) -> int:
    target = torch.ops.aten.index_select.default
    return len(graph.graph.find_nodes(op="call_function", target=target))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.unique(), "unique"),
        (lambda x: x.as_strided((x.shape[0], 2), (1, 1)), "strides into a tensor"),
        (lambda x: torch.linalg.inv(x @ x.t()), "no padding rule"),
        (lambda x: torch.fft.fft(x, dim=1).real, "Fourier transform over a varying size"),
        (lambda x: F.conv1d(x[None], x.new_ones(2, x.shape[0], 2)), "channels"),
        (lambda x: x.new_zeros(max(x.shape[0] - x.shape[1] + 9, 1)), "does not grow"),
    ],
)
def test_what_is_not_exact_is_refused(function: Callable[..., Any], message: str) -> None:
    graph = capture(function, [torch.ones(B, S)])
    with pytest.raises(CannotPad, match=message):
        _pad(graph)


def test_a_refusal_names_the_line_of_the_user() -> None:
    def function(x: Tensor) -> Tensor:
        real: Tensor = torch.fft.fft(x, dim=0).real
        return real

    backend = PaddingBackend(lambda _symbol: 8)
    compiled = torch.compile(function, backend=backend, dynamic=True)
    with pytest.raises(Exception, match=r"(?s)test_padding\.py.*torch\.fft\.fft\(x, dim=0\)"):
        compiled(torch.ones(3, 4))


def test_a_size_without_a_bucket_is_refused() -> None:
    graph = capture(lambda x: x + 1, [torch.ones(B, S)])
    first, *_ = bounds_of(graph)
    with pytest.raises(CannotPad, match="without a bucket"):
        pad(graph, {first: 8})


def test_a_symbol_that_no_argument_shows_is_asked_for() -> None:
    graph = capture(lambda x: x.view(-1)[: x.shape[0] * x.shape[1] - 1] * 1, [torch.ones(B, S)])
    view = next(n for n in graph.graph.nodes if n.target is torch.ops.aten.view.default)
    placeholder = next(iter(graph.graph.nodes))
    placeholder.meta["val"] = view.meta["val"]  # as in a backward graph: [s0 * s1] alone
    rows, columns = view.meta["val"].shape[0].node.expr.free_symbols
    padded = pad(graph, {rows: 8, columns: 8})
    with pytest.raises(CannotPad, match="unknown, expected it in an argument or in `known`"):
        padded.true_sizes([torch.ones(12)])
    assert padded.true_sizes([torch.ones(12)], {rows: 3, columns: 4}) == {rows: 3, columns: 4}


def test_dropout_keeps_or_drops_every_element() -> None:
    graph = capture(lambda x: torch.native_dropout(x, 0.5, True), [torch.ones(B, S)])
    padded, _ = _pad(graph)
    dropped, kept = run(padded, [torch.ones(6, 7)])
    assert torch.equal(dropped, kept * 2.0)
    assert 0 < int(kept.sum()) < 42


def test_an_input_without_padding_may_be_written() -> None:
    graph = capture(
        lambda total, x: (total.copy_(x.sum((0, 1))), x + 1), [torch.ones(4), torch.ones(B, S, 4)]
    )
    padded, _ = _pad(graph)
    total, x = torch.zeros(4), torch.randn(3, 2, 4)
    garbled = with_garbage(x, padded.inputs[1], padded.true_sizes([total, x]), 0)
    padded.module(total, garbled, torch.tensor(3), torch.tensor(2))
    torch.testing.assert_close(total, x.sum((0, 1)))


def test_buckets_may_be_named() -> None:
    graph = capture(lambda x: x.sum(0), [torch.ones(B, S)])
    padded = pad(graph, {str(s): 8 for s in bounds_of(graph)})
    x = torch.randn(4, 3)
    torch.testing.assert_close(run(padded, [x]), [x.sum(0)])


def test_padding_that_is_not_masked_is_seen() -> None:
    """The garbage of these tests reaches a result that lets it."""
    graph = capture(lambda x: x.sum(0), [torch.ones(B, S)])
    padded, _ = _pad(graph)
    for node in padded.module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.where.self
    ):
        node.replace_all_uses_with(node.args[1])
    padded.module.recompile()
    x = torch.randn(4, 3)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(run(padded, [x]), [x.sum(0)])
