"""Records what a running script launches on the abstract device, cut into steps."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from torchtpu.eager import blame, kernel, modes
from torchtpu.estimate.provenance import Tracker
from torchtpu.generator import device_keys
from torchtpu.perf_model.program import NOWHERE
from torchtpu.perf_model.trace import Buffer, Call, StepTrace
from torchtpu.sim.observed import AbstractArray, Launch, Observed
from torchtpu.storage import Buffer as DeviceBuffer
from torchtpu.storage import buffer_of


class EnoughSteps(BaseException):
    """Raised out of the script when as many steps were seen as were asked for."""


class Recorder:
    """Observes a simulated device; a mode of its own tells it the op of each launch.

    A step ends with `optimizer.step()`. A call of an outermost module without gradients is a step
    of its own (inference, evaluation). Launches before the first module call are set-up, no step.
    """

    def __init__(self, target: Observed, max_steps: int) -> None:
        self.steps: list[StepTrace] = []
        self.read_at: Counter[str] = Counter()
        self.setup_launches = 0
        self._max_steps = max_steps
        self._target = target
        self._tracker = Tracker()
        self._op = ""
        self._calls: list[Call] = []
        self._known: dict[int, weakref.ref[AbstractArray]] = {}
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._before: dict[int, Buffer] = {}
        self._made: set[int] = set()
        self._used: set[int] = set()  # values that the host has read
        self._started = False
        target.observer = self._launched
        target.on_read = self._read
        self._previous, modes.current = modes.current, self
        self._handles = [
            register_optimizer_step_post_hook(self._optimizer_stepped),
            torch_module.register_module_forward_pre_hook(self._module_enters),
            torch_module.register_module_forward_hook(self._module_left),
        ]

    def close(self) -> None:
        """Stop recording."""
        for handle in self._handles:
            handle.remove()
        self._tracker.close()
        self._target.observer, modes.current = None, self._previous

    def finish(self) -> None:
        """End the script: what follows the last step is a step only where there is no other."""
        if not self.steps and self._calls:
            self._cut("script")

    # The mode ---------------------------------------------------------------------------------

    def launch(self, call: Any, arrays: Sequence[Any], targets: Sequence[DeviceBuffer]) -> None:
        """Run a prepared call under its name."""
        self._op = call.name
        try:
            modes.STRICT.launch(call, arrays, targets)
        finally:
            self._op = ""

    def flush(self) -> None:
        """Launch what is held back: nothing."""

    launch_whole = launch
    enter = leave = flush
    random_key = staticmethod(device_keys)

    # What the target tells ----------------------------------------------------------------------

    def _launched(self, launch: Launch) -> None:
        place = self._tracker.place(self._op) if self._op else NOWHERE
        self._note(launch.inputs)
        self._note(launch.outputs)
        self._calls.append(
            Call(
                graph=launch.graph,
                inputs=tuple(a.serial for a in launch.inputs),
                outputs=tuple(a.serial for a in launch.outputs),
                reuse=launch.reuse,
                provenance=place,
            )
        )
        for a in launch.inputs:
            if a.serial not in self._before and a.serial not in self._made:
                self._before[a.serial] = Buffer(size_bytes=_nbytes(a), kind="input")
        self._made.update(a.serial for a in launch.outputs)

    def _read(self, array: AbstractArray) -> np.ndarray[Any, Any]:
        self.read_at[blame.user_line()] += 1
        self._used.add(array.serial)
        return np.zeros(array.shape, array.dtype)

    def _note(self, arrays: Iterable[AbstractArray]) -> None:
        for array in arrays:
            if array.serial not in self._known:
                self._known[array.serial] = weakref.ref(array)

    # Where steps begin and end ------------------------------------------------------------------

    def _module_enters(self, _module: torch.nn.Module, _inputs: Any) -> None:
        if self._tracker.depth == 1 and (not self._started or not torch.is_grad_enabled()):
            if not self._started:
                self.setup_launches = len(self._calls)
            self._begin()

    def _module_left(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if self._tracker.depth == 0 and not torch.is_grad_enabled():
            self._cut("forward")

    def _optimizer_stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._optimizers.add(optimizer)
        self._cut("training step")

    def _begin(self) -> None:
        """Forget launches that belong to no step, and take stock of what is alive."""
        self._started = True
        self._calls = []
        self._made = set()
        self._before = self._alive()

    def _cut(self, name: str) -> None:
        alive = self._alive()
        self.steps.append(
            StepTrace(
                calls=tuple(self._calls),
                live_before=self._before,
                live_after=frozenset(alive) | (self._used & self._made),
                kinds={
                    s: b.kind for s, b in alive.items() if s in self._made and b.kind != "other"
                },
                name=name,
            )
        )
        self._begin()
        if len(self.steps) >= self._max_steps:
            raise EnoughSteps

    def _alive(self) -> dict[int, Buffer]:
        kinds = self._kinds()
        numbers = {a.serial for a in kernel.kept_numbers()}
        alive: dict[int, Buffer] = {}
        for serial, reference in list(self._known.items()):
            array = reference()
            if array is None:
                del self._known[serial]
            elif serial not in numbers:
                alive[serial] = Buffer(size_bytes=_nbytes(array), kind=kinds.get(serial, "other"))
        return alive

    def _kinds(self) -> dict[int, str]:
        kinds: dict[int, str] = {}
        for root in list(self._tracker.roots):
            for parameter in root.parameters():
                _mark(kinds, parameter.grad, "gradient")
                _mark(kinds, parameter, "parameter")
        for optimizer in list(self._optimizers):
            for state in optimizer.state.values():
                for value in state.values():
                    _mark(kinds, value, "optimizer_state")
        return kinds


def _mark(kinds: dict[int, str], value: Any, kind: str) -> None:
    value = getattr(value, "_local_tensor", value)  # a DTensor's part that is here
    if isinstance(value, torch.Tensor) and value.device.type == "tpu":
        array = buffer_of(value.untyped_storage()).array
        if isinstance(array, AbstractArray):
            kinds[array.serial] = kind


def _nbytes(array: AbstractArray) -> int:
    return int(np.prod(array.shape, dtype=np.int64)) * array.dtype.itemsize
