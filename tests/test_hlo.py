"""Texts of compiled programs, written by hand in the TPU compiler's manner."""

# The compiler writes an instruction on one line, however long.
# ruff: noqa: E501

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from fedss_jax import chips
from fedss_jax.analysis import cost, hlo

PROGRAM = """HloModule jit_run, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(128)} parameter(0)
  %b = f32[]{:T(128)} parameter(1)
  ROOT %add = f32[]{:T(128)} add(%a, %b)
}

%scan_condition (p: (s32[], f32[8,128])) -> pred[] {
  %p = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %five = s32[]{:T(128)} constant(5)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %less = pred[]{:T(512)} compare(%i, %five), direction=LT
}

%scan_body (q: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %q = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %j = s32[]{:T(128)} get-tuple-element(%q), index=0
  %x = f32[8,128]{1,0:T(8,128)} get-tuple-element(%q), index=1
  %twice = f32[8,128]{1,0:T(8,128)} multiply(%x, %x), backend_config={"window_config":{"estimated_cycles":"100"}}
  ROOT %t = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) tuple(%j, %twice)
}

%stays (r: f32[8,128]) -> f32[8,128] {
  %r = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %same = f32[8,128]{1,0:T(8,128)} copy(%r), backend_config={"estimated_cycles":"1"}
}

%changes (s: f32[8,128]) -> f32[8,128] {
  %s = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %other = f32[8,128]{1,0:T(8,128)} negate(%s), backend_config={"estimated_cycles":"1000"}
}

%lanes_condition (u: (s32[4], f32[8,128])) -> pred[] {
  %u = (s32[4]{0:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  ROOT %any = pred[]{:T(512)} custom-call(%u)
}

%lanes_body (v: (s32[4], f32[8,128])) -> (s32[4], f32[8,128]) {
  %v = (s32[4]{0:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %who = s32[4]{0:T(128)} get-tuple-element(%v), index=0
  %y = f32[8,128]{1,0:T(8,128)} get-tuple-element(%v), index=1
  %which = s32[]{:T(128)} constant(1)
  %z = f32[8,128]{1,0:T(8,128)} conditional(%which, %y, %y), branch_computations={%stays, %changes}, metadata={op_name="jit(run)/shard_map/lanes/while/body/change_of_client/cond" stack_frame_id=1}
  %total = f32[8,128]{1,0:T(8,128)} all-reduce(%z), channel_id=1, to_apply=%sum, metadata={op_name="jit(run)/lanes/while/body/psum"}
  ROOT %w = (s32[4]{0:T(128)}, f32[8,128]{1,0:T(8,128)}) tuple(%who, %total)
}

ENTRY %main (rows: f32[1000,64], image: f32[8,128]) -> f32[8,128] {
  %rows = f32[1000,64]{1,0:T(8,128)} parameter(0), metadata={op_name="state.rows.rows"}
  %image = f32[8,128]{1,0:T(8,128)} parameter(1), metadata={op_name="inputs[0].images"}
  %zero = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) tuple(%zero, %image)
  %scan = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) while(%start), condition=%scan_condition, body=%scan_body, metadata={op_name="jit(run)/while"}
  %begin = (s32[4]{0:T(128)}, f32[8,128]{1,0:T(8,128)}) tuple(%zero, %image)
  ROOT %loop = (s32[4]{0:T(128)}, f32[8,128]{1,0:T(8,128)}) while(%begin), condition=%lanes_condition, body=%lanes_body, metadata={op_name="jit(run)/shard_map/lanes/while"}
}
"""
TILE = 4 * 8 * 128  # bytes


def times(program, expected, unknown=None):
    return {instruction.name: often for often, instruction, _ in hlo.executed(program, expected, unknown)}


def test_loops_are_counted_by_their_trips_and_choices_by_how_often_they_go_each_way():
    unknown: set[str] = set()
    often = times(hlo.read(PROGRAM), {"lanes": 13.0, "change_of_client": 0.25}, unknown)
    assert often["twice"] == 5  # as its condition says
    assert often["total"] == 13  # as was told
    assert often["other"] == 13 * 0.25 and often["same"] == 13 * 0.75
    assert not unknown


