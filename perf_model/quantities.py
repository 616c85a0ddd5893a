"""Numbers as people read them: seconds, bytes and rates with a fitting unit."""

from __future__ import annotations

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_RATES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def seconds(value: float) -> str:
    """0.00123 -> "1.23 ms"."""
    scale, unit = next(((s, u) for s, u in _TIMES if value >= s), _TIMES[-1])
    return f"{value / scale:.3g} {unit}" if value < 1000 else f"{value:.0f} s"


def rate(value: float, unit: str) -> str:
    """1.2e12, "FLOP/s" -> "1.2 TFLOP/s"."""
    scale, prefix = next(((s, p) for s, p in _RATES if value >= s), _RATES[-1])
    return f"{value / scale:.4g} {prefix}{unit}"


def size(value: int) -> str:
    """Bytes: 33543694581 -> "31.24 GiB"."""
    scale, unit = next(((s, u) for s, u in _SIZES if abs(value) >= s), _SIZES[-1])
    return f"{value / scale:.2f} {unit}" if scale > 1 else f"{value} B"


def percent(value: float) -> str:
    """0.4567 -> "45.7 %"."""
    return f"{100 * value:.1f} %"


def table(rows: list[list[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Lines of a table whose first row is the head; columns in `right` are right-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: list[str]) -> str:
        cells = (
            c.rjust(w) if i in right else c.ljust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return [line(rows[0]), "  ".join("-" * w for w in widths), *(line(row) for row in rows[1:])]
