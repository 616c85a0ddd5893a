"""Lines that random programs are made of: texts with holes, and what each does to exactness.

Holes: x, y, z tensors (y broadcasts with x mostly), f a floating tensor, m a bool tensor of x's
shape, k a number, d and e dims of x, s an index, S a shape, R a shape for x's elements, D a dtype,
new the name of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Kind = Literal["exact", "rounds", "jumps"]


@dataclass(frozen=True, kw_only=True)
class Template:
    """A line with holes.

    kind: "exact" on small numbers, "rounds" its result, or "jumps" at some values of its arguments,
        which must then be exact.
    writes: the line changes x in place.
    where: which values of x (and y) it is meant for.
    """

    text: str
    kind: Kind = "exact"
    writes: bool = False
    where: Callable[..., bool] | None = None


def _no_zeros(_: Tensor, y: Tensor) -> bool:
    return bool((y != 0).all())


def _alike(x: Tensor, y: Tensor) -> bool:
    """An out= that has to grow gets a memory of its own on the device."""
    return x.shape == y.shape


def _has_bits(x: Tensor) -> bool:
    """Small integers are denormal floats, bits of truth values and signs of complex zeros open."""
    return x.is_floating_point()


def _is_small(x: Tensor) -> bool:
    """A conversion to an integer type that has no such value is undefined."""
    real = x.real if x.is_complex() else x
    return bool(((real >= 0) & (real < 100)).all())


def _holds(x: Tensor, y: Tensor) -> bool:
    """The same of a copy."""
    return x.is_floating_point() or x.is_complex() or _is_small(y)


def _takes(x: Tensor, y: Tensor) -> bool:
    """The CPU fills x with a y of no dims, and then lets even integers require a gradient."""
    return _holds(x, y) and (x.is_floating_point() or x.is_complex() or not y.requires_grad)


def _has_elements(x: Tensor) -> bool:
    """Of an index beyond an empty x the CPU raises either error, by the size of x's memory."""
    return x.numel() > 0


def _is_base(x: Tensor) -> bool:
    """torch itself fails where a view requires a gradient and its base is then written to."""
    return not x._is_view()


def _new(kind: Kind, texts: str, where: Callable[..., bool] | None = None) -> list[Template]:
    lines = [t.strip() for t in texts.strip().splitlines()]
    return [Template(text="{new} = " + t, kind=kind, where=where) for t in lines]


def _in_place(kind: Kind, texts: str) -> list[Template]:
    return [Template(text=t.strip(), kind=kind, writes=True) for t in texts.strip().splitlines()]


