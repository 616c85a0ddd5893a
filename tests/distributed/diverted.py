"""Has torch's own tests, written for CPU tensors and for cuda, run on one device of our choice.

Nothing is changed in their text. A mode of torch functions makes new tensors on the device where
the tests name none, and on it what they ask of an accelerator by name or number; DDP takes the one
device of its process for that of its rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

_NAMES = ("cuda", "tpu")


class Diverted(TorchFunctionMode):
    """Makes new tensors on `device` where none is named, and on it what an accelerator is asked."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device) if device == "cpu" else torch.device(device, 0)
        self._makers: set[Callable[..., Any]] = _device_constructors()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.device:
            return self._meant(torch.device(*args, **(kwargs or {})))
        named = {key: self._meant(value) for key, value in (kwargs or {}).items()}
        if func is torch.Tensor.cuda:
            return args[0].to(self._device)
        if isinstance(named.get("device"), int):
            named["device"] = self._device
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            return args[0].to(self._device, *args[2:], **named)
        if func in self._makers and named.get("device") is None:
            generator = named.get("generator")
            named["device"] = self._device if generator is None else generator.device
        return func(*(self._meant(a) for a in args), **named)

    def _meant(self, value: Any) -> Any:
        return self._device if is_accelerator(value) else value


def is_accelerator(value: Any) -> bool:
    """Tell whether a value names cuda or tpu, with or without a number."""
    if isinstance(value, torch.device):
        return value.type in _NAMES
    return isinstance(value, str) and value.partition(":")[0] in _NAMES


class _Ddp(DistributedDataParallel):
    """DDP whose device_ids, if there are any, are the one device of this process."""

    def __init__(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        on_cpu = all(p.is_cpu for p in module.parameters())
        for name, one in (("device_ids", [0]), ("output_device", 0)):
            if kwargs.get(name) is not None:
                kwargs[name] = None if on_cpu else one
        super().__init__(module, *args, **kwargs)


def _on_cpu(expected: Callable[..., Any]) -> Callable[..., Any]:
    """Sums of sparse tensors hold more entries on a device, where nothing is merged."""

    def made(*args: Any, **kwargs: Any) -> Any:
        with torch.device("cpu"):
            return expected(*args, **kwargs)

    return made


@contextmanager
def diverted(device: str, tests: Any) -> Iterator[None]:
    """Run what follows, and the tests of the module `tests`, on `device` ("cpu" or "tpu")."""
    cuda: dict[str, Any] = {
        "set_device": lambda _: None,
        "synchronize": lambda device=None: None,
        "manual_seed": torch.manual_seed,
        "current_device": lambda: 0,
        "device": lambda *_: nullcontext(),
    }
    ours: dict[str, Any] = {
        "init_multigpu_helper": lambda size, _backend: {rank: [0] for rank in range(size)},
        "DistributedDataParallel": _Ddp,
        "simple_sparse_reduce_tests": _on_cpu(tests.simple_sparse_reduce_tests),
    }
    with ExitStack() as stack:
        for name, value in cuda.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        for name, value in ours.items():
            stack.enter_context(mock.patch.object(tests, name, value))
        stack.enter_context(mock.patch.object(torch.nn.parallel, "DistributedDataParallel", _Ddp))
        stack.enter_context(Diverted(device))
        yield


@contextmanager
def gates_open() -> Iterator[None]:
    """Import torch's tests in this: none of them is left out because there is no GPU here."""
    from torch.testing._internal import common_distributed as common

    def always(*_: Any, **__: Any) -> Callable[[Any], Any]:
        return lambda test: test

    with ExitStack() as stack:
        for name in ("skip_if_no_gpu", "skip_if_small_worldsize"):
            stack.enter_context(mock.patch.object(common, name, lambda test: test))
        for name in ("skip_if_lt_x_gpu", "requires_nccl_version", "nccl_skip_if_lt_x_gpu"):
            stack.enter_context(mock.patch.object(common, name, always))
        yield
