"""Single overloads on the device, called with what OpInfo's samples call them with on the CPU.

python -m tests.ops.overloads [--list cuda|core|all] [--write]

Prints three numbers over a list of overloads: registered (a kernel for the device, or torch's own
composition), executed (every call ran, nothing on the CPU), matched (and gave the CPU's results).
An in-place or out= overload is called with what its functional form was called with. What no
sample reaches has calls in samples.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import tomllib
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as database
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.lowerings import open_results, opinfo
from tests.ops import samples
from tests.ops.samples.call import Call
from torchtpu.cli import lowerings
from torchtpu.eager.dispatch import full_name
from torchtpu.eager.schema import overload, variants
from torchtpu.eager.support import overloads, support

DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16)
_FOREACH = (
    *database.foreach_unary_op_db,
    *database.foreach_binary_op_db,
    *database.foreach_pointwise_op_db,
    *database.foreach_reduce_op_db,
    *database.foreach_other_op_db,
)
_HERE = Path(__file__).parent
_SAMPLES = 6  # of each OpInfo and dtype, from which calls are taken
_UNWRITTEN = re.compile(r"aten::(new_)?empty|aten::_?resize")  # their new memory holds anything
_FACTORY = frozenset({"dtype", "layout", "device", "pin_memory"})  # no arguments of an out= form
Settled = Callable[[int, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass(kw_only=True)
class Outcome:
    """What became of an overload's calls."""

    name: str
    registered: bool
    calls: int = 0
    executed: int = 0
    matched: Counter[str] = field(default_factory=Counter)  # by dtype
    error: str = ""

    @property
    def is_executed(self) -> bool:
        """Every call ran."""
        return 0 < self.calls == self.executed

    @property
    def is_matched(self) -> bool:
        """Every call gave what the CPU gives."""
        return 0 < self.calls == self.matched.total()


