"""A try of a target: make it, put arrays, compile and run a small program, compare the result.

`python -m torchtpu.cli.checks.trial SPEC LIMIT_S` prints how one ended, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial

from torchtpu import config, targets
from torchtpu.cli.checks.together import together
from torchtpu.private import jax as private
from torchtpu.targets import Settings, Target, TargetError, child

_SIDE = 8
_LONGER_S = 3.0  # until a process that does not answer is ended
_START = 0.8  # of the limit: a library that does not start is best described by its target
_PROGRAM = """
module @trial {
  func.func public @main(%x: tensor<8x8xf32>, %y: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %product = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %sum = stablehlo.add %product, %x : tensor<8x8xf32>
    return %sum : tensor<8x8xf32>
  }
}
"""


class State(StrEnum):
    """How a try ended; ABSENT: the device is not on this machine."""

    PASS = "PASS"
    FAIL = "FAIL"
    ABSENT = "absent"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """How the try of a target ended."""

    spec: str
    state: State
    reason: str = ""  # empty where it passed
    device: str = ""
    details: str = ""
    seconds: float = 0.0  # with the start of a process


def specs() -> list[str]:
    """Return the targets of this machine, the one of TORCHTPU_TARGET as it is spelled there."""
    spec: str = config.get("target")
    name = spec.partition(":")[0]
    known = targets.names()
    return [spec if n == name else n for n in known] + [spec] * (bool(spec) and name not in known)


def chosen(trials: Sequence[Trial]) -> Trial:
    """Return the try of the target that programs of this environment would run on."""
    absent = {t.spec for t in trials if t.state is State.ABSENT}
    spec = config.get("target") or targets.default(absent.__contains__)
    return next(t for t in trials if t.spec == spec)


def in_children(specs: Sequence[str], limit_s: float) -> list[Trial]:
    """Try targets at the same time, each in a process of its own."""
    calls = {spec: partial(_in_child, spec, limit_s) for spec in specs}
    return [_ended(*item) for item in together(calls, limit_s + _LONGER_S).items()]


def _ended(spec: str, found: Trial | Exception) -> Trial:
    if isinstance(found, Trial):
        return found
    reason = str(found) if isinstance(found, TimeoutError) else f"{type(found).__name__}: {found}"
    return Trial(spec=spec, state=State.FAIL, reason=reason)


def _in_child(spec: str, limit_s: float) -> Trial:
    absent = targets.absent(spec)
    if absent:
        return Trial(spec=spec, state=State.ABSENT, reason=absent)
    answer = child.ask(__name__, spec, str(limit_s), limit_s=limit_s)
    if answer.failure:
        return Trial(
            spec=spec,
            state=State.FAIL,
            reason=answer.failure,
            details=answer.details,
            seconds=answer.seconds,
        )
    about = answer.value | {"state": State(answer.value["state"]), "seconds": answer.seconds}
    return Trial(**about)


def attempt(spec: str, limit_s: float) -> Trial:
    """Try a target in this process; raises what is no TargetError."""
    try:
        settings = Settings(start_timeout_s=_START * limit_s)
        target = targets.create(spec, settings)
        device = target.info().name
        wrong = _wrong_result(target)
    except TargetError as error:
        return Trial(spec=spec, state=State.FAIL, reason=str(error))
    return Trial(spec=spec, state=State.FAIL if wrong else State.PASS, reason=wrong, device=device)


def _wrong_result(target: Target) -> str:
    """Say how the result of a program differs; its numbers are exact in bfloat16 too."""
    import numpy as np

    x = np.arange(_SIDE * _SIDE, dtype=np.float32).reshape(_SIDE, _SIDE) % _SIDE
    executable = target.compile(private.parse_module(_PROGRAM), [(x.shape, x.dtype)])
    (result,) = executable.run([target.put(x), target.put(x.T)])
    target.wait([result])
    got, expected = target.get(result), x @ x.T + x
    if np.array_equal(got, expected):
        return ""
    return f"a matrix product came out wrong: expected {expected[0]}, got {got[0]} in its first row"


if __name__ == "__main__":
    print(json.dumps(asdict(attempt(sys.argv[1], float(sys.argv[2])))))
