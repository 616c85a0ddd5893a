"""Train ResNet-50 (He et al. 2015, table 1) in bfloat16 on random images.

torchtpu-perf estimate examples/resnet50.py --chip v5e -- --batch 128
torchrun --nproc-per-node 2 examples/resnet50.py --device cpu --batch 2 --size 64
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `examples` is found

from examples import llm_parallel

# Width and number of the blocks of each stage.
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution without bias, and the norm behind it."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; the 3x3 has the stride (version 1.5)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.reduce = convolution(inputs, width, 1)
        self.middle = convolution(width, width, 3, stride)
        self.expand = convolution(width, outputs, 1)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, 4 width, H / stride, W / stride]."""
        y = F.relu(self.middle(F.relu(self.reduce(x))))
        return F.relu(self.expand(y) + self.shortcut(x))


class ResNet50(nn.Module):
    """Stem, 16 bottlenecks in four stages, average, classes."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = convolution(3, 64, 7, 2)
        blocks, inputs = [], 64
        for stage, (width, count) in enumerate(STAGES):
            for number in range(count):
                stride = 2 if stage and number == 0 else 1
                blocks.append(Bottleneck(inputs, width, stride))
                inputs = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.classes = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, classes] of images [B, 3, H, W]."""
        x = F.max_pool2d(F.relu(self.stem(images)), 3, 2, 1)
        logits: Tensor = self.classes(self.blocks(x).mean((2, 3)))
        return logits


def train(
    device: str,
    batch: int,
    steps: int,
    *,
    size: int = 224,
    channels_last: bool = False,
    bfloat16: bool = True,
) -> list[float]:
    """Losses of this rank; batch norm sees its own images only, gradients are averaged."""
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    with torch.device(device):
        model: nn.Module = ResNet50()
    model = model.to(memory_format=layout)  # type: ignore[call-overload]  # the stub lacks it
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        torch.manual_seed(1 + dist.get_rank())
    images = torch.randn(batch, 3, size, size, device=device).to(memory_format=layout)
    labels = torch.randint(1000, (batch,), device=device)
    rate = 0.1 * batch / 256  # Goyal et al. 2017, section 2.1
    update = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-5)
    losses = []
    for _ in range(steps):
        update.zero_grad()
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=bfloat16):
            logits = model(images)
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=0.1)
        loss.backward()
        update.step()
        losses.append(loss.detach())
    return [float(loss) for loss in torch.stack(losses).cpu()]


def main() -> None:
    """Train as the command line says; `--batch` counts the images of one rank."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--batch", type=int, default=64, help="images per step and rank")
    parser.add_argument("--size", type=int, default=224, help="pixels of a side")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    args = parser.parse_args()
    with llm_parallel.joined(args.device):
        losses = train(
            args.device,
            args.batch,
            args.steps,
            size=args.size,
            channels_last=args.channels_last,
            bfloat16=args.dtype == "bfloat16",
        )
    if os.environ.get("RANK", "0") == "0":
        print("loss per step:", *(f"{loss:.4f}" for loss in losses))


if __name__ == "__main__":
    main()
