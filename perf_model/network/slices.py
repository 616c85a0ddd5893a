"""Which slices of a TPU generation exist: topologies.toml, checks of shapes, product names."""

from __future__ import annotations

import functools
import itertools
import math
import re
from dataclasses import dataclass
from pathlib import Path

from torchtpu.perf_model.chip import Chip, UnknownChip, load, sources
from torchtpu.perf_model.facts import FactError, read_toml

PATH = Path(__file__).parent / "topologies.toml"
Shape = tuple[int, ...]
_TYPES = {
    "shapes": list,
    "blocks": int,
    "wrap": int,
    "twisted": bool,
    "counts": str,
    "source": str,
}
_REQUIRED = ("shapes", "wrap", "counts", "source")
_PRODUCT = re.compile(r"([a-z0-9]+?)(?:litepod)?-(\d+)")


class TopologyError(ValueError):
    """A slice that does not exist; the message lists what does and gives the rule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceRule:
    """The slices of one generation.

    shapes: slices listed one by one; blocks: every box of multiples of this is a slice too (0:
    none); wrap: an axis of a multiple of this size is a ring; counts: "chips" or "cores", what the
    number in a product name counts.
    """

    shapes: tuple[Shape, ...]
    blocks: int
    wrap: int
    twisted: bool
    counts: str
    source: str

    @property
    def dimensions(self) -> int:
        """Dimensions of the torus."""
        return len(self.shapes[0])

    def wraps(self, shape: Shape) -> tuple[bool, ...]:
        """Per axis, whether it is a ring. 2-D tori wrap axis by axis, 3-D ones as a whole."""
        fits = [size % self.wrap == 0 for size in shape]
        return tuple(fits) if self.dimensions == 2 else (all(fits),) * len(shape)


@functools.cache
def rules() -> dict[str, SliceRule]:
    """The rules of topologies.toml by chip name. Raises FactError."""
    return {name: _rule(name, table) for name, table in read_toml(PATH).items() if name != "date"}


def _rule(name: str, table: object) -> SliceRule:
    where = f"{PATH.name}: {name}"
    if not isinstance(table, dict):
        raise FactError(f"{where}: expected a table, got {table!r}")
    missing = [key for key in _REQUIRED if key not in table]
    wrong = [k for k, v in table.items() if k not in _TYPES or not isinstance(v, _TYPES[k])]
    if missing or wrong:
        raise FactError(f"{where}: missing {missing or 'nothing'}, wrong {wrong or 'nothing'}")
    if table["source"] not in sources() or table["counts"] not in {"chips", "cores"}:
        raise FactError(f"{where}: expected a source of sources.toml and counts chips or cores")
    return SliceRule(
        shapes=tuple(parse_shape(text) for text in table["shapes"]),
        blocks=table.get("blocks", 0),
        wrap=table["wrap"],
        twisted=table.get("twisted", False),
        counts=table["counts"],
        source=table["source"],
    )


def rule_of(chip: Chip) -> SliceRule:
    """The slice rule of a chip. Raises TopologyError where its network is not a known torus."""
    if chip.name not in rules():
        known = ", ".join(rules())
        raise TopologyError(
            f"[topology] {chip.name}: its slices are not public as a torus, expected one of {known}"
        )
    return rules()[chip.name]


def parse_shape(text: str) -> Shape:
    """ "4x4x8" as (4, 4, 8). Raises TopologyError."""
    if not re.fullmatch(r"[1-9]\d{0,4}(x[1-9]\d{0,4})*", text):
        raise TopologyError(f"[topology] expected sizes such as 4x8 or 4x4x4, got {text!r}")
    return tuple(int(size) for size in text.split("x"))


def format_shape(shape: Shape) -> str:
    """(4, 4, 8) as "4x4x8"."""
    return "x".join(map(str, shape))


def legal_shapes(chip: Chip) -> tuple[Shape, ...]:
    """Every slice of the chip, smallest first. Raises TopologyError where none is known."""
    rule_of(chip)
    return _legal_shapes(chip.name, int(chip.value("ici.pod_chips")))


@functools.cache
def _legal_shapes(name: str, pod: int) -> tuple[Shape, ...]:
    rule = rules()[name]
    found = set(rule.shapes)
    if rule.blocks:
        steps = range(rule.blocks, pod // rule.blocks**2 + 1, rule.blocks)
        for a, b in itertools.combinations_with_replacement(steps, 2):
            if a * b * b > pod:
                continue
            found |= {(a, b, c) for c in range(b, pod // (a * b) + 1, rule.blocks)}
    return tuple(sorted(found, key=lambda shape: (math.prod(shape), sum(shape), shape)))


def check(chip: Chip, shape: Shape, *, twisted: bool = False) -> Shape:
    """The shape, if the chip has such a slice. Raises TopologyError with the rule."""
    rule = rule_of(chip)
    if rule.dimensions == 3 and len(shape) == 2:
        shape = (*shape, 1)
    if shape not in legal_shapes(chip):
        raise TopologyError(_unknown(chip, shape))
    if twisted and not (rule.twisted and _can_twist(shape, rule)):
        raise TopologyError(
            f"[topology] {chip.name}: {format_shape(shape)} cannot be twisted, expected n x n x 2n "
            "or n x 2n x 2n with n a multiple of 4 on v4 or v5p"
        )
    return shape


def _can_twist(shape: Shape, rule: SliceRule) -> bool:
    n = shape[0]
    return all(rule.wraps(shape)) and shape in {(n, n, 2 * n), (n, 2 * n, 2 * n)}


def _unknown(chip: Chip, shape: Shape) -> str:
    rule = rule_of(chip)
    listed = ", ".join(format_shape(s) for s in rule.shapes)
    pod = int(chip.value("ici.pod_chips"))
    if rule.blocks:
        listed += (
            f", and AxBxC with A <= B <= C, multiples of {rule.blocks}, up to {pod:,} chips"
            f" ({_examples(chip)})"
        )
    ordered = tuple(sorted(shape))
    hint = ""
    if len(shape) != rule.dimensions:
        hint = f" ({chip.name} is a {rule.dimensions}-D torus)"
    elif math.prod(shape) > pod:
        hint = f" (a pod has {pod:,} chips; use slices for more)"
    elif ordered in legal_shapes(chip):
        hint = f" (did you mean {format_shape(ordered)}?)"
    return f"[topology] {chip.name}: no slice {format_shape(shape)}{hint}, expected one of {listed}"


def _examples(chip: Chip) -> str:
    cubes = [s for s in legal_shapes(chip) if s not in rule_of(chip).shapes]
    return ", ".join(format_shape(s) for s in [*cubes[:4], cubes[-1]])


def parse_product(name: str) -> tuple[Chip, Shape]:
    """Chip and shape of a product name such as "v6e-256", "v5p-1024" (cores) or "v5litepod-8".

    The number counts TensorCores on v2, v3, v4, v5p and TPU7x and chips on v5e and v6e. Of several
    shapes of the same size it means the one with the shortest axes. Raises TopologyError.
    """
    match = _PRODUCT.fullmatch(name.strip().lower())
    if match is None:
        raise TopologyError(f"[topology] expected a product name such as v6e-256, got {name!r}")
    family, number = match.group(1), int(match.group(2))
    chip = load("v5e" if "litepod" in name.lower() else family)
    per_chip = int(chip.value("structure.tensorcores")) if rule_of(chip).counts == "cores" else 1
    shapes = [s for s in legal_shapes(chip) if math.prod(s) * per_chip == number]
    if not shapes:
        raise TopologyError(_no_product(chip, number, per_chip))
    return chip, shapes[0]


def naming_hint(name: str) -> str:
    """What the number in a product name counts, where it is not chips; "" where it is.

    Raises TopologyError, torchtpu.perf_model.chip.UnknownChip for an unknown product.
    """
    chip, shape = parse_product(name)
    if rule_of(chip).counts == "chips":
        return ""
    chips = math.prod(shape)
    return f"{name} counts TensorCores: it has {chips:,} chips ({chip.name}:{format_shape(shape)})"


def _no_product(chip: Chip, number: int, per_chip: int) -> str:
    sizes = sorted({math.prod(s) * per_chip for s in legal_shapes(chip)})
    near = sorted(sorted(sizes, key=lambda size: (abs(size - number), size))[:6])
    names = ", ".join(f"{chip.name}-{size}" for size in near)
    trap = ""
    if per_chip > 1:
        trap = (
            f"; the number counts TensorCores, {per_chip} a chip: "
            f"{chip.name}-{number} would be {number // per_chip:,} chips"
        )
    return f"[topology] no slice {chip.name}-{number}{trap}; the nearest are {names}"


def split_name(text: str) -> tuple[str, str] | None:
    """("v6e", "16x16") of "v6e:16x16"; None where there is no chip in front."""
    family, colon, shape = text.partition(":")
    return (family, shape) if colon else None


def is_product(text: str) -> bool:
    """Whether the text has the form of a product name and begins with a known chip."""
    match = _PRODUCT.fullmatch(text.strip().lower())
    if match is None:
        return False
    try:
        load("v5e" if "litepod" in text.lower() else match.group(1))
    except UnknownChip:
        return False
    return True
