"""Where a launch comes from: aten op, module path and source line, in forward and in backward."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from torchtpu.eager import blame
from torchtpu.perf_model.program import Provenance
from torchtpu.private import torch as private


class Tracker:
    """Follows the module calls of the process; backward ops get the place of their forward op."""

    def __init__(self) -> None:
        self.roots: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.depth = 0
        self._stack: list[str] = []
        self._paths: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._forward: dict[int, tuple[str, str]] = {}  # autograd sequence number -> module, line
        self._handles = [
            torch_module.register_module_forward_pre_hook(self._enter),
            torch_module.register_module_forward_hook(self._leave, always_call=True),
        ]

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def place(self, op: str) -> Provenance:
        """Return the provenance of a launch of `op` that happens now."""
        node: Any = private.current_autograd_node()  # None outside backward
        if node is not None:
            module, source = self._forward.get(node._sequence_nr(), ("", ""))
            return Provenance(op=op, module=module, source=source)
        module, source = self._stack[-1] if self._stack else "", blame.user_line()
        if torch.is_grad_enabled():
            self._forward[private.sequence_nr() - 1] = (module, source)
        return Provenance(op=op, module=module, source=source)

    def _enter(self, module: torch.nn.Module, _inputs: Any) -> None:
        if self.depth == 0:
            self.roots.add(module)
        if module not in self._paths:
            name = type(module).__name__
            for path, child in module.named_modules():
                self._paths.setdefault(child, f"{name}.{path}" if path else name)
        self.depth += 1
        self._stack.append(self._paths[module])

    def _leave(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        self.depth -= 1
        if self._stack:
            self._stack.pop()
