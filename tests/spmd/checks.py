"""What holds in a process that drives four devices; run as a whole in a process of its own.

`python -m tests.spmd.checks` runs every function called check_* and prints, as JSON, what each of
them raised: nothing where all is well.
"""

from __future__ import annotations

import copy
import io
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("TORCHTPU_TARGET", "cpu")

import pytest
import torch
import torch.distributed as dist

import torchtpu
from torchtpu import executor, spmd
from torchtpu.errors import TpuError
from torchtpu.storage import buffer_of
from torchtpu.targets.pjrt import PjrtTarget

MESH = spmd.Mesh((2, 2), ("data", "tensor"))
SEED = 7


@contextmanager
def partitioned() -> Iterator[list[str]]:
    """Give the HLO of what is compiled inside, as XLA has partitioned it."""
    texts: list[str] = []
    own = PjrtTarget._executable

    def recording(self: PjrtTarget, loaded: Any, *rest: Any) -> Any:
        texts.append(loaded.hlo_modules()[0].to_string())
        return own(self, loaded, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PjrtTarget, "_executable", recording)
        yield texts


def shards(tensor: torch.Tensor) -> list[tuple[int, ...]]:
    """Return the shape that each device holds of a tensor."""
    array = buffer_of(tensor.untyped_storage()).value()
    return [shard.data.shape for shard in array.addressable_shards]


def split(shape: tuple[int, ...], *spec: Any) -> torch.Tensor:
    """Return a new random tensor that lies so."""
    return spmd.shard(torch.randn(shape), MESH, spec)


def check_each_device_holds_its_part() -> None:
    w = split((16, 32), None, "tensor")
    assert shards(w) == [(16, 16)] * 4
    assert spmd.sharding_of(w) == (None, "tensor")
    both = split((16, 32), ("data", "tensor"))
    assert shards(both) == [(4, 32)] * 4
    assert spmd.sharding_of(both) == (("data", "tensor"), None)
    assert shards(torch.ones(3, device="tpu")) == [(3,)] * 4


def check_products_are_partitioned() -> None:
    x, w = split((8, 16), "data", "tensor"), split((16, 32), "tensor")
    with partitioned() as texts:
        y = x @ w
        torch.testing.assert_close(y.cpu(), x.cpu() @ w.cpu())
    assert spmd.sharding_of(y)[0] == "data"
    assert any("all-reduce" in text for text in texts), texts
    y = split((8, 16), "data") @ split((16, 32), None, "tensor")
    assert spmd.sharding_of(y) == ("data", "tensor")
    assert shards(y) == [(4, 16)] * 4


def check_a_tensor_is_moved_where_it_is() -> None:
    w = torch.randn(8, 4, device="tpu")
    before, view = w.cpu(), w.t()
    assert spmd.shard(w, MESH, ("tensor",)) is w
    assert spmd.sharding_of(view) == (None, "tensor")
    assert torch.equal(w.cpu(), before)
    spmd.shard(view, MESH, ("data", "tensor"))
    assert spmd.sharding_of(w) == ("tensor", "data")
    assert torch.equal(view.cpu(), before.t())
    spmd.shard(w, MESH, ())
    assert shards(w) == [(8, 4)] * 4
    later = w * 2  # recorded in fused mode, before w moves
    spmd.shard(w, MESH, ("data",))
    assert torch.equal(later.cpu(), before * 2)


