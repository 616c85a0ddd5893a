"""Optimized HLO: shapes and layouts, instructions, loops, collectives, and the time of it all."""

from __future__ import annotations

import pytest

from torchtpu.perf_model import chip as chips
from torchtpu.perf_model.fitted import calibration_of
from torchtpu.perf_model.hlo import idle as hlo_idle
from torchtpu.perf_model.hlo import reader as hlo
from torchtpu.perf_model.hlo.cost import LIBTPU, MODEL
from torchtpu.perf_model.hlo.shape import CMEM, HBM, VMEM, HloError, parse
from torchtpu.perf_model.hlo.timeline import timeline
from torchtpu.perf_model.kernel_cost import KernelCost

V6E = chips.load("v6e")
TILE = "{1,0:T(8,128)(2,1)}"
BIG = f"bf16[4096,4096]{TILE}"
NEAR = "bf16[4096,4096]{1,0:T(8,128)(2,1)S(1)}"
BIG_BYTES = 2 * 4096 * 4096


def config(cycles: int, extra: str = "") -> str:
    window = f'"window_config":{{"kernel_window_bounds":["8","1"],"estimated_cycles":"{cycles}"}}'
    return f'backend_config={{"flag_configs":[],{window}{extra}}}'


def module(*entry: str, others: str = "", result: str = BIG) -> hlo.Module:
    lines = "\n".join(f"  {line}" for line in entry)
    return hlo.read(
        f"HloModule m, is_scheduled=true\n\n{others}\nENTRY %main (x: bf16[4096,4096]) -> {result} "
        f"{{\n{lines}\n}}\n"
    )


DOT = f"""
%product (p0: bf16[4096,4096], p1: bf16[4096,4096]) -> bf16[4096,4096] {{
  %p0 = {BIG} parameter(0)
  %p1 = {BIG} parameter(1)
  ROOT %conv = {BIG} convolution(%p0, %p1), dim_labels=bf_io->bf, metadata={{op_name="u3/mm"}}
}}
"""
EXP = f"""
%exps (p0: bf16[4096,4096]) -> bf16[4096,4096] {{
  %p0 = {BIG} parameter(0)
  ROOT %e = {BIG} exponential(%p0)
}}
"""


@pytest.mark.parametrize(
    ("text", "padded_bytes", "space"),
    [
        ("bf16[4096,128]{1,0:T(8,128)(2,1)}", 4096 * 128 * 2, HBM),
        ("f32[1000,3]{1,0:T(8,128)}", 1000 * 128 * 4, HBM),
        ("f32[1000,3]{0,1:T(4,128)S(1)}", 4 * 1024 * 4, VMEM),
        ("bf16[7,5,3]{2,1,0:T(8,128)(2,1)S(3)}", 7 * 8 * 128 * 2, CMEM),
        ("f32[1000]{0:T(1024)}", 4096, HBM),
        ("s32[]{:T(128)}", 512, HBM),
        ("pred[16,16]", 256, HBM),
        ("f8e4m3fn[32,128]{1,0:T(8,128)(4,1)}", 4096, HBM),
    ],
)
def test_a_shape_takes_the_bytes_of_its_tiles(text: str, padded_bytes: int, space: int) -> None:
    shape = parse(text)
    assert (shape.padded_bytes, shape.space) == (padded_bytes, space)
    assert shape.hbm_bytes == (padded_bytes if space == HBM else 0)


def test_a_tuple_in_a_tuple() -> None:
    shape = parse("((f32[8,128]{1,0:T(8,128)}, /*index=1*/s32[2]{0:T(128)S(1)}), u32[]{:S(2)})")
    assert [a.type.shape for a in shape.arrays] == [(8, 128), (2,), ()]
    assert shape.hbm_bytes == 4096


@pytest.mark.parametrize("text", ["bf16", "bf16[2]{0} more", "(f32[2]"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(HloError, match=r"\[hlo\]"):
        parse(text)


def test_an_instruction() -> None:
    (add,) = [
        i
        for i in module(
            "%x = s32[8]{0:T(128)} parameter(0)",
            "%c.1 = s32[3]{0:T(128)} constant({1, 2, 3})",
            'ROOT %add = s32[8]{0:T(128)} add(%x, /*index=1*/%x), metadata={op_name="a, (b)/u7/c" '
            f'source_file="f.py" source_line=7}}, {config(42)}',
            result="s32[8]",
        ).entry.instructions
        if i.opcode == "add"
    ]
    assert (add.operands, add.op_name, add.source) == (("x", "x"), "a, (b)/u7/c", "f.py:7")
    assert (add.cycles, add.is_root, add.shape.dtype) == (42, True, "i32")


@pytest.mark.parametrize("cycles", [0, 2**63 - 1])
def test_a_value_that_stands_for_unknown_is_no_estimate(cycles: int) -> None:
    made = module(f"ROOT %x = {BIG} copy(%x), {config(cycles)}")
    assert made.entry.root.cycles is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not HLO", "starts with HloModule"),
        (
            "HloModule m\n\nENTRY %e (x: f32[]) -> f32[] {\n  %x = f32[] parameter(0)\n",
            "ends before",
        ),
        ("HloModule m\n\nENTRY %e (x: f32[]) -> f32[] {\n  nonsense\n}\n", "line 4: expected NAME"),
        (
            "HloModule m\n\nENTRY %e () -> f32[] {\n  %x = f32[] add(%y\n}\n",
            "line 4: a parenthesis",
        ),
    ],
)
def test_a_text_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(HloError, match=message):
        hlo.read(text)


