"""Storages of tpu tensors: they hold bytes, free them, and never follow their address."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torchtpu.errors import FreedStorageError, TpuError
from torchtpu.storage import buffer_of

SHARDS = [("UntypedStorage", 0, 1), ("TypedStorage", 0, 1), ("Tensor", 0, 1)]


@pytest.fixture(scope="module", autouse=True)
def walks() -> Iterator[dict[tuple[str, int, int], subprocess.Popen[str]]]:
    """Start every walk over the methods of a class at once."""
    environment = os.environ | {
        "TORCHTPU_TARGET": "cpu",
        "OMP_NUM_THREADS": "1",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    running = {
        shard: subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "tests.surface", *map(str, shard)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for shard in SHARDS
    }
    yield running
    for process in running.values():
        process.kill()
        process.communicate()


def six(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(6, dtype=dtype, device="tpu")


def same(ours: Any, theirs: Any) -> bool:
    """Compare results, storages by their bytes."""
    if isinstance(theirs, torch.UntypedStorage):
        return bool(ours.tolist() == theirs.tolist())
    return bool(ours == theirs)


METHODS: dict[str, Callable[[Any], Any]] = {
    "nbytes": lambda s: (s.nbytes(), s.size(), len(s)),
    "element": lambda s: s[7],
    "slice": lambda s: s[4:8],
    "iterate": list,
    "tolist": lambda s: s.tolist(),
    "bytes": bytes,
    "clone": lambda s: s.clone(),
    "cpu": lambda s: s.cpu(),
    "to": lambda s: s.to(device="cpu"),
    "fill_": lambda s: s.fill_(3),
    "set an element": lambda s: (s.__setitem__(1, 255), s)[1],
    "copy_": lambda s: s.copy_(torch.ones(6).untyped_storage()),
    "byteswap": lambda s: (s.byteswap(torch.float32), s)[1],
    "resize_ to more": lambda s: s.resize_(48).tolist()[:24],
    "resize_ to less": lambda s: s.resize_(8),
    "is_shared": lambda s: (s.is_shared(), s.is_pinned()),
    "element_size": lambda s: s.element_size(),
}


@pytest.mark.parametrize("name", METHODS)
def test_method_equals_cpu(name: str) -> None:
    ours, theirs = six().untyped_storage(), six().cpu().untyped_storage()
    assert same(METHODS[name](ours), METHODS[name](theirs))


REFUSED: dict[str, Callable[[Any], Any]] = {
    "share_memory_": lambda s: s.share_memory_(),
    "pin_memory": lambda s: s.pin_memory(),
    "_share_fd_cpu_": lambda s: s._share_fd_cpu_(),
    "_set_cdata": lambda s: s._set_cdata(1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_method_is_refused(name: str) -> None:
    with pytest.raises(TpuError, match=rf"\[storage.{name}\].*\.cpu\(\)"):
        REFUSED[name](six().untyped_storage())


def test_deleting_an_element_is_a_type_error() -> None:
    storage: Any = six().untyped_storage()
    with pytest.raises(TypeError):
        del storage[0]


def test_storages_move_between_devices() -> None:
    storage: Any = torch.arange(6.0).untyped_storage()
    moved: Any = storage.tpu()
    assert moved.is_tpu
    assert not storage.is_tpu
    assert moved.tolist() == storage.tolist() == storage.to(device="tpu").tolist()


def test_typed_storage() -> None:
    typed: Any = torch.TypedStorage(
        wrap_storage=six().untyped_storage(), dtype=torch.float32, _internal=True
    )
    with pytest.warns(UserWarning, match="TypedStorage is deprecated"):
        assert typed.tolist() == [0, 1, 2, 3, 4, 5]
    typed[2] = 9
    typed.fill_(4)
    assert (len(typed), typed[5], list(typed)) == (6, 4.0, [4.0] * 6)
    assert typed.double().dtype == torch.float64
    assert typed.cpu().device.type == "cpu"


def test_resize_to_nothing_frees_and_brings_back() -> None:
    x = torch.ones(1024, device="tpu")
    view = x.view(32, 32)
    before = torch.tpu.memory_allocated()
    x.untyped_storage().resize_(0)
    assert torch.tpu.memory_allocated() == before - 4096
    assert x.untyped_storage().nbytes() == 0
    with pytest.raises(FreedStorageError, match="resized to 0 bytes"):
        x.cpu()
    with pytest.raises(FreedStorageError, match="read of freed device memory"):
        x + 1
    x.untyped_storage().resize_(4096)
    x.copy_(torch.full((1024,), 3.0))
    assert view.sum().item() == 3072


def test_storage_is_shared_by_views_and_freed_with_the_last() -> None:
    x = six()
    assert x[2:].untyped_storage() is x.untyped_storage()
    assert x[2:].data_ptr() == x.data_ptr() + 8
    gc.collect()
    before = torch.tpu.memory_allocated()
    view = x[1:2]
    del x
    assert torch.tpu.memory_allocated() == before
    assert view.item() == 1
    del view
    assert torch.tpu.memory_allocated() == before - 24


def test_clones_of_a_storage_do_not_see_each_others_writes() -> None:
    x = six()
    copy = torch.empty(0, device="tpu").set_(x.untyped_storage().clone())
    x.add_(1)
    assert copy.tolist() == [0, 1, 2, 3, 4, 5]
    copy.mul_(2)
    assert x.tolist() == [1, 2, 3, 4, 5, 6]


def test_a_storage_of_another_origin_is_an_error() -> None:
    foreign = torch._C._acc.create_empty_tensor((2,), torch.float32)
    with pytest.raises(TpuError, match="made by torchtpu"):
        buffer_of(foreign.untyped_storage())
    with pytest.raises(TpuError, match="outside torchtpu"):
        foreign + 1


@pytest.mark.parametrize("shard", SHARDS, ids=lambda s: f"{s[0]}-{s[1]}")
def test_no_method_ends_the_process(
    walks: dict[tuple[str, int, int], subprocess.Popen[str]], shard: tuple[str, int, int]
) -> None:
    out, err = walks[shard].communicate(timeout=110)
    last = out.splitlines()[-1]
    assert last == "DONE", f"{shard[0]}.{last.split()[0]} ended the process: {err[-2000:]}"
