"""Train a small conv net and a small vision transformer on scikit-learn's handwritten digits."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from tqdm import tqdm

CLASSES = 10
SIDE = 8  # load_digits: 1,797 grey images of 8x8
BATCH = 96
SEED = 0


class ConvNet(nn.Module):
    """Two convolutions and two linear layers; 38 k parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * (SIDE // 2) ** 2, 64)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.conv1(images))  # [B, 1, 8, 8] -> [B, 16, 8, 8]
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # -> [B, 32, 4, 4]
        x = F.relu(self.hidden(x.flatten(1)))  # -> [B, 64]
        logits: Tensor = self.head(x)
        return logits


class Block(nn.Module):
    """Pre-norm transformer block: self-attention, then a two-layer MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))  # -> [B, T, 3, H, D]
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each [B, H, T, D]
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))  # [B, H, T, D] -> [B, T, C]
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class VisionTransformer(nn.Module):
    """Sixteen patches of 2x2, two blocks, mean over the patches; 68 k parameters."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2, patch: int = 2) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, patch, stride=patch)
        self.position = nn.Parameter(0.02 * torch.randn(1, (SIDE // patch) ** 2, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images).flatten(2).transpose(1, 2)  # [B, 1, 8, 8] -> [B, 16, C]
        x = self.norm(self.blocks(x + self.position))
        logits: Tensor = self.head(x.mean(1))  # -> [B, 10]
        return logits


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one of the models is built and trained."""

    build: Callable[[], nn.Module]
    epochs: int
    peak_lr: float


RECIPES = {
    "conv": Recipe(build=ConvNet, epochs=12, peak_lr=1e-2),
    "vit": Recipe(build=VisionTransformer, epochs=25, peak_lr=4e-3),
}


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Images [N, 1, 8, 8] in 0..1 and labels [N], on the host."""

    train_images: Tensor
    train_labels: Tensor
    held_out_images: Tensor
    held_out_labels: Tensor


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one training gave."""

    losses: Tensor  # [steps], on the host
    accuracy: float
    seconds: float


def digits() -> Digits:
    """The data set; the same fifth is held out on every call."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    held_out, train = order[: len(order) // 5], order[len(order) // 5 :]
    return Digits(
        train_images=images[train],
        train_labels=labels[train],
        held_out_images=images[held_out],
        held_out_labels=labels[held_out],
    )


def batches(count: int, epochs: int) -> Iterator[Tensor]:
    """Indices of full batches, drawn on the host: every device sees the same ones."""
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(epochs):
        order = torch.randperm(count, generator=generator)
        yield from order.split(BATCH)[: count // BATCH]


def train(
    name: str, device: str, epochs: int | None = None, steps: int | None = None, quiet: bool = False
) -> Result:
    """Train model `name` on `device` from parameters drawn on the host."""
    recipe, data = RECIPES[name], digits()
    epochs = recipe.epochs if epochs is None else epochs
    total = epochs * (len(data.train_labels) // BATCH)
    torch.manual_seed(SEED)
    model = recipe.build().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.peak_lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.peak_lr, total_steps=total)
    count = total if steps is None else min(steps, total)
    indices = zip(range(count), batches(len(data.train_labels), epochs), strict=False)

    bar = tqdm(indices, desc=f"{name} on {device}", total=count, unit="step", disable=quiet)
    losses, start = [], time.perf_counter()
    for _, index in bar:
        images, labels = data.train_images[index].to(device), data.train_labels[index].to(device)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())  # stays on the device: reading it would wait for the step
    curve = torch.stack(losses).cpu()
    seconds = time.perf_counter() - start
    return Result(losses=curve, accuracy=accuracy(model, data, device), seconds=seconds)


@torch.no_grad()
def accuracy(model: nn.Module, data: Digits, device: str) -> float:
    """Share of held-out digits that the model names correctly."""
    predicted = model(data.held_out_images.to(device)).argmax(1)
    return float((predicted == data.held_out_labels.to(device)).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*RECIPES, "both"], default="both")
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--compare", metavar="DEVICE", help="train on this device too and compare")
    parser.add_argument("--epochs", type=int, help="default: as many as the model needs")
    parser.add_argument("--steps", type=int, help="stop after so many optimizer steps")
    args = parser.parse_args()
    for name in RECIPES if args.model == "both" else [args.model]:
        results = {}
        for device in filter(None, [args.device, args.compare]):
            result = results[device] = train(name, device, args.epochs, args.steps)
            print(
                f"{name} on {device}: {len(result.losses)} steps in {result.seconds:.1f} s, "
                f"held-out accuracy {100 * result.accuracy:.1f} %"
            )
        if args.compare:
            gap = (results[args.device].losses - results[args.compare].losses).abs().max().item()
            print(f"{name}: largest difference of the loss curve to {args.compare}: {gap:.1e}")


if __name__ == "__main__":
    main()
