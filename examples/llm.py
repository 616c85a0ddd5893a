"""Train or serve a decoder, dense or of experts, on one device or over a mesh of ranks.

Sizes are options, or those of a published model; a row of a published table is a command line:

    torchtpu-perf estimate examples/llm.py --chip v6e -- --model llama3.1-8b --seq 8192
    torchrun --nproc-per-node 4 examples/llm.py --device cpu --model gpt2 --layers 2 --batch 4
"""

from __future__ import annotations

import argparse
import os
import sys
import typing
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `examples` is found

from examples import llm_kv_cache, llm_parallel, llm_remat, llm_serve, llm_stored_weights
from examples.llm_config import Config, ModelError, named, published
from examples.llm_model import Decoder

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-4, weight_decay=0.1, fused=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=1e-4, foreach=True),
    "adafactor": lambda groups: torch.optim.Adafactor(groups, lr=1e-3),
}
DTYPES = ("float32", "bfloat16")


def configured(options: argparse.Namespace) -> Config:
    """The published sizes of --model, with those that the command line gives. Raises ModelError."""
    sizes = named(options.model) if options.model else {}
    given = {f.name: getattr(options, f.name) for f in fields(Config)}
    sizes |= {name: value for name, value in given.items() if value is not None}
    if options.phase != "train":
        sizes.setdefault("param_dtype", sizes.get("compute_dtype", Config.compute_dtype))
    return Config(**sizes)


def batch_of(options: argparse.Namespace, axes: llm_parallel.Axes) -> int:
    """Sequences of this rank. Raises ModelError."""
    total = options.batch
    if options.batch_per_device is not None:
        total = options.batch_per_device * axes.world
    if total < 1 or total % (axes.batch_ranks * options.accumulate):
        raise ModelError(
            f"[llm] {total:g} sequences cannot be dealt to {axes.batch_ranks} ranks x "
            f"{options.accumulate} accumulation steps"
        )
    return int(total) // axes.batch_ranks


def check_chunks(options: argparse.Namespace) -> None:
    """Say where the logits cannot be cut. Raises ModelError."""
    if options.seq % options.loss_chunks:
        raise ModelError(
            f"[llm] --loss-chunks {options.loss_chunks} does not divide --seq {options.seq}"
        )
    if options.loss_chunks > 1 and options.tensor > 1:
        raise ModelError("[llm] --tensor cuts the logits by vocabulary; expected --loss-chunks 1")


def sequences(config: Config, options: argparse.Namespace, first: int, count: int) -> Tensor:
    """Random tokens [count, T + 1] of the sequences from number `first`: no matter which rank."""
    rows = []
    for number in range(first, first + count):
        generator = torch.Generator().manual_seed(options.seed + number)
        rows.append(torch.randint(config.vocabulary, (options.seq + 1,), generator=generator))
    return torch.stack(rows).to(options.device)


