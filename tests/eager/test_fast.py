"""Unrolled kernels: what they take for known about a tensor stays true whatever is done to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchtpu.eager.operation import Operation
from torchtpu.storage import buffer_of
from torchtpu.tensor import TensorFactory

RESHAPES: dict[str, Callable[[Any], object]] = {
    "t_": lambda t: t.t_(),
    "transpose_": lambda t: t.transpose_(0, 1),
    "swapaxes_": lambda t: t.swapaxes_(0, 1),
    "squeeze_": lambda t: t.unsqueeze_(0).squeeze_(0).unsqueeze_(1),
    "as_strided_": lambda t: t.as_strided_((2, 2), (1, 2), 1),
    "resize_": lambda t: t.resize_(2, 2),
    "resize_ beyond": lambda t: t.resize_(4, 5).fill_(2),
    "set_ to a view": lambda t: t.set_(t.detach()[1:, :2]),
    "set_ to a storage": lambda t: t.set_(t.untyped_storage(), 1, (2, 2), (2, 1)),
    "data": lambda t: setattr(t, "data", t.detach().t()),
    "data of another": lambda t: setattr(t, "data", torch.ones(2, 5, device=t.device)),
    "resize_as_": lambda t: t.resize_as_(torch.ones(2, 3, device=t.device)),
    "view of another dtype": lambda t: setattr(t, "data", t.detach().view(torch.int32)),
    "storage freed and back": lambda t: (
        t.untyped_storage().resize_(0),
        t.untyped_storage().resize_(48),
        t.fill_(3.0),
    ),
}
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t": lambda t: t.t(),
    "select": lambda t: t[1],
    "slice": lambda t: t[:, 1:3],
    "step": lambda t: t[:, ::2],
    "expand": lambda t: t[:1].expand(5, -1),
    "view": lambda t: t.view(2, 6),
    "reshape": lambda t: t.reshape(-1),
    "unfold": lambda t: t.unfold(1, 2, 1),
    "diagonal": lambda t: t.diagonal(),
    "chunk": lambda t: t.chunk(2, 1)[1],
    "view_as_complex": lambda t: torch.view_as_complex(t.view(3, 2, 2)).real,
    "flatten": lambda t: t.unflatten(1, (2, 2)).flatten(),
    "movedim": lambda t: t.unsqueeze(0).movedim(0, 2),
    "detach": lambda t: t.detach(),
    "dtype": lambda t: t.view(torch.int32),
}


def assert_known_is_true(*tensors: torch.Tensor) -> None:
    for t in tensors:
        natural = buffer_of(t.untyped_storage()).natural
        if natural is not None:
            assert isinstance(natural, TensorFactory)
            assert (natural.shape, natural.strides) == (tuple(t.shape), tuple(t.stride()))
            assert t.storage_offset() == 0
            assert natural.layout.dtype == t.dtype


def _pair() -> tuple[torch.Tensor, torch.Tensor]:
    host = torch.arange(12.0).view(3, 4)
    device = host.to("tpu")
    for _ in range(2):  # the unrolled kernels know the tensor by now
        device + device
        device.mul(2.0)
    return host, device


@pytest.mark.parametrize("name", RESHAPES)
def test_a_tensor_reshaped_in_place_is_seen_as_it_is(name: str) -> None:
    host, device = _pair()
    RESHAPES[name](host)
    RESHAPES[name](device)
    assert_known_is_true(device)
    for _ in range(2):
        assert torch.equal((device + device).cpu(), host + host)
        assert torch.equal(device.mul(2).cpu(), host.mul(2))
        assert torch.equal(device.add_(1).cpu(), host.add_(1))


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_seen_as_it_is_and_so_is_its_base(name: str) -> None:
    host, device = _pair()
    host_view, device_view = VIEWS[name](host), VIEWS[name](device)
    assert_known_is_true(device, device_view)
    for _ in range(2):
        assert torch.equal((device_view + device_view).cpu(), host_view + host_view)
        assert torch.equal(device_view.mul(2).cpu(), host_view.mul(2))
        assert torch.equal((device + device).cpu(), host + host)
    if name not in ("expand", "unfold"):  # several elements in one place are not written to
        device_view.add_(1)
        host_view.add_(1)
        assert torch.equal(device.cpu(), host)


@pytest.mark.parametrize("name", VIEWS)
def test_a_call_on_a_view_is_prepared_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def calls() -> None:
        view = VIEWS[name](torch.ones(3, 4, device="tpu"))
        _ = view + view, view.mul(2.0), view.sum()
        if name not in ("expand", "unfold"):
            view.add_(1)

    for _ in range(2):  # by the general kernel, and by the unrolled ones
        calls()
    monkeypatch.setattr(Operation, "prepare", lambda *_: pytest.fail("prepared again"))
    calls()


def test_results_of_kernels_are_known() -> None:
    x = torch.ones(3, 4, device="tpu")
    for made in (
        x + x,
        x.relu(),
        x.sum(0),
        x.to(torch.bfloat16),
        x.clone(),
        x.t() @ x,
        x.t() + x.t(),
    ):
        assert buffer_of(made.untyped_storage()).natural is not None
        assert_known_is_true(made)
