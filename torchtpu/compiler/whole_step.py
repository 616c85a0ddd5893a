"""Whole steps: a Python function of modules and optimizers as one program, replayed without Python.

The function runs once on stand-ins, with everything it launches gathered: forward, backward and
optimizer. From then on a call feeds the arrays of modules, optimizers and arguments to the program
and puts its results back, as long as nothing that the function could have looked at has changed.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch

from torchtpu import executor
from torchtpu.compiler import plan
from torchtpu.compiler.graph import buffer_or_none, kind_of
from torchtpu.eager.capture import CannotCapture, Capture, capturing
from torchtpu.private.torch import pytree
from torchtpu.program import Program
from torchtpu.storage import Buffer

_TENSORS = slice(4, 6)  # of a key: the buffers of modules, the states of optimizers
_MAX_STEPS = 16  # kinds of arguments whose programs are kept


class _Step(NamedTuple):
    """A captured step: its plan, the buffers it reads and writes beside those of the arguments."""

    plan: plan.Plan
    state: tuple[Buffer | None, ...]  # None: neither read nor written
    results: Any  # the tree of what the function returned
    settings: Any  # of the optimizers, as they were


class Traced(NamedTuple):
    """The program of a step, and what its values are."""

    program: Program
    inputs: list[Buffer | None]  # None: random keys, or what the function makes of no tensor
    places: list[int | None]  # by output: the input whose new contents it is


class WholeStep:
    """Makes one program of `fn(*args)`.

    modules, optimizers: whose tensors the function reads and writes. Tensors are returned without
    gradients. As under jax.jit, Python side effects happen only when the function is captured: at
    the first call, and where arguments' shapes, modes of modules, hyperparameters or the tensors
    of modules and optimizers are not what they were.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        modules: Sequence[torch.nn.Module] = (),
        optimizers: Sequence[torch.optim.Optimizer] = (),
    ) -> None:
        self._fn = fn
        self._modules = [m for root in modules for m in root.modules()]
        self._tensors = [t for m in modules for t in (*m.parameters(), *m.buffers())]
        self._optimizers = tuple(optimizers)
        self._steps: dict[Any, _Step] = {}
        self._latest: tuple[Any, _Step | None] = None, None
        self._op_by_op = False

    def __call__(self, *args: Any) -> Any:
        """Run the step; arguments are trees of tensors and constants."""
        if self._op_by_op:
            return self._fn(*args)
        leaves, tree = _flattened(args)
        leaves = [_on_device(leaf) for leaf in leaves]
        buffers = [buffer_or_none(leaf) for leaf in leaves]
        key = self._key(leaves, buffers, tree)
        known, step = self._latest
        if key != known:  # comparing is quicker than hashing
            step = self._steps.get(key)
            self._latest = key, step
        if step is None or step.settings != self._settings():
            try:
                step = self._capture(leaves, buffers, tree, key)
            except CannotCapture as error:
                warnings.warn(f"[torchtpu] the step runs op by op: {error}", stacklevel=2)
                self._op_by_op = True
                return self._fn(*args)
        results = step.plan.run(leaves if step.plan.kept else [], [*buffers, *step.state])
        torch.autograd.graph.increment_version(self._tensors)
        return _unflattened(results, step.results)

    @contextmanager
    def traced(self, *args: Any) -> Iterator[Traced]:
        """Give the program of a step that is not the optimizers' first; nothing is run.

        Inside, optimizers have the states that they will have then. Raises CannotCapture.
        """
        leaves, tree = _flattened(args)
        leaves = [_on_device(leaf) for leaf in leaves]
        buffers = [buffer_or_none(leaf) for leaf in leaves]
        with self._undone(self._host_state(), keep=False):
            for _ in range(2 if self._optimizers else 1):  # the first step makes their states
                step = self._capture(leaves, buffers, tree, self._key(leaves, buffers, tree))
            made, held = step.plan, [*buffers, *step.state]
            given = dict(made.given)
            inputs = [held[given[n]] if n in given else None for n in range(len(made.fixed))]
            place = {function: n for n, function in made.given}
            places = [None] * len(made.factories) + [place.get(n) for n in made.written]
            yield Traced(made.call.program, inputs, places)

    def _key(self, leaves: Sequence[Any], buffers: Sequence[Any], tree: Any) -> Any:
        """Everything but numbers that the function may depend on."""
        return (
            tree,
            kind_of(leaves, buffers),
            tuple([m.training for m in self._modules]),
            tuple([t.requires_grad for t in self._tensors]),
            tuple([t.untyped_storage()._tpu_buffer for t in self._tensors]),  # type: ignore[attr-defined]
            tuple([(id(o.state), len(o.param_groups)) for o in self._optimizers]),
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("tpu") and torch.get_autocast_dtype("tpu"),
            executor.matmul_precision(),
        )

    def _settings(self) -> Any:
        found = [
            value
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for name, value in group.items()
            if name != "params"
        ]
        return [_setting(v) for v in found] if torch.Tensor in map(type, found) else found

    def _capture(self, leaves: Sequence[Any], buffers: Sequence[Any], tree: Any, key: Any) -> _Step:
        settings, host = self._settings(), self._host_state()
        before, grads = self._state(), self._gradients()
        with (
            self._undone(host, keep=True),
            capturing() as capture,
            _Loan(capture, len(leaves)) as loan,
        ):
            for buffer in {id(b): b for b in (*before, *grads) if b is not None}.values():
                loan.take(buffer)
            stand_ins = plan.StandIns(capture, leaves, buffers)
            returned = self._fn(*_unflattened(stand_ins.values, tree))
            self._check_host(host)
            results, result_tree = _flattened(_detached(returned))
            del returned
            gc.collect()  # what only a cycle keeps alive is no result
            made = plan.finish(self._name, capture, stand_ins, results, loan.changed())
            first = len(leaves)
            read = {id(loan.buffers[n - first]) for _, n in made.given if n >= first}
            used = {*(n for _, n in made.given), *made.written}
            state = [b if n in used else None for n, b in enumerate(loan.buffers, first)]
            step = _Step(made, tuple(state), result_tree, settings)
        is_same = [id(b) for b in self._state()] == [id(b) for b in before]
        if is_same and all(map(partial(_is_replaced, read), grads, self._gradients())):
            # Steps of other tensors would keep those alive.
            kept = {k: s for k, s in self._steps.items() if k[_TENSORS] == key[_TENSORS]}
            self._steps = kept if len(kept) < _MAX_STEPS else {}
            self._steps[key] = step  # else the next call sees other tensors than this one
            self._latest = key, step
        return step

    @property
    def _name(self) -> str:
        return f"step_{getattr(self._fn, '__name__', 'call')}"

    def _gradients(self) -> list[Buffer | None]:
        """The buffers of the modules' gradients, None where there is none."""
        return [buffer_or_none(t.grad) for t in self._tensors]

    def _state(self) -> list[Buffer]:
        """The buffers of modules and optimizers, each once."""
        tensors = list(self._tensors)
        for optimizer in self._optimizers:
            leaves = pytree.tree_leaves([optimizer.param_groups, list(optimizer.state.values())])
            tensors += [t for t in leaves if isinstance(t, torch.Tensor)]
        found = [buffer_or_none(t) for t in tensors if t is not None]
        return list({id(b): b for b in found if b is not None}.values())

    def _host_state(self) -> dict[Any, Any]:
        """What optimizers keep on the host: numbers and tensors of the CPU."""
        return {
            (p, name): value.clone() if isinstance(value, torch.Tensor) else value
            for optimizer in self._optimizers
            for p, state in optimizer.state.items()
            for name, value in state.items()
            if isinstance(value, (int, float)) or _is_on_cpu(value)
        }

    def _check_host(self, before: dict[Any, Any]) -> None:
        for (p, name), value in self._host_state().items():
            old = before.get((p, name))
            if old is None or bool(torch.as_tensor(old != value, device="cpu").any()):
                raise CannotCapture(
                    f"[optimizer] {name!r} of its state changes on the host at each step, expected "
                    "it on the device: pass fused=True or capturable=True if the optimizer has it"
                )

    @contextmanager
    def _undone(self, host: dict[Any, Any], *, keep: bool) -> Iterator[None]:
        """Put gradients and optimizer states back at the end; keep: only if there is an error."""
        grads = [t.grad for t in self._tensors]
        states = [{p: dict(s) for p, s in o.state.items()} for o in self._optimizers]
        is_kept = False
        try:
            yield
            is_kept = keep
        finally:
            if not is_kept:
                self._put_back(host, grads, states)

    def _put_back(self, host: dict[Any, Any], grads: list[Any], states: list[Any]) -> None:
        for (p, name), value in host.items():
            for state in (s[p] for s in states if p in s):
                if isinstance(value, torch.Tensor):
                    state[name].copy_(value)
        for tensor, grad in zip(self._tensors, grads, strict=True):
            tensor.grad = grad
        for optimizer, state in zip(self._optimizers, states, strict=True):
            optimizer.state.clear()
            optimizer.state.update(state)


