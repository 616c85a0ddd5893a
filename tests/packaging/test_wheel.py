"""The wheel, installed into a clean environment outside the source tree, works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"torchtpu": "torchtpu"} | {f: f"torchtpu/{f}" for f in ("targets", "sim", "perf_model")}


def run(*command: str | Path, cwd: Path) -> str:
    """Output of a command on target cpu that must succeed, with no Python path from outside."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TORCHTPU_"))}
    environment = kept | {"TORCHTPU_TARGET": "cpu"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} gave {done.returncode}: {done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, so that nothing is left behind in the source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in FOLDERS:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    run(sys.executable, "-m", "pip", "wheel", *options, "-w", folder, source, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interpreter of an environment with the wheel, which borrows torch and jax from this one."""
    folder = tmp_path_factory.mktemp("clean") / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    interpreter = folder / "bin/python"
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site_packages = Path(run(interpreter, "-c", code, cwd=folder).strip())
    # A .pth line adds a folder but does not obey that folder's own .pth files, so the editable
    # installation of the source tree stays out of sight.
    (site_packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = (sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet")
    run(*pip, "--no-deps", "--no-index", "--ignore-installed", wheel, cwd=folder)
    return interpreter


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A user's folder, whose own modules bear the names of the source tree's folders."""
    for name in ("targets", "sim", "perf_model"):
        (tmp_path / f"{name}.py").write_text(f"OWNER = 'the user of {name}'\n")
    return tmp_path


def test_wheel_is_pure_and_complete(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    suffixes = {".py", ".toml", ".typed", ".json"}
    expected = {
        f"{inside}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, inside in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes and path.is_file()
    }
    assert names == expected | {"torchtpu/lowerings/SUPPORT.md"}


def test_import_finds_the_installed_package(python: Path, tmp_path: Path) -> None:
    code = """
import importlib.util
import torchtpu.perf_model, torchtpu.sim, torchtpu.targets
for module in (torchtpu, torchtpu.perf_model, torchtpu.sim, torchtpu.targets):
    print(module.__file__)
for name in ("targets", "sim", "perf_model"):
    assert importlib.util.find_spec(name) is None, name
"""
    files = run(python, "-c", code, cwd=tmp_path).split()
    assert len(files) == 4
    assert all(Path(file).is_relative_to(python.parents[1]) for file in files)


def test_import_torch_alone_is_enough(python: Path, tmp_path: Path) -> None:
    code = "import torch; print(torch.ones(2, device='tpu'))"
    assert run(python, "-c", code, cwd=tmp_path) == "tensor([1., 1.], device='tpu:0')\n"


def test_console_script_lists_the_chips(python: Path, tmp_path: Path) -> None:
    assert "v5e" in run(python.parent / "torchtpu-perf", "chips", cwd=tmp_path)


def test_the_doctor_finds_nothing_wrong(python: Path, elsewhere: Path) -> None:
    said = run(python.parent / "torchtpu-doctor", cwd=elsewhere)
    assert 'device "tpu": runs on target cpu' in said
    assert said.splitlines()[-1].startswith("All works")


def test_modules_of_the_user_do_no_harm(python: Path, elsewhere: Path) -> None:
    script = elsewhere / "script.py"
    script.write_text(
        "import torch, targets, sim, perf_model, torchtpu.targets\n"
        "print(torch.ones(3, device='tpu').sum().item())\n"
        "print(targets.OWNER, sim.OWNER, perf_model.OWNER, sep='; ')\n"
    )
    assert run(python, script, cwd=elsewhere).splitlines() == [
        "3.0",
        "the user of targets; the user of sim; the user of perf_model",
    ]


def test_estimate_with_modules_of_the_user(python: Path, elsewhere: Path) -> None:
    script = elsewhere / "script.py"
    script.write_text(
        "import torch, targets, sim, perf_model\n"
        "model = torch.nn.Linear(256, 256).to('tpu')\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    model(torch.ones(256, 256, device='tpu')).sum().backward()\n"
        "    optimizer.step()\n"
    )
    command = (python.parent / "torchtpu-perf", "estimate", script, "--chip", "v5e")
    assert "v5e" in run(*command, cwd=elsewhere)
