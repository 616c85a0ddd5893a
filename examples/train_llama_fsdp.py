"""Train a Llama of any size, sharded by FSDP2 over the processes of torchrun.

torchrun --nproc-per-node 2 examples/train_llama_fsdp.py --checkpoint DIR    # backend tpu_dist
torchrun --nproc-per-node 2 examples/train_llama_fsdp.py --device cpu        # backend gloo

Rotary embedding, grouped-query attention, RMSNorm and SwiGLU are those of `llama3_8b.py`. A run
goes on from the last whole checkpoint in DIR, on any number of processes; `--steps` is the end of
its cosine schedule, so it stays the same from run to run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `examples` is found

from examples.llama3_8b import Config, Llama
from examples.train_ddp import BACKENDS, LETTERS, batch, text

SMALL = Config(
    vocabulary=LETTERS,
    width=64,
    layers=2,
    heads=4,
    kv_heads=2,
    hidden=192,
    dtype=torch.float32,  # of the parameters that the optimizer changes
)


def sharded(config: Config, device: str, compute: torch.dtype) -> Llama:
    """Return a model of which every process holds a part, all drawn by rank 0.

    compute: dtype of the forward and the backward; parameters and sums of gradients keep theirs.
    """
    with torch.device("meta"):
        model = Llama(config)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=config.dtype)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    torch.manual_seed(0)
    whole = Llama(config).state_dict() if dist.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, whole, options=options)
    return model


def train(
    device: str,
    steps: int,
    *,
    until: int | None = None,
    config: Config = SMALL,
    compute: torch.dtype = torch.float32,
    kept: Path | None = None,
    save_every: int = 10,
) -> list[float]:
    """Train up to step `until` of `steps`; return the losses, the same in every process."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = sharded(config, device, compute)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = CosineAnnealingLR(optimizer, T_max=steps, eta_min=3e-4)
    first = restored(model, optimizer, schedule, kept)
    letters, losses = text(), []
    for step in range(first, until or steps):
        mine = batch(letters, step).chunk(size)[rank].to(device)
        loss = loss_of(model(mine[:, :-1]), mine[:, 1:])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        dist.all_reduce(whole := loss.detach() / size)
        losses.append(whole.item())
        if step % 10 == 0:
            length = norm.full_tensor().item()  # of all processes' gradients: everybody takes part
            if rank == 0:
                print(f"step {step:4} loss {losses[-1]:.4f} gradient {length:.3f}", flush=True)
        if kept is not None and (step + 1) % save_every == 0:
            save(model, optimizer, schedule, kept / str(step + 1))
    return losses


def loss_of(logits: Tensor, letters: Tensor) -> Tensor:
    """Mean cross entropy in float32: [B, T, V], int64[B, T] -> []."""
    return F.cross_entropy(logits.flatten(0, 1).float(), letters.flatten())


def save(model: nn.Module, optimizer: Optimizer, schedule: CosineAnnealingLR, folder: Path) -> None:
    """Write a checkpoint, every process its part; whoever is ended meanwhile leaves it unread."""
    parameters, state = get_state_dict(model, optimizer)
    whole = {"model": parameters, "optimizer": state, "schedule": schedule.state_dict()}
    checkpoint.save(whole, checkpoint_id=folder)


def restored(
    model: nn.Module, optimizer: Optimizer, schedule: CosineAnnealingLR, kept: Path | None
) -> int:
    """Load the last checkpoint that is whole, if there is one; return the step to go on with."""
    found = sorted(kept.glob("*/.metadata"), key=lambda p: int(p.parent.name)) if kept else []
    if not found:
        return 0
    parameters, state = get_state_dict(model, optimizer)
    whole: dict[str, Any] = {"model": parameters, "optimizer": state}
    whole["schedule"] = schedule.state_dict()
    checkpoint.load(whole, checkpoint_id=found[-1].parent)
    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=state)
    schedule.load_state_dict(whole["schedule"])
    return schedule.last_epoch


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="tpu", choices=BACKENDS)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--compute", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--checkpoint", type=Path)
    options = parser.parse_args()
    dist.init_process_group(BACKENDS[options.device])
    losses = train(
        options.device,
        options.steps,
        compute=getattr(torch, options.compute),
        kept=options.checkpoint,
    )
    if dist.get_rank() == 0 and losses:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {dist.get_world_size()} processes")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