def loop(bound: str, start: str = "0", direction: str = "LT") -> hlo.Module:
    state = f"(s32[]{{:T(128)}}, {BIG})"
    others = f"""
%body (s: (s32[], bf16[4096,4096])) -> (s32[], bf16[4096,4096]) {{
  %s = {state} parameter(0)
  %n = s32[]{{:T(128)}} get-tuple-element(%s), index=0
  %v = {BIG} get-tuple-element(%s), index=1
  %one = s32[]{{:T(128)}} constant(1)
  %next = s32[]{{:T(128)}} add(%n, %one)
  %e = {BIG} exponential(%v)
  ROOT %t = {state} tuple(%next, %e)
}}

%condition (c: (s32[], bf16[4096,4096])) -> pred[] {{
  %c = {state} parameter(0)
  %k = s32[]{{:T(128)}} get-tuple-element(%c), index=0
  {bound}
  ROOT %less = pred[]{{:T(512)}} compare(%k, %b), direction={direction}
}}
"""
    return module(
        f"%x = {BIG} parameter(0)",
        f"%zero = s32[]{{:T(128)}} constant({start})",
        f"%first = {state} tuple(%zero, %x)",
        f"%w = {state} while(%first), condition=%condition, body=%body",
        f"ROOT %r = {BIG} get-tuple-element(%w), index=1",
        others=others,
    )


@pytest.mark.parametrize(
    ("start", "direction", "trips"), [("0", "LT", 12), ("2", "LT", 10), ("0", "LE", 13)]
)
def test_a_loop_runs_as_often_as_its_condition_says(start: str, direction: str, trips: int) -> None:
    made = loop("%b = s32[]{:T(128)} constant(12)", start, direction)
    assert made.trip_count(made.entry.by_name["w"]) == trips
    (row,) = timeline(made, V6E).rows  # its counter costs nothing
    assert row.count == trips
    assert row.cost.hbm_bytes == trips * 2 * BIG_BYTES


def test_a_loop_of_unknown_length_is_named() -> None:
    made = loop("%b = s32[]{:T(128)} get-tuple-element(%c), index=0")
    assert made.trip_count(made.entry.by_name["w"]) is None
    reasons = [reason for row in timeline(made, V6E).rows for reason in row.cost.unmodelled]
    assert reasons == ["loop with an unknown number of iterations, counted once"]


def matmul(cycles: int) -> hlo.Module:
    return module(
        f"%x = {BIG} parameter(0)",
        f"ROOT %f = {BIG} fusion(%x, %x), kind=kOutput, calls=%product, {config(cycles)}",
        others=DOT,
    )


def test_a_matmul_takes_the_compilers_cycles() -> None:
    (row,) = timeline(matmul(400_000), V6E).rows
    expected_s = 400_000 / V6E.clock_hz - hlo_idle.idle_s(V6E) + calibration_of(V6E).kernel_s
    assert row.origin == LIBTPU
    assert row.cost.time_s == pytest.approx(expected_s)
    assert row.cost.matmul_flops == 2 * 4096**3


def test_a_matmul_is_no_faster_than_its_traffic() -> None:
    (row,) = timeline(matmul(20_000), V6E).rows
    assert row.origin == MODEL
    assert row.cost.time_s > 3 * BIG_BYTES / V6E.hbm_bytes_per_s


def test_elementwise_work_takes_the_models_time() -> None:
    made = module(
        f"%x = {BIG} parameter(0)",
        f"ROOT %f = {BIG} fusion(%x), kind=kLoop, calls=%exps, {config(10**8)}",
        others=EXP,
    )
    (row,) = timeline(made, V6E).rows
    assert row.origin == MODEL
    assert row.cost.time_s < 2 * (2 * BIG_BYTES / V6E.hbm_bytes_per_s)


def prefetch(between: int) -> hlo.Module:
    """A copy into VMEM that `between` matmuls can hide."""
    start = f"({NEAR}, {BIG}, u32[]{{:S(2)}})"
    product = f"fusion(%x, %x), kind=kOutput, calls=%product, {config(400_000)}"
    return module(
        f"%x = {BIG} parameter(0)",
        f"%start = {start} copy-start(%x)",
        *(f"%f{n} = {BIG} {product}" for n in range(between)),
        f"%done = {NEAR} copy-done(%start)",
        f"ROOT %e = {NEAR} fusion(%done), kind=kLoop, calls=%exps, {config(10)}",
        others=DOT + EXP,
    )