def check_writes_keep_the_sharding() -> None:
    w, other = split((8, 16), "data", "tensor"), torch.randn(8, 16)
    expected = w.cpu()

    def same(op: str) -> None:
        assert spmd.sharding_of(w) == ("data", "tensor"), op
        torch.testing.assert_close(w.cpu(), expected, msg=op)

    w.mul_(2)
    expected.mul_(2)
    same("mul_")
    w.add_(split((8, 16), "tensor", "data"))  # lies otherwise
    expected = w.cpu()
    same("add_")
    w.copy_(other)
    expected = other.clone()
    same("copy_ from the host")
    w.copy_(torch.ones(8, 16, device="tpu"))
    expected.fill_(1)
    same("copy_")
    w[1:3, ::2] = 5
    expected[1:3, ::2] = 5
    same("a write to a part")
    w.t().mul_(torch.arange(8.0, device="tpu"))
    expected.t().mul_(torch.arange(8.0))
    same("a write through a view")
    torch.sub(torch.ones(8, 16, device="tpu"), 3.0, out=w)
    expected.fill_(-2)
    same("out=")
    torch._foreach_add_([w, torch.zeros(3, device="tpu")], 1.0)
    expected.add_(1)
    same("_foreach_add_")
    w.zero_()
    expected.zero_()
    same("zero_")
    w.normal_()
    expected = w.cpu()
    same("normal_")
    w.untyped_storage().copy_(other.untyped_storage())
    expected = other
    same("a copy of bytes")


def check_an_exchange_in_place() -> None:
    """Two tensors of one shape and different shardings stay where they are in one program."""
    a, b = split((8, 8), "data"), split((8, 8), None, "tensor")
    x, y = a.cpu(), b.cpu()
    kept = a.clone()
    a.copy_(b)
    b.copy_(kept)
    assert torch.equal(a.cpu(), y)
    assert torch.equal(b.cpu(), x)
    assert spmd.sharding_of(a) == ("data", None)
    assert spmd.sharding_of(b) == (None, "tensor")


def check_what_was_never_written_follows() -> None:
    w = split((8, 16), "data", "tensor")
    state = torch.zeros(8, 16, device="tpu")
    state.lerp_(w, 0.5)
    assert spmd.sharding_of(state) == ("data", "tensor")
    assert spmd.sharding_of(torch.zeros_like(w)) == ("data", "tensor")
    never = spmd.shard(torch.empty(1024, 1024, device="tpu"), MESH, ("data", "tensor"))
    assert shards(never) == [(512, 512)] * 4
    assert never.sum().item() == 0


def check_copies_lie_alike() -> None:
    linear = spmd.shard_module(torch.nn.Linear(8, 16).to("tpu"), MESH, {"weight": ("tensor",)})
    copied = copy.deepcopy(linear)
    assert spmd.sharding_of(copied.weight) == ("tensor", None)
    copied.weight.data.zero_()
    assert linear.weight.abs().sum().item() > 0
    assert spmd.sharding_of(linear.weight.clone()) == ("tensor", None)


def check_whole_tensors_on_the_host() -> None:
    w = split((4, 4), "data", "tensor")
    assert w.tolist() == w.cpu().tolist()
    assert w[3, 2].item() == w.cpu()[3, 2].item()
    assert "device='tpu:0'" in repr(w)
    assert torch.equal(w[1:3].cpu(), w.cpu()[1:3])


def check_state_dicts_are_whole() -> None:
    linear = spmd.shard_module(torch.nn.Linear(8, 16).to("tpu"), MESH, {"weight": ("tensor",)})
    file = io.BytesIO()
    torch.save(linear.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, map_location="cpu")
    assert torch.equal(saved["weight"], linear.weight.cpu())
    other = spmd.shard_module(torch.nn.Linear(8, 16).to("tpu"), MESH, {"weight": (None, "data")})
    other.load_state_dict(saved)
    assert spmd.sharding_of(other.weight) == (None, "data")
    assert torch.equal(other.weight.cpu(), saved["weight"])
    file.seek(0)
    on_device = torch.load(file)
    other.load_state_dict(on_device)
    assert spmd.sharding_of(other.weight) == (None, "data")


