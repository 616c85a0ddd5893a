"""examples/llm.py, dit.py and resnet50.py: published sizes, equal losses on every mesh, serving."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from examples import dit, llm, llm_attention, llm_parallel, llm_quantize, llm_serve, resnet50
from examples.llm_config import Config, ModelError, named, published
from examples.llm_model import Decoder
from tests.models import DEVICE

ROOT = Path(__file__).parents[1]
TINY = (
    "--vocabulary 96 --width 32 --heads 4 --kv-heads 2 --head-dim 8 --layers 2 --hidden 64 "
    "--seq 16 --batch 4 --steps 2 --compute-dtype float32"
)
EXPERTS = "--experts 4 --experts-per-token 2 --expert-hidden 16"
LATENT = (
    "--kv-rank 12 --q-rank 16 --nope-dim 8 --rope-dim 4 --value-dim 6 "
    f"{EXPERTS} --shared-experts 1 --first-dense-layers 1 --router sigmoid"
)
# Meshes of two ranks, each with a model that its axis has something to do for.
MESHES = [
    "--fsdp 2 --tied --remat minimal",
    "--slices 2 --accumulate 2 --loss-chunks 2",
    "--tensor 2 --tied --qk-norm --post-norm --remat qkv --window 4 --full-attention-every 2",
    f"--expert 2 {EXPERTS} --capacity-factor 1.0",
    f"--tensor 2 {EXPERTS} --shared-experts 1 --routing balanced",
]


def options(*texts: str, device: str = "cpu") -> argparse.Namespace:
    """What the command line of these texts gives."""
    return llm.parser().parse_args(["--device", device, *" ".join((TINY, *texts)).split()])


@pytest.mark.parametrize("name", published())
def test_parameters_add_up_to_the_published_total(name: str) -> None:
    with torch.device("meta"):
        model = Decoder(Config(**named(name)))
    facts = published()[name]
    tolerance = facts.get("tolerance", 0.0)
    total = sum(parameter.numel() for parameter in model.parameters())
    assert abs(total / facts["parameters"] - 1) <= tolerance


# Ranks --------------------------------------------------------------------------------------


def both_losses(text: str) -> tuple[list[float], list[float]]:
    """Losses of one process and of this rank's mesh, from the same parameters."""
    chosen = options(text)
    config = llm.configured(chosen)
    with pytest.MonkeyPatch.context() as patch:
        alone = options(text.replace("--accumulate 2", ""))
        whole = {
            n: p.detach().clone() for n, p in llm.build(config, alone, None).named_parameters()
        }
        want = llm.train(config, alone, None)
        sizes = {a: getattr(chosen, a) for a in ("slices", "data", "fsdp", "expert")}
        axes = llm_parallel.axes_for(dist.get_world_size(), tensor=max(1, chosen.tensor), **sizes)
        mesh = llm_parallel.make_mesh(torch.device("cpu"), axes)
        build = llm.build
        patch.setattr(llm, "build", lambda *inputs: loaded(build(*inputs), whole, mesh))
        return want, llm.train(config, chosen, mesh)


@torch.no_grad()
def loaded(model: Decoder, whole: dict[str, Tensor], mesh: llm_parallel.Mesh) -> Decoder:
    """`model` with this rank's part of the parameters `whole`."""
    for name, parameter in model.named_parameters():
        value = whole[name]
        if ".experts." in name:
            value = value.chunk(mesh.axes.expert * mesh.axes.tensor)[mesh.expert_rank]
        assert isinstance(parameter, DTensor)
        part = distribute_tensor(value, parameter.device_mesh, parameter.placements)
        parameter.to_local().copy_(part.to_local())
    return model


def served_together(axis: str) -> list[list[int]]:
    """Tokens of this rank's sequences, served by two ranks along `axis`."""
    chosen = options(f"--phase decode --{axis} 2 --kv-cache int8")
    place = llm_serve.placed(2, "cpu", chosen.data, chosen.tensor)
    tokens: list[list[int]] = llm.serve(llm.configured(chosen), chosen, place).tolist()
    return tokens


