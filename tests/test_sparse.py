"""Sparse tensors on the device, compared with torch's CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")

_INDICES = torch.tensor([[0, 1, 1, 0], [2, 0, 2, 2]])
_DENSE = torch.tensor([[0.0, 2, 0, 3], [1, 0, 0, 0], [0, 0, 0, 0], [4, 0, 5, 6]])
_OTHER = torch.tensor([[1.0, 0, 0, 3], [1, 0, 2, 0], [0, 0, 0, 0], [0, 0, 5, 0]])
_LAYOUTS = {
    "csr": torch.sparse_csr,
    "csc": torch.sparse_csc,
    "bsr": torch.sparse_bsr,
    "bsc": torch.sparse_bsc,
}


class _Operands:
    """The same operands on one device: s and w sparse, h hybrid, d and m dense, i an index."""

    def __init__(self, device: str) -> None:
        values = torch.tensor([3.0, 4, 5, 6])
        hybrid = torch.arange(8.0).reshape(4, 2) + 1
        self.device = device
        self.s = torch.sparse_coo_tensor(_INDICES, values, (2, 3)).to(device)
        self.w = torch.sparse_coo_tensor(_INDICES[:, 1:3], values[:2], (2, 3)).to(device)
        self.h = torch.sparse_coo_tensor(_INDICES, hybrid, (2, 3, 2)).to(device)
        self.d = (torch.arange(6.0).reshape(2, 3) + 1).to(device)
        self.m = torch.arange(12.0).reshape(3, 4).to(device)
        self.i = torch.tensor([1, 0, 1]).to(device)


_COO: dict[str, Callable[[_Operands], Any]] = {
    "to_dense": lambda o: o.s.to_dense(),
    "coalesce": lambda o: o.h.coalesce(),
    "clone": lambda o: o.s.clone(),
    "add": lambda o: o.s + o.w,
    "add dense": lambda o: torch.add(o.d, o.s, alpha=2),
    "add_": lambda o: o.s.clone().add_(o.w),
    "add_ to dense": lambda o: o.d.clone().add_(o.s, alpha=-0.5),
    "sub": lambda o: o.s - o.w,
    "mul": lambda o: o.s * o.w,
    "mul number": lambda o: o.s * 3,
    "mul dense": lambda o: o.s * o.d,
    "mul broadcast": lambda o: o.s * o.d[:1],
    "div": lambda o: o.s / 2,
    "pow": lambda o: o.s**2,
    "neg": lambda o: -o.s,
    "sin": lambda o: o.s.sin(),
    "double": lambda o: o.s.double(),
    "sum": lambda o: o.s.sum(),
    "sum dim": lambda o: torch.sparse.sum(o.h, [1, 2]),
    "mm": lambda o: torch.sparse.mm(o.s, o.m),
    "sparse mm": lambda o: o.s @ o.w.t(),
    "addmm": lambda o: torch.addmm(o.m[:2], o.s, o.m, beta=2, alpha=3),
    "mv": lambda o: torch.mv(o.s, o.m[:, 0].contiguous()),
    "bmm": lambda o: torch.bmm(torch.stack([o.s, o.w]), o.m.expand(2, 3, 4)),
    "hspmm": lambda o: torch.hspmm(o.s, o.m),
    "sspaddmm": lambda o: torch.sspaddmm(o.m[:2].to_sparse(), o.s, o.m, beta=2, alpha=3),
    "mask dense": lambda o: o.d.sparse_mask(o.w),
    "mask sparse": lambda o: o.s.sparse_mask(o.w.coalesce()),
    "softmax": lambda o: torch.sparse.softmax(o.s, 1),
    "softmax of a dense dim": lambda o: torch.sparse.log_softmax(o.h, 2),
    "index_select": lambda o: o.s.index_select(1, o.i),
    "index_select of a dense dim": lambda o: o.h.index_select(2, o.i),
    "transpose": lambda o: o.s.t(),
    "cat": lambda o: torch.cat([o.s, o.w]),
    "narrow": lambda o: o.s.narrow_copy(1, 1, 2),
    "zero_": lambda o: o.s.clone().zero_(),
    "to_sparse": lambda o: o.d.to_sparse(1),
    "to_sparse_csr": lambda o: o.s.to_sparse_csr(),
    "size from indices": lambda o: torch.sparse_coo_tensor(o.s._indices(), o.s._values()),
    "zeros": lambda o: torch.zeros(2, 3, layout=torch.sparse_coo, device=o.device),
    "empty": lambda o: torch.empty(2, 3, layout=torch.sparse_coo, device=o.device) * 2,
}


def _same(actual: Any, expected: Any) -> None:
    assert actual.layout == expected.layout
    assert actual.dtype == expected.dtype
    for tensor in (actual, expected):
        assert tensor.shape == expected.shape
    dense = [t if t.layout == torch.strided else t.to_dense() for t in (actual, expected)]
    assert_close(dense[0].cpu(), dense[1])


@pytest.mark.parametrize("name", _COO)
def test_coordinate_form_matches_cpu(name: str) -> None:
    op = _COO[name]
    _same(op(_Operands("tpu")), op(_Operands("cpu")))


def test_coalescing_orders_indices_and_adds_equal_ones() -> None:
    sparse = _Operands("tpu").s
    assert not sparse.is_coalesced()
    done = sparse.coalesce()
    assert done.is_coalesced()
    assert done.indices().tolist() == [[0, 1, 1], [2, 0, 2]]
    assert done.values().tolist() == [9, 4, 5]


def test_copies_to_the_host_and_prints() -> None:
    on_host = _Operands("tpu").s.cpu()
    assert on_host.device.type == "cpu"
    assert on_host._indices().tolist() == _INDICES.tolist()
    assert "nnz=4" in repr(_Operands("tpu").s)


_GRADS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "to_dense": (lambda s: s.to_dense(), ["s"]),
    "mm": (torch.sparse.mm, ["s", "m"]),
    "mul dense": (lambda s, d: (s * d).to_dense(), ["s", "d"]),
    "softmax": (lambda s: torch.sparse.softmax(s, 1).to_dense(), ["s"]),
    "sum": (lambda h: torch.sparse.sum(h, [1]).to_dense(), ["h"]),
    "mask": (lambda d: d.sparse_mask(d.detach().to_sparse()).to_dense(), ["d"]),
    "to_sparse": (lambda d: d.to_sparse().to_dense().sin(), ["d"]),
}


@pytest.mark.parametrize("name", _GRADS)
def test_gradients_match_cpu(name: str) -> None:
    op, names = _GRADS[name]
    grads = []
    for device in ("cpu", "tpu"):
        operands = [getattr(_Operands(device), n) for n in names]
        leaves = [t.coalesce() if t.is_sparse else t for t in operands]
        leaves = [t.detach().requires_grad_() for t in leaves]
        grads.append(torch.autograd.grad(op(*leaves).square().sum(), leaves))
    for expected, actual in zip(*grads, strict=True):
        _same(actual, expected)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.SparseAdam, {}),
        (torch.optim.Adagrad, {}),
    ],
)
def test_training_with_sparse_gradients(optimizer: Any, options: dict[str, float]) -> None:
    weights = []
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        table, bag = nn.Embedding(10, 4, sparse=True), nn.EmbeddingBag(10, 4, sparse=True)
        table, bag = table.to(device), bag.to(device)
        steps = optimizer([table.weight, bag.weight], lr=0.1, **options)
        words = torch.tensor([[1, 2, 2], [3, 1, 7]], device=device)
        for _ in range(2):
            (table(words).square().sum() + bag(words).square().sum()).backward()
            steps.step()
        assert bag.weight.grad is not None
        assert bag.weight.grad.is_sparse
        weights.append([table.weight.detach().cpu(), bag.weight.detach().cpu()])
    assert_close(weights[1], weights[0])


def _compressed(dense: torch.Tensor, layout: str, device: str) -> torch.Tensor:
    block = (2, 2) if layout.startswith("b") else None
    return dense.to(device).to_sparse(layout=_LAYOUTS[layout], blocksize=block)


_COMPRESSED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "to_dense": lambda s, w, d: s.to_dense(),
    "to_sparse": lambda s, w, d: s.to_sparse(),
    "clone": lambda s, w, d: s.clone(),
    "add": lambda s, w, d: s + w,
    "mul": lambda s, w, d: s * w,
    "mul number": lambda s, w, d: s * 3,
    "mul dense": lambda s, w, d: s * d,
    "add to dense": lambda s, w, d: torch.add(d, s, alpha=2),
    "sin": lambda s, w, d: s.sin(),
    "sum": lambda s, w, d: s.sum(),
    "sum dim": lambda s, w, d: s.sum(0, keepdim=True),
    "prod": lambda s, w, d: torch._sparse_csr_prod(s, [1], keepdim=True),
    "mm": lambda s, w, d: s @ d,
    "mm from the left": lambda s, w, d: d @ s,
    "sparse mm": lambda s, w, d: s @ w,
    "mv": lambda s, w, d: s @ d[0],
    "addmm": lambda s, w, d: torch.addmm(d, s, d, beta=2, alpha=0.5),
    "mask": lambda s, w, d: d.sparse_mask(s),
    "mask sparse": lambda s, w, d: s.sparse_mask(w),
    "select": lambda s, w, d: s[1],
    "transpose": lambda s, w, d: s.t(),
    "to csr": lambda s, w, d: s.to_sparse_csr(),
    "to csc": lambda s, w, d: s.to_sparse_csc(),
    "to bsr": lambda s, w, d: s.to_sparse_bsr((2, 2)),
    "to bsc": lambda s, w, d: s.to_sparse_bsc((2, 2)),
    "sampled": lambda s, w, d: torch.sparse.sampled_addmm(s, d, d, beta=0.5, alpha=2),
    "zeros_like": lambda s, w, d: torch.zeros_like(s),
}


@pytest.mark.parametrize(
    ("name", "layout"),
    [(n, "csr") for n in _COMPRESSED]
    + [(n, "bsr") for n in ("to_dense", "mask", "sin", "mm", "mul number")]
    + [(n, x) for x in _LAYOUTS for n in ("to_sparse", "to csc", "to bsc") if x != "csr"],
)
def test_compressed_form_matches_cpu(name: str, layout: str) -> None:
    op, results = _COMPRESSED[name], []
    for device in ("cpu", "tpu"):
        s, w = (_compressed(t, layout, device) for t in (_DENSE, _OTHER))
        try:
            results.append(op(s, w, (_OTHER + 1).to(device)))
        except RuntimeError:
            if device == "tpu":
                raise
            return  # torch's CPU does not have it for this layout
    _same(results[1], results[0])


@pytest.mark.parametrize("starts", [[0, 3, 2], [0, 1, 3]])
def test_indices_of_a_compressed_tensor_are_checked(starts: list[int]) -> None:
    for device in ("cpu", "tpu"):
        crow, column = (torch.tensor(v, device=device) for v in (starts, [1, 0]))
        values = torch.ones(2, device=device)
        with pytest.raises(RuntimeError, match="crow_indices"):
            torch.sparse_csr_tensor(crow, column, values, (2, 2), check_invariants=True)


_WRONG: dict[str, Callable[[_Operands], Any]] = {
    "sparse + dense": lambda o: o.s + o.d,
    "shapes": lambda o: o.s + o.w.t(),
    "mm shapes": lambda o: torch.sparse.mm(o.s, o.d),
    "index": lambda o: o.s.index_select(1, o.i + 9),
    "dim": lambda o: o.s.index_select(5, o.i),
    "mask shape": lambda o: o.m.sparse_mask(o.w),
    "view": lambda o: o.s.view(6),
    "exp": lambda o: o.s.exp(),
    "storage": lambda o: o.s.untyped_storage(),
    "no such layout": lambda o: o.s.to_sparse_csr().exp(),
    "blocks": lambda o: o.d.to_sparse_bsr((3, 2)),
    "values into dense": lambda o: o.s.clone().add_(o.d),
}


@pytest.mark.parametrize("name", _WRONG)
def test_wrong_calls_raise_as_on_cpu(name: str) -> None:
    with pytest.raises((RuntimeError, IndexError, NotImplementedError)) as expected:
        _WRONG[name](_Operands("cpu"))
    with pytest.raises((RuntimeError, IndexError, NotImplementedError)) as actual:
        _WRONG[name](_Operands("tpu"))
    assert isinstance(actual.value, expected.type)


def test_reshaped_copies_do_not_share_programs_with_their_sources() -> None:
    source = torch.arange(6.0).reshape(2, 3).to("tpu").t()
    assert source.contiguous().sin().shape == (3, 2)
    assert source.reshape(6).sin().shape == (6,)