def check_random_numbers_do_not_depend_on_shardings() -> None:
    def drawn(spec: tuple[str, ...]) -> list[torch.Tensor]:
        torch.manual_seed(SEED)
        w = spmd.shard(torch.zeros(8, 16, device="tpu"), MESH, spec)
        return [
            w.normal_().cpu(),
            torch.nn.functional.dropout(w, 0.5).cpu(),
            torch.rand_like(w).cpu(),
            torch.bernoulli(w.sigmoid()).cpu(),
            (w + torch.randn(8, 16, device="tpu")).cpu(),
        ]

    for spec in (("data", "tensor"), ("tensor",)):
        for got, whole in zip(drawn(spec), drawn(()), strict=True):
            assert torch.equal(got, whole)
    torch.manual_seed(SEED)
    numbers = torch.randn(2, 4, device="tpu").tolist()
    assert numbers == json.loads(os.environ["TORCHTPU_TEST_DRAWN"]), numbers  # by one device


def check_gradients() -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu().square().mean()

    x, w = torch.randn(8, 16), torch.randn(16, 32)
    on_cpu = w.clone().requires_grad_()
    loss(x, on_cpu).backward()
    there = spmd.shard(w, MESH, (None, "tensor")).requires_grad_()
    loss(spmd.shard(x, MESH, ("data",)), there).backward()
    assert there.grad is not None
    torch.testing.assert_close(there.grad.cpu(), on_cpu.grad)
    assert spmd.sharding_of(there.grad) == (None, "tensor")


def check_constraints_inside_programs() -> None:
    def held(x: torch.Tensor) -> torch.Tensor:
        y = spmd.with_sharding_constraint(x * 2, MESH, ("data", None))
        return spmd.with_sharding_constraint(y.t() + 1, MESH, ("tensor",)) * 3

    x = torch.randn(8, 16)
    for call in (held, torch.compile(held, fullgraph=True)):
        there = x.to("tpu").requires_grad_()
        y = call(there)
        assert spmd.sharding_of(y) == ("tensor", None)
        torch.testing.assert_close(y.cpu(), held(x))
        y.sum().backward()
        assert there.grad is not None
        assert torch.equal(there.grad.cpu(), torch.full((8, 16), 6.0))
        assert spmd.sharding_of(there.grad)[0] == "data"


def check_memory_is_that_of_a_device() -> None:
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    w = split((256, 256), "data", "tensor")
    assert torch.tpu.memory_allocated() - before == 256 * 256
    torch.tpu.reset_peak_memory_stats()
    w.mul_(2)
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() - before == 256 * 256
    assert torch.tpu.max_memory_allocated() - before < 3 * 256 * 256
    whole = torch.ones(256, 256).to("tpu")
    assert torch.tpu.memory_allocated() - before == 5 * 256 * 256
    del w, whole
    assert torch.tpu.memory_allocated() == before


def check_linear_algebra_and_dtypes() -> None:
    x = torch.randn(4, 8, 8)
    symmetric = x @ x.mT + torch.eye(8)
    there = spmd.shard(symmetric, MESH, ("data", "tensor"))
    torch.testing.assert_close(torch.linalg.cholesky(there).cpu(), torch.linalg.cholesky(symmetric))
    torch.testing.assert_close(torch.linalg.eigvalsh(there).cpu(), torch.linalg.eigvalsh(symmetric))
    values = torch.linalg.eigvals(there).cpu()
    torch.testing.assert_close(
        values.abs().sort().values, torch.linalg.eigvals(symmetric).abs().sort().values
    )
    for dtype in (torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float64):
        value = (torch.randn(8, 4) * 3).to(dtype)
        moved = spmd.shard(value, MESH, ("tensor", "data"))
        assert torch.equal(moved.cpu(), value)
        assert torch.equal(moved.flip(0).cpu(), value.flip(0))


def check_convolutions() -> None:
    x, w = torch.randn(4, 3, 8, 8), torch.randn(6, 3, 3, 3)
    made = torch.conv2d(spmd.shard(x, MESH, ("data",)), spmd.shard(w, MESH, ("tensor",)))
    torch.testing.assert_close(made.cpu(), torch.conv2d(x, w), atol=1e-5, rtol=1e-5)