def test_what_nobody_knows_counts_once_and_is_named():
    unknown: set[str] = set()
    often = times(hlo.read(PROGRAM), {}, unknown)
    assert often["twice"] == 5 and often["total"] == often["other"] == often["same"] == 1
    assert unknown == {
        "jit(run)/shard_map/lanes/while",
        "jit(run)/shard_map/lanes/while/body/change_of_client/cond",
    }


def test_time_and_traffic_of_a_round():
    program = hlo.read(PROGRAM)
    device = type("Device", (), {"coords": [1, 3, 0]})()
    chip = chips.Chip(memory=1.0, clock=1e3, bandwidth=1e6, links=1e5, peak=1.0)
    found = cost.read_traffic(program, {"lanes": 10.0, "change_of_client": 0.1}, chip, [device] * 8)
    assert found.estimated == pytest.approx((5 * 100 + 9 * 1 + 1 * 1000) / 1e3)
    assert found.sent == {"all-reduce": pytest.approx(10 * 2 * 7 / 8 * TILE)}
    # Ten sums of two passes each, over three hops at the most: one along the first axis, two along the second.
    assert found.sending == pytest.approx(found.sent["all-reduce"] / 1e5 + 10 * 2 * 3 * chips.SECONDS_PER_HOP)
    assert found.moved == (5 * 3 + 10 * 2 + 10 * 2) * TILE
    assert cost.read_traffic(program, {}, None, [device]).seconds is None


def test_arguments_by_name_and_as_they_lie_in_memory():
    analysis = type("Analysis", (), dict.fromkeys(["argument_size_in_bytes", "temp_size_in_bytes"], 7))()
    analysis.output_size_in_bytes, analysis.alias_size_in_bytes, analysis.generated_code_size_in_bytes = 5, 4, 2
    memory = cost.read_memory(analysis, hlo.read(PROGRAM), limit=20.0, ahead=3.0)
    assert memory.arguments == {"rows": 4 * 1000 * 128, "examples": TILE}  # rows of 64 take the room of 128
    assert memory.needed == 7 + 7 + (5 - 4) + 2 + 3 and memory.fits


@pytest.mark.parametrize(
    ("shape", "everywhere", "in_memory"),
    [
        ("f32[3,5]{1,0}", 60, 60),
        ("bf16[3,5]", 30, 30),
        ("pred[7]{0}", 7, 7),
        ("f32[3,5]{1,0:T(8,128)}", 4 * 8 * 128, 4 * 8 * 128),
        ("f32[3,500]{0,1:T(8,128)}", 4 * 128 * 504, 4 * 128 * 504),
        ("f32[3,5]{1,0:T(8,128)S(1)}", 4 * 8 * 128, 0),
        ("(f32[2]{0}, /*index=1*/s32[]{:T(128)}, u8[4]{0:T(4)S(1)})", 8 + 4 + 4, 12),
    ],
)
def test_bytes_of_a_shape(shape, everywhere, in_memory):
    assert hlo.num_bytes(shape) == everywhere
    assert hlo.num_bytes(shape, memory_only=True) == in_memory


