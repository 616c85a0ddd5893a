"""What every target must do; targets cpu and sim agree bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from torchtpu import dtypes, targets
from torchtpu.sim.memory import OutOfHBM
from torchtpu.targets import DeviceInfo, Executable, Target, TargetError, plugin
from torchtpu.targets.sim import SimTarget

F32 = np.dtype(np.float32)
CHIP = "v5e"

PROGRAMS = """
import hashlib, json
import torch
from torch import nn

def digest(tensors):
    return hashlib.sha256(b"".join(t.detach().cpu().numpy().tobytes() for t in tensors)).hexdigest()

torch.manual_seed(0)
results = {}
x = torch.randn(4, 6, device="tpu")
results["random"] = digest([x, torch.randperm(9, device="tpu"), torch.rand(5, device="tpu")])
results["views"] = digest([x.t()[::2].contiguous(), x.unfold(1, 2, 2).sum(-1), x[:, 1:3].exp()])
sums = [x.sum(0), x.mean(), x.argmax(1), x.softmax(-1), x.cumsum(0), x.sort().values]
results["reductions"] = digest(sums)
weight = torch.randn(6, 5, device="tpu", requires_grad=True)
optimizer = torch.optim.AdamW([weight], lr=0.01)
nn.functional.cross_entropy(x @ weight, torch.arange(4, device="tpu")).backward()
optimizer.step()
results["training"] = digest([weight, weight.grad])
kernel = torch.ones(2, 1, 3, 3, device="tpu")
results["convolution"] = digest([nn.functional.conv2d(x.view(1, 1, 4, 6), kernel)])
print(json.dumps(results))
"""


MADE: dict[str, Callable[[], Target]] = {
    "cpu": lambda: targets.create("cpu"),
    "sim": lambda: targets.create(f"sim:{CHIP}"),
    "sim without numerics": lambda: targets.create(f"sim:{CHIP}", targets.Settings(numerics=False)),
}
NUMERIC = ["cpu", "sim"]
if plugin.named(os.environ):  # test_tpu.py asks for it
    MADE["tpu"] = lambda: targets.create("tpu")
    NUMERIC.append("tpu")


@pytest.fixture(scope="module")
def made() -> dict[str, Target]:
    return {name: make() for name, make in MADE.items()}


def _shaped(array: np.ndarray[Any, Any]) -> Any:
    struct: Any = jax.ShapeDtypeStruct
    return struct(array.shape, array.dtype)


def program(
    fn: Callable[..., Any], *examples: np.ndarray[Any, Any], donate: tuple[int, ...] = ()
) -> Any:
    """Lower a function of arrays; return its module and output types."""
    with jax.enable_x64(True):
        shapes = [_shaped(e) for e in examples]
        traced = jax.jit(fn, donate_argnums=donate, keep_unused=True).trace(*shapes)
        module = traced.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
    return module, [(tuple(o.shape), np.dtype(o.dtype)) for o in jax.tree.leaves(traced.out_info)]


def run(target: Target, fn: Callable[..., Any], *inputs: np.ndarray[Any, Any]) -> list[Any]:
    executable = target.compile(*program(fn, *inputs))
    assert isinstance(executable, Executable)
    return executable.run([target.put(i) for i in inputs])


@pytest.mark.parametrize("name", MADE)
def test_describes_itself(made: dict[str, Target], name: str) -> None:
    target = made[name]
    assert name.startswith(target.name)
    assert target.platform in ("cpu", "tpu")
    info = target.info()
    assert isinstance(info, DeviceInfo)
    assert info.name
    assert info.cores >= 1
    assert info.memory_bytes > 0 or name == "tpu"  # a plugin need not say
    assert info.simulated == isinstance(target, SimTarget)


@pytest.mark.parametrize("name", NUMERIC)
def test_put_and_get_every_dtype(made: dict[str, Target], name: str) -> None:
    target = made[name]
    for row in dtypes._BY_TORCH.values():
        value = np.array([[0, 1, 1], [1, 0, 1]]).astype(row.numpy)
        array = target.put(value)
        assert (tuple(array.shape), np.dtype(array.dtype)) == (value.shape, value.dtype)
        assert target.get(array).tobytes() == value.tobytes()


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize(
    "value",
    [np.float32(3), np.zeros((0, 3), F32), np.arange(12.0).reshape(3, 4).T, np.arange(12)[::-3]],
    ids=["number", "empty", "transposed", "negative step"],
)
def test_put_takes_any_host_array(made: dict[str, Target], name: str, value: Any) -> None:
    value = np.asarray(value)
    np.testing.assert_array_equal(made[name].get(made[name].put(value)), value)


@pytest.mark.parametrize("name", NUMERIC)
def test_put_copies(made: dict[str, Target], name: str) -> None:
    host = np.ones(4096, F32)
    array = made[name].put(host)
    host[:] = 7
    assert made[name].get(array).sum() == 4096


@pytest.mark.parametrize("name", MADE)
def test_runs_programs(made: dict[str, Target], name: str) -> None:
    x, y = np.arange(6, dtype=F32).reshape(2, 3), np.float32(2)
    target = made[name]
    total, scaled = run(
        target, lambda a, b: [a.sum(0), (a * b).astype(ml_dtypes.bfloat16)], x, np.asarray(y)
    )
    assert (tuple(total.shape), tuple(scaled.shape)) == ((3,), (2, 3))
    assert np.dtype(scaled.dtype) == ml_dtypes.bfloat16
    target.wait([total, scaled])
    target.wait([])
    if name in NUMERIC:
        np.testing.assert_array_equal(target.get(total), x.sum(0))
        np.testing.assert_array_equal(target.get(scaled).astype(F32), x * 2)


@pytest.mark.parametrize("name", NUMERIC)
def test_donated_inputs_are_taken_and_others_kept(made: dict[str, Target], name: str) -> None:
    target, x = made[name], np.ones(1024, F32)
    executable = target.compile(*program(lambda a, b: [a + b], x, x, donate=(0,)))
    given, kept = target.put(x), target.put(x)
    (result,) = executable.run([given, kept])
    assert target.get(result).sum() == 2048
    assert target.get(kept).sum() == 1024
    assert given.is_deleted()
    with pytest.raises(Exception, match=r"(?i)delete|donate"):
        executable.run([given, kept])
    assert target.get(executable.run([kept, target.put(x)])[0]).sum() == 2048


@pytest.mark.parametrize("name", NUMERIC)
def test_64_bits_and_no_change_of_the_users_jax(made: dict[str, Target], name: str) -> None:
    value = np.array([2**40 + 1, -(2**62)])
    (result,) = run(made[name], lambda a: [a + 1], value)
    assert made[name].get(result).tolist() == [2**40 + 2, -(2**62) + 1]
    assert not jax.config.read("jax_enable_x64")
    assert jax.numpy.asarray(value.astype(np.int32)).dtype == np.int32


@pytest.mark.parametrize("name", MADE)
def test_a_program_that_is_none_is_an_error(made: dict[str, Target], name: str) -> None:
    class NoProgram:
        pass

    with pytest.raises(Exception, match=r"."):
        made[name].compile(NoProgram(), [])
    assert run(made[name], lambda a: [a + 1], np.ones(2, F32))


@pytest.mark.parametrize("name", MADE)
def test_memory_account(made: dict[str, Target], name: str) -> None:
    account = made[name].memory
    before, allocations = account.in_use_bytes, account.allocations
    account.allocate(1000)
    assert (account.in_use_bytes, account.allocations) == (before + 1000, allocations + 1)
    assert account.peak_bytes >= before + 1000
    account.in_use_bytes -= 1000
    account.reset_peak()
    assert account.peak_bytes == before


def test_only_the_simulated_device_runs_out(made: dict[str, Target]) -> None:
    for name in ("sim", "sim without numerics"):
        target = made[name]
        assert isinstance(target, SimTarget)
        with pytest.raises(OutOfHBM, match=CHIP):
            target.device.allocate(target.info().memory_bytes + 1)
        before = target.statistics.in_use_bytes
        kept = target.put(np.ones(1000, F32))
        assert target.statistics.in_use_bytes == before + 4000
        del kept
        assert target.statistics.in_use_bytes == before


def test_only_the_simulated_device_has_a_clock(made: dict[str, Target]) -> None:
    assert made["cpu"].clock_s() is None
    x = np.ones((256, 256), F32)
    spent = []
    for name in ("sim", "sim without numerics"):
        target = made[name]
        executable = target.compile(*program(lambda a: [a @ a], x))
        target.wait([])
        start = target.clock_s()
        executable.run([target.put(x)])
        target.wait([])
        end = target.clock_s()
        assert start is not None
        assert end is not None
        spent.append(end - start)
    assert spent[0] > 0
    assert spent[0] == pytest.approx(spent[1])


def test_abstract_arrays_have_no_values(made: dict[str, Target]) -> None:
    target = made["sim without numerics"]
    with pytest.raises(TargetError, match="abstract buffers have no values"):
        target.get(run(target, lambda a: [a + 1], np.ones(2, F32))[0])


def test_an_option_of_no_meaning_or_a_chip_that_is_none() -> None:
    with pytest.raises(TargetError, match="unknown chip 'v99'"):
        targets.create("sim:v99")
    assert {"cpu", "sim", "tpu"} <= set(targets.names())


def test_cpu_and_sim_give_the_same_bits() -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAMS],
            env=os.environ | {"TORCHTPU_TARGET": spec},
            stdout=subprocess.PIPE,
            text=True,
        )
        for spec in ("cpu", f"sim:{CHIP}")
    ]
    cpu, sim = (json.loads(process.communicate()[0]) for process in running)
    assert cpu == sim
    assert len(cpu) == 5