def names(which: str) -> list[str]:
    """Return overloads: "cuda" (those with a CUDA kernel in torch), "core" or "all"."""
    if which == "all":
        return overloads()
    lines = (_HERE / f"{which}_overloads.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


class _Recorder(TorchDispatchMode):
    """Keeps copies of the first calls of each overload, as they come out of autograd."""

    def __init__(self, calls: dict[str, list[Call]], limit: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self._calls, self._limit = calls, limit
        self.random = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kept = self._calls[full_name(func)]
        if len(kept) >= self._limit:
            return func(*args, **(kwargs or {}))
        args_, kwargs_ = tree_map(_copy, (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        drawn = torch.Tag.nondeterministic_seeded in func.tags or self.random
        kept.append(Call(args=args_, kwargs=kwargs_, random=drawn))
        return result


@cache
def recorded(dtypes: tuple[torch.dtype, ...], limit: int = 2) -> dict[str, list[Call]]:
    """Return calls by overload, at most `limit` of a dtype."""
    all_calls: dict[str, list[Call]] = defaultdict(list)
    for dtype in dtypes:
        calls: dict[str, list[Call]] = defaultdict(list)
        with _Recorder(calls, limit) as recorder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in opinfo.names():
                recorder.random = opinfo.is_random(name)
                for run in opinfo.runs(name, dtype, _SAMPLES):
                    with suppress(Exception):  # what the CPU refuses
                        run()
            recorder.random = False
            for call in _calls_on_lists(dtype):
                with suppress(Exception):
                    call()
        for name, found in calls.items():
            all_calls[name] += found
    return all_calls


def _calls_on_lists(dtype: torch.dtype) -> Iterator[Callable[[], Any]]:
    """Yield calls of the _foreach ops, which have a database of their own."""
    for info in _FOREACH:
        if dtype not in info.dtypes:
            continue
        samples = info.sample_inputs_func(info, "cpu", dtype, False, num_input_tensors=[3])
        for sample in itertools.islice(samples, 4 * _SAMPLES):
            for variant in (info.method_variant, info.inplace_variant):
                if variant is not None:
                    inputs = [_copy(t) for t in sample.input]
                    yield partial(variant, inputs, *sample.args, **sample.kwargs)


@cache
def functional_forms() -> dict[str, str]:
    """Return the functional overload of each in-place and out= one that has one."""
    forms: dict[str, str] = {}
    for name in overloads():
        with suppress(AttributeError):
            for variant in itertools.chain(*variants(overload(name))):
                forms.setdefault(full_name(variant), name)
    return forms


def calls_of(name: str, dtypes: tuple[torch.dtype, ...] = DTYPES) -> list[Call]:
    """Return calls of an overload: recorded, derived from its functional form's, or hand-made."""
    found = samples.calls(name) + recorded(dtypes).get(name, [])
    functional = functional_forms().get(name)
    if found or functional is None:
        return found
    calls = samples.calls(functional) + recorded(dtypes).get(functional, [])
    return list(_derived(name, functional, calls))


def _derived(name: str, functional_name: str, calls: Iterable[Call]) -> Iterator[Call]:
    """Yield calls of an in-place or out= overload, where its functional form's can be such."""
    op = overload(name)
    outs = [a.name for a in op._schema.arguments if a.is_out]
    functional = overload(functional_name)
    for call in calls:
        args, kwargs = tree_map(_copy, (call.args, call.kwargs))
        try:
            results = _tuple((call.reference or functional)(*args, **kwargs))
        except Exception:  # refused by the CPU: no sample
            continue
        if not outs:
            if _keeps_shape(args, results):
                yield call
        elif len(results) == len(outs) and all(map(_is_tensor, results)):
            kept = {n: v for n, v in call.kwargs.items() if n not in _FACTORY}
            made = {n: torch.empty_like(r) for n, r in zip(outs, results, strict=True)}
            into = _into(call.reference, outs) if call.reference else None
            yield replace(call, kwargs=kept | made, reference=into)


def _keeps_shape(args: Sequence[Any], results: Sequence[Any]) -> bool:
    """What an in-place op writes keeps its shape; a few of the CPU's resize it."""
    made = [v for v in results[:1] if _is_tensor(v)]
    return all(given.shape == m.shape for m in made for given in args[:1] if _is_tensor(given))


def _into(reference: Callable[..., Any], outs: Sequence[str]) -> Callable[..., Any]:
    """The out= form of a reference."""

    def run(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(name) for name in outs]
        for target, result in zip(targets, _tuple(reference(*args, **kwargs)), strict=True):
            target.copy_(result)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return run


def _tuple(results: Any) -> tuple[Any, ...]:
    return (results,) if _is_tensor(results) else tuple(results)


def outcome(name: str, calls: Sequence[Call]) -> Outcome:
    """Call an overload on both devices and compare results and what was written."""
    made = Outcome(name=name, registered=support(name).how != "fallback")
    op = overload(name)
    for call in calls:
        try:
            expected = _expected(name, call)
        except Exception:  # refused by the CPU: no sample
            continue
        made.calls += 1
        try:
            actual = _run(op, call, "tpu")
            made.executed += 1
            values = not call.random and not _UNWRITTEN.match(name)
            _compare(actual, expected, values=values, settled=_settled(name, call, len(expected)))
            made.matched[call.dtype] += 1
        except Exception as error:
            made.error = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return made


def _run(fn: Any, call: Call, device: str) -> list[Any]:
    args, kwargs = tree_map(lambda v: _to(v, device), (call.args, call.kwargs))
    torch.manual_seed(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = fn(*(call.prepare(*args) if call.prepare else args), **kwargs)
        return [_plain(v) for v in tree_leaves((results, args, kwargs)) if not _is_device(v)]


def _expected(name: str, call: Call) -> list[Any]:
    """The CPU's results; in float32 and rounded once, where it rounds between its steps."""
    fn = call.reference or overload(name)
    expected = _run(fn, call, "cpu")
    if _base(name) not in open_results.ROUNDED_ONCE:
        return expected
    args, kwargs = tree_map(open_results.widened, (call.args, call.kwargs))
    exact = _run(fn, replace(call, args=args, kwargs=kwargs), "cpu")
    pairs = zip(exact, expected, strict=True)
    return [open_results.narrowed(x, e) if _is_tensor(e) else e for x, e in pairs]


def _base(name: str) -> str:
    return name.removeprefix("aten::").partition(".")[0]


def _settled(name: str, call: Call, count: int) -> Settled:
    """What makes two tensors of two whose difference is open, by their number of `count`."""
    base, schema = _base(name), overload(name)._schema
    bound = {a.name: v for a, v in zip(schema.arguments, call.args, strict=False)} | call.kwargs
    returns = len(schema.returns)
    outs = count - returns if any(a.is_out for a in schema.arguments) else count

    def settle(number: int, a: torch.Tensor, e: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = number if number < returns else number - outs  # negative: an argument
        if base in open_results.EXACT_STATISTICS and a.dtype == torch.float32:
            return open_results.narrowed(a, e), e
        if base in open_results.SAVED and result > 0:
            return e, e
        if result != returns - 1:
            return a, e
        if base in open_results.EIGENVECTORS:
            return a, open_results.turned(e, a)
        if base in open_results.ORDERS and not bound.get("stable"):
            ties = open_results.Ties(call.args[0], bound.get("dim", -1))
            return ties.indices(a, e), e
        if base == "_ctc_loss":
            lengths = (bound["input_lengths"], bound["target_lengths"])
            a, e = (open_results.written_alphas(v, *lengths) for v in (a, e))
        return a, e

    return settle


def _compare(actual: list[Any], expected: list[Any], *, values: bool, settled: Settled) -> None:
    assert len(actual) == len(expected), f"{len(actual)} results, expected {len(expected)}"
    for number, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if not _is_tensor(e):
            assert a == e or a != a, f"{a}, expected {e}"
            continue
        if not values:
            assert (a.shape, a.dtype) == (e.shape, e.dtype), f"{a.shape}, expected {e.shape}"
            continue
        a, e = settled(number, a, e)
        tolerance = opinfo.TOLERANCES.get(e.dtype, 0.0)
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance, equal_nan=True)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_device(value: Any) -> bool:
    return isinstance(value, (torch.device, torch.Generator))


def _copy(value: Any) -> Any:
    """A tensor with strides and offset of its own; everything else as it is."""
    if not _is_tensor(value):
        return value
    if value.layout != torch.strided:
        return value.detach().clone()
    return value.detach().clone(memory_format=torch.preserve_format)


def _to(value: Any, device: str) -> Any:
    if isinstance(value, torch.device):
        return torch.device(device)
    return _copy(value).to(device) if _is_tensor(value) else value


def _plain(value: Any) -> Any:
    if not _is_tensor(value):
        return value
    if value.is_nested:  # NaN where a part has ended
        value = value.cpu().contiguous().to_padded_tensor(torch.nan)
    value = value if value.layout == torch.strided else value.to_dense()
    return value.cpu().resolve_conj().resolve_neg()


@cache
def deviations() -> dict[str, dict[str, str]]:
    """Return the overloads that exceptions.toml says do not match, by name."""
    rows = tomllib.loads((_HERE / "exceptions.toml").read_text()).get("overload", [])
    return {row["name"]: row for row in rows}


def verdict(found: Outcome) -> str:
    """Return what is wrong with an outcome; empty where it matches, or need not."""
    if found.name in deviations():
        return f"{found.name} matches, but exceptions.toml says it does not" * found.is_matched
    if found.is_matched:
        return ""
    state = found.error or "no call of it"
    return f"{found.name}: {state if found.registered else 'no kernel'}"


def outcomes(which: str) -> Iterator[Outcome]:
    """Yield what becomes of each overload of a list."""
    for name in names(which):
        yield outcome(name, calls_of(name))


def _write(found: Sequence[Outcome]) -> None:
    """Put the dtypes of outcomes in the place of older ones of the same overloads."""
    known = json.loads(lowerings.MEASURED.read_text())
    known |= {one.name: " ".join(one.matched) if one.is_matched else "" for one in found}
    kept = {name: dtypes for name, dtypes in known.items() if dtypes}
    lowerings.MEASURED.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.ops.overloads", description=__doc__)
    parser.add_argument("--list", default="cuda", choices=("cuda", "core", "all"))
    parser.add_argument("--write", action="store_true", help="the dtypes of the support table")
    given = parser.parse_args(arguments)
    found = []
    for one in outcomes(given.list):
        found.append(one)
        if verdict(one):
            print(verdict(one), flush=True)
    for what in ("registered", "is_executed", "is_matched"):
        count = sum(getattr(one, what) for one in found)
        print(f"{what.removeprefix('is_'):10} {count} of {len(found)}, {count / len(found):.1%}")
    if given.write:
        _write(found)
    return int(any(verdict(one) for one in found))


if __name__ == "__main__":
    sys.exit(main())
