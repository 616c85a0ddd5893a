"""Tensors on the device: made from and read as every kind of host value, in every dtype."""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import dlpack

from torchtpu import dtypes
from torchtpu.errors import TpuError

DTYPES = [row[0] for row in dtypes._TABLE]


def tpu(*values: float) -> torch.Tensor:
    return torch.tensor(values, device="tpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    host = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    there = host.to("tpu")
    assert there.dtype == dtype
    assert "device='tpu:0'" in str(there)
    for back in (
        there,
        there.clone(),
        copy.deepcopy(there),
        there.t().contiguous().t(),
        there[:, 0:],
    ):
        assert back.cpu().contiguous().view(torch.uint8).equal(host.view(torch.uint8))
    assert there[0].cpu()[1].item() == there[0, 1].item() == host[0, 1].item()
    assert there.tolist() == host.tolist()


HOST_VALUES: dict[str, Callable[[str], torch.Tensor]] = {
    "nested lists": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    "list of tensors": lambda d: torch.tensor([torch.ones(2, device=d)[0], 2.0], device=d),
    "as_tensor of numpy": lambda d: torch.as_tensor(np.arange(3.0), device=d),
    "as_tensor of a list": lambda d: torch.as_tensor([1, 2], device=d),
    "asarray": lambda d: torch.asarray(np.arange(3), device=d),
    "from_numpy": lambda d: torch.from_numpy(np.arange(6.0).reshape(2, 3).T).to(d),
    "frombuffer": lambda d: torch.frombuffer(bytearray(b"abcd"), dtype=torch.uint8).to(d),
    "new_tensor": lambda d: torch.ones(2, device=d).new_tensor([1, 2]),
    "new_full": lambda d: torch.ones(2, device=d).new_full((2, 2), 7),
    "new_zeros": lambda d: torch.ones(2, device=d).new_zeros(3, dtype=torch.int8),
    "type": lambda d: torch.ones(2, device=d).type(torch.float64),
    "type_as": lambda d: torch.ones(2).type_as(torch.ones(1, dtype=torch.int16, device=d)),
    "conjugate": lambda d: torch.tensor([1 + 2j]).conj().to(d),
    "negative": lambda d: torch.tensor([1 + 2j]).conj().imag.to(d),
    "expanded": lambda d: torch.ones(1).expand(3).to(d),
}


@pytest.mark.parametrize("name", HOST_VALUES)
def test_from_the_host(name: str) -> None:
    made = HOST_VALUES[name]("tpu")
    assert made.device.type == "tpu"
    torch.testing.assert_close(made.cpu(), HOST_VALUES[name]("cpu"), rtol=0, atol=0)


COPIES: dict[str, Callable[[str, str], torch.Tensor]] = {
    "plain": lambda a, b: torch.zeros(2, 3, device=a).copy_(torch.arange(6.0, device=b).view(2, 3)),
    "broadcast": lambda a, b: torch.zeros(2, 3, device=a).copy_(torch.arange(3.0, device=b)),
    "dtype": lambda a, b: torch.zeros(3, dtype=torch.int32, device=a).copy_(
        torch.rand(3, device=b) * 0 + 1.7
    ),
    "to a transpose": lambda a, b: (
        torch.zeros(3, 2, device=a).t().copy_(torch.ones(2, 3, device=b))
    ),
    "from a step": lambda a, b: torch.zeros(3, device=a).copy_(torch.arange(6.0, device=b)[::2]),
    "to a column": lambda a, b: torch.zeros(2, 3, device=a)[:, 1].copy_(torch.ones(2, device=b)),
    "non_blocking": lambda a, b: torch.zeros(3, device=a).copy_(
        torch.ones(3, device=b), non_blocking=True
    ),
    "conjugate": lambda a, b: torch.zeros(1, dtype=torch.complex64, device=a).copy_(
        torch.tensor([1 + 2j], device=b).conj()
    ),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize(("to", "source"), [("tpu", "tpu"), ("tpu", "cpu"), ("cpu", "tpu")])
def test_copy(name: str, to: str, source: str) -> None:
    assert COPIES[name](to, source).cpu().equal(COPIES[name]("cpu", "cpu"))


@pytest.mark.parametrize(("to", "source"), [("tpu", "tpu"), ("tpu", "cpu"), ("cpu", "tpu")])
def test_copy_of_another_shape(to: str, source: str) -> None:
    with pytest.raises(
        RuntimeError, match=r"size of tensor a \(3\) must match the size of tensor b \(4\)"
    ):
        torch.zeros(2, 3, device=to).copy_(torch.zeros(4, device=source))


def test_the_host_may_change_what_it_copied() -> None:
    host = torch.ones(1000)
    there = host.to("tpu", non_blocking=True)
    host.zero_()
    back = there.cpu()
    there.zero_()
    assert back.sum().item() == 1000


def test_read_as_a_number() -> None:
    x = tpu(2.5)
    assert (float(x), int(x), bool(x), complex(x), f"{x[0]:.2f}") == (2.5, 2, True, 2.5, "2.50")
    assert [10, 20, 30][torch.tensor(1, device="tpu")] == 20
    assert 2.5 in x
    assert 3.5 not in x
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        tpu(1, 2).item()
    with pytest.raises(RuntimeError, match="is ambiguous"):
        bool(tpu(1, 2))


def test_types_and_names() -> None:
    x = tpu(1.0, 2.0)
    assert x.type() == "torch.tpu.FloatTensor"
    assert x.type("torch.tpu.DoubleTensor").dtype == torch.float64
    assert x.type("torch.FloatTensor").device.type == "cpu"
    assert x.get_device() == 0
    assert x.device == torch.device("tpu", 0)
    assert torch.ones(1).tpu().is_tpu
    assert len({x, x.view(2), x}) == 2
    assert [t.item() for t in x] == [1, 2]
    assert x.is_pinned() is x.is_shared() is False


def test_printing_runs_no_program() -> None:
    x = torch.arange(3000.0, device="tpu").reshape(50, 60)
    x.cpu()
    before = torch.tpu._get_cache_stats()["num_cache_reqs"]
    assert "device='tpu:0'" in f"{x} {x!r}"
    assert torch.tpu._get_cache_stats()["num_cache_reqs"] == before


def test_numpy_only_by_force() -> None:
    x = tpu(1.0, 2.0).requires_grad_()
    assert x.numpy(force=True).tolist() == [1, 2]
    for convert in (
        lambda: x.detach().numpy(),
        lambda: np.asarray(x.detach()),
        x.detach().__array__,
    ):
        with pytest.raises(TypeError, match="can't convert tpu:0 device type tensor to numpy"):
            convert()


def test_dlpack_exports_only_copies() -> None:
    x: Any = tpu(1.0, 2.0)
    to_dlpack: Any = vars(dlpack)["to_dlpack"]  # the stub does not export it
    assert x.__dlpack_device__() == (12, 0)
    assert np.from_dlpack(x, device="cpu").tolist() == [1, 2]
    for export in (
        x.__dlpack__,
        lambda: dlpack.from_dlpack(x),
        lambda: to_dlpack(x),
    ):
        with pytest.raises(TpuError, match=r"use \.cpu\(\) first"):
            export()
    capsule = to_dlpack(torch.ones(2))
    assert dlpack.from_dlpack(capsule).tolist() == [1, 1]


def test_host_only_methods_are_refused() -> None:
    x: Any = tpu(1.0)
    methods: list[Callable[[], Any]] = [lambda: x.apply_(abs), lambda: x.map_(x, max)]
    for method in methods:
        with pytest.raises(TypeError, match="only implemented on CPU tensors"):
            method()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        x.pin_memory()
    with pytest.raises(TpuError, match="shared memory"):
        x.share_memory_()


def test_pinning_host_memory_is_a_no_op() -> None:
    x = torch.ones(2)
    assert x.pin_memory() is x


def test_data_and_detach_share_memory() -> None:
    x, y = tpu(1.0, 2.0), tpu(3.0, 4.0, 5.0)
    x.data = y
    y.add_(1)
    x.detach().mul_(2)
    assert x.tolist() == y.tolist() == [8, 10, 12]


def test_record_stream_accepts_every_stream() -> None:
    x = tpu(1.0)
    x.record_stream(torch.Stream("tpu:0"))
    x.record_stream(torch.tpu.current_stream())


def test_other_dtypes_and_pinned_memory_are_errors() -> None:
    for make in (
        functools.partial(torch.zeros, 2, dtype=torch.complex32, device="tpu"),
        functools.partial(torch.empty, 2, dtype=torch.qint8, device="tpu"),
        functools.partial(torch.empty, 2, device="tpu", pin_memory=True),
    ):
        with pytest.raises((RuntimeError, NotImplementedError), match=r"(?i)tpu|pinned"):
            make()


def test_no_tensor_leaks() -> None:
    gc.collect()
    before = torch.tpu.memory_allocated()
    for _ in range(300):
        x = tpu(1.0, 2.0)
        (x + x).t().clone()[0:1].mul_(2).cpu()
    del x
    assert torch.tpu.memory_allocated() == before
