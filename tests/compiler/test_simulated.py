"""The simulated warp: small programs whose answers are counted by hand, and printed ones that eager mode computes."""

import dataclasses

import numpy as np
import pytest
import torch
from compiler.test_cuda import FUNCTIONS, numbers
from compiler.test_passes import program
from reference import load as load_model

import mjtorch
from mjtorch import jit
from mjtorch.cli.diagnose import in_motion
from mjtorch.compiler.targets.cpu.build import BuildError
from mjtorch.compiler.targets.cuda.pipeline import scheduled
from mjtorch.compiler.targets.cuda.printer import print_program
from mjtorch.compiler.targets.cuda.report import for_gpu, report
from mjtorch.compiler.targets.cuda.simulated import machine as m, meaning
from mjtorch.compiler.targets.cuda.simulated.machine import BITS, MACHINES
from mjtorch.compiler.targets.cuda.simulated.memory import Access, Cache, Memory, SimulatedError
from mjtorch.compiler.targets.cuda.simulated.parse import parse_ptx
from mjtorch.compiler.targets.cuda.simulated.predict import printed_origins
from mjtorch.compiler.targets.cuda.simulated.run import simulate
from mjtorch.compiler.targets.cuda.simulated.warp import Warp
from mjtorch.control_flow import while_loop

H100 = MACHINES["sm_90"]
QUICK = ("sums", "cholesky", "order", "places", "loops", "scan")
HEAD = """.visible .entry run(
	.param .align 8 .b8 run_param_0[16],
	.param .u64 run_param_1
)
{
	.reg .pred 	%p<9>;
	.reg .b32 	%r<99>;
	.reg .b64 	%rd<99>;
	.reg .f32 	%f<99>;
	mov.u32 	%r1, %tid.x;
	ld.param.u64 	%rd1, [run_param_1];
"""
WORDS = 4096


def run(body: str, l1: int = 1 << 16, width: int = 32) -> tuple[Warp, np.ndarray]:
    """Run instructions that find the lane in %r1 and an array of all numbers from 0 at %rd1."""
    module = parse_ptx(f"{HEAD}{body}\n\tret;\n}}\n")
    given = np.arange(WORDS, dtype="f4").view("u1")
    warp = Warp(module, H100, Memory(H100, given, 0, 4 * WORDS, 16, l1, 1 << 20), {}, width)
    warp.entry("run", {1: 0}, 0)
    return warp, given.view("f4")


def only(warp: Warp) -> Access:
    (found,) = warp.memory.accesses.values()
    return found


def load(stride: int) -> str:
    """Load a word, lanes so many words apart."""
    return f"""
	mul.wide.u32 	%rd2, %r1, {4 * stride};
	add.s64 	%rd3, %rd1, %rd2;
	ld.global.f32 	%f1, [%rd3];"""


@pytest.mark.parametrize(
    ("stride", "lines", "sectors"), [(0, 1, 1), (1, 1, 4), (2, 2, 8), (8, 8, 32), (32, 32, 32)], ids=str
)
def test_lines_and_sectors_of_a_load(stride: int, lines: int, sectors: int) -> None:
    """Thirty-two lanes that ask for neighbouring words need one line of four sectors; far apart, a line each."""
    warp, _ = run(load(stride))
    assert only(warp) == Access(1, lines, 32 * 4, sectors * 32, sectors, sectors)


def test_what_was_loaded_is_in_the_cache_until_others_take_its_place() -> None:
    warp, _ = run(load(32) + "\n\tld.global.f32 \t%f2, [%rd3+4];")
    assert [a.missed for a in warp.memory.accesses.values()] == [32, 0]
    warp, _ = run(load(32) + "\n\tld.global.f32 \t%f2, [%rd3+4];", l1=16 * 128)
    assert [a.missed for a in warp.memory.accesses.values()] == [32, 16]  # of 32 lines the last 16 are there
    assert [a.far for a in warp.memory.accesses.values()] == [32, 0]
    cache = Cache(2 * 128)
    assert [cache.missing({s}) for s in (0, 4, 0, 8, 4, 0)] == [{0}, {4}, set(), {8}, {4}, {0}]


@pytest.mark.parametrize(("stride", "turns"), [(0, 1), (1, 1), (2, 2), (3, 1), (4, 4), (32, 32), (33, 1)], ids=str)
def test_conflicts_of_banks(stride: int, turns: int) -> None:
    """Lanes whose words are in one bank take turns, unless it is the same word."""
    warp, _ = run(f"\n\tmul.lo.s32 \t%r2, %r1, {4 * stride};\n\tst.shared.f32 \t[%r2], 0f3F800000;")
    assert only(warp) == Access(1, turns, 32 * 4, 4 * (32 if stride else 1), 0, 0)