class _Loan:
    """Buffers whose contents stand for inputs while a function is captured."""

    def __init__(self, capture: Capture, first: int) -> None:
        self.buffers: list[Buffer] = []
        self._capture = capture
        self._first = first
        self._arrays: list[Any] = []
        self._placed: list[Any] = []
        self._zeros: dict[int, Buffer] = {}  # new states of an optimizer, by their arrays

    def __enter__(self) -> _Loan:
        self._capture.adopt = self._adopt
        Buffer.on_zeros = lambda buffer: self._zeros.update({id(buffer.array): buffer})
        return self

    def __exit__(self, *_: object) -> None:
        self._capture.adopt = Buffer.on_zeros = None
        for buffer, array in zip(self.buffers, self._arrays, strict=True):
            buffer.array = array

    def take(self, buffer: Buffer) -> None:
        """Let a buffer stand for the next input."""
        self.buffers.append(buffer)
        self._arrays.append(buffer.array)
        self._capture.placeholder(buffer, self._first + len(self.buffers) - 1)
        self._placed.append(buffer.array)

    def changed(self) -> list[plan.Changed]:
        """What the function leaves other than it was, and what it made and somebody still holds."""
        found = [
            plan.Changed(self._first + i, b, placed.wire)
            for i, (b, placed) in enumerate(zip(self.buffers, self._placed, strict=True))
            if b.array is not placed
        ]
        lent = {id(b) for b in self.buffers}
        for buffer in self._capture.survivors():
            if id(buffer) not in lent:
                found.append(plan.Changed(self._first + len(self.buffers), buffer, 0))
                self.buffers.append(buffer)
                self._arrays.append(None)
        return found

    def _adopt(self, array: Any) -> Any:
        """Find the buffer of an array that the function uses and nobody named."""
        known = self._zeros.get(id(array))
        for holder in [known] if known is not None else gc.get_referrers(array):
            if type(holder) is Buffer and holder.array is array:
                self.take(holder)
                return holder.array
        return None


