"""The ways to train a model that the modes stand for: what differs between them, and only that."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from benchmarks.models import CASES, LEARNING_RATE, loss_of

Step = Callable[[Tensor, Tensor], Tensor]
Wrap = Callable[[nn.Module, torch.optim.Optimizer], tuple[Any, Step]]  # what is called, and a step


class Way(Protocol):
    """A model with its batches on a device."""

    def step(self) -> Any:
        """Train on the next batch; return its loss without waiting for it."""

    def infer(self) -> Any:
        """Return the logits of the first batch without waiting for them."""

    def schedule(self, factor: float) -> None:
        """Let the next step use the learning rate times a factor."""

    def wait(self, value: Any) -> None:
        """Read a value of the device, and with it wait for all that it depends on."""

    def compiles(self) -> int:
        """Programs that this process has compiled."""


class TorchWay:
    """A training loop in torch; the mode decides what is wrapped into what."""

    def __init__(self, model: str, mode: str) -> None:
        self._device = "cpu" if mode in ("torch_cpu", "inductor") else "tpu"
        module, batches = CASES[model].make()
        self._module = module.to(self._device)
        on_device = [(x.to(self._device), y.to(self._device)) for x, y in batches]
        self._first, self._batches = on_device[0][0], itertools.cycle(on_device)
        self._optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE)
        wrap: Wrap = _WRAPPED.get(mode, _plain)
        self._called, self._step = wrap(module, self._optimizer)
        self._compiles = _inductor_compiles if mode == "inductor" else _tpu_compiles
        self._synchronize()

    def step(self) -> Tensor:
        """One turn of the loop that every tutorial has."""
        loss: Tensor = self._step(*next(self._batches))
        return loss

    def infer(self) -> Tensor:
        """The model in eval mode without gradients; training goes on afterwards."""
        self._module.eval()
        with torch.no_grad():
            logits: Tensor = self._called(self._first)
        self._module.train()
        return logits

    def schedule(self, factor: float) -> None:
        """What torch's schedulers do: a new number in the optimizer's groups."""
        for group in self._optimizer.param_groups:
            group["lr"] = LEARNING_RATE * factor

    def wait(self, value: Tensor) -> None:
        """Copy to the host."""
        value.cpu()
        self._synchronize()

    def compiles(self) -> int:
        """Counted by the backend; torch's eager CPU has none."""
        return self._compiles()

    def _synchronize(self) -> None:
        if self._device == "tpu":
            torch.tpu.synchronize()


def _plain(module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Step]:
    return module, _loop(module, optimizer)


def _loop(call: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(call(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _compiled(backend: str) -> Wrap:
    """The model compiled, the loop and the optimizer as they are."""

    def wrap(module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Step]:
        import torch._inductor.compile_fx  # imports are no part of the first step

        called = torch.compile(module, backend=backend)
        return called, _loop(called, optimizer)

    return wrap


def _compiled_step(module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Step]:
    """The function of the whole step compiled."""
    called, _ = _compiled("tpu")(module, optimizer)
    return called, torch.compile(_loop(module, optimizer), backend="tpu")


def _trainer(module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Step]:
    """The whole step as one program, by the trainer that torch_tpu has for it."""
    called, _ = _compiled("tpu")(module, optimizer)
    trainer: Step = torch.tpu.optimizers.SingleTraceTrainer(module, optimizer, loss_of)
    return called, trainer


_WRAPPED: dict[str, Wrap] = {
    "compiled": _compiled("tpu"),
    "inductor": _compiled("inductor"),
    "compiled_step": _compiled_step,
    "trainer": _trainer,
}


def _tpu_compiles() -> int:
    return int(torch.tpu._get_cache_stats()["num_compilations"]) if "tpu" in vars(torch) else 0


def _inductor_compiles() -> int:
    from torch._dynamo.utils import counters

    return int(counters["inductor"]["fxgraph_cache_miss"])


class JaxWay:
    """The hand-written step of hand_written.py."""

    def __init__(self, model: str) -> None:
        import jax

        from benchmarks import hand_written

        self._compiles = 0
        jax.monitoring.register_event_duration_secs_listener(self._count)
        jax.monitoring.register_event_listener(self._count)
        module, batches = CASES[model].make()
        weights = {name: t.numpy() for name, t in module.state_dict().items()}
        self._trainer = hand_written.Trainer(model, weights)
        on_device = [hand_written.batch_of(x.numpy(), y.numpy()) for x, y in batches]
        jax.block_until_ready(on_device)
        self._first, self._batches = on_device[0][0], itertools.cycle(on_device)
        self._rate = LEARNING_RATE
        self._compiles = 0

    def step(self) -> Any:
        """The jitted step."""
        return self._trainer.step(*next(self._batches), self._rate)

    def infer(self) -> Any:
        """The jitted forward."""
        return self._trainer.infer(self._first)

    def schedule(self, factor: float) -> None:
        """An argument of the step."""
        self._rate = LEARNING_RATE * factor

    def wait(self, value: Any) -> None:
        """Copy to the host."""
        value.block_until_ready()

    def compiles(self) -> int:
        """Compilations that jax's persistent cache did not spare."""
        return self._compiles

    def _count(self, event: str, *_: Any, **__: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            self._compiles += 1
        elif event == "/jax/compilation_cache/cache_hits":
            self._compiles -= 1


def make(model: str, mode: str) -> Way:
    """The model in a mode; eager modes are what TORCHTPU_MODE says."""
    return JaxWay(model) if mode == "jax" else TorchWay(model, mode)
