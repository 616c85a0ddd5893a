"""Train a diffusion transformer (DiT, Peebles and Xie 2023) on random latents.

torchtpu-perf estimate examples/dit.py --chip v6e -- --batch 64
torchrun --nproc-per-node 2 examples/dit.py --device cpu --layers 2 --width 64 --heads 4
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `examples` is found

from examples import llm_parallel

DIFFUSION_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes of DiT-XL/2 on latents of 256 x 256 images (Peebles and Xie 2023, table 1)."""

    size: int = 32
    channels: int = 4
    patch: int = 2
    width: int = 1152
    layers: int = 28
    heads: int = 16
    classes: int = 1000
    mlp_ratio: int = 4
    remat: bool = False
    compute_dtype: torch.dtype = torch.bfloat16

    @property
    def tokens(self) -> int:
        """Patches of a latent."""
        return (self.size // self.patch) ** 2


class Linear(nn.Linear):
    """nn.Linear that computes in the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        return F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


def waves(values: Tensor, size: int) -> Tensor:
    """Sines and cosines [N, size] of values [N] at geometric frequencies."""
    half = torch.arange(size // 2, dtype=torch.float32, device=values.device)
    angle = values.float()[:, None] * torch.exp(-math.log(10_000) * half / (size // 2))
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


def places(config: Config, device: torch.device) -> Tensor:
    """Fixed two-dimensional positions [T, C]: half of the width for rows, half for columns."""
    side = torch.arange(config.size // config.patch, device=device)
    line = waves(side, config.width // 2)
    rows = line.repeat_interleave(len(side), 0)
    return torch.cat((rows, line.repeat(len(side), 1)), dim=-1).to(config.compute_dtype)


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Layer norm of x [B, T, C] with shift and scale [B, C] of its sample."""
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale[:, None]) + shift[:, None]


class Block(nn.Module):
    """Attention and MLP, each shifted, scaled and gated by the condition (adaLN-Zero)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.heads, self.remat = config.width, config.heads, config.remat
        self.condition = Linear(width, 6 * width)
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)
        self.up = Linear(width, config.mlp_ratio * width)
        self.down = Linear(config.mlp_ratio * width, width)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """x [B, T, C] and condition c [B, C] -> [B, T, C]."""
        if not self.remat:
            return self._body(x, c)
        again: Tensor = checkpoint(self._body, x, c, use_reentrant=False, preserve_rng_state=False)
        return again

    def _body(self, x: Tensor, c: Tensor) -> Tensor:
        parts = self.condition(F.silu(c)).chunk(6, dim=-1)
        x = x + parts[2][:, None] * self._attend(modulated(x, parts[0], parts[1]))
        hidden = F.gelu(self.up(modulated(x, parts[3], parts[4])), approximate="tanh")
        out: Tensor = x + parts[5][:, None] * self.down(hidden)
        return out

    def _attend(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*heads)  # each [B, H, T, D]
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


class Dit(nn.Module):
    """Predicts the noise of a latent, and its variance, from its patches, step and class."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, width = config, config.width
        self.patches = Linear(config.channels * config.patch**2, width)
        self.step = nn.Sequential(Linear(256, width), nn.SiLU(), Linear(width, width))
        self.label = nn.Embedding(config.classes + 1, width)  # one more: no class
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.condition = Linear(width, 2 * width)
        self.out = Linear(width, 2 * config.channels * config.patch**2)

    def forward(self, latents: Tensor, steps: Tensor, labels: Tensor) -> Tensor:
        """latents [B, Ch, S, S], steps and labels [B] -> noise and variance [B, 2 Ch, S, S]."""
        dtype = self.config.compute_dtype
        x = self.patches(self._cut(latents.to(dtype))) + places(self.config, latents.device)
        c = self.step(waves(steps, 256).to(dtype)) + F.embedding(labels, self.label.weight).to(
            dtype
        )
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.condition(F.silu(c)).chunk(2, dim=-1)
        return self._join(self.out(modulated(x, shift, scale)))

    def _cut(self, x: Tensor) -> Tensor:
        """[B, Ch, S, S] -> [B, T, Ch P P]; a convolution by patches is a product."""
        patch, side = self.config.patch, self.config.size // self.config.patch
        x = x.reshape(len(x), -1, side, patch, side, patch)
        return x.permute(0, 2, 4, 1, 3, 5).flatten(1, 2).flatten(2)

    def _join(self, x: Tensor) -> Tensor:
        """[B, T, Ch P P] -> [B, Ch, S, S]."""
        patch, side = self.config.patch, self.config.size // self.config.patch
        x = x.view(len(x), side, side, -1, patch, patch).permute(0, 3, 1, 4, 2, 5)
        return x.flatten(4, 5).flatten(2, 3)


