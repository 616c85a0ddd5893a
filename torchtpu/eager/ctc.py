"""F.ctc_loss: lengths travel as tensors, so that only the longest target is compiled in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from torchtpu.eager.view_ops import kernel

_library = torch.library.Library("torchtpu", "FRAGMENT")
_ARGUMENTS = (
    "Tensor log_probs, Tensor targets, Tensor starts, Tensor input_lengths, Tensor target_lengths"
)


def _derived(name: str) -> Any:
    from torchtpu.eager import dispatch

    return dispatch.derived[name]


def _loss_meta(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    starts: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    longest: int,
    blank: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    steps, batch, _ = log_probs.shape
    return log_probs.new_empty(batch), log_probs.new_empty((batch, steps, 2 * longest + 1))


def _backward_meta(grad: torch.Tensor, log_probs: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(log_probs)


_library.define(f"ctc_loss({_ARGUMENTS}, int longest, int blank) -> (Tensor, Tensor)")
_library.define(
    f"ctc_loss_backward(Tensor grad, {_ARGUMENTS}, Tensor neg_log_likelihood, int longest, "
    "int blank, bool zero_infinity) -> Tensor"
)
_library.impl("ctc_loss", _loss_meta, "CompositeExplicitAutograd")
_library.impl("ctc_loss_backward", _backward_meta, "CompositeExplicitAutograd")


def _lengths(
    targets: torch.Tensor, input_lengths: Sequence[int], target_lengths: Sequence[int]
) -> tuple[torch.Tensor, ...]:
    """Where each row's labels start in the flat targets, and both lengths, on the device."""
    ends = list(accumulate(target_lengths, initial=0))[:-1]
    rows = [i * targets.shape[1] for i in range(len(ends))] if targets.dim() == 2 else ends
    return tuple(
        torch.tensor(list(v), dtype=torch.int64).to(targets.device)
        for v in (rows, input_lengths, target_lengths)
    )


def _check(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int,
) -> None:
    steps, batch, classes = log_probs.shape
    if not 0 <= blank < classes:
        raise RuntimeError("blank must be in label range")
    if len(input_lengths) != batch or len(target_lengths) != batch:
        raise RuntimeError(
            f"input_lengths and target_lengths must be of size batch_size {batch}, got "
            f"{len(input_lengths)} and {len(target_lengths)}"
        )
    longest = max(input_lengths, default=0)
    if longest > steps:
        raise RuntimeError(
            f"Expected input_lengths to have value at most {steps}, but got value {longest}"
        )
    if targets.dim() == 1 and targets.numel() < sum(target_lengths):
        raise RuntimeError(f"Expected {sum(target_lengths)} targets, but got {targets.numel()}")


@kernel("aten::_ctc_loss")
def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> Any:
    """Losses and log alphas."""
    _check(log_probs, targets, input_lengths, target_lengths, blank)
    lengths = _lengths(targets, input_lengths, target_lengths)
    longest = max(target_lengths, default=0)
    return _derived("torchtpu::ctc_loss")(log_probs, targets, *lengths, longest, blank)


@kernel("aten::_ctc_loss.Tensor")
def ctc_loss_tensor(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Any:
    """Losses and log alphas; the lengths are read on the host."""
    lengths = (input_lengths.tolist(), target_lengths.tolist())
    return ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)


@kernel("aten::_ctc_loss_backward")
def ctc_loss_backward(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    neg_log_likelihood: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Any:
    """The gradient of log_probs."""
    lengths = _lengths(targets, input_lengths, target_lengths)
    return _derived("torchtpu::ctc_loss_backward")(
        grad,
        log_probs,
        targets,
        *lengths,
        neg_log_likelihood,
        max(target_lengths, default=0),
        blank,
        zero_infinity,
    )


@kernel("aten::_ctc_loss_backward.Tensor")
def ctc_loss_backward_tensor(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    neg_log_likelihood: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Any:
    """The gradient of log_probs; the lengths are read on the host."""
    return ctc_loss_backward(
        grad,
        log_probs,
        targets,
        input_lengths.tolist(),
        target_lengths.tolist(),
        neg_log_likelihood,
        log_alpha,
        blank,
        zero_infinity,
    )
