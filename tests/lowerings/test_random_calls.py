"""Random calls: the same bits from a seed everywhere, and never the same bits twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import combinations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from torchtpu.generator import Generator, default_generator

MODES = list(torch.tpu.EagerMode)
OPS: dict[str, Callable[[], torch.Tensor]] = {
    "rand": lambda: torch.rand(64, device="tpu"),
    "randn_half": lambda: torch.randn(64, device="tpu", dtype=torch.bfloat16),
    "randint": lambda: torch.randint(1000, (64,), device="tpu"),
    "randperm": lambda: torch.randperm(64, device="tpu"),
    "bernoulli": lambda: torch.empty(256, device="tpu").bernoulli_(0.5),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(256, device="tpu"), 0.5),
    "multinomial": lambda: torch.multinomial(torch.ones(1000, device="tpu"), 64, True),
    "poisson": lambda: torch.poisson(torch.full((64,), 50.0, device="tpu")),
    "gamma": lambda: torch._standard_gamma(torch.full((64,), 2.0, device="tpu")),
}


def drawn_with(seed: int, names: Iterable[str] = OPS) -> list[torch.Tensor]:
    """Results of all ops, and then of all again."""
    torch.manual_seed(seed)
    return [r.cpu() for r in [OPS[name]() for name in (*names, *names)]]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    """Tell whether all tensors are equal."""
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_seed_gives_the_same_bits_in_every_mode() -> None:
    drawn = []
    for mode in MODES:
        with torch.tpu.set_eager_mode(mode):
            drawn.append(drawn_with(5))
    assert same(drawn[0], drawn[1])
    assert same(drawn[0], drawn[2])
    assert not any(torch.equal(a, b) for a, b in zip(drawn[0], drawn_with(6), strict=True))


def test_no_two_calls_draw_the_same() -> None:
    drawn = drawn_with(7)
    twice = zip(drawn[: len(OPS)], drawn[len(OPS) :], strict=True)
    assert not any(torch.equal(first, second) for first, second in twice)


def test_no_two_calls_draw_the_same_across_modes_and_flushes() -> None:
    torch.manual_seed(8)
    drawn = []
    for mode in MODES * 2:
        with torch.tpu.set_eager_mode(mode):
            drawn += [OPS["rand"](), OPS["rand"]()]
            torch.tpu.synchronize()
            drawn.append(OPS["rand"]())
    assert not any(torch.equal(a.cpu(), b.cpu()) for a, b in combinations(drawn, 2))


_SCRIPT = """
import hashlib, torch
from tests.lowerings.test_random_calls import drawn_with
drawn = drawn_with(9, ["rand", "randn_half", "dropout"])
joined = b"".join(t.double().numpy().tobytes() for t in drawn)
print(hashlib.sha256(joined).hexdigest())
"""


def test_a_seed_gives_the_same_bits_on_every_target() -> None:
    def digest(target: str, mode: str) -> str:
        environment = os.environ | {"TORCHTPU_TARGET": target, "TORCHTPU_MODE": mode}
        command = [sys.executable, "-c", _SCRIPT]
        return subprocess.check_output(command, env=environment, text=True, timeout=110).strip()

    assert digest("cpu", "fused") == digest("sim:v5e", "strict")


def test_a_compiled_function_draws_what_eager_does_and_anew_at_each_call() -> None:
    def draw(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nn.functional.dropout(x, 0.5), torch.rand_like(x)

    x = torch.ones(64, device="tpu")
    compiled = torch.compile(draw, backend="tpu")
    torch.manual_seed(1)
    first, second = compiled(x), compiled(x)
    assert not any(torch.equal(a.cpu(), b.cpu()) for a, b in zip(first, second, strict=True))
    torch.manual_seed(1)
    again = compiled(x)
    assert same([t.cpu() for t in first], [t.cpu() for t in again])


@pytest.mark.parametrize("op", [torch.rand_like, torch.randn_like, torch.nn.functional.dropout])
def test_randomness_of_vmap(op: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.full((4, 64), 0.5, device="tpu")
    different = torch.vmap(op, randomness="different")(x).cpu()
    assert not any(torch.equal(a, b) for a, b in combinations(different, 2))
    equal = torch.vmap(op, randomness="same")(x).cpu()
    assert all(torch.equal(a, b) for a, b in combinations(equal, 2))
    with pytest.raises(RuntimeError, match="vmap: called random operation while in randomness err"):
        torch.vmap(op)(x)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_replays_its_bits(reentrant: bool) -> None:
    seen: list[torch.Tensor] = []

    def block(x: torch.Tensor) -> torch.Tensor:
        kept = torch.nn.functional.dropout(x, 0.5)
        seen.append(kept.detach())
        return kept * torch.rand_like(x)

    x = torch.ones(64, device="tpu", requires_grad=True)
    y = checkpoint(block, x, use_reentrant=reentrant)
    between = torch.rand(64, device="tpu")
    y.sum().backward()
    assert len(seen) == 2
    assert torch.equal(seen[0].cpu(), seen[1].cpu())
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), y.detach().cpu())  # x is 1, so y is its own derivative
    assert not torch.equal(torch.rand(64, device="tpu").cpu(), between.cpu())


def test_the_state_moves_on_with_every_call_and_can_be_put_back() -> None:
    state = torch.tpu.get_rng_state()
    first = OPS["rand"]().cpu()
    assert not torch.equal(torch.tpu.get_rng_state(), state)
    torch.tpu.set_rng_state(state)
    assert torch.equal(OPS["rand"]().cpu(), first)
    with torch.random.fork_rng(device_type="tpu"):
        inside = OPS["rand"]().cpu()
    assert torch.equal(OPS["rand"]().cpu(), inside)


WITH_GENERATOR: dict[str, Callable[[torch.Generator], torch.Tensor]] = {
    "rand": lambda g: torch.rand(3, device="tpu", generator=g),
    "randn": lambda g: torch.randn(3, device="tpu", generator=g),
    "normal_": lambda g: torch.empty(3, device="tpu").normal_(generator=g),
    "normal": lambda g: torch.normal(torch.zeros(3, device="tpu"), 1.0, generator=g),
    "randint": lambda g: torch.randint(9, (3,), device="tpu", generator=g),
    "randperm": lambda g: torch.randperm(3, device="tpu", generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.ones(3, device="tpu"), generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(3, device="tpu"), 2, generator=g),
    "poisson": lambda g: torch.poisson(torch.ones(3, device="tpu"), generator=g),
}


@pytest.mark.parametrize("name", WITH_GENERATOR)
def test_a_generator_of_another_device_is_an_error(name: str) -> None:
    expected = "Expected a 'tpu' device type for generator but found 'cpu'"
    for generator in (torch.Generator(), torch.default_generator):
        before = generator.get_state()
        with pytest.raises(RuntimeError, match=expected):
            WITH_GENERATOR[name](generator)
        assert torch.equal(generator.get_state(), before)
    for generator in (torch.Generator("tpu"), default_generator(), Generator("tpu").clone_state()):
        assert WITH_GENERATOR[name](generator).shape[0] in (2, 3)


def test_a_generator_is_known_when_it_is_the_only_thing_left_of_its_own() -> None:
    """A generator that dies leaves nothing by which another at its place would be taken for it."""
    for _ in range(50):
        torch.rand(1, device="tpu", generator=torch.Generator("tpu"))
        with pytest.raises(RuntimeError, match="device type for generator"):
            torch.rand(1, device="tpu", generator=torch.Generator())
