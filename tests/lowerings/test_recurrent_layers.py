"""RNN, LSTM and GRU as one op against torch.nn's modules on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from tests.lowerings.pairs import close

aten = torch.ops.aten
MODES = ("relu", "tanh", "lstm", "gru")


def _module(mode: str, **options: Any) -> Any:
    sizes = {"input_size": 5, "hidden_size": 6, "num_layers": 2} | options
    if mode in ("relu", "tanh"):
        return nn.RNN(nonlinearity=mode, **sizes)
    return (nn.LSTM if mode == "lstm" else nn.GRU)(**sizes)


def _on_device(mode: str, module: Any, leaves: list[torch.Tensor], batch_sizes: list[int]) -> Any:
    x, h, *rest = leaves
    cell = rest.pop(0) if mode == "lstm" else None
    per_cell = len(rest) // (2 * (1 + module.bidirectional))
    out, hidden, last, *_ = aten._cudnn_rnn(
        x,
        rest,
        per_cell,
        None,
        h,
        cell,
        MODES.index(mode),
        6,
        module.proj_size,
        2,
        module.batch_first,
        0.0,
        True,
        module.bidirectional,
        batch_sizes,
        None,
    )
    return [out, hidden] + ([last] if mode == "lstm" else [])


def _check(mode: str, packed: bool, **options: Any) -> None:
    torch.manual_seed(0)
    module = _module(mode, **options)
    cells = 2 * (1 + module.bidirectional)
    states = [torch.randn(cells, 3, module.proj_size or 6)]
    states += [torch.randn(cells, 3, 6)] if mode == "lstm" else []
    x = torch.randn(3, 4, 5)
    x = x if module.batch_first else x.transpose(0, 1)
    sequence = pack_padded_sequence(x, [4, 2, 1]) if packed else None
    x = x.contiguous() if sequence is None else sequence.data
    batch_sizes = [] if sequence is None else sequence.batch_sizes.tolist()
    weights = [w.detach() for w in module._flat_weights]
    leaves = [t.clone().requires_grad_() for t in (x, *states)] + module._flat_weights
    given = leaves[0] if sequence is None else PackedSequence(leaves[0], sequence.batch_sizes)
    out, last = module(given, tuple(leaves[1:3]) if mode == "lstm" else leaves[1])
    expected = [out if sequence is None else out.data, *(last if mode == "lstm" else [last])]
    on = [t.detach().to("tpu").requires_grad_() for t in (x, *states, *weights)]
    actual = _on_device(mode, module, on, batch_sizes)
    close(
        [actual, torch.autograd.grad(sum(t.sin().sum() for t in actual), on)],
        [expected, torch.autograd.grad(sum(t.sin().sum() for t in expected), leaves)],
        1e-4,
    )


@pytest.mark.parametrize("mode", MODES)
def test_both_directions(mode: str) -> None:
    _check(mode, packed=False, bidirectional=True)


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_packed_sequences(mode: str) -> None:
    _check(mode, packed=True, bidirectional=True)


def test_batch_first_without_biases_and_with_a_projection() -> None:
    _check("tanh", packed=False, batch_first=True, bias=False)
    with pytest.warns(UserWarning, match="projections"):
        _check("lstm", packed=False, proj_size=3)


def _gru(dropout: float, seed: int = 0) -> tuple[list[torch.Tensor], Any]:
    torch.manual_seed(0)
    module = _module("gru")
    weights = [w.detach().to("tpu") for w in module._flat_weights]
    x, h = torch.randn(4, 3, 5, device="tpu"), torch.randn(2, 3, 6, device="tpu")
    leaves = [t.requires_grad_() for t in (x, h, *weights)]
    torch.manual_seed(seed)
    made = aten.miopen_rnn(
        x, leaves[2:], 4, h, None, 3, 6, 2, False, dropout, True, False, [], None
    )
    return leaves, made


def test_dropout_between_layers_is_kept_for_backward() -> None:
    leaves, (out, _, _, reserve, _) = _gru(0.5)
    assert reserve.numel() == 16
    assert (out != _gru(0.5, seed=1)[1][0]).any()
    assert (out == _gru(0.5)[1][0]).all()
    grad = torch.autograd.grad(out.sum(), leaves)[0]
    assert grad.isfinite().all()
    assert _gru(0.0)[1][3].numel() == 0


def test_weights_as_one_buffer() -> None:
    weights = [torch.ones(18, 5, device="tpu"), torch.zeros(18, 6, device="tpu")]
    flat = aten._cudnn_rnn_flatten_weight(weights, 2, 5, 3, 6, 0, 1, False, False)
    assert flat.shape == (18 * 11,)
    assert flat.sum().item() == 90
    state = aten._cudnn_init_dropout_state(0.5, True, 42, dtype=torch.uint8, device="tpu")
    assert state.dtype == torch.uint8
