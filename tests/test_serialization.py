"""torch.save, torch.load, pickle and copy: devices, dtypes and what shares memory are kept."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchtpu.errors import TpuError


def six(device: str = "tpu") -> torch.Tensor:
    return torch.arange(6.0, device=device).reshape(2, 3)


def saved(value: Any, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


def to_tpu(storage: Any, _location: str) -> Any:
    return storage.tpu()


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("source", ["tpu", "cpu"])
@pytest.mark.parametrize(
    ("location", "expected"),
    [
        (None, None),
        ("cpu", "cpu"),
        ("tpu", "tpu"),
        ("tpu:0", "tpu"),
        (torch.device("tpu"), "tpu"),
        ({"tpu:0": "cpu", "cpu": "tpu:0"}, "other"),
        (lambda storage, _location: storage, "cpu"),
        (to_tpu, "tpu"),
        ("meta", "meta"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),  # the same in every process
)
def test_map_location(zipped: bool, source: str, location: Any, expected: str | None) -> None:
    file = saved(six(source), _use_new_zipfile_serialization=zipped)
    loaded = torch.load(file, map_location=location, weights_only=True)
    wanted = {"other": "cpu" if source == "tpu" else "tpu", None: source}.get(expected, expected)
    assert loaded.device.type == wanted
    if wanted != "meta":
        assert loaded.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_mmap(tmp_path: Path) -> None:
    torch.save({"x": six()}, tmp_path / "x.pt")
    on_host = torch.load(tmp_path / "x.pt", mmap=True, map_location="cpu")["x"]
    there = torch.load(tmp_path / "x.pt", mmap=True)["x"]
    assert there.is_tpu
    assert there.cpu().equal(on_host)


def duplicate_by_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def duplicate_by_save(value: Any) -> Any:
    return torch.load(saved(value), weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, duplicate_by_save, duplicate_by_pickle])
def test_shared_storages_stay_shared(duplicate: Any) -> None:
    x = six()
    first = nn.Linear(3, 3).to("tpu")
    tied = nn.ModuleDict({"a": first, "b": first})
    if duplicate is duplicate_by_pickle:  # pickle writes every tensor by itself, on every device
        assert duplicate(x[1]).tolist() == [3, 4, 5]
        made = duplicate(tied)
        assert made["a"].weight is made["b"].weight
        return
    made = duplicate({"x": x, "row": x[1], "column": x.t()[2], "tied": tied})
    made["x"].mul_(2)
    assert made["row"].tolist() == [6, 8, 10]
    assert made["column"].tolist() == [4, 10]
    assert made["tied"]["a"].weight is made["tied"]["b"].weight
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol: int) -> None:
    value = nn.Parameter(six().t())
    made = pickle.loads(pickle.dumps(value, protocol))
    assert isinstance(made, nn.Parameter)
    assert made.device.type == "tpu"
    assert made.tolist() == value.tolist()


def test_copy_is_shallow() -> None:
    x = six()
    copy.copy(x).add_(1)
    assert x.sum().item() == 21


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad"])
def test_optimizer_state(name: str) -> None:
    def stepped(model: nn.Module, state: Any) -> tuple[Any, list[float]]:
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, weight_decay=0.01)
        if state is not None:
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        model(torch.ones(1, 2, device="tpu")).sum().backward()
        optimizer.step()
        return optimizer, next(model.parameters()).tolist()

    model = nn.Linear(2, 2).to("tpu")
    optimizer, _ = stepped(model, None)
    restored = copy.deepcopy(model)
    file = saved(optimizer.state_dict())
    state = torch.load(file, weights_only=True)
    assert stepped(model, optimizer.state_dict())[1] == stepped(restored, state)[1]
    assert copy.deepcopy(optimizer).state_dict().keys() == optimizer.state_dict().keys()


def test_every_dtype_keeps_its_bytes() -> None:
    x = torch.arange(8, dtype=torch.uint8).repeat(16)
    for dtype in (torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.uint64, torch.complex128):
        host = x.to(dtype)
        loaded = torch.load(saved(host.to("tpu")), weights_only=True)
        assert loaded.dtype == dtype
        assert loaded.cpu().view(torch.uint8).equal(host.view(torch.uint8))


def test_a_queue_between_processes_is_refused() -> None:
    from multiprocessing.reduction import ForkingPickler

    import torch.multiprocessing

    with pytest.raises(TpuError, match=r"shared with another process; copy it with \.cpu"):
        ForkingPickler.dumps(six())
    assert torch.multiprocessing.get_all_start_methods()


def test_a_state_dict_of_the_device_loads_on_the_host() -> None:
    module = nn.Linear(2, 2)
    loaded = duplicate_by_save(module.to("tpu").state_dict())
    module.to("cpu").load_state_dict(loaded)
    assert module.weight.device.type == "cpu"
    assert module.weight.equal(loaded["weight"].cpu())