FUSIONS = """HloModule jit_run

%pick (table: f32[1000,128], places: s32[8]) -> f32[8,128] {
  %table = f32[1000,128]{1,0:T(8,128)} parameter(0)
  %places = s32[8]{0:T(128)} parameter(1)
  %flat = f32[1000,128]{1,0:T(8,128)} bitcast(%table)
  ROOT %picked = f32[8,128]{1,0:T(8,128)} gather(%flat, %places), offset_dims={1}
}

%put (whole: f32[1000,128], part: f32[8,128], where: s32[]) -> f32[1000,128] {
  %whole = f32[1000,128]{1,0:T(8,128)} parameter(0)
  %part = f32[8,128]{1,0:T(8,128)} parameter(1)
  %where = s32[]{:T(128)} parameter(2)
  ROOT %updated = f32[1000,128]{1,0:T(8,128)} dynamic-update-slice(%whole, %part, %where, %where)
}

%both (first: f32[8,128], second: f32[8,128]) -> (f32[8,128], f32[8,128]) {
  %first = f32[8,128]{1,0:T(8,128)} parameter(0)
  %second = f32[8,128]{1,0:T(8,128)} parameter(1)
  %added = f32[8,128]{1,0:T(8,128)} add(%first, %second)
  %negated = f32[8,128]{1,0:T(8,128)} negate(%second)
  ROOT %pair = (f32[8,128]{1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)}) tuple(%added, %negated)
}

%scattered (x: f32[8,128]) -> f32[1,128] {
  %x = f32[8,128]{1,0:T(8,128)} parameter(0)
  %everyones = f32[8,128]{1,0:T(8,128)} all-reduce(%x), to_apply=%pick
  ROOT %own = f32[1,128]{1,0:T(1,128)} slice(%everyones), slice={[0:1], [0:128]}
}

ENTRY %main (w: f32[1000,128], i: s32[8], v: f32[8,128]) -> f32[8,128] {
  %w = f32[1000,128]{1,0:T(8,128)} parameter(0)
  %i = s32[8]{0:T(128)S(1)} parameter(1)
  %v = f32[8,128]{1,0:T(8,128)} parameter(2)
  %zero = s32[]{:T(128)S(6)} constant(0)
  %rows = f32[8,128]{1,0:T(8,128)} fusion(%w, %i), kind=kCustom, calls=%pick
  %moved = f32[1000,128]{1,0:T(8,128)} fusion(%w, %v, %zero), kind=kLoop, calls=%put
  %sums = (f32[8,128]{1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)S(1)}) fusion(%v, %v), kind=kLoop, calls=%both
  %cut = f32[8,128]{1,0:T(8,128)} dynamic-slice(%w, %zero, %zero), dynamic_slice_sizes={8,128}
  %ahead = (f32[8,128]{1,0:T(8,128)S(1)}, f32[8,128]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%v)
  %partly = ((f32[1000,128]{1,0:T(8,128)}), f32[8,128]{1,0:T(8,128)S(1)}) slice-start(%w), slice={[0:8], [0:128]}
  %shared = f32[8,128]{1,0:T(8,128)} all-gather(%v), dimensions={0}
  %passed = (f32[8,128]{1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)}) collective-permute-start(%v), channel_id=3
  %arrived = f32[8,128]{1,0:T(8,128)} collective-permute-done(%passed)
  ROOT %reduced = f32[1,128]{1,0:T(1,128)} fusion(%v), kind=kCustom, calls=%scattered
}
"""


def test_who_picks_or_puts_rows_moves_only_those():
    program = hlo.read(FUSIONS)
    entry = program["ENTRY"]
    moved = {name: hlo.moved(program, instruction, entry) for name, instruction in entry.items()}
    assert moved["rows"] == 2 * TILE  # not the thousand rows
    assert moved["moved"] == 2 * TILE  # in place
    assert moved["sums"] == 3 * TILE  # one of the results stays on the chip
    assert moved["cut"] == 2 * TILE
    assert moved["ahead"] == moved["partly"] == TILE  # read from memory, kept on the chip
    assert moved["w"] == moved["zero"] == 0


def test_what_travels_by_kind_of_collective():
    program = hlo.read(FUSIONS)
    entry = program["ENTRY"]
    sent = {name: hlo.sent(program, instruction, entry, 4) for name, instruction in entry.items()}
    assert {name: found for name, found in sent.items() if found} == {
        "shared": {"all-gather": 3 * TILE},
        "passed": {"collective-permute": TILE},
        "reduced": {"all-reduce": 2 * 3 / 4 * TILE},  # inside a fusion
    }


def test_a_program_of_this_machines_compiler_is_read_too():
    def run(x):
        step = jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ carry), None), x, None, length=7)[0]
        with jax.named_scope("lanes"):
            return jax.lax.while_loop(lambda y: jnp.sum(y) < 3, lambda y: jnp.sin(y) @ y, step)

    text = jax.jit(run).lower(jnp.ones((16, 16))).compile().as_text()
    program, unknown = hlo.read(text), set()
    often = {round(often) for often, _, _ in hlo.executed(program, {"lanes": 11.0}, unknown)}
    assert {1, 7, 11} <= often and not unknown
