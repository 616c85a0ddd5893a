"""Quantization, products of few bits with scales, and the random bits of torch.func._random."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from tests.ops.samples.call import Call, call, ints, out, values

aten = torch.ops.aten
_F8, _HALF, _WORD = torch.float8_e4m3fn, torch.bfloat16, 2**32 - 1


def made() -> list[tuple[str, Call]]:
    """Return overloads' names, several in a string where they share a call, with their calls."""
    return [
        *_fake(),
        *_learnable(),
        *_observers(),
        *_quantized(),
        *_packed_weights(),
        *_scaled(),
        *_blocks(),
        *_grouped(),
        *_mixed(),
        *_philox(),
    ]


def _points() -> tuple[torch.Tensor, torch.Tensor]:
    """A scale and a zero point for each of four channels."""
    return torch.tensor([0.1, 0.2, 0.05, 0.3]), ints(0, 1, 2, -3).int()


def _fake() -> list[tuple[str, Call]]:
    x, scales = values(3, 4, 5) * 4, (torch.tensor([0.2]), ints(2).int())
    odd, halves = x.clone(), torch.arange(-10, 10).repeat(4, 1) / 2
    odd[0, 0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    one = "fake_quantize_per_tensor_affine_cachemask"
    many, switched = "fake_quantize_per_channel_affine_cachemask", f"_{one}_tensor_qparams"
    ones, point = torch.ones(4), torch.ones(4)
    return [
        *((one, call(odd.to(d), 0.13, 3, -8, 7)) for d in (torch.float32, torch.float64, _HALF)),
        (one, call(halves, 1.0, 1, -8, 7)),
        *((switched, call(x, *scales, ints(on), -8, 7)) for on in (0, 1)),
        (many, call(x, *_points(), 1, -8, 7)),
        (many, call(x, _points()[0], torch.tensor([0.0, 1.0, 2.2, -3.0]), 1, -8, 7)),
        *((many, call(halves, ones, p, 0, -8, 7)) for p in (point, point.int())),
    ]


def _learnable() -> list[tuple[str, Call]]:
    x, grad = values(3, 4, 5) * 4, values(3, 4, 5)
    found: list[tuple[str, Call]] = []
    for point in (1.5, 2.5, -1.7, 20.0):
        one = (torch.tensor([0.2]), torch.tensor([point]), -8, 7, 0.5)
        many = (_points()[0], torch.full((4,), point), 1, -8, 7, 0.5)
        for kind, rest in (("tensor", one), ("channel", many)):
            name = f"_fake_quantize_learnable_per_{kind}_affine"
            found += [(name, call(x, *rest)), (f"{name}_backward", call(grad, x, *rest))]
    return found


def _observers() -> list[tuple[str, Call]]:
    """Grids of whole tensors and of rows; an observer that has seen nothing, and one that has."""
    found = []
    for symmetric, rows, observes, quantizes in (
        (False, False, 1, 1),
        (True, True, 1, 1),
        (False, True, 1, 0),
        (True, False, 0, 1),
    ):
        count, fresh = 4 if rows else 1, bool(observes)
        low, high = (-torch.inf, torch.inf) if fresh else (0.3, -0.1)
        state = (torch.full((count,), high), torch.full((count,), low), torch.full((count,), 0.1))
        bounds = (-128, 127) if symmetric else (0, 255)
        args: tuple[Any, ...] = (values(4, 6) * 3 + 1, ints(observes), ints(quantizes), *state)
        args += (torch.zeros(count, dtype=torch.int32), 0.3, *bounds, 0, rows, symmetric)
        found.append(("_fused_moving_avg_obs_fq_helper", call(*args)))
    return found


def _quantized() -> list[tuple[str, Call]]:
    """Quantized dtypes, which the device refuses; what is not quantized is dequantized."""
    x, whole = values(3, 4), values(3, 4, dtype=torch.int8).to(torch.uint8)
    scales, points = torch.tensor([0.1, 0.2, 0.3]), ints(1, 2, 3)
    parameters = (torch.tensor(0.1), torch.tensor(3))
    return [
        ("quantize_per_tensor", call(x, 0.1, 3, torch.quint8)),
        ("quantize_per_tensor.tensor_qparams", call(x, *parameters, torch.quint8)),
        ("quantize_per_tensor_dynamic", call(x, torch.quint8, False)),
        ("quantize_per_channel", call(x, scales, points, 0, torch.quint8)),
        ("_make_per_tensor_quantized_tensor", call(whole, 0.1, 3)),
        ("_make_per_channel_quantized_tensor", call(whole, scales, points, 0)),
        ("dequantize.self", call(x)),
        ("dequantize.self", call(x.to(_HALF))),
    ]


def _packed_weights() -> list[tuple[str, Call]]:
    eight = values(8, 16, dtype=torch.int8)
    found = [
        ("_weight_int8pack_mm", call(values(3, 16).to(d), eight, values(8, low=0.1).to(d)))
        for d in (torch.float32, _HALF)
    ]
    levels = (torch.arange(64 * 128) * 7 % 16).int().reshape(64, 128)
    for inner, group in ((2, 32), (4, 64)):

        def product(x: Any, _: Any, group: int, scales: Any) -> Any:
            packed = aten._convert_weight_to_int4pack_for_cpu(levels, 2)
            return aten._weight_int4pack_mm_for_cpu(x, packed, group, scales)

        pairs, scales = _pairs(levels), values(128 // group, 64, 2)
        pack = call(pairs, inner, reference=_packed_words)
        args = (values(5, 128) / 8, _packed_words(pairs, inner), group, scales)
        found.append(("_convert_weight_to_int4pack", pack))
        found.append(("_weight_int4pack_mm", call(*args, reference=product)))
    return found


def _pairs(levels: torch.Tensor) -> torch.Tensor:
    return (levels[:, ::2] << 4 | levels[:, 1::2]).to(torch.uint8)


def _packed_words(pairs: torch.Tensor, inner: int) -> torch.Tensor:
    """Eight levels of a row a word, of columns c, c + 1 and these plus 8, 16, 24, by their places.

    A lane is 4 * row + c / 2; in a word the even columns come first.
    """
    levels = torch.stack([pairs >> 4, pairs & 15], -1).flatten(1).long()
    rows, columns = levels.shape
    shape = (rows // 8, columns // (16 * inner), 32, inner // 2)
    tile, outer, lane, pair = torch.meshgrid(*(torch.arange(n) for n in shape), indexing="ij")
    first = outer * 16 * inner + pair * 32 + lane % 4 * 2
    words = torch.zeros(shape, dtype=torch.int64)
    for place, step in enumerate((0, 8, 16, 24, 1, 9, 17, 25)):
        words |= levels[tile * 8 + lane // 4, first + step] << 4 * place
    return (words - (words >> 31 << 32)).int()


def _operands(rows: int = 32, depth: int = 64, columns: int = 48) -> list[torch.Tensor]:
    return [values(rows, depth).to(_F8), values(columns, depth).to(_F8).t()]


def _scaled() -> list[tuple[str, Call]]:
    half, two, one = torch.tensor(0.5), torch.tensor(2.0), torch.tensor(1.0)
    rows, columns, bias = values(32, 1, low=0.5), values(1, 48, low=0.5), values(48).bfloat16()
    f32, none = torch.float32, list[int]()
    found = []
    for dtype in (f32, _HALF):
        found.append(("_scaled_mm", call(*_operands(), half, two, out_dtype=dtype)))
    lists = ([half], [0], none, [two], [0], none, None, f32)
    wide, odd = _operands(), _operands(3, 7, 5)
    by_rows = (rows, columns, bias)
    return [
        *found,
        ("_scaled_mm", call(*wide, *by_rows, out_dtype=_HALF)),
        ("_scaled_mm", call(*odd, one, one, out_dtype=f32)),
        ("_scaled_mm", call(odd[0], odd[1].to(torch.float8_e5m2), one, one, out_dtype=f32)),
        ("_scaled_mm", call(odd[0][:0], odd[1], one, one, out_dtype=f32)),
        ("_scaled_mm.out", call(*wide, half, two, out_dtype=f32, out=out(32, 48))),
        ("_scaled_mm_v2", call(*wide, *lists)),
        ("_scaled_mm_v2.out", call(*wide, *lists, out=out(32, 48))),
    ]


def _swizzled(scale: torch.Tensor) -> torch.Tensor:
    """[R, C] -> flat tiles of 128 x 4 in which rows 0, 32, 64 and 96 stand together."""
    rows, columns = scale.shape
    tiles = scale.view(torch.uint8).view(rows // 128, 4, 32, columns // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(-1).view(torch.float8_e8m0fnu)


def _blocks() -> list[tuple[str, Call]]:
    """A scale for each 1 x 128, 128 x 128 or 1 x 32 block, which the CPU has no product with."""
    f32 = torch.float32
    a, b = _operands(256, 256, 384)
    of_a, of_b = values(256, 2, low=0.5), values(2, 3, low=0.5)
    padded = torch.cat([of_b, torch.zeros(2, 3)])

    def large(*_: Any, **__: Any) -> torch.Tensor:
        right = b.float() * of_b.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return (a.float() * of_a.repeat_interleave(128, 1)) @ right

    c, d = _operands(128, 128, 256)
    powers = [
        (torch.arange(n * 4) * 5 % 12 + 120).to(torch.uint8).reshape(n, 4) for n in (128, 256)
    ]
    of_c, of_d = (p.view(torch.float8_e8m0fnu) for p in powers)

    def small(*_: Any, **__: Any) -> torch.Tensor:
        left = c.float() * of_c.float().repeat_interleave(32, 1)
        return left @ (d.float() * of_d.float().repeat_interleave(32, 1).t())

    s, t = _swizzled(of_c), _swizzled(of_d)
    by_128: tuple[Any, ...] = ([of_a], [4], [], [padded], [5], [], None, f32)
    by_32 = ([s], [3], [1], [t], [3], [1], None, f32)
    return [
        ("_scaled_mm", call(a, b, of_a, of_b, out_dtype=f32, reference=large)),
        ("_scaled_mm", call(c, d, s, t, out_dtype=f32, reference=small)),
        ("_scaled_mm_v2", call(a, b, *by_128, reference=large)),
        ("_scaled_mm_v2", call(c, d, *by_32, reference=small)),
    ]


def _grouped() -> list[tuple[str, Call]]:
    ends = ints(8, 8, 24).int()
    found = []
    for dtype in (torch.float32, _HALF):
        rows, stack = values(24, 16).to(dtype), values(3, 16, 24).to(dtype)
        wide, tall = values(3, 8, 16).to(dtype), values(16, 24).to(dtype)
        pairs = ((rows, stack, ends), (wide, tall, ends), (tall, rows, ends), (wide, stack, None))
        found += [("_grouped_mm", call(*pair)) for pair in pairs]
    x, stack = values(24, 16).to(_F8), values(3, 24, 16).to(_F8).transpose(1, 2)
    of_rows, of_columns = values(24, low=0.5), values(3, 24, low=0.5)

    def product(*_: Any) -> torch.Tensor:
        left, right = x.float() * of_rows[:, None], stack.float() * of_columns[:, None, :]
        parts = (left[:8] @ right[0], left[8:8] @ right[1], left[8:] @ right[2])
        return torch.cat(parts).bfloat16()

    lists: tuple[Any, ...] = ([of_rows], [1], [], [of_columns], [1], [], ends)
    first = call(x, stack, of_rows, of_columns, ends, reference=product)
    second = call(x, stack, *lists, reference=product)
    return [*found, ("_scaled_grouped_mm", first), ("_scaled_grouped_mm_v2", second)]


def _mixed() -> list[tuple[str, Call]]:
    """[..., K] times [K, N] of 8 or 4 bits in CUTLASS's order, with a scale for each column."""
    x, scale, bias = values(2, 3, 64).half(), values(64, low=0.1).half() / 8, values(64).half()
    found = []
    cases: list[tuple[int, dict[str, Any]]] = [
        (8, {}),
        (4, {"bias": bias, "activation": "relu"}),
        (8, {"bias": bias, "activation": "silu"}),
    ]
    for bits, options in cases:
        levels = (torch.arange(64 * 64) * 7 % 2**bits - 2 ** (bits - 1)).reshape(64, 64)

        def linear(x: Any, _: Any, scale: Any, *, levels: Any = levels, **named: Any) -> Any:
            made = x.float() @ (levels.float() * scale.float()) + named.get("bias", 0.0)
            kinds = {"relu": torch.relu, "silu": torch.nn.functional.silu}
            return kinds.get(named.get("activation", ""), lambda t: t)(made).to(x.dtype)

        args = (x, _for_cutlass(levels, bits), scale)
        found.append(("_mixed_dtypes_linear", call(*args, **options, reference=linear)))
    return found


def _for_cutlass(levels: torch.Tensor, bits: int) -> torch.Tensor:
    """By torch's own function, whose check of the device is the one thing that needs CUDA."""
    from torch.quantization import _quantized_conversions as conversions

    weight = levels.to(torch.int8)
    weight = conversions.pack_int4_to_int8(weight) if bits == 4 else weight
    dtype = torch.int8 if bits == 8 else torch.quint4x2
    source = inspect.getsource(conversions.quantized_weight_reorder_for_mixed_dtypes_linear_cutlass)
    found: dict[str, Any] = dict(vars(conversions))
    exec(source.replace('!= "cuda"', '!= "cpu"'), found)
    made: torch.Tensor = found["quantized_weight_reorder_for_mixed_dtypes_linear_cutlass"](
        weight, dtype
    )
    return made


def _philox() -> list[tuple[str, Call]]:
    key = torch.tensor([42 + (7 << 32), 0]).view(torch.uint64)

    def words(key: torch.Tensor, first: int, count: int) -> list[list[int]]:
        seed, offset = key.view(torch.int64).tolist()
        return [_block(seed, offset + first + n) for n in range(count)]

    def as_keys(blocks: list[list[int]]) -> torch.Tensor:
        pairs = [[b[0] | b[1] << 32, b[2] | b[3] << 32] for b in blocks]
        signed = [[n - (n >> 63 << 64) for n in pair] for pair in pairs]
        return torch.tensor(signed).view(torch.uint64)

    def split(key: torch.Tensor, count: int) -> torch.Tensor:
        return as_keys(words(key, 0, count))

    def fold(key: torch.Tensor, data: int) -> torch.Tensor:
        return as_keys(words(key, data, 1))[0]

    def uniform(target: torch.Tensor, key: torch.Tensor, low: float, high: float) -> torch.Tensor:
        drawn = [w for b in words(key, 0, (target.numel() + 3) // 4) for w in b]
        bits = {torch.float32: 24, _HALF: 8}[target.dtype]
        unit = [(w % 2**bits) / 2**bits for w in drawn[: target.numel()]]
        return target.copy_(torch.tensor(unit).reshape(target.shape) * (high - low) + low)

    def normal(target: torch.Tensor, *_: Any) -> torch.Tensor:
        return target.normal_()

    return [
        ("_philox_key_split", call(key, 3, reference=split)),
        ("_philox_key_fold_in", call(key, 2, reference=fold)),
        ("_philox_uniform_", call(out(7), key, 0.0, 1.0, reference=uniform)),
        ("_philox_uniform_", call(out(2, 3), key, -1.0, 3.0, reference=uniform)),
        ("_philox_uniform_", call(out(7, dtype=_HALF), key, 0.0, 1.0, reference=uniform)),
        ("_philox_normal_", call(out(2, 3), key, 1.0, 2.0, reference=normal, random=True)),
    ]


def _block(seed: int, offset: int) -> list[int]:
    """Philox 4x32-10 in Python's own numbers."""
    keys, counter = [seed & _WORD, seed >> 32], [offset & _WORD, offset >> 32, 0, 0]
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (second >> 32) ^ counter[1] ^ keys[0],
            second & _WORD,
            (first >> 32) ^ counter[3] ^ keys[1],
            first & _WORD,
        ]
        keys = [(keys[0] + 0x9E3779B9) & _WORD, (keys[1] + 0xBB67AE85) & _WORD]
    return counter
