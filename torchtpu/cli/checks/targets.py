"""Section targets: which ones work here, and the one that device "tpu" is."""

from __future__ import annotations

from torchtpu import config
from torchtpu.cli.checks import trial
from torchtpu.cli.checks.row import Row, fail, note, ok
from torchtpu.cli.checks.trial import State, Trial
from torchtpu.perf_model.quantities import seconds

_VARIABLE = "TORCHTPU_TARGET"
_REINSTALL = (
    "see versions above; pip install --force-reinstall jax jaxlib; if that does not help, report "
    "it with the output of torchtpu-doctor --json"
)


def rows(limit_s: float) -> list[Row]:
    """Return how the try of each target ended, and what the chosen one is."""
    trials = trial.in_children(trial.specs(), limit_s)
    return [*(_row(t) for t in trials), _chosen(trial.chosen(trials))]


def _row(tried: Trial) -> Row:
    if tried.state is State.PASS:
        spent = seconds(tried.seconds)
        return ok(tried.spec, f"works: compiled and ran a program on {tried.device} within {spent}")
    if tried.state is State.ABSENT:
        return note(tried.spec, f"absent: {tried.reason}")
    reason, advice = explained(tried)
    return fail(tried.spec, f"does not work: {reason}", advice, tried.details)


def explained(tried: Trial) -> tuple[str, str]:
    """Return why a target does not work, and what to do; torchtpu's own errors say both."""
    if tried.reason.startswith("["):
        reason, _, advice = tried.reason.rpartition("; ")
        return (reason, advice) if reason else (advice, f"choose another, or unset {_VARIABLE}")
    if tried.reason.startswith("no answer"):
        return tried.reason, "try a longer --timeout; another process may hold the TPU"
    return tried.reason, _REINSTALL


def _chosen(tried: Trial) -> Row:
    why = f"{_VARIABLE}={tried.spec}" if config.get("target") else f"{_VARIABLE} is not set"
    if tried.state is State.PASS:
        return ok('device "tpu"', f"runs on target {tried.spec} ({why})")
    return fail(
        'device "tpu"',
        f"does not work: it is target {tried.spec} here ({why})",
        f"{_VARIABLE}=cpu gives numerics on any machine; or mend what is said of {tried.spec}",
    )
