"""DTensor and tensor parallelism, by torch's DTensorTestBase in worlds of four ranks.

`python -m tests.distributed.upstream --suite dtensors` runs them, on gloo and on tpu_dist: pytest
by itself does not. Each compares with the same computed without DTensor.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from typing import Any, ClassVar, cast

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    empty,
    full,
    ones,
    rand,
    randn,
    zeros,
)
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.testing._internal.distributed._tensor.common_dtensor import (
    DTensorTestBase,
    MLPModule,
    ModelArgs,
    Transformer,
)

SIZE = 4
Plan = dict[str, Any]


def gathered(found: Any) -> torch.Tensor:
    """Return all of what is spread."""
    made: torch.Tensor = found.full_tensor()
    return made


class DTensors(DTensorTestBase):
    """The tests; the process group is there already, and `device` chosen."""

    device: ClassVar[str] = "tpu"
    rank: int

    @property
    def world_size(self) -> int:
        return SIZE

    @property
    def device_type(self) -> str:
        return self.device

    def mesh(self, *shape: int) -> DeviceMesh:
        """A mesh of all ranks: one line of them, or `shape`."""
        names = ("data", "tensor", "third")[: len(shape) or 1]
        return init_device_mesh(self.device, shape or (SIZE,), mesh_dim_names=names)

    def values(self, *shape: int, seed: int = 0) -> torch.Tensor:
        """The same random numbers on every rank."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator, device="cpu").to(self.device)

    def same(self, found: Any, expected: Any, what: str | None = None, **how: Any) -> None:
        """Assert that tensors, or lists and dicts of them, have equal values."""
        self.assertEqual(found, expected, msg=what, **how)  # noqa: PT009  # torch's own

    # Redistribution -----------------------------------------------------------------------------

    def _each_to_each(self, mesh: DeviceMesh, shape: tuple[int, ...]) -> None:
        whole = self.values(*shape)
        kinds: list[Placement] = [Replicate(), *(Shard(d) for d in range(len(shape)))]
        kinds += [Partial("sum"), Partial("avg"), Partial("max"), Partial("min")]
        for source, to in itertools.product(kinds, kinds):
            if to.is_partial():
                continue
            given = self._given(whole, mesh, source)
            made = given.redistribute(mesh, [to])
            self.same(made.placements, (to,))
            expected = given.full_tensor() if source.is_partial() else whole
            self.same(made.full_tensor(), expected, what=f"{source} to {to}")

    def _given(self, whole: torch.Tensor, mesh: DeviceMesh, kind: Placement) -> DTensor:
        if not kind.is_partial():
            return distribute_tensor(whole, mesh, [kind])
        return DTensor.from_local(whole * (self.rank + 1), mesh, [kind])

    def test_redistributes_even_shards(self) -> None:
        self._each_to_each(self.mesh(), (8, 4, 12))

    def test_redistributes_uneven_shards(self) -> None:
        self._each_to_each(self.mesh(), (5, 7))

    def test_redistributes_fewer_rows_than_ranks(self) -> None:
        self._each_to_each(self.mesh(), (2, 3))

    def test_redistributes_empty_ones(self) -> None:
        self._each_to_each(self.mesh(), (0, 3))

    def test_partial_reduces(self) -> None:
        mesh = self.mesh()
        factors = torch.arange(1.0, SIZE + 1)
        x = self.values(6, 4)
        for reduce, expected in {
            "sum": x * factors.sum(),
            "avg": x * factors.mean(),
            "max": torch.maximum(x * 1, x * SIZE),
            "min": torch.minimum(x * 1, x * SIZE),
        }.items():
            given = DTensor.from_local(x * (self.rank + 1), mesh, [Partial(reduce)])
            self.same(given.full_tensor(), expected.to(self.device))
            self.same(given.redistribute(mesh, [Shard(0)]).full_tensor(), expected)

    def test_redistributes_on_two_dims(self) -> None:
        mesh, whole = self.mesh(2, 2), self.values(6, 8)
        kinds: list[Placement] = [Replicate(), Shard(0), Shard(1)]
        for source, to in itertools.product(itertools.product(kinds, kinds), repeat=2):
            made = distribute_tensor(whole, mesh, source).redistribute(mesh, to)
            self.same(made.full_tensor(), whole, what=f"{source} to {to}")

    def test_redistributes_partials_on_two_dims(self) -> None:
        mesh, x = self.mesh(2, 2), self.values(6, 8)
        for to in itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2):
            given = DTensor.from_local(x, mesh, [Partial(), Partial()])
            self.same(given.redistribute(mesh, to).full_tensor(), x * SIZE, what=f"{to}")

    def test_gradients_are_redistributed(self) -> None:
        mesh = self.mesh()
        for source, to in itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2):
            given = distribute_tensor(self.values(5, 8), mesh, [source]).requires_grad_()
            weights = distribute_tensor(self.values(5, 8, seed=1), mesh, [to])
            (given.redistribute(mesh, [to]) * weights).sum().backward()
            self.same(gathered(given.grad), self.values(5, 8, seed=1))

    def test_strided_shards_of_fsdp_and_tp(self) -> None:
        mesh = self.mesh(2, 2)
        torch.manual_seed(0)
        net = MLPModule(self.device)
        expected = {n: p.detach().clone() for n, p in net.named_parameters()}
        parallelize_module(net, mesh["tensor"], _MLP_PLAN)
        fully_shard(net, mesh=mesh["data"])
        kinds = {type(p).__name__ for w in net.parameters() for p in w.placements}
        assert "_StridedShard" in kinds
        for name, parameter in net.named_parameters():
            self.same(parameter.full_tensor(), expected[name], what=name)

    # Making and taking apart --------------------------------------------------------------------

    def test_from_local_and_to_local(self) -> None:
        mesh, x = self.mesh(), self.values(3, 4)
        given = DTensor.from_local(x + self.rank, mesh, [Shard(0)], run_check=True)
        self.same(given.shape, (3 * SIZE, 4))
        self.same(given.to_local(), x + self.rank)
        expected = torch.cat([x + r for r in range(SIZE)])
        self.same(given.full_tensor(), expected)

    def test_from_local_uneven(self) -> None:
        mesh = self.mesh()
        x = self.values(9, 2)
        parts = x.chunk(SIZE)
        mine = parts[self.rank] if self.rank < len(parts) else x[:0]
        given = DTensor.from_local(mine, mesh, [Shard(0)], shape=x.shape, stride=x.stride())
        self.same(given.full_tensor(), x)

    def test_gradients_through_local_parts(self) -> None:
        mesh = self.mesh()
        x = self.values(3, 4).requires_grad_()
        made = DTensor.from_local(x, mesh, [Shard(0)]).redistribute(mesh, [Replicate()])
        (made.to_local(grad_placements=[Partial()]) * (self.rank + 1)).sum().backward()
        self.same(x.grad, torch.full((3, 4), float(sum(range(1, SIZE + 1)))))

    def test_factories(self) -> None:
        mesh = self.mesh()
        for make, value in ((zeros, 0.0), (ones, 1.0)):
            self.same(
                make(6, 5, device_mesh=mesh, placements=[Shard(0)]).full_tensor(),
                torch.full((6, 5), value),
            )
        self.same(
            full((5, 4), 3.0, device_mesh=mesh, placements=[Shard(1)]).full_tensor(),
            torch.full((5, 4), 3.0),
        )
        self.same(empty(5, 4, device_mesh=mesh, placements=[Shard(0)]).shape, (5, 4))

    def test_bfloat16_and_integers(self) -> None:
        mesh = self.mesh()
        for dtype in (torch.bfloat16, torch.int64, torch.float64, torch.complex64):
            x = (self.values(8, 4) * 4).to(dtype)
            for kind in (Shard(0), Replicate()):
                given = distribute_tensor(x, mesh, [kind])
                self.same((given + given).full_tensor(), x + x)
                self.same(given.redistribute(mesh, [Shard(1)]).full_tensor(), x)

    # Ops ----------------------------------------------------------------------------------------

    def _sweep(self, ops: dict[str, Callable[..., torch.Tensor]], *given: torch.Tensor) -> None:
        """Run ops on all ways to shard their inputs, as torch's DTensorTestBase does."""
        mesh = self.mesh()
        for name, op in ops.items():
            with self.subTest(name):
                self._test_op(mesh, op, *given)

    def test_pointwise(self) -> None:
        ops: dict[str, Callable[..., torch.Tensor]] = {
            "add": torch.add, "mul": torch.mul, "where": lambda a, b: torch.where(a > b, a, b),
            "gelu": lambda a, b: F.gelu(a) + b.sigmoid(), "clamp": lambda a, b: a.clamp(-1, 1) * b,
            "pow": lambda a, b: a.abs().pow(2.5) - b.tanh(), "to": lambda a, b: a.double() * b,
        }  # fmt: skip
        self._sweep(ops, self.values(8, 12), self.values(8, 12, seed=1))
        self._sweep({"broadcast": torch.add}, self.values(8, 12), self.values(12, seed=1))

    def test_in_place(self) -> None:
        mesh = self.mesh()
        x = self.values(7, 4)
        given = distribute_tensor(x.clone(), mesh, [Shard(0)])
        given.mul_(2).add_(1).relu_()
        self.same(given.full_tensor(), (x * 2 + 1).relu())
        given.zero_()
        self.same(given.full_tensor(), torch.zeros(7, 4))

    def test_matmuls(self) -> None:
        a, b = self.values(8, 12), self.values(12, 16, seed=1)
        self._sweep({"mm": torch.mm, "matmul": torch.matmul}, a, b)
        self._sweep({"bmm": torch.bmm}, self.values(4, 8, 12), self.values(4, 12, 8, seed=1))
        bias = self.values(16, seed=2)
        self._sweep({"addmm": lambda c, x, y: torch.addmm(c, x, y)}, bias, a, b)
        self._sweep({"linear": F.linear}, a, self.values(16, 12, seed=1), bias)

    def test_reductions(self) -> None:
        ops: dict[str, Callable[..., torch.Tensor]] = {
            "sum": lambda x: x.sum(), "sum of a dim": lambda x: x.sum(1, keepdim=True),
            "mean": lambda x: x.mean(0), "max": lambda x: x.max(), "amin": lambda x: x.amin(1),
            "var": lambda x: x.var(), "norm": lambda x: torch.linalg.vector_norm(x),
            "argmax": lambda x: x.argmax(1), "cumsum": lambda x: x.cumsum(0),
            "any": lambda x: (x > 2).any(), "prod": lambda x: x.prod(1),
        }  # fmt: skip
        self._sweep(ops, self.values(8, 12))

    def test_softmaxes(self) -> None:
        for dim in (0, 1, -1):
            self._sweep(
                {
                    "softmax": lambda x, d=dim: x.softmax(d),
                    "log_softmax": lambda x, d=dim: x.log_softmax(d),
                },
                self.values(8, 12),
            )

    def test_norms(self) -> None:
        x, weight, bias = self.values(8, 4, 12), self.values(12, seed=1), self.values(12, seed=2)
        self._sweep({"layer_norm": lambda a, w, b: F.layer_norm(a, (12,), w, b)}, x, weight, bias)
        mesh = self.mesh()
        for kind in (Shard(0), Shard(1), Replicate()):
            made = F.rms_norm(
                distribute_tensor(x, mesh, [kind]), (12,), distribute_tensor(weight, mesh)
            )
            self.same(made.full_tensor(), F.rms_norm(x, (12,), weight), what=str(kind))

    def test_gradients_of_norms(self) -> None:
        mesh = self.mesh()
        for kind in (Shard(0), Shard(1), Shard(2), Replicate()):
            alone = nn.LayerNorm(12, device=self.device)
            spread = distribute_module(nn.LayerNorm(12, device=self.device), mesh)
            x = self.values(8, 4, 12)
            given = distribute_tensor(x, mesh, [kind]).requires_grad_()
            x.requires_grad_()
            alone(x).square().sum().backward()
            spread(given).square().sum().backward()
            self.same(gathered(given.grad), x.grad, what=str(kind))
            self.same(gathered(spread.weight.grad), alone.weight.grad, what=str(kind))

    def test_views(self) -> None:
        ops: dict[str, Callable[..., torch.Tensor]] = {
            "view": lambda x: x.view(8, 3, 4, 3), "flatten": lambda x: x.flatten(0, 1),
            "transpose": lambda x: x.transpose(0, 1), "permute": lambda x: x.permute(2, 0, 1),
            "unsqueeze": lambda x: x.unsqueeze(1), "squeeze": lambda x: x.unsqueeze(0).squeeze(0),
            "expand": lambda x: x.unsqueeze(0).expand(3, 8, 3, 12),
            "narrow": lambda x: x.narrow(1, 1, 2), "select": lambda x: x.select(1, 1),
            "slice": lambda x: x[:, 1:3], "unflatten": lambda x: x.unflatten(2, (4, 3)),
            "cat": lambda x: torch.cat([x, x], 1), "stack": lambda x: torch.stack([x, x]),
            "split": lambda x: x.split(2, 1)[1], "chunk": lambda x: x.chunk(3, 1)[1],
            "repeat": lambda x: x.repeat(1, 2, 1), "unbind": lambda x: x.unbind(1)[1],
            "flip": lambda x: x.flip(1), "contiguous": lambda x: x.transpose(0, 2).contiguous(),
        }  # fmt: skip
        self._sweep(ops, self.values(8, 3, 12))

    def test_indices(self) -> None:
        index = torch.tensor([3, 0, 7, 7, 1, 2, 5, 4], device=self.device)
        self._sweep({"index_select": lambda x, i: x.index_select(0, i)}, self.values(8, 12), index)
        table = (torch.arange(96, device=self.device) * 5 % 12).view(8, 12)
        self._sweep({"gather": lambda x, i: x.gather(1, i)}, self.values(8, 12), table)
        self._sweep({"topk": lambda x: x.topk(3, 1).values}, self.values(8, 12))
        self._sweep({"sort": lambda x: x.sort(1).values}, self.values(8, 12))

    def test_embeddings(self) -> None:
        mesh = self.mesh()
        words = torch.arange(12, device=self.device).view(3, 4) * 7 % 11
        for kind in (Shard(0), Shard(1), Replicate()):
            for given in (Replicate(), Shard(0)):
                table = self.values(11, 8).requires_grad_()
                spread = distribute_tensor(self.values(11, 8), mesh, [kind]).requires_grad_()
                expected = F.embedding(words, table)
                made = F.embedding(distribute_tensor(words, mesh, [given]), spread)
                made = made.redistribute(mesh, [Replicate()])
                self.same(made.to_local(), expected, what=f"{kind} {given}")
                expected.square().sum().backward()
                made.square().sum().backward()
                self.same(gathered(spread.grad), table.grad, what=f"{kind} {given}")

    def test_attention(self) -> None:
        mesh = self.mesh()
        q, k, v = (self.values(4, 4, 6, 8, seed=s) for s in range(3))
        for kind in (Shard(0), Shard(1), Replicate()):
            mine = [distribute_tensor(t, mesh, [kind]).requires_grad_() for t in (q, k, v)]
            whole = [t.clone().requires_grad_() for t in (q, k, v)]
            made, expected = (
                F.scaled_dot_product_attention(a, b, c, is_causal=True) for a, b, c in (mine, whole)
            )
            self.same(made.full_tensor(), expected, what=str(kind))
            made.square().sum().backward()
            expected.square().sum().backward()
            for a, b in zip(mine, whole, strict=True):
                self.same(gathered(a.grad), b.grad, what=str(kind))

    def test_convolution(self) -> None:
        mesh = self.mesh()
        alone = nn.Conv2d(4, 8, 3, padding=1, device=self.device)
        spread: nn.Module = nn.Conv2d(4, 8, 3, padding=1, device=self.device)
        spread.load_state_dict(alone.state_dict())
        spread = distribute_module(spread, mesh)
        x = self.values(8, 4, 5, 5)
        made = spread(distribute_tensor(x, mesh, [Shard(0)]))
        self.same(made.full_tensor(), alone(x))
        made.sum().backward()
        alone(x).sum().backward()
        self.same(gathered(spread.weight.grad), alone.weight.grad)

    def test_losses(self) -> None:
        mesh = self.mesh()
        scores, words = self.values(8, 16), torch.arange(8, device=self.device) * 3 % 16
        for kind, reduction in itertools.product((Shard(0), Replicate()), ("mean", "sum", "none")):
            x = scores.clone().requires_grad_()
            given = distribute_tensor(scores, mesh, [kind]).requires_grad_()
            target = distribute_tensor(words, mesh, [kind])
            expected = F.cross_entropy(x, words, reduction=reduction)
            made = F.cross_entropy(given, target, reduction=reduction)
            self.same(made.full_tensor(), expected, what=f"{kind} {reduction}")
            expected.sum().backward()
            made.sum().backward()
            self.same(gathered(given.grad), x.grad, what=f"{kind} {reduction}")

    def test_loss_parallel(self) -> None:
        mesh = self.mesh()
        scores, words = self.values(8, 16), torch.arange(8, device=self.device) * 3 % 16
        words[2] = -100
        for reduction in ("mean", "sum", "none"):
            x = scores.clone().requires_grad_()
            expected = F.cross_entropy(x, words, reduction=reduction)
            expected.sum().backward()
            given = distribute_tensor(scores, mesh, [Shard(1)]).requires_grad_()
            with loss_parallel():
                made = F.cross_entropy(given, words, reduction=reduction)
                made.sum().backward()
            self.same(made.full_tensor(), expected, what=reduction)
            self.same(cast(DTensor, given.grad).placements, (Shard(1),))
            self.same(gathered(given.grad), x.grad, what=reduction)

    def test_clipping(self) -> None:
        mesh = self.mesh(2, 2)
        net = MLPModule(self.device)
        alone = MLPModule(self.device)
        alone.load_state_dict(net.state_dict())
        parallelize_module(net, mesh["tensor"], _MLP_PLAN)
        fully_shard(net, mesh=mesh["data"])
        x = self.values(8, 10)
        for model in (net, alone):
            model(x).square().sum().backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        expected = nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        self.same(norm.full_tensor(), expected)
        for a, b in zip(net.parameters(), alone.parameters(), strict=True):
            self.same(gathered(a.grad), b.grad)

    # Random numbers -----------------------------------------------------------------------------

    def test_random_shards_differ_and_copies_do_not(self) -> None:
        mesh = self.mesh()
        torch.manual_seed(3)
        for make in (rand, randn):
            copies = make((8, 8), device_mesh=mesh, placements=[Replicate()]).to_local()
            every = self._of_each(copies)
            self.same(every, [every[0]] * SIZE)
            shards = self._of_each(
                make((8 * SIZE, 8), device_mesh=mesh, placements=[Shard(0)]).to_local()
            )
            for a, b in itertools.combinations(shards, 2):
                assert not torch.equal(a, b)

    def _of_each(self, mine: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(mine) for _ in range(SIZE)]
        dist.all_gather(parts, mine.contiguous())
        return parts

    def test_random_numbers_are_those_of_the_seed(self) -> None:
        mesh = self.mesh()
        drawn = []
        for _ in range(2):
            torch.manual_seed(5)
            x = zeros(8, 6, device_mesh=mesh, placements=[Shard(0)])
            drawn.append([x.uniform_().full_tensor().clone(), x.normal_().full_tensor().clone()])
        self.same(drawn[0], drawn[1])
        assert not torch.equal(drawn[0][0], drawn[0][1])

    def test_dropout(self) -> None:
        mesh = self.mesh()
        torch.manual_seed(7)
        x = ones(64, 64, device_mesh=mesh, placements=[Shard(0)]).requires_grad_()
        made = F.dropout(x, 0.25)
        whole = made.full_tensor()
        kept = (whole != 0).double().mean().item()
        assert abs(kept - 0.75) < 0.05
        for a, b in itertools.combinations(whole.chunk(SIZE), 2):
            assert not torch.equal(a, b)
        made.sum().backward()
        self.same(gathered(x.grad), (whole != 0).float() / 0.75)
        copies = F.dropout(ones(64, 64, device_mesh=mesh, placements=[Replicate()]), 0.25)
        every = self._of_each(copies.to_local())
        self.same(every, [every[0]] * SIZE)

    def test_initialisation(self) -> None:
        """Weights that are drawn after they are spread, as large models' are."""
        mesh = self.mesh()
        with torch.device("meta"):
            net = nn.Linear(16, 32)
        distribute_module(net, mesh, _shard_rows)
        net.to_empty(device=self.device)
        torch.manual_seed(1)
        net.reset_parameters()
        whole = net.weight.full_tensor()
        assert whole.abs().max().item() < 0.2501
        assert whole.std().item() > 0.1
        self.same(len(whole.unique()), whole.numel())

    # Tensor parallel ----------------------------------------------------------------------------

    def _train(
        self, net: nn.Module, alone: nn.Module, given: Callable[[int], Any], steps: int = 3
    ) -> None:
        optimizers = [
            torch.optim.AdamW(m.parameters(), lr=0.02, foreach=False) for m in (net, alone)
        ]
        for step in range(steps):
            losses = []
            for model, optimizer in zip((net, alone), optimizers, strict=True):
                out = model(given(step))
                out = out.full_tensor() if isinstance(out, DTensor) else out
                loss = out.square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.detach())
            self.same(losses[0], losses[1], rtol=1e-4, atol=1e-5)
        expected = dict(alone.named_parameters())
        for name, parameter in net.named_parameters():
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            self.same(whole, expected[name], rtol=1e-3, atol=1e-4, what=name)

    def _pair(self) -> tuple[MLPModule, MLPModule]:
        torch.manual_seed(0)
        net, alone = MLPModule(self.device), MLPModule(self.device)
        alone.load_state_dict(net.state_dict())
        return net, alone

    def test_colwise_and_rowwise(self) -> None:
        net, alone = self._pair()
        parallelize_module(net, self.mesh(), _MLP_PLAN)
        self._train(net, alone, lambda step: self.values(8, 10, seed=step))

    def test_sequence_of_linear_layers(self) -> None:
        net, alone = self._pair()
        plan: Plan = {
            "net1": ColwiseParallel(input_layouts=Shard(0)),
            "net2": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        }
        parallelize_module(net, self.mesh(), plan)
        mesh = self.mesh()
        x = self.values(8, 10)
        out = net(distribute_tensor(x, mesh, [Shard(0)]).to_local())
        self.same(out.full_tensor(), alone(x))

    def test_sequence_parallel(self) -> None:
        mesh = self.mesh()
        for make in (lambda: nn.LayerNorm(16), lambda: nn.RMSNorm(16), lambda: nn.Dropout(0.0)):
            net, alone = make().to(self.device), make().to(self.device)
            parallelize_module(net, mesh, SequenceParallel())
            x = self.values(4, 8, 16)
            made = net(x.chunk(SIZE, 1)[self.rank].contiguous())
            self.same(made.full_tensor(), alone(x))

    def test_prepared_inputs_and_outputs(self) -> None:
        mesh = self.mesh()
        net = nn.Sequential(nn.Linear(8, 8)).to(self.device)
        x = self.values(8, 8)
        expected = net(x)
        mine = x.chunk(SIZE)[self.rank]
        inputs = PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate())
        outputs = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0))
        distribute_module(net, mesh)
        parallelize_module(net, mesh, inputs)
        parallelize_module(net, mesh, outputs)
        self.same(net(mine), expected.chunk(SIZE)[self.rank])
        both = distribute_module(nn.Sequential(nn.Identity()), mesh)
        parallelize_module(
            both,
            mesh,
            PrepareModuleInputOutput(
                input_layouts=Shard(0),
                desired_input_layouts=Replicate(),
                output_layouts=Replicate(),
                desired_output_layouts=Shard(1),
            ),
        )
        self.same(both(mine), x.chunk(SIZE, 1)[self.rank])

    def test_embedding_styles(self) -> None:
        words = torch.arange(24, device=self.device).view(4, 6) * 5 % 16
        for style in (
            ColwiseParallel(output_layouts=Replicate()),
            RowwiseParallel(input_layouts=Replicate()),
        ):
            net, alone = (nn.Embedding(16, 8, device=self.device) for _ in range(2))
            net.load_state_dict(alone.state_dict())
            parallelize_module(net, self.mesh(), style)
            self._train(net, alone, lambda _: words)

    def _transformer(self, sequence: bool, **sizes: Any) -> None:
        args = ModelArgs(dropout_p=0.0, **sizes)
        torch.manual_seed(2)
        alone = Transformer(args).to(self.device)
        net: Any = Transformer(args).to(self.device)
        net.load_state_dict(alone.state_dict())
        net = Transformer.parallelize(net, self.mesh(), use_seq_parallel=sequence)
        words = torch.arange(4 * args.max_seq_len, device=self.device) * 7 % args.vocab_size
        self._train(net, alone, lambda step: (words + step).view(4, -1) % args.vocab_size, 2)

    def test_transformer(self) -> None:
        self._transformer(sequence=False)

    def test_transformer_in_parts_of_the_sequence(self) -> None:
        self._transformer(sequence=True)

    def test_transformer_with_tied_weights(self) -> None:
        self._transformer(sequence=True, weight_tying=True)

    def test_transformer_with_fsdp(self) -> None:
        mesh = self.mesh(2, 2)
        args = ModelArgs(dropout_p=0.0)
        torch.manual_seed(2)
        alone = Transformer(args).to(self.device)
        net: Any = Transformer(args).to(self.device)
        net.load_state_dict(alone.state_dict())
        net = Transformer.parallelize(net, mesh["tensor"], use_seq_parallel=True)
        for layer in net.layers:
            fully_shard(layer, mesh=mesh["data"])
        fully_shard(net, mesh=mesh["data"])
        words = (torch.arange(4 * args.max_seq_len, device=self.device) * 7 % 8).view(4, -1)
        self._train(net, alone, lambda step: (words + step) % 8, 2)

    def test_loss_parallel_of_a_model(self) -> None:
        mesh = self.mesh()
        head = nn.Linear(8, 16, bias=False, device=self.device)
        alone = nn.Linear(8, 16, bias=False, device=self.device)
        alone.load_state_dict(head.state_dict())
        parallelize_module(head, mesh, ColwiseParallel(use_local_output=False))
        words = torch.arange(8, device=self.device) % 16
        with loss_parallel():
            loss = F.cross_entropy(head(self.values(8, 8)), words)
            loss.backward()
        expected = F.cross_entropy(alone(self.values(8, 8)), words)
        expected.backward()
        self.same(loss.full_tensor(), expected)
        self.same(gathered(head.weight.grad), alone.weight.grad)

    # Checkpoints --------------------------------------------------------------------------------

    def test_checkpoints_are_resharded(self) -> None:
        """What four ranks save, two load in shards of their own, and one whole."""
        whole = {"even": self.values(8, 6), "uneven": self.values(5, 3, seed=1)}
        with self._shared_folder() as folder:
            mesh = self.mesh()
            saved = {n: distribute_tensor(x, mesh, [Shard(0)]) for n, x in whole.items()}
            dcp.save(saved, checkpoint_id=folder)
            square = self.mesh(2, 2)
            for kinds in ([Shard(1), Shard(0)], [Replicate(), Shard(1)], [Shard(0), Shard(0)]):
                found = {n: distribute_tensor(x * 0, square, kinds) for n, x in whole.items()}
                dcp.load(found, checkpoint_id=folder)
                for name, x in whole.items():
                    self.same(found[name].full_tensor(), x, what=f"{name} {kinds}")
            alone = {n: torch.zeros_like(x) for n, x in whole.items()}
            dcp.load(alone, checkpoint_id=folder)
            self.same(alone, whole)
            dist.barrier()
            pair = dist.new_group([0, 1])
            if self.rank < 2:
                small = DeviceMesh.from_group(pair, self.device)
                found = {n: distribute_tensor(x * 0, small, [Shard(0)]) for n, x in whole.items()}
                dcp.load(found, checkpoint_id=folder, process_group=pair)
                for name, x in whole.items():
                    self.same(found[name].full_tensor(), x, what=name)
            dist.barrier()

    def test_checkpoints_of_a_training(self) -> None:
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        def made(shape: tuple[int, ...]) -> tuple[nn.Module, torch.optim.Optimizer]:
            torch.manual_seed(0)
            net = MLPModule(self.device)
            mesh = self.mesh(*shape)
            if len(shape) > 1:
                parallelize_module(net, mesh["tensor"], _MLP_PLAN)
            fully_shard(net, mesh=mesh["data"])
            return net, torch.optim.AdamW(net.parameters(), lr=0.1)

        net, optimizer = made((2, 2))
        x = self.values(8, 10)
        net(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with self._shared_folder() as folder:
            parts = get_state_dict(net, optimizer)
            dcp.save(dict(zip(("model", "optimizer"), parts, strict=True)), checkpoint_id=folder)
            other, other_optimizer = made((4,))
            model, state = get_state_dict(other, other_optimizer)
            found: dict[str, Any] = {"model": model, "optimizer": state}
            dcp.load(found, checkpoint_id=folder)
            set_state_dict(
                other,
                other_optimizer,
                model_state_dict=found["model"],
                optim_state_dict=found["optimizer"],
            )
        for a, b in zip(net.parameters(), other.parameters(), strict=True):
            self.same(a.full_tensor(), b.full_tensor())
            first, second = optimizer.state[a], other_optimizer.state[b]
            self.same(first["exp_avg"].full_tensor(), second["exp_avg"].full_tensor())

    def _shared_folder(self) -> Any:
        found = [tempfile.mkdtemp() if self.rank == 0 else None]
        dist.broadcast_object_list(found)
        return _Folder(str(found[0]), self.rank)

    def test_plain_tensors_beside_dtensors(self) -> None:
        mesh, x = self.mesh(), self.values(8, 4)
        given = distribute_tensor(x, mesh, [Shard(0)])
        with pytest.raises(RuntimeError, match="need to convert all torch"):
            given + x
        with implicit_replication():
            self.same((given + x).full_tensor(), x + x)


_MLP_PLAN: Plan = {"net1": ColwiseParallel(), "net2": RowwiseParallel()}


def _shard_rows(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    del name
    for key, parameter in module.named_parameters(recurse=False):
        spread = distribute_tensor(parameter, mesh, [Shard(0)])
        module.register_parameter(key, nn.Parameter(spread))


class _Folder:
    """A folder that all ranks see, removed when all have left it."""

    def __init__(self, path: str, rank: int) -> None:
        self._path, self._rank = path, rank

    def __enter__(self) -> str:
        return self._path

    def __exit__(self, *_: object) -> None:
        import shutil

        dist.barrier()
        if self._rank == 0 and os.path.isdir(self._path):
            shutil.rmtree(self._path)
