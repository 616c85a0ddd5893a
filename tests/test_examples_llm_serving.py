"""examples/llm.py serving in eight bits: caches and stored weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from examples import llm, llm_kv_cache, llm_serve, llm_stored_weights
from examples.llm_attention import Cache
from examples.llm_config import ModelError
from examples.llm_kv_cache import NarrowCache, make_cache, quantized
from examples.llm_layers import Linear
from examples.llm_model import Decoder
from tests.models import DEVICE
from tests.test_examples_llm import LATENT, drawn, options

CPU = torch.device("cpu")


def logits_of(text: str, cache: str, quantize: str = "none") -> Tensor:
    """Logits [B, steps, V] behind a prompt of nine tokens and behind each of eight more."""
    chosen = options(text, "--phase decode --param-dtype float32")
    config = llm.configured(chosen)
    model = Decoder(config)
    with torch.no_grad():
        drawn(model)
    tokens = llm.sequences(config, chosen, 0, 3)
    server = llm_serve.Server(model, 3, 17, cache)
    llm_stored_weights.store(model, quantize)
    with torch.no_grad():
        found = [server.logits(tokens[:, :9])]
        for place in range(9, 17):
            position = torch.tensor([place])
            found.append(server.logits(tokens[:, place : place + 1], position))
    return torch.stack(found, 1)


def error(found: Tensor, want: Tensor) -> float:
    """Norm of the difference over the norm of what is wanted."""
    return float((found - want).norm() / want.norm())


@pytest.mark.parametrize(
    "text",
    ["", "--kv-heads 4", "--kv-heads 1", "--window 4 --full-attention-every 2", LATENT],
    ids=["grouped", "own", "shared", "ring", "latent"],
)
@pytest.mark.parametrize(("kind", "most"), [("int8", 0.01), ("fp8", 0.05)])
def test_a_narrow_cache_gives_nearly_the_same_logits(text: str, kind: str, most: float) -> None:
    want = logits_of(text, "float32")
    found = logits_of(text, kind)
    assert 0 < error(found[:, 1:], want[:, 1:]) < most
    torch.testing.assert_close(found[:, 0], want[:, 0])  # prefill does not read the cache


@pytest.mark.parametrize(("quantize", "most"), [("int8", 0.02), ("fp8", 0.1)])
@pytest.mark.parametrize("text", ["", LATENT], ids=["grouped", "latent"])
def test_stored_weights_give_nearly_the_same_logits(text: str, quantize: str, most: float) -> None:
    assert 0 < error(logits_of(text, "float32", quantize), logits_of(text, "float32")) < most


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_scales_make_the_largest_number_of_a_row_exact(dtype: torch.dtype) -> None:
    x = torch.tensor([[1.0, -2.0, 0.5], [300.0, 10.0, 0.0], [0.0, 0.0, 0.0]])
    narrow, scale = quantized(x, dtype)
    back = narrow.float() * scale[:, None]
    assert narrow.dtype == dtype
    assert scale.shape == (3,)
    torch.testing.assert_close(back.abs().amax(1), x.abs().amax(1))
    torch.testing.assert_close(back, x, rtol=0.07, atol=300 / 127 / 2)


def test_a_cache_takes_the_bytes_it_should() -> None:
    shapes = ((16, 2, 8), (16, 2, 8))
    wide, narrow = (make_cache(shapes, 3, kind, CPU) for kind in ("bfloat16", "int8"))
    assert type(wide) is Cache
    assert isinstance(narrow, NarrowCache)
    assert narrow.k.nbytes * 2 == wide.k.nbytes
    assert narrow.k_scale.shape == (3, 16, 2)


def test_the_device_reads_and_writes_a_narrow_cache_as_the_host_does() -> None:
    torch.manual_seed(0)
    shapes = ((7, 2, 8), (7, 2, 8))
    past, new, q = torch.randn(2, 3, 2, 5, 8), torch.randn(2, 3, 2, 1, 8), torch.randn(3, 4, 1, 8)
    found = []
    for device in (CPU, torch.device(DEVICE)):
        cache = make_cache(shapes, 3, "int8", device)
        (k, v), position = new.to(device), torch.tensor([5], device=device)
        cache.fill(*past.to(device))
        cache.append(k, v, position)
        found.append(cache.attend(q.to(device), position).cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)
    k, v = (torch.cat((past[i], new[i]), 2) for i in (0, 1))
    exact = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert error(found[0], exact) < 0.02


def test_the_device_multiplies_stored_weights_as_the_host_does() -> None:
    chosen = options("--phase decode")
    config = llm.configured(chosen)
    found = []
    for device in (CPU, torch.device(DEVICE)):
        torch.manual_seed(0)
        model = nn.Sequential(Linear(config, 32, 16, "q"))
        with torch.no_grad():
            llm_stored_weights.store(model, "fp8")
            found.append(model.to(device)(torch.randn(3, 5, 32).to(device)).cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)


def test_every_linear_layer_but_those_that_are_read_is_stored() -> None:
    chosen = options(LATENT)
    model = Decoder(llm.configured(chosen))
    llm_stored_weights.store(model, "fp8")
    left = [name for name, child in model.named_modules() if isinstance(child, Linear)]
    assert left
    assert all(name.endswith("kv_up") for name in left)
    with pytest.raises(ModelError, match=r"--quantize fp8_static trains"):
        llm_stored_weights.store(nn.Module(), "fp8_static")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--phase decode --data 2", r"data 2 x tensor 1 = 2 ranks, got 1"),
        ("--phase decode --tensor 4", r"data 1 x tensor 4 = 4 ranks, got 1"),
    ],
)
def test_ranks_that_are_not_there_are_one_message(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        llm.run(options(text))


def test_a_batch_that_cannot_be_dealt_is_one_message() -> None:
    with pytest.raises(ModelError, match=r"--data 3 does not divide --batch 4"):
        llm.sequences_of(options("--phase decode"), llm_serve.Place(data=3))


def test_the_kinds_of_a_cache_are_the_options() -> None:
    for kind in llm_kv_cache.KINDS:
        assert options(f"--kv-cache {kind}").kv_cache == kind
