"""torch.compile without a backend: graphs with tensors on tpu go to backend "tpu"."""

from __future__ import annotations

import functools
from typing import Any

import torch

from torchtpu.private import torch as private


def install() -> None:
    """Let the wrapper of torch's default backend hand over what is on the device; idempotent."""
    wrapper: Any = private.TorchCompileInductorWrapper
    if not hasattr(wrapper, "_tpu_options"):
        wrapper._tpu_options = {}
        wrapper.apply_options = _apply_options(wrapper.apply_options)
        wrapper.apply_mode = _apply_mode(wrapper.apply_mode)
        wrapper.__call__ = _call(wrapper.__call__)


def _apply_mode(inductors: Any) -> Any:
    @functools.wraps(inductors)
    def apply_mode(self: Any, mode: str | None) -> None:
        self._tpu_mode = mode or "default"
        inductors(self, mode)

    return apply_mode


def _apply_options(inductors: Any) -> Any:
    """Options of backend "tpu" are taken out before Inductor refuses them."""

    @functools.wraps(inductors)
    def apply_options(self: Any, options: dict[str, Any] | None) -> None:
        if options:
            from torchtpu.compiler.options import NAMES

            ours = {k: v for k, v in options.items() if k in NAMES}
            self._tpu_options = {**self._tpu_options, **ours}
            options = {k: v for k, v in options.items() if k not in NAMES}
        inductors(self, options)

    return apply_options


def _call(inductors: Any) -> Any:
    @functools.wraps(inductors)
    def compile_(self: Any, module: Any, inputs: Any, **kwargs: Any) -> Any:
        if not _on_tpu(module, inputs):
            return inductors(self, module, inputs, **kwargs)
        from torchtpu.compiler.backend import backend

        return backend(module, inputs, mode=self._tpu_mode, options=self._tpu_options)

    return compile_


def _on_tpu(module: torch.fx.GraphModule, inputs: Any) -> bool:
    made = (node.meta.get("example_value") for node in module.graph.nodes)
    tensors = (t for t in (*inputs, *made) if isinstance(t, torch.Tensor))
    return any(t.device.type == "tpu" for t in tensors)