def rank_main() -> None:
    """One rank: print the losses for each of MESHES, and tokens served over each axis."""
    dist.init_process_group("gloo")
    losses = [both_losses(text) for text in MESHES]
    served = {axis: served_together(axis) for axis in ("data", "tensor")}
    sys.stdout.write(json.dumps({"losses": losses, "served": served}))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def both_ranks() -> list[dict[str, Any]]:
    """What rank_main of two ranks printed."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from tests.test_examples_llm import rank_main as m; m()"]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    common |= {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}  # gloo only
    ranks = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | common | {"RANK": str(r), "LOCAL_RANK": str(r)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=280) for rank in ranks]
    except subprocess.TimeoutExpired:
        for rank in ranks:
            rank.kill()
            rank.communicate()
        raise
    assert [rank.returncode for rank in ranks] == [0, 0], outputs[0][1]
    return [json.loads(text) for text, _ in outputs]


@pytest.mark.timeout(300)  # the first waits for both ranks
@pytest.mark.parametrize("number", range(len(MESHES)), ids=MESHES)
def test_two_ranks_train_as_one_process(both_ranks: list[dict[str, Any]], number: int) -> None:
    want, got = both_ranks[0]["losses"][number]
    assert_close(got, want, rtol=0, atol=1e-5)
    assert want[-1] < want[0] - 0.003


@pytest.mark.timeout(300)
def test_ranks_with_sequences_of_their_own_serve_as_one_process(
    both_ranks: list[dict[str, Any]],
) -> None:
    first, second = (rank["served"] for rank in both_ranks)
    chosen = options("--phase decode --kv-cache int8")
    alone = llm.serve(llm.configured(chosen), chosen, llm_serve.Place()).tolist()
    assert first["data"] + second["data"] == alone
    assert first["tensor"] == second["tensor"]


# One process --------------------------------------------------------------------------------


def test_training_on_the_device_is_training_on_cpu() -> None:
    text = f"{EXPERTS} --layers 1 --remat none"
    ours, theirs = options(text, device=DEVICE), options(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "initialise", drawn)
        got = llm.train(llm.configured(ours), ours, None)
        want = llm.train(llm.configured(theirs), theirs, None)
    assert_close(got, want, rtol=0, atol=1e-4)


@torch.no_grad()
def drawn(model: Decoder, *_: int) -> None:
    """Parameters drawn on the host, so that devices start equal."""
    model.tie()
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)


@pytest.mark.parametrize(
    "text",
    [
        "--window 4 --full-attention-every 2",
        f"{LATENT} --layers 3",
        "--learned-positions 32 --norm layer --activation gelu --attention-bias --mlp-bias --tied",
        f"--parallel-block --kv-heads 1 {EXPERTS}",
    ],
    ids=["window", "latent", "gpt", "parallel"],
)
@torch.no_grad()
def test_decoding_gives_the_logits_of_the_whole_sequence(text: str) -> None:
    chosen = options(text, "--phase decode --param-dtype float32")
    config = llm.configured(chosen)
    model = Decoder(config)
    drawn(model)
    tokens = llm.sequences(config, chosen, 0, 3)
    want = model(tokens)[:, 8:]
    server = llm_serve.Server(model, 3, 17, "float32")
    got = [server.logits(tokens[:, :9])]
    for place in range(9, 17):
        position = torch.tensor([place])
        got.append(server.logits(tokens[:, place : place + 1], position))
    assert_close(torch.stack(got, 1), want, rtol=1e-4, atol=1e-4)


class Products(TorchDispatchMode):
    """Counts the ops that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run and count."""
        self.seen[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("--remat none", 0),
        ("--remat minimal_with_attention", 0),
        ("--remat minimal", 0),
        ("--remat qkv", 6),
        ("--remat full --save q,k,v,out", 4),
        ("--remat full", 12),
    ],
)
def test_a_block_computes_again_what_its_policy_does_not_keep(text: str, again: int) -> None:
    chosen = options(text)
    model = llm.build(llm.configured(chosen), chosen, None)
    tokens = llm.sequences(model.config, chosen, 0, 2)
    loss = model(tokens[:, :-1], tokens[:, 1:])
    with Products() as products:
        loss.backward()
    assert products.seen["mm"] == 2 * (2 * 7 + 1) + again  # "down" is needed by nobody


@torch.no_grad()
def test_dispatches_agree_where_nothing_is_dropped() -> None:
    texts = ("--capacity-factor 4", "--capacity-factor 4 --dispatch einsum", "")
    logits = []
    for text in texts:
        chosen = options(EXPERTS, text)
        model = Decoder(llm.configured(chosen))
        drawn(model)
        logits.append(model(llm.sequences(model.config, chosen, 0, 2)))
    assert_close(logits[1], logits[0])
    assert_close(logits[2], logits[0])


@torch.no_grad()
def test_a_full_expert_drops_the_tokens_that_come_later() -> None:
    chosen = options(EXPERTS, "--capacity-factor 0.5 --layers 1")
    model = Decoder(llm.configured(chosen))
    drawn(model)
    moe: Any = model.blocks[0].mlp
    moe.router.weight.zero_()
    moe.router.weight[:2, 0] = 1.0  # everybody wants experts 0 and 1
    x = torch.rand(1, 16, 32) + 0.5
    y = moe(x)
    assert y[0, :4].abs().amin(-1).min() > 0  # capacity: 16 x 2 x 0.5 / 4
    assert torch.equal(y[0, 4:], torch.zeros(12, 32))


@pytest.mark.parametrize(("length", "block"), [(12, 0), (13, 0), (13, 6), (24, 8)])
def test_attention_by_blocks_is_attention_with_a_window(length: int, block: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, length, 8), *torch.randn(2, 2, 2, length, 8)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    got = llm_attention.attend(q, k, v, window=4, kind="sdpa", block=block)
    want = llm_attention.attend(q, k, v, window=4, kind="math")
    assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "error"), [("int8", 0.02), ("fp8", 0.08), ("fp8_static", 0.08)])
def test_quantized_products_are_near_whole_ones(kind: str, error: float) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(2, 16, 32, requires_grad=True), torch.randn(48, 32, requires_grad=True)]
    exact = torch.nn.functional.linear(*inputs)
    rounded = llm_quantize.linear(kind, *inputs)
    wanted = torch.autograd.grad(exact.square().sum(), inputs)
    found = torch.autograd.grad(rounded.square().sum(), inputs)
    for near, true in zip((rounded, *found), (exact, *wanted), strict=True):
        assert 0 < (near - true).norm() / true.norm() < error


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--model", "lama2-7b"], "unknown model 'lama2-7b' (did you mean llama2-7b?)"),
        (["--tensor", "2"], "tensor 2 = 2 ranks, but WORLD_SIZE is 1"),
        (["--save", "qkv"], "--save qkv: expected names of q, k, v, "),
        (["--batch", "3", "--accumulate", "2"], "3 sequences cannot be dealt to 1 ranks x 2"),
        (["--heads", "5"], "kv_heads=8 does not divide heads=5"),
        (["--steps", "0"], "expected at least 1, got 0"),
        (["--loss-chunks", "3", "--seq", "16"], "--loss-chunks 3 does not divide --seq 16"),
    ],
)
def test_what_cannot_run_is_one_message(
    arguments: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["llm.py", "--device", "cpu", "--layers", "1", *arguments])
    with pytest.raises(SystemExit) as leave:
        llm.main()
    assert leave.value.code == 2
    assert expected in capsys.readouterr().err


def test_experts_add_the_bias_of_the_expert_that_a_row_went_to() -> None:
    chosen = options(EXPERTS, "--mlp-bias")
    model = Decoder(llm.configured(chosen))
    drawn(model)
    moe: Any = model.blocks[0].mlp
    rows, owners = torch.randn(6, 32), torch.tensor([0, 0, 1, 3, 3, 3])
    got = moe.experts(rows, owners)
    for row, owner, y in zip(rows, owners, got, strict=True):
        every = moe.experts(row.expand(4, 1, 32))  # one row for each expert
        assert_close(y, every[owner, 0])


@pytest.mark.parametrize(("kept", "again"), [("", 3), ("down", 2), ("gate,up,down", 0)])
def test_products_of_experts_are_kept_by_name(kept: str, again: int) -> None:
    chosen = options(EXPERTS, f"--remat full --layers 1 --save {kept or 'q'}")
    model = llm.build(llm.configured(chosen), chosen, None)
    tokens = llm.sequences(model.config, chosen, 0, 2)
    loss = model(tokens[:, :-1], tokens[:, 1:])
    with Products() as products:
        loss.backward()
    assert products.seen["_grouped_mm"] == 6 + again


def test_dropless_experts_elsewhere_need_counts_known_beforehand() -> None:
    chosen = options(EXPERTS)
    moe: Any = Decoder(llm.configured(chosen), ranks=2).blocks[0].mlp
    with pytest.raises(ModelError, match="--routing balanced, or --capacity-factor"):
        moe(torch.zeros(1, 16, 32))


# The other two ------------------------------------------------------------------------------


def test_vision_models_have_their_published_sizes() -> None:
    with torch.device("meta"):
        models = (dit.Dit(dit.Config()), resnet50.ResNet50())
    transformer, residual = (sum(p.numel() for p in m.parameters()) for m in models)
    assert abs(transformer / 675e6 - 1) < 0.002  # Peebles and Xie 2023, table 4
    assert residual == 25_557_032  # pytorch.org/vision, resnet50


def test_a_diffusion_transformer_may_compute_again() -> None:
    config = dit.Config(size=8, width=32, layers=2, heads=2, classes=4)
    kept, again = (dit.train(c, "cpu", 8, 3) for c in (config, replace(config, remat=True)))
    assert again == kept
    assert kept[0] == pytest.approx(1, abs=0.3)  # it predicts next to nothing of unit noise


def test_resnet_takes_a_step() -> None:
    (loss,) = resnet50.train("cpu", 4, 1, size=32, bfloat16=False, channels_last=True)
    assert 5 < loss < 10  # ln(1000) is 6.9
