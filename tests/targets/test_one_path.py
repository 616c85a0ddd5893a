"""Programs take one path to every target: outside its folder the source names no target."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests import sources
from torchtpu import targets

_PLATFORMS = {*targets.names(), "cuda", "gpu", "rocm", "METAL"}
# "tpu" and "cpu" are devices of torch too: what a tensor is asked for, or made with.
_OF_TORCH = {
    *("device", "Generator", "get_autocast_dtype", "is_autocast_enabled", "move_to_device_pass"),
    *("to", "set_autocast_dtype", "setup_privateuse1"),
}
_ASKED = ("type", "device_type")
_OTHERWISE = {
    "torchtpu/__init__.py": "names of subpackages",
    "torchtpu/cache/environment.py": "names of subpackages",
    "torchtpu/cli/checks/versions.py": "the extra of the distribution",
    "torchtpu/distributed/backend.py": "names of the backend of process groups",
    "torchtpu/dtypes.py": "the op of an error: Tensor.tpu()",
    "torchtpu/storage_methods.py": "methods of torch's storages",
}


def _names(source: str) -> Iterator[ast.AST]:
    """Yield the nodes that spell a platform, or ask a target which it is."""
    tree = ast.parse(source)
    parents = {c: p for p in ast.walk(tree) for c in ast.iter_child_nodes(p)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            spelled = node.value.partition(":")[0] in _PLATFORMS
            if spelled and not _is_torchs(node, parents):
                yield node
        elif isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            if any(isinstance(s, ast.Attribute) and s.attr == "platform" for s in sides):
                yield node


def _is_torchs(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    parent = parents[node]
    while isinstance(parent, ast.BoolOp | ast.List | ast.arguments):  # `device or "tpu"`
        node, parent = parent, parents[parent]
    match parent:
        case ast.Compare(left=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in _ASKED
        case ast.Compare(comparators=[ast.Name(id="devices")]):  # a set of torch's device types
            return True
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in _OF_TORCH
        case ast.keyword(arg=name) | ast.FunctionDef(name=name):
            return name in ("device", "__new__")
    return False


def test_no_file_outside_the_folder_names_a_target() -> None:
    named = sources.found(
        lambda source: [node.lineno for node in _names(source)],
        folders=("torchtpu/targets/", "torchtpu/sim/"),
        files=_OTHERWISE,
    )
    assert named == {}


@pytest.mark.parametrize(
    "code",
    [
        'if target.platform == "tpu": pass',
        "if name == target.platform: pass",
        'spec = spec or "sim"',
        'spec = f"sim:{chip}"',
        'jax.devices("gpu")',
        'if platform in ("cpu", "tpu"): pass',
    ],
)
def test_a_branch_on_the_target_is_found(code: str) -> None:
    assert list(_names(code))
