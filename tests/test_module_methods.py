"""nn.Module.to("tpu"): the parameters stay the objects they were."""

from __future__ import annotations

import torch
from torch import nn


class Tied(nn.Module):
    """An embedding that is also the output layer, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.words.weight
        self.norm = nn.BatchNorm1d(3)


def test_tied_weights_stay_tied() -> None:
    model = Tied().to("tpu")
    assert model.words.weight is model.head.weight
    assert model.words.weight.device.type == "tpu"
    assert model.cpu().words.weight is model.head.weight


def test_an_optimizer_made_before_the_move_drives_the_moved_parameters() -> None:
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    weight = model.words.weight
    model.to("tpu")
    assert model.words.weight is weight
    before = weight.detach().cpu()
    model.head(model.words(torch.tensor([1], device="tpu"))).sum().backward()
    optimizer.step()
    assert not torch.equal(weight.detach().cpu(), before)


def test_conversions_on_one_device_are_torch_own() -> None:
    model = Tied().to("tpu")
    weight = model.words.weight
    model.to(torch.bfloat16)
    assert model.words.weight is weight
    assert weight.dtype == torch.bfloat16
    counter = model.norm.num_batches_tracked
    assert counter is not None
    assert counter.dtype == torch.int64


def test_gradients_move_too() -> None:
    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    layer.to("tpu")
    assert layer.weight.grad is not None
    assert layer.weight.grad.device.type == "tpu"


def test_a_moved_parameter_keeps_its_attributes_and_hooks() -> None:
    model = nn.Linear(2, 2)
    model.weight.shard = 3  # as users of parallel layers do
    handle = model.weight.register_hook(lambda grad: grad * 2)
    calls: list[torch.Tensor] = []
    model.weight.register_post_accumulate_grad_hook(calls.append)
    model.to("tpu").weight.sum().backward()
    assert (model.weight.shard, len(calls)) == (3, 1)
    assert model.weight.grad is not None
    assert torch.equal(model.weight.grad.cpu(), torch.full((2, 2), 2.0))
    handle.remove()
    model.cpu().weight.sum().backward()
    assert torch.equal(model.weight.grad, torch.full((2, 2), 3.0))


def test_a_lazy_module_moves_before_its_shapes_are_known() -> None:
    linear, norm = nn.LazyLinear(3), nn.LazyBatchNorm1d()
    model = nn.Sequential(linear, norm).to("tpu")
    assert linear.has_uninitialized_params()
    assert isinstance(model.cpu()[1].running_mean, nn.UninitializedBuffer)
    assert model.to("tpu")(torch.ones(4, 2, device="tpu")).shape == (4, 3)
    assert linear.weight.shape == (3, 2)
    assert linear.weight.device.type == "tpu"
    assert norm.running_mean is not None
    assert norm.running_mean.device.type == "tpu"


def test_chunks_of_a_cross_entropy_add_up_in_float32() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(256, 64), torch.randn(64, 64)
    target = torch.randint(64, (256,))
    exact, on_cpu, on_tpu = (
        _gradient(x.to(device, dtype), weight.to(device, dtype), target.to(device))
        for device, dtype in (
            ("cpu", torch.float64),
            ("cpu", torch.bfloat16),
            ("tpu", torch.bfloat16),
        )
    )
    assert (on_tpu - exact).abs().max() <= 1.5 * (on_cpu - exact).abs().max()


def _gradient(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=8)
    loss = torch.nn.functional.linear_cross_entropy(
        x.requires_grad_(), weight.requires_grad_(), target, options=options
    )
    return torch.autograd.grad(loss, x)[0].cpu().double()
