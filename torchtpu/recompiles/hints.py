"""What to do about a recompile, by the entry of the key that differed."""

from __future__ import annotations

from typing import Any

_BY_KIND = {
    "dtype": "another dtype: an autocast region, a float64 from numpy, or int where there was "
    "float? Cast once, before the loop",
    "strides": "a view with other strides: .contiguous() before the op lets one program serve",
    "offset": "the place of a slice is part of its program: index with a device tensor "
    "(index_select, gather) where it moves",
    "storage": "the view is cut out of a tensor of another size: .clone() or .contiguous() first",
    "length": "another number of tensors in the list",
    "layout": "the result is written through another view, or has another order of dims",
    "result": "the result has another shape or dtype",
    "source": "the op takes the result of another op",
    "op": "another sequence of ops: a Python condition, or a value read in another place",
    "outputs": "other results are still alive where the program ends: a tensor that is kept only "
    "in some iterations (logging)?",
    "donation": "the memory of an argument is shared (a cloned storage) or still needed, so that "
    "it cannot be overwritten: compiled once for each",
    "matmul precision": "torch.set_float32_matmul_precision changed: set it once, at the start",
    "shardings": "the arguments lie otherwise on the mesh: split them alike, or fix how a value "
    "lies by spmd.with_sharding_constraint",
    "nothing": "the program was evicted (TORCHTPU_CACHE_ENTRIES) or the cache was cleared",
}


def hint(kind: str, before: Any, now: Any) -> str:
    """Return what probably caused the difference and what avoids it."""
    if kind == "shape":
        return _shape(before, now)
    if kind == "value":
        return _value(before, now)
    return _BY_KIND.get(kind, "")


def _shape(before: Any, now: Any) -> str:
    if not (isinstance(before, tuple) and isinstance(now, tuple)) or len(before) != len(now):
        return "another number of dims"
    changed = [d for d, (b, n) in enumerate(zip(before, now, strict=True)) if b != n]
    if changed == [0] and now[0] < before[0]:
        return (
            "a smaller first dim, as the last batch of an epoch: DataLoader(drop_last=True), pad "
            "it, or mark the dim dynamic under torch.compile"
        )
    return (
        "every size compiles once: pad to a few sizes (buckets), or mark the dim dynamic under "
        "torch.compile"
    )


def _value(before: Any, now: Any) -> str:
    if before is None or now is None:
        return "the argument is given in some calls only"
    if any(type(v) in (int, float, bool, complex) for v in (before, now)):
        return (
            "a Python number became a static argument, and each of its values a program: keep it "
            "constant, or pass a tensor"
        )
    return "a static argument changed: it is compiled in, so each of its values is a program"
