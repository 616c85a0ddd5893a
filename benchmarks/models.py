"""The three models that the modes are compared on, and their batches, as a torch user has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCHES = 4  # taken in turn, so that no model learns one batch by heart
LEARNING_RATE = 3e-4

WIDTH = 128
VOCABULARY = 1000
LENGTH = 64
HEADS = 4
LAYERS = 4
CHANNELS = (32, 64, 64)
CLASSES = 10


class Mlp(nn.Sequential):
    """Eight layers of 128 x 128 with exact GELU between them."""

    def __init__(self) -> None:
        linear = [nn.Linear(WIDTH, WIDTH) for _ in range(8)]
        super().__init__(*(m for one in linear[:-1] for m in (one, nn.GELU())), linear[-1])


class Block(nn.Module):
    """Pre-norm decoder block with causal attention and tanh GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.norm1(x)).split(WIDTH, dim=-1)
        heads = (batch, length, HEADS, WIDTH // HEADS)
        q, k, v = (part.view(heads).transpose(1, 2) for part in parts)  # each [B, H, T, D]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, WIDTH))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return out


class Gpt(nn.Module):
    """Four decoder blocks between an embedding with learned positions and an untied head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))  # [B, T, V]
        return logits


class Cnn(nn.Module):
    """Three convolutions with batch norm, then the mean over the image and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        inputs = (3, *CHANNELS[:-1])
        self.convs = nn.ModuleList(
            nn.Conv2d(i, o, 3, stride=1 if n == 0 else 2, padding=1, bias=False)
            for n, (i, o) in enumerate(zip(inputs, CHANNELS, strict=True))
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for o in CHANNELS)
        self.head = nn.Linear(CHANNELS[-1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        logits: Tensor = self.head(x.mean((2, 3)))  # [N, C, H, W] -> [N, C] -> [N, 10]
        return logits


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over all leading dims."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, and how one of its batches is drawn."""

    build: Callable[[], nn.Module]
    draw: Callable[[], tuple[Tensor, Tensor]]

    def make(self) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
        """The model and its batches on the CPU; the same in every process."""
        torch.manual_seed(0)
        return self.build(), [self.draw() for _ in range(BATCHES)]


def _labels(count: int, classes: int) -> Tensor:
    return torch.randint(classes, (count,))


def _text() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(VOCABULARY, (4, LENGTH + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


CASES = {
    "mlp": Case(build=Mlp, draw=lambda: (torch.randn(32, WIDTH), _labels(32, WIDTH))),
    "gpt": Case(build=Gpt, draw=_text),
    "cnn": Case(build=Cnn, draw=lambda: (torch.randn(16, 3, 32, 32), _labels(16, CLASSES))),
}