def parameter_groups(model: nn.Module) -> list[dict[str, list[Tensor]]]:
    """A group for each block, so that the update of one block is compiled and serves them all.

    Experts have groups of their own: they may live on another mesh.
    """
    groups: dict[tuple[str, bool], list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        owner, number, *_ = name.split(".")
        key = (f"{owner}.{number}" if owner == "blocks" else "", ".experts." in name)
        groups.setdefault(key, []).append(parameter)
    return [{"params": group} for group in groups.values()]


def build(config: Config, options: argparse.Namespace, mesh: llm_parallel.Mesh | None) -> Decoder:
    """A decoder that is born on the device, already split: no host holds it. Raises ModelError."""
    ranks = mesh.axes.expert * mesh.axes.tensor if mesh else 1
    with torch.device("meta"):
        model = Decoder(config, ranks)
    model.head.chunks = options.loss_chunks
    kept = llm_remat.kept_names(options.remat, options.save)
    for block in model.layers:
        block.kept = kept
    if mesh is not None:
        reduce_dtype = options.reduce_dtype or config.compute_dtype
        llm_parallel.distribute(model, mesh, reduce_dtype=reduce_dtype, reshard=options.zero == 3)
    model.to_empty(device=options.device)
    model.initialise(options.seed, mesh.expert_rank if mesh else 0)
    return model


def train(
    config: Config, options: argparse.Namespace, mesh: llm_parallel.Mesh | None
) -> list[float]:
    """Mean loss of each step over all ranks."""
    if mesh is not None and options.optimizer == "adafactor":
        raise ModelError(
            "[llm] torch's Adafactor knows no sharded parameters; expected adamw or sgd"
        )
    model = build(config, options, mesh)
    update = OPTIMIZERS[options.optimizer](parameter_groups(model))
    count = batch_of(options, mesh.axes if mesh else llm_parallel.Axes())
    tokens = sequences(config, options, mesh.batch_rank * count if mesh else 0, count)
    losses = [step(model, update, tokens, options, mesh) for _ in range(options.steps)]
    mean = torch.stack(losses)
    if mesh is not None:
        dist.all_reduce(mean)
        mean = mean / mesh.axes.world
    return [float(loss) for loss in mean.cpu()]


def step(
    model: Decoder,
    update: torch.optim.Optimizer,
    tokens: Tensor,
    options: argparse.Namespace,
    mesh: llm_parallel.Mesh | None,
) -> Tensor:
    """One update from tokens [B, T + 1]; the mean loss of this rank."""
    update.zero_grad()
    total = torch.zeros((), device=tokens.device)
    parts = tokens.chunk(options.accumulate)
    for number, part in enumerate(parts, 1):
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(number == len(parts))
        with llm_parallel.loss_context(mesh):
            loss = model(part[:, :-1], part[:, 1:]) / len(parts)
            loss.backward()
        total += loss.to_local().detach() if hasattr(loss, "to_local") else loss.detach()
    update.step()
    return total


@torch.no_grad()
def serve(config: Config, options: argparse.Namespace, place: llm_serve.Place) -> Tensor:
    """The tokens [B, steps] that --phase prefill or decode chose for this rank's sequences."""
    with torch.device("meta"):
        decoder = Decoder(llm_serve.narrowed(config, place.parts))
        llm_serve.narrow_head(decoder, place.parts)
    decoder.to_empty(device=options.device).eval()
    decoder.initialise(options.seed)
    count = sequences_of(options, place)
    kind = options.kv_cache or config.compute_dtype
    server = llm_serve.Server(decoder, count, options.seq, kind)
    if place.group is not None:
        server.share(place.group)
    llm_stored_weights.store(decoder, config.quantize)
    tokens = sequences(config, options, place.data_rank * count, count)[:, :-1]
    if options.phase == "prefill":
        return torch.stack([server(tokens) for _ in range(options.steps)], dim=1)
    return decode(server, tokens[:, :1], options)


def sequences_of(options: argparse.Namespace, place: llm_serve.Place) -> int:
    """Sequences that this rank serves. Raises ModelError."""
    if options.batch % place.data:
        raise ModelError(f"[serve] --data {place.data} does not divide --batch {options.batch}")
    return int(options.batch) // place.data


def decode(server: llm_serve.Server, token: Tensor, options: argparse.Namespace) -> Tensor:
    """Greedy tokens [B, steps] behind a cache that is taken to be full up to the last of them."""
    position = torch.tensor([options.seq - options.steps], device=token.device)
    chosen = []
    for _ in range(options.steps):
        token = server(token, position)[:, None]
        position = position + 1
        chosen.append(token)
    return torch.cat(chosen, dim=1)


def run(options: argparse.Namespace) -> str:
    """What the command line asks for, as one line of text. Raises ModelError."""
    config = configured(options)
    with llm_parallel.joined(options.device) as world:
        if options.phase != "train":
            device, sizes = options.device.partition(":")[0], (options.data, options.tensor)
            place = llm_serve.placed(world, device, *sizes)
            tokens = serve(config, options, place)
            return f"tokens of the first sequence: {tokens[0].tolist()}"
        names = ("slices", "data", "fsdp", "expert")
        axes = llm_parallel.axes_for(
            world or 1, tensor=max(1, options.tensor), **{n: getattr(options, n) for n in names}
        )
        batch_of(options, axes)
        check_chunks(options)
        mesh = llm_parallel.make_mesh(torch.device(options.device), axes) if world else None
        losses = train(config, options, mesh)
        return "loss per step: " + " ".join(f"{loss:.4f}" for loss in losses)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """An option for each field of Config; one that is not given is the model's."""
    hints = typing.get_type_hints(Config)
    group = parser.add_argument_group("sizes and variants, instead of the model's own")
    for field in fields(Config):
        kind, name = hints[field.name], "--" + field.name.replace("_", "-")
        if kind is bool:
            group.add_argument(name, action=argparse.BooleanOptionalAction, default=None)
        elif typing.get_origin(kind) is typing.Literal:
            group.add_argument(name, choices=typing.get_args(kind))
        elif field.name.endswith("dtype"):
            group.add_argument(name, choices=DTYPES)
        else:
            group.add_argument(name, type=kind, metavar=kind.__name__.upper())


def positive(text: str) -> int:
    """An integer of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--model", help=f"one of {', '.join(published())}")
    add("--device", default="tpu", help="tpu, cpu or cuda")
    add("--phase", choices=("train", "prefill", "decode"), default="train")
    add("--batch", type=positive, default=1, help="sequences per step, over all ranks")
    add("--batch-per-device", type=float, help="the same, per rank; fractions with --tensor")
    add("--seq", type=positive, default=2048, help="tokens per sequence, or of the cache")
    add("--steps", type=positive, default=1)
    add("--seed", type=int, default=0)
    work = made.add_argument_group("training")
    work.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    work.add_argument("--accumulate", type=positive, default=1, help="parts of a step's batch")
    work.add_argument("--remat", choices=llm_remat.POLICIES, default="full")
    names = ", ".join(llm_remat.NAMES)
    work.add_argument("--save", default="", help=f"products to keep besides, of {names}")
    work.add_argument("--loss-chunks", type=positive, default=1, help="parts of the logits")
    work.add_argument("--reduce-dtype", choices=DTYPES, help="of gradients; as the products")
    work.add_argument("--zero", type=int, choices=(2, 3), default=3, help="3: free after forward")
    axes = made.add_argument_group("mesh, outermost axis first; --fsdp takes what is left")
    for axis, default in (("slices", 1), ("data", 1), ("fsdp", 0), ("expert", 1), ("tensor", 0)):
        axes.add_argument(f"--{axis}", type=int, default=default)
    serving = made.add_argument_group("serving; --data has sequences of its own, --tensor parts")
    serving.add_argument("--kv-cache", choices=llm_kv_cache.KINDS, help="as the products")
    add_sizes(made)
    return made


def main() -> None:
    """Run the command line; what cannot be run ends with one message and exit code 2."""
    made = parser()
    options = made.parse_args()
    try:
        line = run(options)
    except ValueError as error:
        made.error(str(error))
    if os.environ.get("RANK", "0") == "0":
        print(line)


if __name__ == "__main__":
    main()
