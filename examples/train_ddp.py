"""Train a small language model on Python's own documentation in several processes.

torchrun --nproc-per-node 2 examples/train_ddp.py            # device tpu, backend tpu_dist
torchrun --nproc-per-node 2 examples/train_ddp.py --shard    # by FSDP2, with a checkpoint

`--device cpu` runs the same over gloo. A script for CUDA differs in that one line: device "tpu"
and backend "tpu_dist" where it has "cuda" and "nccl". With `--checkpoint DIR` a run that was ended,
or restarted by torchrun, goes on where the last one was saved, on any number of processes.
"""

from __future__ import annotations

import argparse
import pkgutil
import pydoc
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH, HEADS, LAYERS, LENGTH, LETTERS = 64, 4, 2, 64, 128
BATCH = 16  # of all processes
BACKENDS = {"tpu": "tpu_dist", "cuda": "nccl", "cpu": "gloo"}


class Gpt(nn.Module):
    """Letters to the next letter's logits."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, LETTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, letters: Tensor) -> Tensor:
        """int64[B, T] -> [B, T, LETTERS]."""
        h = self.letters(letters) + self.places.weight
        logits: Tensor = self.head(self.blocks(h, mask=self.mask, is_causal=True))
        return logits


def text() -> Tensor:
    """Return the documentation of a part of the standard library, a letter a number."""
    names = sorted(m.name for m in pkgutil.iter_modules() if m.name in {"abc", "bisect", "heapq"})
    letters = "".join(pydoc.render_doc(name, renderer=pydoc.plaintext) for name in names)
    return torch.tensor([ord(c) % LETTERS for c in letters])


def batch(letters: Tensor, step: int) -> Tensor:
    """Return int64[BATCH, LENGTH + 1], the same in every process."""
    draws = torch.Generator().manual_seed(step)
    starts = torch.randint(len(letters) - LENGTH, (BATCH,), generator=draws)
    return torch.stack([letters[s : s + LENGTH + 1] for s in starts])


def train(device: str, steps: int, *, shard: bool = False, kept: Path | None = None) -> list[float]:
    """Train; return the losses of the whole batch, the same in every process."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    gpt = Gpt().to(device)
    if shard:
        for block in gpt.blocks.layers:
            fully_shard(block)
        fully_shard(gpt)
    model = gpt if shard else DistributedDataParallel(gpt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    letters, losses = text(), []
    for step in range(_restored(model, optimizer, kept), steps):
        mine = batch(letters, step).chunk(size)[rank].to(device)
        loss = F.cross_entropy(model(mine[:, :-1]).flatten(0, 1), mine[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(whole := loss.detach() / size)
        losses.append(whole.item())
        if rank == 0 and step % 10 == 0:
            print(f"step {step:4} loss {losses[-1]:.4f}", flush=True)
        if kept is not None and step % 10 == 9:
            _save(model, optimizer, step + 1, kept)
    return losses


def _save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, kept: Path) -> None:
    parameters, state = get_state_dict(model, optimizer)
    checkpoint.save({"model": parameters, "optimizer": state}, checkpoint_id=kept / str(step))
    if dist.get_rank() == 0:  # the checkpoint is whole: save() returns when everybody has written
        (kept / "last.new").write_text(str(step))
        (kept / "last.new").replace(kept / "last")  # in one step, whenever this process may end


def _restored(model: nn.Module, optimizer: torch.optim.Optimizer, kept: Path | None) -> int:
    """Load the last checkpoint if there is one; return the step to go on with."""
    if kept is None or not (kept / "last").exists():
        return 0
    step = (kept / "last").read_text()
    parameters, state = get_state_dict(model, optimizer)
    checkpoint.load({"model": parameters, "optimizer": state}, checkpoint_id=kept / step)
    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=state)
    return int(step)


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="tpu", choices=BACKENDS)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--shard", action="store_true")
    parser.add_argument("--checkpoint", type=Path)
    options = parser.parse_args()
    dist.init_process_group(BACKENDS[options.device])
    losses = train(options.device, options.steps, shard=options.shard, kept=options.checkpoint)
    if dist.get_rank() == 0 and losses:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {dist.get_world_size()} processes")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