def _is_replaced(read: set[int], before: Buffer | None, after: Buffer | None) -> bool:
    """Tell whether the next call finds a gradient as this one did, if only in another buffer.

    read: ids of the buffers whose contents the step uses.
    """
    if before is None or after is None:
        return before is after
    return before is after or id(before) not in read


def _setting(value: Any) -> Any:
    if _is_on_cpu(value):
        return value.tolist()
    return id(value) if isinstance(value, torch.Tensor) else value


def _is_on_cpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _flattened(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and structure; that of a tensor is None, and that of a tuple of n tensors is n."""
    if isinstance(tree, torch.Tensor):
        return [tree], None
    if type(tree) is tuple and all(isinstance(leaf, torch.Tensor) for leaf in tree):
        return list(tree), len(tree)
    return pytree.tree_flatten(tree)


def _unflattened(leaves: list[Any], tree: Any) -> Any:
    if tree is None:
        return leaves[0]
    return tuple(leaves) if type(tree) is int else pytree.tree_unflatten(leaves, tree)


def _on_device(leaf: Any) -> Any:
    """A batch may come from the host, as under jax.jit."""
    is_foreign = isinstance(leaf, torch.Tensor) and leaf.device.type != "tpu"
    return leaf.to("tpu") if is_foreign else leaf


def _detached(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, tree)