def test_a_copy_hides_behind_what_runs_meanwhile() -> None:
    alone, hidden = timeline(prefetch(0), V6E), timeline(prefetch(3), V6E)
    bandwidth = V6E.hbm_bytes_per_s * calibration_of(V6E).hbm_efficiency
    assert alone.flights[0].waited_s == pytest.approx(BIG_BYTES / bandwidth)
    assert (hidden.flights[0].waited_s, hidden.flights[0].distance) == (0.0, 3)
    assert alone.rows[0].cost.hbm_bytes == BIG_BYTES


def test_a_slice_and_an_update_move_only_their_part() -> None:
    rows = "bf16[8,4096]{1,0:T(8,128)(2,1)}"
    others = f"""
%update (p0: bf16[4096,4096], p1: bf16[8,4096], p2: s32[]) -> bf16[4096,4096] {{
  %p0 = {BIG} parameter(0)
  %p1 = {rows} parameter(1)
  %p2 = s32[]{{:T(128)}} parameter(2)
  %zero = s32[]{{:T(128)}} constant(0)
  ROOT %u = {BIG} dynamic-update-slice(%p0, %p1, %p2, %zero)
}}

%part (p0: bf16[4096,4096], p1: s32[]) -> bf16[8,4096] {{
  %p0 = {BIG} parameter(0)
  %p1 = s32[]{{:T(128)}} parameter(1)
  %zero = s32[]{{:T(128)}} constant(0)
  ROOT %d = {rows} dynamic-slice(%p0, %p1, %zero), dynamic_slice_sizes={{8,4096}}
}}
"""
    made = module(
        f"%x = {BIG} parameter(0)",
        "%n = s32[]{:T(128)} parameter(1)",
        f"%s = {rows} fusion(%x, %n), kind=kLoop, calls=%part",
        f"ROOT %u = {BIG} fusion(%x, %s, %n), kind=kLoop, calls=%update",
        others=others,
    )
    part_bytes = 2 * 8 * 4096
    moved = [row.cost.hbm_bytes for row in timeline(made, V6E).rows]
    assert moved == [pytest.approx(2 * part_bytes, abs=2048)] * 2


REDUCED = """
%sum (a: bf16[], b: bf16[]) -> bf16[] {
  %a = bf16[]{:T(256)} parameter(0)
  %b = bf16[]{:T(256)} parameter(1)
  ROOT %s = bf16[]{:T(256)} add(%a, %b)
}
"""
ALGORITHM = (
    ',"collective_algorithm_config":{"emitter":"RotatedPincerShortEmitter",'
    '"strategy":"StrategyND","debug":"colors:2 phases:2 cores:{4 4},{4 4}"}'
)


def test_a_collective_is_read_and_its_time_asked_for() -> None:
    made = module(
        f"%x = {BIG} parameter(0)",
        f"%s = {BIG} all-reduce-start(%x), channel_id=1, replica_groups=[2,8]<=[16], "
        f"use_global_device_ids=true, to_apply=%sum, {config(7, ALGORITHM)}",
        f"%f = {BIG} fusion(%x, %x), kind=kOutput, calls=%product, {config(400_000)}",
        f"ROOT %d = {BIG} all-reduce-done(%s)",
        others=DOT + REDUCED,
    )
    (collective,) = made.collectives()
    assert collective.replica_groups == "[2,8]<=[16]"
    assert collective.algorithm["strategy"] == "StrategyND"

    def network(_: hlo.Instruction) -> KernelCost:
        return KernelCost(time_s=1e-3, by_bound={"network": 1e-3}, kernels=1)

    product, exposed = timeline(made, V6E, network).rows
    assert exposed.cost.time_s == pytest.approx(1e-3 - product.cost.time_s)
    assert exposed.cost.by_bound == {"network": exposed.cost.time_s}


def test_a_collective_without_a_network_is_unmodelled() -> None:
    made = module(
        f"%x = {BIG} parameter(0)",
        f"ROOT %r = {BIG} all-reduce(%x), replica_groups={{{{0,1}}}}, to_apply=%sum",
        others=REDUCED,
    )
    (row,) = timeline(made, V6E).rows
    assert row.cost.unmodelled == {"no time for all-reduce": 1}


def test_a_custom_call_without_a_rule_is_named() -> None:
    made = module(
        f"%x = {BIG} parameter(0)",
        f'ROOT %c = {BIG} custom-call(%x), custom_call_target="nobody_knows"',
    )
    (row,) = timeline(made, V6E).rows
    assert row.cost.unmodelled == {"no cost rule for custom call nobody_knows": 1}
    assert row.cost.time_s > 0


def test_a_pallas_kernel_says_what_it_costs() -> None:
    said = '"custom_call_config":{"cost_estimate":{"flops":"2000000000000","bytes_accessed":"1"}}'
    made = module(
        f"%x = {BIG} parameter(0)",
        f'ROOT %my_kernel.3 = {BIG} custom-call(%x), custom_call_target="tpu_custom_call", '
        f'frontend_attributes={{kernel_metadata={{\n"block":"512"\n}}}}, backend_config={{{said}}}',
    )
    (row,) = timeline(made, V6E).rows
    assert row.cost.unmodelled == {}
    assert row.cost.time_s > 2e12 / V6E.peak_flops_per_s()
