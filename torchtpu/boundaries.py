"""Where a program's steps end: `optimizer.step()`, and where code without gradients ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def watch(ended: Callable[[], None]) -> list[Any]:
    """Call `ended` at the end of each step from now on; return handles with a `remove()`.

    Global module hooks would see the same, but torch.compile warns of them.
    """
    return [
        register_optimizer_step_post_hook(lambda *_: ended()),
        _Exit(torch.no_grad, ended),
        _Exit(torch.inference_mode, ended),
    ]


class _Exit:
    """Follows the `__exit__` of a context manager that turns gradients off."""

    def __init__(self, manager: Any, ended: Callable[[], None]) -> None:
        exit_ = manager.__exit__

        def left(self: Any, *args: Any) -> None:
            exit_(self, *args)
            if torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
                ended()

        self._manager, self._exit = manager, exit_
        manager.__exit__ = left

    def remove(self) -> None:
        """Put the method back."""
        self._manager.__exit__ = self._exit