def loss_of(model: nn.Module, latents: Tensor, labels: Tensor) -> Tensor:
    """Squared error of the predicted noise at random steps (Ho et al. 2020, equation 14)."""
    steps = torch.randint(DIFFUSION_STEPS, (len(latents),), device=latents.device)
    noise = torch.randn_like(latents)
    kept = torch.cos(steps / DIFFUSION_STEPS * (math.pi / 2))[:, None, None, None]
    mixed = kept * latents + (1 - kept.square()).sqrt() * noise
    predicted = model(mixed, steps, labels)[:, : latents.shape[1]]
    return F.mse_loss(predicted.float(), noise)


def build(config: Config, device: str, shard: str) -> nn.Module:
    """The model on the device; with ranks, sharded (fsdp) or replicated (ddp)."""
    with torch.device("meta"):
        model = Dit(config)
    if shard == "fsdp":
        policy = MixedPrecisionPolicy(param_dtype=config.compute_dtype, cast_forward_inputs=False)
        mesh = init_device_mesh(torch.device(device).type, (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    torch.manual_seed(dist.get_rank() if shard == "fsdp" else 0)
    with torch.no_grad():
        for parameter in model.parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            local.normal_(std=0.02)
    return nn.parallel.DistributedDataParallel(model) if shard == "ddp" else model


def train(config: Config, device: str, batch: int, steps: int, shard: str = "none") -> list[float]:
    """Losses of this rank over some steps on `batch` latents of its own."""
    model = build(config, device, shard)
    torch.manual_seed(1 + (dist.get_rank() if shard != "none" else 0))
    shape = (batch, config.channels, config.size, config.size)
    latents = torch.randn(shape, device=device)
    labels = torch.randint(config.classes, (batch,), device=device)
    update = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
    losses = []
    for _ in range(steps):
        update.zero_grad()
        loss = loss_of(model, latents, labels)
        loss.backward()
        update.step()
        losses.append(loss.detach())
    return [float(loss) for loss in torch.stack(losses).cpu()]


def main() -> None:
    """Train as the command line says; `--batch` counts the latents of one rank."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--batch", type=int, default=32, help="latents per step and rank")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--shard", choices=("fsdp", "ddp"), default="fsdp", help="of parameters")
    parser.add_argument("--remat", action="store_true", help="compute blocks again in backward")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    names = ("size", "channels", "patch", "width", "layers", "heads", "classes", "mlp_ratio")
    for name in names:
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, default=getattr(Config, name))
    args = parser.parse_args()
    sizes = {name: getattr(args, name) for name in names}
    if args.width % args.heads or args.width % 4 or args.size % args.patch:
        parser.error("--heads and 4 have to divide --width, and --patch has to divide --size")
    config = replace(Config(**sizes), remat=args.remat, compute_dtype=getattr(torch, args.dtype))
    with llm_parallel.joined(args.device) as world:
        shard = args.shard if world else "none"
        losses = train(config, args.device, args.batch, args.steps, shard)
    if os.environ.get("RANK", "0") == "0":
        print("loss per step:", *(f"{loss:.4f}" for loss in losses))


if __name__ == "__main__":
    main()