def test_a_vector_of_four_words_takes_four_turns() -> None:
    warp, _ = run("\n\tshl.b32 \t%r2, %r1, 4;\n\tld.shared.v4.f32 \t{%f1, %f2, %f3, %f4}, [%r2];")
    assert only(warp).transactions == 4


def test_a_chain_of_dependent_instructions() -> None:
    """Ten sums one after the other wait for each other, ten of different registers only for the first operand."""
    first = "\n\tcvt.rn.f32.u32 \t%f1, %r1;"
    chain = "".join(f"\n\tadd.f32 \t%f{k + 1}, %f{k}, %f{k};" for k in range(1, 11))
    apart = "".join(f"\n\tadd.f32 \t%f{k + 1}, %f1, %f1;" for k in range(1, 11))
    (one, _), (other, _) = run(first + chain), run(first + apart)
    waits = [sum(w.gaps[k] for k in range(m.FLOAT, len(w.gaps), 1 << BITS)) for w in (one, other)]
    assert waits == [9 * (H100.arithmetic - 1), 0]
    # From the register of the lane: a move, a conversion and the sums.
    assert (one.chains, other.chains) == ([12 * H100.arithmetic], [3 * H100.arithmetic])
    assert (one.now - other.now) >> BITS == waits[0]


def test_functions_that_return_something_are_called_by_their_names() -> None:
    """As `pow` in double precision is."""
    twice = """.func  (.param .b32 func_retval0) twice(
	.param .b32 twice_param_0
)
{
	.reg .f32 	%f<9>;
	ld.param.f32 	%f1, [twice_param_0];
	add.f32 	%f2, %f1, %f1;
	st.param.f32 	[func_retval0+0], %f2;
	ret;
}
"""
    assert list(parse_ptx(twice).functions) == ["twice"]
    assert list(parse_ptx(twice).functions["twice"].parameters) == ["twice_param_0"]


def test_a_barrier_ends_a_chain() -> None:
    half = "".join(f"\n\tadd.f32 \t%f{k + 1}, %f{k}, %f{k};" for k in range(1, 6))
    warp, _ = run(half + "\n\tbar.warp.sync \t-1;" + half)
    assert warp.chains == [5 * H100.arithmetic] * 2


def test_a_load_is_waited_for_where_its_value_is_used() -> None:
    use = "\n\tadd.f32 \t%f2, %f1, %f1;"
    between = "".join(f"\n\tmov.u32 \t%r{k}, {k};" for k in range(10, 20))
    times = [run(load(0) + text)[0].now >> BITS for text in (use, between + use)]
    assert times[0] == times[1]
    waited = [sum(run(load(0) + text)[0].gaps[m.DRAM :: 1 << BITS]) for text in (use, between + use)]
    assert waited == [H100.dram - 1, H100.dram - 11]


def test_lanes_that_part_meet_again() -> None:
    body = """
	setp.lt.u32 	%p1, %r1, 8;
	mov.u32 	%r2, 1;
	@%p1 bra 	$L1;
	mov.u32 	%r2, 2;
	mov.u32 	%r3, 2;

$L1:
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
	st.global.u32 	[%rd3], %r2;"""
    warp, memory = run(body)
    assert memory.view("u4")[:32].tolist() == [1] * 8 + [2] * 24
    assert [(b.executed, b.lanes) for b in warp.blocks()] == [(1, 32), (1, 24), (1, 32)]


def test_lanes_that_wait_for_different_barriers_are_found() -> None:
    body = """
	setp.lt.u32 	%p1, %r1, {lanes};
	@%p1 bra 	$L1;
	bar.warp.sync 	{mask};

$L1:
	bar.warp.sync 	-1;"""
    for lanes, mask, width in ((8, -1, 32), (8, 0xFFFF0000, 16), (16, -1, 16)):
        with pytest.raises(SimulatedError, match="different barriers"):
            run(body.format(lanes=lanes, mask=mask), width=width)
    run(body.format(lanes=16, mask=0xFFFF0000), width=16)  # worlds do not wait for each other


def test_an_address_that_is_nowhere_is_found() -> None:
    with pytest.raises(SimulatedError, match="global memory that is nowhere"):
        run(load(WORDS))


