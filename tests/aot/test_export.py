"""Exported programs: what they compute elsewhere, what is in the files, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchtpu
from torchtpu.errors import TpuError

BOTH = ("cpu", "tpu")


class Counting(nn.Module):
    """Buffers that change, a constant, a tied weight, numbers, results in a tree."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.shift = torch.arange(4.0)

    def forward(self, x: torch.Tensor, scale: float = 1.0, *, index: torch.Tensor) -> Any:
        self.calls += 1
        y = self.norm(self.last(self.first(x))) * scale + self.shift
        return {"y": y, "rows": (y[index], x.t()), "scale": scale, "none": None}


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(6, 4), torch.tensor([0, 5, 5])


def exported(path: Path, **how: Any) -> tuple[Counting, torchtpu.aot.load.Exported]:
    x, index = inputs()
    module = Counting()
    torchtpu.export(module, (x, 2.0), path, {"index": index}, **({"platforms": BOTH} | how))
    return module, torchtpu.load_exported(path)


def test_computes_what_the_module_does(tmp_path: Path) -> None:
    module, program = exported(tmp_path / "counting")
    x, index = inputs()
    for call in range(2):
        wanted, found = module(x, 2.0, index=index), program(x, 2.0, index=index.to("tpu"))
        assert list(found) == list(wanted)
        assert (found["scale"], found["none"]) == (2.0, None)
        torch.testing.assert_close(found["y"].cpu(), wanted["y"])
        torch.testing.assert_close([t.cpu() for t in found["rows"]], list(wanted["rows"]))
        for name, buffer in module.named_buffers():
            torch.testing.assert_close(program.weights[name].cpu(), buffer, msg=f"{name} {call}")


def test_a_module_of_the_device_and_of_two_byte_floats(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.GELU()).bfloat16().to("tpu").eval()
    x = torch.randn(2, 8, dtype=torch.bfloat16, device="tpu")
    torchtpu.export(module, (x,), tmp_path / "made", platforms=BOTH)
    found = torchtpu.load_exported(tmp_path / "made")(x)
    torch.testing.assert_close(found.cpu(), module(x).cpu())


def test_the_files_are_what_the_docs_say(tmp_path: Path) -> None:
    from jaxlib.mlir.dialects import stablehlo
    from jaxlib.mlir.ir import Context
    from safetensors.torch import load_file

    module, _ = exported(tmp_path / "a" / "b")
    folder = tmp_path / "a" / "b"
    names = ["manifest.json", "program.jax", "program.stablehlo", "weights.safetensors"]
    assert sorted(f.name for f in folder.iterdir()) == names
    weights = load_file(folder / "weights.safetensors")
    torch.testing.assert_close(weights["last.weight"], module.first.weight.detach())  # it is tied
    about = json.loads((folder / "manifest.json").read_text())
    assert about["platforms"] == ["cpu", "tpu"]
    assert about["versions"]["torch"] == torch.__version__
    with Context():
        artifact = (folder / "program.stablehlo").read_bytes()
        text = str(stablehlo.deserialize_portable_artifact_str(artifact))
    assert "dot_general" in text


def test_another_process_needs_no_module(tmp_path: Path) -> None:
    module, _ = exported(tmp_path / "made")
    x, index = inputs()
    torch.save((x, index), tmp_path / "inputs.pt")
    code = (
        "import sys, torch, torchtpu\n"
        "x, index = torch.load(sys.argv[2])\n"
        "y = torchtpu.load_exported(sys.argv[1])(x, 2.0, index=index)['y']\n"
        "torch.save(y.cpu(), sys.argv[3])"
    )
    files = [tmp_path / "made", tmp_path / "inputs.pt", tmp_path / "y.pt"]
    subprocess.run([sys.executable, "-c", code, *map(str, files)], check=True)
    torch.testing.assert_close(torch.load(tmp_path / "y.pt"), module(x, 2.0, index=index)["y"])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda p, x, i: p(x, index=i), TypeError, "arguments of the structure"),
        (lambda p, x, i: p(x[:5], 2.0, index=i), ValueError, r"x: expected .*\(6, 4\), got .*\(5"),
        (lambda p, x, i: p(x.double(), 2.0, index=i), ValueError, "got torch.float64"),
        (lambda p, x, i: p(x, 3.0, index=i), ValueError, "scale: expected 2.0, got 3.0"),
    ],
)
def test_arguments_of_another_kind(call: Any, error: Any, text: str, tmp_path: Path) -> None:
    _, program = exported(tmp_path / "made")
    with pytest.raises(error, match=text):
        call(program, *inputs())


def test_a_program_of_another_platform(tmp_path: Path) -> None:
    _, program = exported(tmp_path / "made", platforms=("tpu",))
    x, index = inputs()
    with pytest.raises(TpuError, match=r"was exported for \('tpu',\), .*platforms=\.\.\."):
        program(x, 2.0, index=index)


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    x = torch.ones(2)
    with pytest.raises(TpuError, match=r"draws random numbers .* module.eval\(\)"):
        torchtpu.export(nn.Dropout(), (x,), tmp_path / "made")
    with pytest.raises(TpuError, match=r"platforms are \('tpu', 'cpu'\), got"):
        torchtpu.export(nn.ReLU(), (x,), tmp_path / "made", platforms=("cuda",))
    with pytest.raises(TpuError, match="tensors, numbers and texts, got object"):
        torchtpu.export(nn.ReLU(), (object(),), tmp_path / "made")
    assert not (tmp_path / "made").exists()
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine").write_text("")
    with pytest.raises(TpuError, match="expected a new or an empty directory"):
        torchtpu.export(nn.ReLU(), (x,), tmp_path / "made")
    assert [f.name for f in tmp_path.iterdir()] == ["made"]


def test_directories_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(TpuError, match=r"expected a directory that torchtpu.export wrote"):
        torchtpu.load_exported(tmp_path)
    exported(tmp_path / "made")
    manifest = tmp_path / "made" / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"format": 1', '"format": 9'))
    with pytest.raises(TpuError, match="has format 9, expected 1: it was written by torchtpu"):
        torchtpu.load_exported(tmp_path / "made")
    manifest.write_text(text.replace('"last.weight"', '"other"').replace('"norm.bias"', '"gone"'))
    with pytest.raises(TpuError, match=r"expected parameter .*, got none"):
        torchtpu.load_exported(tmp_path / "made")
    manifest.write_text(text[:100])
    with pytest.raises(TpuError, match="JSONDecodeError"):
        torchtpu.load_exported(tmp_path / "made")
    manifest.write_text(text)
    for name in ("program.jax", "weights.safetensors"):
        whole = (tmp_path / "made" / name).read_bytes()
        (tmp_path / "made" / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(TpuError, match="its checksum is wrong"):
            torchtpu.load_exported(tmp_path / "made")
        (tmp_path / "made" / name).write_bytes(whole)
