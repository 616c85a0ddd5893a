"""Nested tensors, jagged and strided, compared with torch's CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
_generator = torch.Generator().manual_seed(0)
_PARTS = [torch.randn(n, 8, generator=_generator) for n in (3, 1, 5)]
_WEIGHT, _BIAS = torch.randn(4, 8, generator=_generator), torch.randn(8, generator=_generator)


def _nested(device: str, layout: Any = torch.jagged) -> torch.Tensor:
    parts = [p.to(device) for p in _PARTS]
    made: torch.Tensor = torch.nested.nested_tensor(
        parts, layout=layout, device=device, requires_grad=True
    )
    return made


def _heads(nested: torch.Tensor) -> torch.Tensor:
    heads: torch.Tensor = nested.unflatten(-1, [2, 4]).transpose(1, 2)
    return heads


def _attention(nested: torch.Tensor) -> torch.Tensor:
    q, k, v = _heads(nested), _heads(nested * 0.5), _heads(nested + 1)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)


_JAGGED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sin": torch.sin,
    "add": lambda n: n + n * 2,
    "gelu": F.gelu,
    "linear": lambda n: F.linear(n, _WEIGHT.to(n.device)),
    "layer_norm": lambda n: F.layer_norm(n, (8,), _BIAS.to(n.device), _BIAS.to(n.device)),
    "softmax": lambda n: n.softmax(-1),
    "padded": lambda n: n.to_padded_tensor(-1.0),
    "attention": _attention,
}
_STRIDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "add": lambda n: n + n,
    "mul": lambda n: n * n * 2,
    "linear": lambda n: F.linear(n, _WEIGHT.to(n.device)),
    "matmul": lambda n: torch.matmul(n, n.transpose(1, 2)),
    "layer_norm": lambda n: F.layer_norm(n, (8,), _BIAS.to(n.device), _BIAS.to(n.device)),
    "softmax": lambda n: F.softmax(n, -1),
    "sum": lambda n: n.sum(-1, keepdim=True),
    "padded": lambda n: n.to_padded_tensor(2.0),
    "view": lambda n: n.view(3, -1, 2, 4),
    "rebuilt": lambda n: torch.nested.as_nested_tensor(list(n.unbind())),
}


def _forward_and_backward(op: Callable[..., torch.Tensor], nested: torch.Tensor) -> Any:
    result = op(nested)
    dense = result.to_padded_tensor(0.0) if result.is_nested else result
    (grad,) = torch.autograd.grad(dense.square().sum(), [nested])
    return dense.detach().cpu(), grad.to_padded_tensor(0.0).cpu()


@pytest.mark.parametrize("name", _JAGGED)
def test_jagged_matches_cpu(name: str) -> None:
    expected, actual = (_forward_and_backward(_JAGGED[name], _nested(d)) for d in ("cpu", "tpu"))
    assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", _STRIDED)
def test_strided_matches_cpu(name: str) -> None:
    nested = (_nested(d, torch.strided) for d in ("cpu", "tpu"))
    expected, actual = (_forward_and_backward(_STRIDED[name], n) for n in nested)
    assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_unbind_gives_the_parts(layout: Any) -> None:
    for part, expected in zip(_nested("tpu", layout).unbind(), _PARTS, strict=True):
        assert_close(part.detach().cpu(), expected)


def test_padding_and_back() -> None:
    offsets = torch.tensor([0, 1, 1, 6], device="tpu")
    rows = torch.arange(12.0).reshape(6, 2).to("tpu")
    padded = torch.ops.aten._jagged_to_padded_dense_forward(rows, [offsets], [5], -2.0)
    assert padded.shape == (3, 5, 2)
    assert padded[1].unique().tolist() == [-2]
    for total in (None, 6):
        back = torch.ops.aten._padded_dense_to_jagged_forward(padded, [offsets], total)
        assert back.tolist() == rows.tolist()


def test_a_row_longer_than_the_padding_raises() -> None:
    for device in ("cpu", "tpu"):
        dense, offsets = torch.ones(1, 2, 3, device=device), torch.tensor([0, 4], device=device)
        with pytest.raises(RuntimeError, match="found batch item of length 4"):
            torch.ops.aten._padded_dense_to_jagged_forward(dense, [offsets])


def test_nested_from_a_mask() -> None:
    values, mask = torch.arange(12.0).reshape(2, 3, 2), torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
    nested = torch._nested_tensor_from_mask(values.to("tpu"), mask.to("tpu"))
    assert [part.tolist() for part in nested.unbind()] == [values[0, :2].tolist(), [[6, 7]]]
    assert torch._nested_tensor_from_mask_left_aligned(values.to("tpu"), mask.to("tpu"))
    assert not torch._nested_tensor_from_mask_left_aligned(values.to("tpu"), ~mask.to("tpu"))
    with pytest.raises(RuntimeError, match="left-aligned"):
        torch._nested_tensor_from_mask(values.to("tpu"), ~mask.to("tpu"))


def test_views_of_a_buffer() -> None:
    sizes, strides = torch.tensor([[2, 2], [1, 2]]), torch.tensor([[2, 1], [2, 1]])
    buffer = torch.arange(6.0).to("tpu")
    nested = torch._nested_view_from_buffer(buffer, sizes, strides, torch.tensor([0, 4]))
    assert [part.tolist() for part in nested.unbind()] == [[[0, 1], [2, 3]], [[4, 5]]]
    found = torch._nested_compute_contiguous_strides_offsets(sizes.to("tpu"))
    assert [t.tolist() for t in found] == [strides.tolist(), [0, 4]]


@pytest.mark.parametrize("wrong", [torch.ones(2, 2), torch.ones(3, dtype=torch.int64)])
def test_wrong_tables_of_sizes_raise(wrong: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="expected an int64 tensor"):
        torch._nested_from_padded(torch.ones(2, 2, 2, device="tpu"), wrong.to("tpu"))


def test_an_op_that_torch_has_for_no_device_raises() -> None:
    for device in ("cpu", "tpu"):
        with pytest.raises(NotImplementedError, match="Could not run 'aten::exp'"):
            _nested(device, torch.strided).exp()


def test_encoder_on_padded_sequences() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 1).eval()
    values, padding = torch.randn(2, 3, 8), torch.tensor([[0, 0, 1], [0, 0, 0]]).bool()
    with torch.no_grad():
        expected = encoder(values, src_key_padding_mask=padding)
        actual = encoder.to("tpu")(values.to("tpu"), src_key_padding_mask=padding.to("tpu"))
    assert_close(actual.cpu(), expected, atol=1e-5, rtol=1e-5)