def check_many_launches_under_way() -> None:
    """Programs with collectives, more of them than XLA's CPU client has threads for."""
    weights = [torch.linalg.qr(torch.randn(64, 64)).Q for _ in range(4)]
    specs = [("tensor",), ("data",), (None, "tensor"), ("data", "tensor")]
    there = [spmd.shard(w, MESH, s) for w, s in zip(weights, specs, strict=True)]
    xs = [torch.randn(8, 64) for _ in range(4)]
    ys = [spmd.shard(x, MESH, ("data", "tensor")) for x in xs]
    with torch.no_grad():
        for step in range(200):
            for n in range(4):
                ys[n] = ys[n] @ there[(step + n) % 4]
                xs[n] = xs[n] @ weights[(step + n) % 4]
    for x, y in zip(xs, ys, strict=True):
        torch.testing.assert_close(y.cpu(), x, atol=1e-3, rtol=1e-3)


def check_mistakes_are_named() -> None:
    w = torch.ones(6, 4, device="tpu")
    wrong: dict[Any, str] = {
        ("rows",): "unknown axis 'rows'",
        ("data", "data"): "axis 'data' stands twice",
        (("data", "tensor"),): "expected dim of size 6 to be a multiple of the 4 devices along",
        (None, None, "data"): "has more dims",
        "data": "expected a spec such as",
    }
    for spec, said in wrong.items():
        with pytest.raises(TpuError, match=said):
            spmd.shard(w, MESH, spec)
        with pytest.raises(TpuError, match=said):
            spmd.with_sharding_constraint(w, MESH, spec)
    assert spmd.sharding_of(w) == (None, None)  # nothing has happened
    with pytest.raises(TpuError, match="a view of shape"):
        spmd.shard(w[2:], MESH, ("data",))
    with pytest.raises(TpuError, match="a view of shape"):
        spmd.sharding_of(w.expand(2, 6, 4))
    with pytest.raises(TpuError, match=r"this process drives .*, and got"):
        spmd.shard(w, spmd.Mesh((4,), ("data",)), ("data",))
    with pytest.raises(TpuError, match=r"drives .* already"):
        spmd.use(2)
    with pytest.raises(TpuError, match="one process per device or one for all"):
        dist.init_process_group("tpu_dist", rank=0, world_size=1, store=dist.HashStore())
    assert not dist.is_initialized()
    linear = torch.nn.Linear(4, 4).to("tpu")
    with pytest.raises(TpuError, match=r"no parameter or buffer is called 'wieght'.*weight"):
        spmd.shard_module(linear, MESH, {"wieght": ("data",)})
    with pytest.raises(TpuError, match="expected weight on tpu, got cpu"):
        spmd.shard_module(torch.nn.Linear(4, 4), MESH, {"weight": ("data",)})
    assert spmd.with_sharding_constraint(torch.ones(3), MESH, ("data",)).device.type == "cpu"


def check_recompiles_are_explained() -> None:
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER):
        for spec in (("data",), (None, "tensor"), ("tensor",)):
            torch.digamma(split((24, 12), *spec)).cpu()
    rows = [r for r in torchtpu.explain_recompiles().rows if r.program == "aten::digamma"]
    assert {r.entry for r in rows} == {"shardings"}
    assert "with_sharding_constraint" in rows[-1].hint


def check_it_is_the_same_mesh_again() -> None:
    assert spmd.use(spmd.Mesh((2, 2), ("data", "tensor"))) == MESH
    assert spmd.current_mesh() == MESH
    assert executor.current().mesh is not None


def main(names: dict[str, Any]) -> None:
    """Run all checks of a module, or those that the command line names."""
    spmd.use(MESH)
    wrong = {}
    wanted = sys.argv[1:]
    for name, check in list(names.items()):
        if name.startswith("check_") and (not wanted or name in wanted):
            torch.manual_seed(SEED)
            try:
                check()
                wrong[name] = ""
            except BaseException:
                wrong[name] = traceback.format_exc()
    sys.stdout.write(json.dumps(wrong))


if __name__ == "__main__":
    main(globals())
