"""Shapes, strides, dtypes and the user's errors, from torch's own meta functions."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchtpu.eager import missing_meta, restate
from torchtpu.errors import TpuError


@dataclass(frozen=True, kw_only=True)
class MetaTensor:
    """What an output will be."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class MetaResult:
    """The outputs of the functional overload; None where torch returns an undefined tensor.

    `lengths` are those of the lists that an op returns several of; their tensors stand in order.
    """

    outputs: tuple[MetaTensor | None, ...]
    single: bool
    is_list: bool
    lengths: tuple[int, ...] = ()


def run_meta(op: Any, functional: Any, bound: Mapping[str, Any], *, mutates: bool) -> MetaResult:
    """Run an overload on meta tensors; raises what torch's CPU raises for wrong arguments."""
    on_meta = {n: _to_meta(v) for n, v in bound.items()}
    if "device" in bound:
        check_index(bound["device"])
        on_meta["device"] = torch.device("meta")
    if "generator" in bound:
        on_meta["generator"] = None
    if op is not functional and mutates:
        _check_variant(op, on_meta)
    names = {a.name for a in functional._schema.arguments}
    inputs = {n: v for n, v in on_meta.items() if n in names}
    if not functional._schema.name.endswith("_backward"):  # called by autograd, not by the user
        restate.check(functional, inputs)
    try:
        result = _describe(missing_meta.CORRECTED.get(functional, functional)(**inputs))
    except NotImplementedError:
        return _guess(op, functional, bound)
    except Exception as error:
        raise restate.as_cpu(error, functional, inputs) from None
    if op is not functional and mutates:
        _check_written(op, on_meta, result)
    return result


def check_index(device: torch.device | None) -> None:
    """Raise TpuError for a device that this process does not drive."""
    if device is not None and device.index not in (None, 0):
        raise TpuError(
            f"[empty] expected device tpu:0, got {device}: a process drives one TPU device; "
            "start one process per device (torchrun) for more"
        )


def result_type(values: Iterable[Any]) -> torch.dtype:
    """Return the dtype to which torch promotes these tensors and numbers together."""
    operands: list[Any] = []
    for value in values:
        items = value if isinstance(value, (list, tuple)) else [value]
        operands += [
            _promotable(v) for v in items if isinstance(v, (torch.Tensor, int, float, complex))
        ]
    if not operands:
        return torch.get_default_dtype()
    by_rank = sorted(operands, key=lambda o: -o.dim() if isinstance(o, torch.Tensor) else 1)
    first = by_rank[0]
    if not isinstance(first, torch.Tensor):
        return torch.result_type(first, first)
    if len(by_rank) == 1:
        return first.dtype
    found = torch.result_type(first, by_rank[1])
    for other in by_rank[2:]:
        found = torch.result_type(torch.empty(first.shape, dtype=found, device="meta"), other)
    return found


def _promotable(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty((1,) * value.dim(), dtype=value.dtype, device="meta")
    return value


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return [_to_meta(v) for v in value]
    return value


def _check_variant(op: Any, on_meta: Mapping[str, Any]) -> None:
    try:
        with warnings.catch_warnings():  # that an out= tensor is resized is said when it is
            warnings.simplefilter("ignore")
            meta = missing_meta.CORRECTED.get(op, op)
            meta(**{n: _to_meta(v) for n, v in on_meta.items()})
        restate.check_unchecked(op, on_meta)
    except NotImplementedError:
        return  # no meta function for the variant: the functional one is checked next
    except Exception as error:
        if _takes_no_out(error, op):
            return
        raise restate.as_cpu(error, op, on_meta) from None


def _takes_no_out(error: Exception, op: Any) -> bool:
    """Tell Python's complaint about a meta function that torch gave an out= overload by mistake."""
    complaints = [f"argument '{a.name}'" for a in _written(op) if a.is_out]
    complaints += [repr(a.name) for a in _written(op) if a.is_out and isinstance(error, KeyError)]
    return isinstance(error, (TypeError, KeyError)) and any(c in str(error) for c in complaints)


def _check_written(op: Any, on_meta: Mapping[str, Any], result: MetaResult) -> None:
    """What is written to keeps its shape, an integer tensor takes no floats, a real one no complex.

    torch's meta functions of some variants let it pass.
    """
    written = [(a.is_out, on_meta.get(a.name)) for a in _written(op)]
    targets = [(out, t) for out, v in written for t in (v if isinstance(v, list) else [v])]
    for (is_out, target), output in zip(targets, result.outputs, strict=False):
        if output is None or not isinstance(target, torch.Tensor):
            continue
        if not is_out and output.shape != tuple(target.shape):
            problem = (
                f"output with shape {list(target.shape)} doesn't match the broadcast shape "
                f"{list(output.shape)}"
            )
        elif not torch.can_cast(output.dtype, target.dtype):
            problem = (
                f"result type {output.dtype} can't be cast to the desired output type "
                f"{target.dtype}"
            )
        else:
            continue
        error = restate.of_variant(problem, op, on_meta)
        if error is not None:
            raise error


def _written(op: Any) -> list[Any]:
    return [a for a in op._schema.arguments if a.alias_info and a.alias_info.is_write]


def _guess(op: Any, functional: Any, bound: Mapping[str, Any]) -> MetaResult:
    """The result of an op that has no meta function: like what it writes, else its first tensor."""
    written = [
        bound[a.name] for a in op._schema.arguments if a.alias_info and a.alias_info.is_write
    ]
    if written and not any(a.is_out for a in op._schema.arguments):
        return _describe(tuple(written))
    first = next((v for v in bound.values() if isinstance(v, torch.Tensor)), None)
    if first is None or len(functional._schema.returns) != 1:
        raise NotImplementedError(f"[{functional}] torch has no meta function for this op")
    return _describe(torch.empty(first.shape, dtype=first.dtype, device="meta"))


def _describe(result: Any) -> MetaResult:
    single = isinstance(result, torch.Tensor)
    outputs = [result] if single else list(result)
    lengths: tuple[int, ...] = ()
    if any(isinstance(o, list) for o in outputs):
        lists = [o if isinstance(o, list) else [o] for o in outputs]
        lengths, outputs = tuple(map(len, lists)), [t for o in lists for t in o]
    return MetaResult(
        outputs=tuple(
            None
            if t is None
            else MetaTensor(shape=tuple(t.shape), strides=tuple(t.stride()), dtype=t.dtype)
            for t in outputs
        ),
        single=single,
        is_list=isinstance(result, list),
        lengths=lengths,
    )
