"""torch.tpu and torch.accelerator: device, memory, streams, modes; threads and forked processes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchtpu.errors import TpuError

tpu: Any = torch.tpu

FORKS = """
import os, signal, warnings
warnings.simplefilter("error")
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

def forked(work):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            text = str(work())
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    print(os.read(read, 9999).decode()[:70], os.waitpid(child, 0)[1])

forked(lambda: torch.ones(2).sum().item())
x = torch.ones(4, device="tpu")
x.add_(1)
forked(lambda: torch.ones(2).sum().item())
forked(lambda: torch.ones(4, device="tpu"))
forked(lambda: x + 1)
forked(lambda: x.add_(1))
forked(lambda: x.cpu())
forked(lambda: (torch.tpu._is_in_bad_fork(), torch.tpu.is_initialized()))

batches = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, num_workers=1, pin_memory=True)
print([batch.to("tpu", non_blocking=True).sum().item() for (batch,) in batches])

class OnDevice(Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return x[index]

try:
    list(DataLoader(OnDevice(), num_workers=1, timeout=30))
except Exception as error:
    print(type(error).__name__, "forked after its first use" in str(error))
print((x + 1).tolist())
"""


def test_is_a_module() -> None:
    import torch.tpu  # type: ignore[import-not-found]  # made at run time
    from torch.tpu import synchronize

    synchronize()
    assert torch.get_device_module("tpu") is torch.tpu
    assert all(hasattr(tpu, name) for name in tpu.__all__)


def test_device_functions() -> None:
    assert tpu.is_available()
    assert (tpu.device_count(), tpu.current_device()) == (1, 0)
    tpu.set_device("tpu:0")
    torch.ones(1, device="tpu")
    assert tpu.is_initialized()
    assert tpu.get_device_properties().name == tpu.get_device_name()
    assert torch.bfloat16 in tpu.get_device_capability()["supported_dtypes"]
    with tpu.device(0), tpu.device_of(torch.ones(1)):
        assert tpu.current_device() == 0


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.ones(2, device="tpu:1"),
        lambda: torch.ones(2).to("tpu:1"),
        lambda: torch.empty_like(torch.ones(2, device="tpu"), device="tpu:1"),
        lambda: tpu.set_device(1),
        lambda: tpu.synchronize("tpu:1"),
        lambda: torch.accelerator.set_device_index(1),
    ],
)
def test_there_is_no_second_device(use: Any) -> None:
    with pytest.raises(TpuError, match=r"expected device tpu:0, got tpu:1.*torchrun"):
        use()


def test_accelerator() -> None:
    accelerator: Any = torch.accelerator
    assert accelerator.current_accelerator() == torch.device("tpu")
    assert (accelerator.device_count(), accelerator.current_device_index()) == (1, 0)
    accelerator.synchronize()
    accelerator.empty_cache()
    accelerator.set_device_index(0)
    assert accelerator.current_stream() == tpu.current_stream()
    accelerator.set_stream(tpu.Stream())
    assert "supported_dtypes" in accelerator.get_device_capability()
    before = accelerator.memory_allocated()
    accelerator.reset_peak_memory_stats()
    x = torch.empty(1 << 16, device="tpu")
    assert accelerator.memory_allocated() == before + x.nbytes == accelerator.memory_reserved()
    del x
    assert accelerator.memory_allocated() == before
    assert accelerator.max_memory_allocated() == before + (1 << 18)
    assert len(accelerator.get_memory_info()) == 2


def test_memory_stats() -> None:
    stats = tpu.memory_stats()
    x = torch.empty(1000, device="tpu")
    assert tpu.memory_stats()["bytes_in_use"] == stats["bytes_in_use"] + x.nbytes
    assert tpu.memory_stats()["num_allocs"] == stats["num_allocs"] + 1
    assert "in use" in tpu._hbm_usage_summary()


def test_streams_and_events() -> None:
    stream = tpu.Stream(priority=-1)
    assert isinstance(stream, torch.Stream)
    assert stream == tpu.current_stream() == torch.Stream("tpu:0")
    assert hash(stream) == hash(tpu.default_stream())
    start, end = tpu.Event(enable_timing=True), tpu.Event(enable_timing=True)
    with pytest.raises(RuntimeError, match="must be recorded"):
        start.elapsed_time(end)
    with tpu.stream(stream):
        start.record()
    with stream:
        end.record(stream)
    stream.wait_event(end)
    stream.wait_stream(tpu.current_stream())
    stream.synchronize()
    assert stream.query()
    assert stream.record_event().query()
    assert start.elapsed_time(end) >= 0
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        tpu.Event().elapsed_time(end)


@pytest.mark.usefixtures("strict")
def test_modes() -> None:
    debug, strict = tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING, tpu.EagerMode.DEFER_NEVER
    assert tpu.eager_mode == strict
    with tpu.set_eager_mode(debug):
        assert tpu.eager_mode == debug
        assert (torch.ones(2, device="tpu") + 1).tolist() == [2, 2]
    tpu.eager_mode = debug
    tpu.eager_mode = strict
    with pytest.raises(TpuError, match=r"\[eager_mode\] expected an EagerMode, got 'quick'"):
        tpu.eager_mode = "quick"
    assert tpu.eager_mode == strict


def test_precision() -> None:
    assert torch.get_float32_matmul_precision() == "highest"
    with tpu.precision(tpu.Precision.DEFAULT):
        assert torch.get_float32_matmul_precision() == "medium"
    assert torch.get_float32_matmul_precision() == "highest"


def test_default_device() -> None:
    host = torch.ones(2)
    file = io.BytesIO()
    torch.save(host, file)
    for context in (torch.device("tpu"), _Default()):
        file.seek(0)
        with context:
            made = [
                torch.ones(2),
                torch.tensor([1.0]),
                torch.arange(3),
                torch.randperm(4),
                torch.randn(2),
            ]
            made += [nn.Linear(2, 2).weight, torch.from_numpy(host.numpy()).to("tpu")]
            assert {t.device.type for t in made} == {"tpu"}
            assert torch.load(file).device.type == "cpu"
    assert torch.ones(2).device.type == "cpu"


class _Default:
    """torch.set_default_device as a context."""

    def __enter__(self) -> None:
        torch.set_default_device("tpu")

    def __exit__(self, *_: object) -> None:
        torch.set_default_device(None)


def test_what_is_made_on_the_host_inside_stays_there(tmp_path: Path) -> None:
    """With tpu as the default device, storages are still saved, loaded and read."""
    x = torch.arange(6.0).tpu()
    with _Default():
        torch.save(x, tmp_path / "x")
        assert torch.load(tmp_path / "x").tolist() == x.tolist()
        assert x[:0].cpu().tolist() == []
        x.copy_(torch.ones(6, device="cpu"))
        count = torch.full((3,), 4.0)
        assert torch.binomial(count, torch.ones(3)).tolist() == [4.0] * 3
    assert x.tolist() == [1.0] * 6


def test_threads_share_the_device() -> None:
    results: list[float] = []
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            for step in range(12):
                x = torch.full((3 + step % 4,), float(index), device="tpu")
                x[1:].mul_(2)
                results.append(x.sum().item() - index * (1 + 2 * (2 + step % 4)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert results == [0.0] * 72


def test_forked_processes() -> None:
    run = subprocess.run(
        [sys.executable, "-c", FORKS],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=100,
        check=False,
    )
    assert run.stderr == ""
    refused = "TpuError: [torch.tpu] cannot use the device in a process forked after "
    assert run.stdout.splitlines() == [
        "2.0 0",
        "2.0 0",
        *[f"{refused[:70]} 0"] * 4,
        "(True, True) 0",
        "[6.0, 22.0]",
        "TpuError True",
        "[3.0, 3.0, 3.0, 3.0]",
    ]
