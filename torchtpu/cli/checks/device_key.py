"""Section device key: who has torch's key PrivateUse1, for which there is one owner per process.

`python -m torchtpu.cli.checks.device_key` imports torch, registers, and prints JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from torchtpu.cli.checks.row import Row, fail, note, ok, warn
from torchtpu.targets import child

_GROUP = "torch.backends"  # torch calls these entry points when it is imported
_SWITCH = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_FREE = "privateuseone"


def rows(limit_s: float) -> list[Row]:
    """Return who loads itself with torch, and who owns the key after that."""
    return [*_entry_points(), *_switch(), _owner(limit_s)]


def _entry_points() -> Iterator[Row]:
    found = {e.dist.name if e.dist else e.value for e in metadata.entry_points(group=_GROUP)}
    if "torchtpu" in found:
        yield ok("loaded by torch", f"torchtpu, by its entry point {_GROUP}")
    else:
        yield fail(
            "loaded by torch",
            f"torchtpu has no entry point {_GROUP} here, so `import torch` does not load it",
            "pip install --force-reinstall --no-deps torchtpu (in a clone: `.` for torchtpu)",
        )
    others = found - {"torchtpu"}
    if importlib.util.find_spec("torch_tpu"):
        others.add("torch_tpu")
    for name in sorted(others):
        yield warn(
            f"backend {name}",
            "is installed too; whichever of the two is loaded first gets PrivateUse1",
            f"pip uninstall {name}, or keep the two in environments of their own",
        )


def _switch() -> Iterator[Row]:
    value = os.environ.get(_SWITCH)
    if value is not None and value != "1":  # torch takes any other value for a no
        yield warn(
            _SWITCH,
            f"{value!r} keeps `import torch` from loading torchtpu",
            f"unset {_SWITCH}, or call torchtpu.register() in every program",
        )


def _owner(limit_s: float) -> Row:
    answer = child.ask(__name__, limit_s=limit_s)
    if answer.failure:
        return fail(
            "import torch",
            answer.failure,
            f"try {_SWITCH}=0 python -c 'import torch': if that fails too, torch's installation is "
            "at fault, else a backend that is loaded with it",
            answer.details,
        )
    about: dict[str, str] = answer.value
    if about["error"]:
        finding, _, advice = about["error"].rpartition("; ")
        return fail("PrivateUse1", finding, advice)
    if about["owner"] == _FREE:
        finding = "free after `import torch`; torchtpu.register() gets it"
        return note("PrivateUse1", f"{finding}, in {about['mode']} mode")
    return ok("PrivateUse1", f"torchtpu, as device {about['owner']!r}, in {about['mode']} mode")


def _about() -> dict[str, Any]:
    from torchtpu.private import torch as private

    owner = private.privateuse1_name()
    from torchtpu import register
    from torchtpu.errors import TpuError

    try:
        register()
    except TpuError as error:
        return {"owner": owner, "error": str(error)}
    from torchtpu.eager import modes

    return {"owner": owner, "error": "", "mode": modes.mode().value}


if __name__ == "__main__":
    print(json.dumps(_about()))
