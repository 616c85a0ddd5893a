"""An exported program as files: manifest.json, program.stablehlo, program.jax, weights.safetensors.

program.stablehlo is a portable artifact that any StableHLO consumer reads; program.jax is the same
as jax.export writes it, with the calling convention of each platform.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from torchtpu.errors import TpuError

FORMAT = 1
_MANIFEST, _STABLEHLO, _JAX, _WEIGHTS = (
    "manifest.json",
    "program.stablehlo",
    "program.jax",
    "weights.safetensors",
)


@dataclass(frozen=True, kw_only=True)
class Value:
    """An input or output of the program.

    kind: inputs are "parameter", "buffer", "constant" (all three in the weights, by name) or
    "argument"; outputs are "result", or the new contents of the input of that name and kind.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str  # torch's, without "torch."


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What the program is called with, in order; trees as torch.utils._pytree writes them."""

    platforms: tuple[str, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    arguments: str  # tree of (args, kwargs)
    leaves: tuple[Value, ...]  # of arguments; those of kind "number" have the values in `numbers`
    numbers: dict[str, Any]
    results: str  # tree; its leaves are the outputs of kind "result", and `constants`
    constants: dict[int, Any]


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise TpuError(
            "[export] weights are kept by safetensors, which is not installed: "
            "pip install 'torchtpu[export]'"
        ) from error
    return safetensors.torch


def write(
    path: Path,
    manifest: Manifest,
    weights: Mapping[str, torch.Tensor],
    stablehlo: bytes,
    artifact: bytes,
) -> None:
    """Write a directory that did not exist, or is empty; nothing is left of one that fails."""
    safetensors = _safetensors()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise TpuError(f"[export] {path} exists; expected a new or an empty directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    files = {_STABLEHLO: stablehlo, _JAX: artifact, _WEIGHTS: safetensors.save(dict(weights))}
    about = {
        "format": FORMAT,
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        "versions": {n: metadata.version(n) for n in ("torchtpu", "torch", "jax", "jaxlib")},
        **asdict(manifest),
    }
    try:
        for name, content in files.items():
            (made / name).write_bytes(content)
        (made / _MANIFEST).write_text(json.dumps(about, indent=1) + "\n")
        made.chmod(0o755)
        os.replace(made, path)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def read(path: Path) -> tuple[Manifest, dict[str, torch.Tensor], bytes]:
    """Return manifest, weights on the CPU and JAX's artifact; TpuError for anything else."""
    try:
        about = json.loads((path / _MANIFEST).read_text())
        if about["format"] != FORMAT:
            raise TpuError(
                f"[load_exported] {path} has format {about['format']}, expected {FORMAT}: it was "
                f"written by torchtpu {about['versions']['torchtpu']}"
            )
        manifest = Manifest(
            platforms=tuple(about["platforms"]),
            inputs=tuple(map(_value, about["inputs"])),
            outputs=tuple(map(_value, about["outputs"])),
            arguments=about["arguments"],
            leaves=tuple(map(_value, about["leaves"])),
            numbers=about["numbers"],
            results=about["results"],
            constants={int(n): v for n, v in about["constants"].items()},
        )
        artifact, packed = (_content(path / n, about["sha256"][n]) for n in (_JAX, _WEIGHTS))
        weights = _safetensors().load(packed)
    except TpuError:
        raise
    except Exception as error:  # files of anybody's making: each library has errors of its own
        raise TpuError(
            f"[load_exported] expected a directory that torchtpu.export wrote at {path}, got "
            f"{type(error).__name__}: {error}"
        ) from error
    _check(path, manifest, weights)
    return manifest, weights, artifact


def _content(path: Path, sha256: str) -> bytes:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise TpuError(f"[load_exported] {path} is not what was written: its checksum is wrong")
    return content


def _value(row: dict[str, Any]) -> Value:
    return Value(**row | {"shape": tuple(row["shape"])})


def _check(path: Path, manifest: Manifest, weights: Mapping[str, torch.Tensor]) -> None:
    for value in manifest.inputs:
        if value.kind == "argument":
            continue
        found = weights.get(value.name)
        is_right = (
            found is not None
            and tuple(found.shape) == value.shape
            and str(found.dtype) == f"torch.{value.dtype}"
        )
        if not is_right:
            got = "none" if found is None else f"{found.dtype} of shape {tuple(found.shape)}"
            raise TpuError(
                f"[load_exported] {path / _WEIGHTS}: expected {value.kind} {value.name!r}, a "
                f"torch.{value.dtype} of shape {value.shape}, got {got}"
            )