def test_unknown_instructions_are_refused() -> None:
    with pytest.raises(BuildError, match=r"does not know: atom\.global\.add\.f32"):
        run("\n\tatom.global.add.f32 \t%f1, [%rd1], %f2;")
    with pytest.raises(BuildError, match=r"does not know: sad\.s32"):
        run("\n\tsad.s32 \t%r2, %r1, %r1, %r1;")


def u4(*x: int) -> np.ndarray:
    return np.array(x, dtype="u4")


def test_what_instructions_mean() -> None:
    """What numpy has no name for; the numbers are worked out by hand."""
    a = u4(0x12345678)
    assert meaning.funnel(a, u4(0xABCDEF01), u4(8), left=False)[0] == 0x01123456
    assert meaning.funnel(a, u4(0xABCDEF01), u4(8), left=True)[0] == 0xCDEF0112
    assert meaning.permuted(a, u4(0xABCDEF01), u4(0x8407))[0] == 0x000178AB
    assert meaning.field(a, u4(4), u4(8))[0] == 0x67
    assert meaning.inserted(u4(0xF), a, u4(8), u4(4))[0] == 0x12345F78
    assert meaning.high(u4(0x80000000), u4(6))[0] == 3
    assert meaning.high(np.array([-2], dtype="i4"), np.array([3], dtype="i4"))[0] == -1
    assert meaning.shifted(u4(1, 1, 1), u4(31, 32, 99), left=True).tolist() == [2**31, 0, 0]
    assert meaning.shifted(np.array([-8], dtype="i4"), u4(40), left=False)[0] == -1
    assert meaning.leading(u4(0, 1, 2**31)).tolist() == [32, 31, 0]
    assert meaning.reversed_bits(u4(1, 6)).tolist() == [2**31, 6 << 28 & 2**32 - 1 | 0]
    assert meaning.whole(np.array([np.nan, 1e30, -1e30, -1.9]), "i4").tolist() == [0, 2**31 - 1, -(2**31), -1]
    assert meaning.trunc_div(np.array([-7, 7], dtype="i4"), np.array([2, -2], dtype="i4")).tolist() == [-3, -3]


def test_lines_of_a_text_and_what_they_compute() -> None:
    text = "#define X\n// 1 a = add\nx\ny\n// 0 b = sin\nz\nFUNCTION void f()\nw\n"
    assert printed_origins(text) == [None, None, 1, 1, 1, 0, 0, None, None]


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FUNCTIONS], ids=str
)
def test_ptx_computes_what_eager_does(name: str) -> None:
    """What NVRTC made of the printed text, instruction by instruction."""
    f, shape = FUNCTIONS[name]
    a = numbers(*shape)
    program = scheduled(for_gpu(jit(f, strict=True).mapped, a).program)
    found = simulate(program, print_program(program), [a], [0], "sm_90", H100)
    wanted = [x.reshape(len(a), -1) for x in torch.utils._pytree.tree_leaves(torch.vmap(f)(a))]
    for position, x in found.outputs.items():
        expected = wanted[position][torch.arange(found.worlds) % len(a)].numpy()
        np.testing.assert_allclose(x.astype(expected.dtype), expected, rtol=1e-11, atol=1e-11, equal_nan=True)


def test_what_worlds_that_are_done_would_do_keeps_no_other() -> None:
    """A loop within a loop, which would not end for worlds that have left the outer one."""

    def turn(x: torch.Tensor) -> torch.Tensor:
        grown = while_loop(lambda y: y.sum() < 1000, lambda y: y * x.max(), torch.ones_like(x))
        return x / 3 + 0.01 * (grown > 9)

    a = torch.tensor([[1.5, 0.2, 0.1], [64.0, 1.0, 2.0], [3.0, 0.1, 0.2], [9.0, 8.0, 7.0]], dtype=torch.float64)
    f = jit(lambda x: while_loop(lambda x: x.max() > 1, turn, x), strict=True)
    program = scheduled(for_gpu(f.mapped, a).program, 8)
    found = simulate(program, print_program(program), [a], [0], "sm_90", H100)
    wanted = torch.stack([while_loop(lambda x: x.max() > 1, turn, x) for x in a])
    np.testing.assert_allclose(found.outputs[0], wanted, rtol=1e-12)


