"""Mixture of experts: routing, dispatch with and without dropped tokens, expert parallelism."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from examples.llm_config import Config, ModelError
from examples.llm_layers import Linear, Mlp, activate
from examples.llm_remat import product

# Rows for the experts, and what brings their results back.
Dispatched = tuple[Tensor, Callable[[Tensor], Tensor]]


class Exchange(torch.autograd.Function):
    """Equal parts of dim 0 to every rank of a group; its gradient is the same exchange."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        """[R * N, ...] -> [R * N, ...]."""
        ctx.group = group
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """The way back."""
        return exchange(grads[0], ctx.group), None


class Reorder(torch.autograd.Function):
    """Rows in another order; the gradient gathers by the inverse instead of scattering."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        """x [N, D], order [N] and its inverse -> [N, D]."""
        ctx.save_for_backward(order, inverse)
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """The way back."""
        return grads[0].index_select(0, ctx.saved_tensors[1]), None, None


class Taken(torch.autograd.Function):
    """Rows by number, a number past the last being a row of zeros; the gradient gathers too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, places: Tensor) -> Tensor:
        """x [B, N, D] and index [B, M] -> [B, M, D]; places [B, N, c]: where in index rows are."""
        ctx.save_for_backward(places)
        return _rows(x, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """The sum of the places of each row."""
        (places,) = ctx.saved_tensors
        rows = _rows(grads[0], places.flatten(1))
        return rows.view(*places.shape, -1).sum(2), None, None


def _rows(x: Tensor, index: Tensor) -> Tensor:
    padded = F.pad(x, (0, 0, 0, 1))
    first = torch.arange(len(x), device=x.device)[:, None] * padded.shape[1]
    rows = padded.flatten(0, 1).index_select(0, (index + first).flatten())
    taken_rows: Tensor = rows.unflatten(0, index.shape)
    return taken_rows


exchange: Callable[[Tensor, dist.ProcessGroup], Tensor] = Exchange.apply
reorder: Callable[[Tensor, Tensor, Tensor], Tensor] = Reorder.apply
taken: Callable[[Tensor, Tensor, Tensor], Tensor] = Taken.apply


class Experts(nn.Module):
    """The MLPs of the experts that this rank holds, as three stacked matrices."""

    def __init__(self, config: Config, count: int) -> None:
        super().__init__()
        self.config = config
        width, hidden = config.width, config.expert_hidden
        dtype = getattr(torch, config.param_dtype)
        self.gate = nn.Parameter(torch.empty(count, width, hidden, dtype=dtype))
        self.up = nn.Parameter(torch.empty(count, width, hidden, dtype=dtype))
        self.down = nn.Parameter(torch.empty(count, hidden, width, dtype=dtype))
        self.biases = nn.ParameterList(
            nn.Parameter(torch.empty(count, size, dtype=dtype))
            for size in ((hidden, hidden, width) if config.mlp_bias else ())
        )

    def forward(self, x: Tensor, owners: Tensor | None = None) -> Tensor:
        """Rows [E, N, D] of each expert, or rows [N, D] of the experts `owners` [N], ascending."""
        ends = None if owners is None else self._ends(owners)
        with product("gate"):
            gate = self._times(x, self.gate, ends)
        with product("up"):
            up = self._times(x, self.up, ends)
        gate, up = self._plus(gate, 0, owners), self._plus(up, 1, owners)
        with product("down"):
            y = self._times(activate(self.config, up, gate), self.down, ends)
        return self._plus(y, 2, owners)

    def _ends(self, owners: Tensor) -> Tensor:
        """Where the rows of each expert end [E]."""
        numbers = torch.arange(len(self.gate), device=owners.device)
        return (owners[:, None] == numbers).sum(0).cumsum(0).to(torch.int32)

    def _times(self, x: Tensor, weight: Tensor, ends: Tensor | None) -> Tensor:
        weight = weight.to(x.dtype)
        return torch.bmm(x, weight) if ends is None else F.grouped_mm(x, weight, offs=ends)

    def _plus(self, y: Tensor, number: int, owners: Tensor | None) -> Tensor:
        if not self.biases:
            return y
        bias: Tensor = self.biases[number].to(y.dtype)  # [E, D]
        return y + (bias[:, None] if owners is None else bias[owners])


class Moe(nn.Module):
    """Top-k experts for each token, and shared ones for all (arXiv:2401.06066).

    The load balancing loss is left out: it costs next to nothing and changes no shape.
    """

    def __init__(self, config: Config, ranks: int = 1) -> None:
        super().__init__()
        if config.experts % ranks:
            raise ModelError(
                f"[moe] {config.experts} experts cannot be split over {ranks} ranks "
                "(expert x tensor)"
            )
        self.config, self.ranks = config, ranks
        self.group: dist.ProcessGroup | None = None  # set where ranks > 1
        self.router = Linear(config, config.width, config.experts, bias=config.mlp_bias)
        self.experts = Experts(config, config.experts // ranks)
        shared = config.shared_experts * config.expert_hidden
        self.shared = Mlp(config, shared) if shared else None

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]; a sequence is the group whose experts have a capacity."""
        if x.shape[1] == 1 < x.shape[0]:  # decoding: all sequences are one group
            one_group: Tensor = self(x.transpose(0, 1)).transpose(0, 1)
            return one_group
        weights, chosen = self.route(x)
        if self.config.capacity_factor:
            y: Tensor = self._with_capacity(x, weights, chosen)
        else:
            y = self._dropless(x.flatten(0, 1), weights, chosen).view_as(x)
        return y if self.shared is None else y + self.shared(x)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the chosen experts, both [B, T, k]."""
        k, score = self.config.experts_per_token, self.router(x).float()
        if self.config.routing == "balanced":
            chosen = self._in_turn(x.shape[0], x.shape[1], x.device)
            top = score.gather(-1, chosen)
        else:
            top, chosen = score.topk(k, dim=-1)
        weights = torch.sigmoid(top) if self.config.router == "sigmoid" else top.softmax(-1)
        if self.config.router == "sigmoid" and k > 1:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(x.dtype), chosen

    def _in_turn(self, batch: int, length: int, device: torch.device) -> Tensor:
        """Experts dealt to tokens like cards: every expert gets as many."""
        k, experts = self.config.experts_per_token, self.config.experts
        if length * k % experts:
            raise ModelError(
                f"[moe] balanced routing: {length} tokens x {k} is no multiple of {experts} experts"
            )
        dealt = torch.arange(length * k, device=device) % experts
        return dealt.view(1, length, k).expand(batch, -1, -1)

    # With a capacity --------------------------------------------------------------------------

    def _with_capacity(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Each expert takes `capacity` tokens of a sequence; later ones lose it (Switch, 2.2)."""
        batch, length, width = x.shape
        experts, k = self.config.experts, self.config.experts_per_token
        capacity = math.ceil(length * k * self.config.capacity_factor / experts)
        slots = self._slots(chosen, capacity)  # [B, T * k]
        dispatch = _einsum_dispatch if self.config.dispatch == "einsum" else _gather_dispatch
        rows, collect = dispatch(x, weights, slots, experts * capacity)  # [B, E * C, D]
        rows = rows.view(batch, experts, capacity, width).transpose(0, 1)
        y = self._through(rows.reshape(experts, batch * capacity, width))
        return collect(y.view(experts, batch, capacity, width).transpose(0, 1).flatten(1, 2))

    def _slots(self, chosen: Tensor, capacity: int) -> Tensor:
        """The slot e * capacity + place of each choice [B, T * k]; experts * capacity: dropped."""
        flat = chosen.flatten(1)
        numbers = torch.arange(self.config.experts, device=chosen.device)
        takes = (flat[..., None] == numbers).int()  # [B, T * k, E]
        place = (takes.cumsum(1) * takes).sum(-1) - 1
        slot = flat * capacity + place
        return torch.where(place < capacity, slot, self.config.experts * capacity)

    # Without -----------------------------------------------------------------------------------

    def _dropless(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """x [N, D], weights and chosen [.., k] -> [N, D]: choices sorted by expert."""
        k, experts = self.config.experts_per_token, self.config.experts
        flat = chosen.reshape(-1)
        owners, order = flat.sort(stable=True)
        inverse = order.argsort()
        rows = x[:, None].expand(-1, k, -1).reshape(-1, x.shape[-1])  # [N * k, D]
        rows = reorder(rows, order, inverse)
        if self.config.routing == "balanced":
            y = self._through(rows.unflatten(0, (experts, -1))).flatten(0, 1)
        else:
            y = self._ragged(rows, owners)
        y = reorder(y, inverse, order).view(-1, k, x.shape[-1])
        return (y * weights.reshape(-1, k, 1)).sum(1)

    def _ragged(self, rows: Tensor, owners: Tensor) -> Tensor:
        """Rows of experts that have unequal many. Raises ModelError where experts are elsewhere."""
        if self.ranks > 1:
            raise ModelError(
                "[moe] without a capacity, how many rows go to each rank depends on the data; "
                "give --routing balanced, or --capacity-factor"
            )
        out: Tensor = self.experts(rows, owners)
        return out

    def _through(self, rows: Tensor) -> Tensor:
        """Rows [E, N, D] through their experts, wherever these are."""
        if self.group is None:
            out: Tensor = self.experts(rows)
            return out
        ranks, (experts, count, width) = self.ranks, rows.shape
        rows = exchange(rows, self.group)  # [R * E / R, N, D], first dim: who sent it
        rows = rows.view(ranks, experts // ranks, count, width).transpose(0, 1).flatten(1, 2)
        y = self.experts(rows)  # [E / R, R * N, D]
        y = y.unflatten(1, (ranks, count)).transpose(0, 1).flatten(0, 1)
        return exchange(y, self.group)


def _gather_dispatch(x: Tensor, weights: Tensor, slots: Tensor, total: int) -> Dispatched:
    """Rows [B, total, D] of the slots and the function that brings results back to [B, T, D]."""
    batch, length, _ = x.shape
    choices = slots.shape[1]
    by_token = slots.unflatten(1, (length, -1))  # [B, T, k]
    numbers = torch.arange(choices, device=x.device).expand(batch, -1)
    taker = torch.full((batch, total + 1), choices, device=x.device)  # `choices`: nobody's
    taker = taker.scatter(1, slots, numbers)[:, :total]
    source = torch.where(taker == choices, length, taker // by_token.shape[2])

    def collect(y: Tensor) -> Tensor:
        chosen = taken(y, slots, taker[..., None]).unflatten(1, by_token.shape[1:])
        summed: Tensor = (chosen * weights[..., None]).sum(2)
        return summed

    return taken(x, source, by_token), collect


def _einsum_dispatch(x: Tensor, weights: Tensor, slots: Tensor, total: int) -> Dispatched:
    """The same as products with one-hot matrices (GShard, arXiv:2006.16668, algorithm 1)."""
    length = x.shape[1]
    hot = slots[..., None] == torch.arange(total, device=x.device)  # [B, T * k, total]
    hot = hot.to(x.dtype).unflatten(1, (length, -1))  # [B, T, k, total]
    rows = torch.einsum("btd,bts->bsd", x, hot.sum(2))

    def collect(y: Tensor) -> Tensor:
        return torch.einsum("bsd,bts->btd", y, (hot * weights[..., None]).sum(2))

    return rows, collect
