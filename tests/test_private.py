"""Private names of torch, jax and jaxlib are taken in one folder, and their loss is explained."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests import sources
from torchtpu.private import jax as jax_names
from torchtpu.private import torch as torch_names
from torchtpu.private import versions

_OTHERS = ("torch", "jax", "jaxlib")
_PATCHED = {
    "torchtpu/backward_errors.py": "torch.autograd.graph._engine_run_backward is replaced",
    "torchtpu/device_methods.py": "answers of torch._C are replaced",
    "torchtpu/module_methods.py": "torch.nn.Module._apply is replaced",
}


def _private(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{a.name}" for a in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        for name in names:
            root, *path = name.split(".")
            is_op = path[:1] in (["ops"], ["tpu"])  # names of ops are public, and torch.tpu is ours
            hidden = [p for p in path if p.startswith("_") and not p.endswith("__")]
            if root in _OTHERS and hidden and not is_op and all(p.isidentifier() for p in path):
                yield name


def test_they_are_taken_in_one_folder() -> None:
    taken = sources.found(
        lambda source: sorted(set(_private(source))),
        folders=("torchtpu/private/",),
        files=_PATCHED,
    )
    assert taken == {}


@pytest.mark.parametrize(
    "code",
    [
        "from jax._src import core",
        "from jaxlib import _jax",
        "from torch.utils import _pytree",
        "import torch._dynamo",
        "torch._C.Generator()",
        "torch.fx._graph_pickler.Options",
    ],
)
def test_one_elsewhere_is_found(code: str) -> None:
    assert list(_private(code))


def test_public_names_are_no_finds() -> None:
    code = "torch.ops.aten._softmax; torch.__version__; torch.tpu._set_cache_only; jax.numpy.add"
    assert list(_private(code)) == []


@pytest.mark.parametrize("name", sorted(torch_names._NAMES))
def test_torch_has_each(name: str) -> None:
    assert getattr(torch_names, name) is not None


def test_a_missing_name_says_which_versions_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch_names._NAMES, "gone", "torch._C:_gone")
    with pytest.raises(versions.UnknownVersion, match=r"torch 2\.\d+.*needs of it .*pip install"):
        _ = torch_names.gone
    with pytest.raises(AttributeError, match="no name 'never'"):
        _ = torch_names.never

    @versions.taken_from("jax")
    def changed() -> None:
        raise ImportError("cannot import name 'core'")

    with pytest.raises(versions.UnknownVersion, match=r"jax 0\.\d+.* is tested with jax "):
        changed()
    assert jax_names.trace_settings()["jax_enable_x64"] in (True, False)


def test_which_versions_are_known() -> None:
    first, last = versions.KNOWN["jax"]
    assert versions.is_known("jax", first)
    assert versions.is_known("jax", f"{last}.9")
    assert versions.is_known("torch", "2.13.0+cpu")
    assert versions.is_known("torch", "2.14.1+cu130")
    assert not versions.is_known("torch", "2.12.9")
    assert not versions.is_known("torch", "3.0")