def test_worlds_of_a_warp_whose_lists_are_not_as_long() -> None:
    """They part in a loop through these. Barriers there are each world's own, or lanes wait for some that are gone."""
    p = program("""
        scratch s0: f64[16]
        scratch s1: f64[16]
        body:
          for i in 0..16:
            s0[i] = in0[i]
          group:
            compact list of k in 0..16 where gt(t, 0.0):
              var t = in0[k]
            for j in 0..len(list):
              for i in 0..16:
                s1[i] = add(s0[15-i], in0[list[j]])
              for i in 0..16:
                s0[i] = s1[i]
          for i in 0..16:
            out0[i] = s0[i]
        """)
    p, a = scheduled(p, 8), torch.from_numpy(np.random.default_rng(0).normal(size=(4, 16)))
    source, wanted = print_program(p), []
    for row in a.numpy():
        x = row
        for y in row[row > 0]:
            x = x[::-1] + y
        wanted.append(x)
    assert len({(row > 0).sum().item() for row in a}) > 1
    np.testing.assert_allclose(simulate(p, source, [a], [0], "sm_90", H100).outputs[0], wanted, rtol=1e-12)
    together = dataclasses.replace(source, text=source.text.replace("{PARTED;", "{"))
    with pytest.raises(SimulatedError, match="different barriers"):
        simulate(p, together, [a], [0], "sm_90", H100)


def test_prediction() -> None:
    """Its parts add up, and it says where the time goes."""

    def f(a: torch.Tensor) -> torch.Tensor:
        return (a @ a.T).sin().sum(0)

    found = report(jit(f, strict=True).mapped, ["sm_80", "sm_90"], numbers(24, 24))
    for target in found.targets:
        p = target.predicted
        assert p.warps == target.worlds and p.worlds == 1
        assert sum(p.instructions.values()) + sum(p.waits.values()) == pytest.approx(p.alone)
        assert sum(s.cycles for _, s in p.by_line) == sum(s.cycles for _, s in p.by_loop) == pytest.approx(p.alone)
        assert p.alone / p.warps <= p.cycles <= p.alone
        assert p.chains[0] <= p.chains[1] <= p.alone
        assert any("test_simulated.py" in line for line, _ in p.by_line)
    a100, h100 = (t.predicted for t in found.targets)
    assert h100.steps > a100.steps
    text = str(found)
    assert "H100" in text and "mm = mm" in text and "waits most for" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "cycles"),
    [("collection/hopper", 6_000), ("collection/humanoid", 35_000), ("gym/hopper", 16_000)],
    ids=str,
)
def test_steps_take_no_more_cycles_than_were_asked(model: str, cycles: int) -> None:
    """A change to the physics or to a pass that costs warps more is found here: `benchmarks/gpu_model.py` says what."""
    mj_model = load_model(model)
    put = mjtorch.put_model(mj_model, dtype=torch.float32)
    step = jit(mjtorch.step, in_dims=(None, 0))
    (target,) = report(step.mapped, ["sm_90"], put, in_motion(mj_model, put)).targets
    assert target.predicted.cycles <= cycles
    assert target.resources.spills == 0


def test_lanes_share_out_what_is_added_at_places_that_are_known() -> None:
    """The derivative of a lookup: two numbers are added at most places, which no lane has to wait for."""
    place = torch.arange(64).repeat(3)[:160]
    f = jit(lambda a: torch.zeros(64).index_put((place,), a.sin(), accumulate=True), strict=True)
    (target,) = report(f.mapped, ["sm_90"], numbers(160)).targets
    assert target.predicted.lanes > 24


def test_operations_of_two_graphs_are_told_apart() -> None:
    """The body of a loop is a graph of its own, whose nodes have the names of those around it."""

    def f(a: torch.Tensor) -> torch.Tensor:
        return while_loop(lambda x: (x.abs() > 0.1).any(), lambda x: 0.01 * x.cumsum(0), a.cumsum(0))

    (target,) = report(jit(f, strict=True).mapped, ["sm_90"], numbers(40)).targets
    assert sum(line.startswith("cumsum = cumsum") for line, _ in target.predicted.by_loop) == 2


def test_a_product_waits_once_for_what_several_terms_read() -> None:
    """What lies far is asked for before any of it is used, and lanes ask for what lies side by side."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.outer(x[:, 0].exp(), x[0].sin())
        return (y @ x[0]).sin() + (y @ x[1]).cos()

    a = numbers(104, 27)
    program = scheduled(for_gpu(jit(f, strict=True).mapped, a).program, 32, budget=64)
    found = simulate(program, print_program(program), [a], [0], "sm_90", H100, l1=2048)
    far = found.warp.memory.accesses
    assert sum(x.transactions for x in far.values()) < 4 * sum(x.executed for x in far.values())
    waits = np.array(found.warp.gaps).reshape(-1, 16).sum(axis=0)
    assert waits[m.L2] + waits[m.DRAM] < 0.5 * H100.l2 * sum(x.executed for x in far.values())