_VIEWS = """
    {x}.transpose({d}, {e})
    {x}.transpose({d}, {e})
    {x}[{s}]
    {x}[{s}]
    {x}[{s}]
    {x}.unsqueeze({d})
    {x}.squeeze()
    {x}.squeeze({d})
    {x}.expand({S})
    {x}.expand_as({y})
    {x}.reshape({R})
    {x}.view({R})
    {x}.flatten()
    {x}.unfold({d}, 2, 1)
    {x}.diagonal()
    {x}.narrow({d}, 0, 1)
    {x}.select({d}, -1)
    {x}.detach()
    {x}.data
    {x}.mT
    {x}.split(1, {d})[-1]
    {x}.chunk(2, {d})[0]
    {x}.unbind({d})[0]
    torch.view_as_real({x})
    {x}.real
    {x}.imag
    {x}.conj()
    {x}.movedim({d}, {e})
    {x}.permute(*reversed(range({x}.dim())))
    {x}.as_strided((2, 2), (1, 1))
    {x}.contiguous()
    {x}.clone()
"""
_MOVES = """
    {x}.flip({d})
    {x}.roll(1, {d})
    {x}.repeat(2, 1, 1)
    {x}.repeat_interleave(2, {d})
    torch.cat(({x}, {y}), {d})
    torch.stack(({x}, {x}), {d})
    {x}.tril()
    {x}.index_select({d}, torch.tensor([0, 0], device=device))
    {x}.gather({d}, torch.zeros_like({x}, dtype=torch.int64))
    torch.where({m}, {x}, {y})
    torch.where({m}, {x}, {k})
    {x}.masked_fill({m}, {k})
    {x}[{m}]
    {x}.masked_select({m})
    {x}.new_zeros({S})
    torch.zeros_like({x})
    torch.ones_like({x})
    torch.full_like({x}, {k})
    torch.nn.functional.pad({x}, (1, 0))
    {x}.bfloat16()
    {x}.double()
"""
_EXACT = """
    {x}.add({y})
    {x} + {y}
    {x} - {y}
    {x} * {y}
    {x} * {y}
    {x} + {k}
    {x} * {k}
    {k} - {x}
    {x}.add({y}, alpha=2)
    torch.maximum({x}, {y})
    torch.minimum({x}, {y})
    -{x}
    {x}.square()
    {x}.pow(2)
    {x}.relu()
    {x}.clamp(-1, 2)
    {x}.clamp(min={k})
    {x}.div(2)
    {x}.sum()
    {x}.sum({d})
    {x}.sum({d}, keepdim=True)
    {x}.amax({d})
    {x}.max({d})[0]
    {x}.min()
    {x}.prod({d})
    {x}.cumsum({d})
    {x} @ {y}
    {x}.mm({x}.mT)
    torch.addcmul({x}, {y}, {y})
    {x}.nan_to_num()
    torch.add({x}, {y}, out=torch.empty(0, device=device))
    torch.mul({x}, {y}, out=torch.zeros({S}, dtype={x}.dtype, device=device))
"""
_ROUNDS = """
    {x} / {y}
    {f}.exp()
    {f}.sqrt()
    {f}.sigmoid()
    {f}.tanh()
    {f}.reciprocal()
    {f}.mean({d})
    {f}.softmax({d})
    {f}.lerp({f}, 0.25)
    {x}.abs()
    {f}.std()
    {f}.var({d})
"""
_JUMPS = """
    {x} == {y}
    {x} < {y}
    {x} >= {k}
    {x} != {k}
    {x}.logical_and({y})
    {x}.logical_not()
    {x} & {y}
    {x} | {y}
    {x} ^ {y}
    ~{x}
    {x}.floor()
    {x}.trunc()
    {x}.sign()
    {x}.isnan()
    {x}.any()
    {x}.any({d})
    {x}.all({d})
    {x}.bool()
    {x}.sort({d}, stable=True)[0]
    {x}.sort({d}, stable=True)[1]
    {x}.nonzero()
    {x}.unique()
    {x}.argsort({d}, stable=True)
    {x}.count_nonzero({d})
"""
_WRITES = """
    {x}.add_({y})
    {x}.sub_({y})
    {x}.mul_({y})
    {x} += {y}
    {x} *= {k}
    {x}.add_({k})
    {x}.add_({y}, alpha=2)
    {x}.fill_({k})
    {x}.zero_()
    {x}[{s}] = {k}
    {x}[{m}] = {k}
    {x}[{s}] += 1
    {x}.masked_fill_({m}, {k})
    {x}.neg_()
    {x}.clamp_(min=0)
    {x}.relu_()
    {x}.div_(2)
    {x}.square_()
    {x}.tril_()
    {x}.cumsum_({d})
    {x}.addcmul_({y}, {y})
    {x}.transpose_({d}, {e})
    {x}.unsqueeze_({d})
    {x}.squeeze_()
    {x}.detach_()
    {x}.data.add_(1)
    {x}.detach().mul_(2)
    {x}.flatten().add_(1)
    {x}.index_add_({d}, torch.tensor([0], device=device), {x}.narrow({d}, 0, 1).clone())
    torch._foreach_mul_([{x}, {x}.clone()], 2)
"""
_FILL = "{x}.index_fill_({d}, torch.tensor([0], device=device), {k})"
_ROUNDING_WRITES = """
    {f}.sqrt_()
    {f}.exp_()
    {f}.sigmoid_()
    {x}.div_({y})
"""
_JUMPING_WRITES = """
    {x}.eq_({y})
    {x}.logical_not_()
    {x}.bitwise_and_({y})
    {x}.floor_()
    {x}.sign_()
"""
_READS = """
    {x}.sum().item()
    {x}.tolist()
    {x}.item()
    {x}.equal({y})
    bool({x}.any())
    str({x})
"""

TEMPLATES: tuple[Template, ...] = (
    *_new("exact", _VIEWS),
    *_new("exact", _VIEWS),
    *_new("jumps", "{x}.view({D})", _has_bits),
    *_new("exact", _MOVES),
    *_new("exact", _EXACT),
    *_new("rounds", _ROUNDS),
    *_new("jumps", _JUMPS),
    *_new("jumps", "{x} // {y}\n{x} % {y}\n{x}.fmod({y})", _no_zeros),
    *_new("jumps", "{x}.to({D})\n{x}.long()\n{x}.int()", _is_small),
    *_in_place("exact", _WRITES),
    *_in_place("exact", _WRITES),
    Template(text="{x}.copy_({y})", writes=True, where=_holds),
    Template(text="{x}.copy_({y})", writes=True, where=_holds),
    Template(text=_FILL, writes=True, where=_has_elements),
    Template(text=_FILL, writes=True, where=_has_elements),
    Template(text="{x}[{s}] = {y}", writes=True, where=_takes),
    Template(text="{x}.requires_grad_()", writes=True, where=_is_base),
    Template(text="torch.add({y}, {y}, out={x})", writes=True, where=_alike),
    Template(text="torch.mul({y}, 2, out={x})", writes=True, where=_alike),
    *_in_place("rounds", _ROUNDING_WRITES),
    *_in_place("jumps", _JUMPING_WRITES),
    *(Template(text="{number} = " + t.strip(), kind="jumps") for t in _READS.strip().splitlines()),
)
