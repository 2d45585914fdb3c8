"""Programs as printed for GPUs, on the host: by one lane, and by lanes in random order from barrier to barrier."""

import ctypes
import dataclasses
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from compiler import rule_cases as cases
from compiler.emulated import emulate, emulated_source
from torch import Tensor

from mjtorch import jit
from mjtorch.compiler.lowered import Lowered
from mjtorch.compiler.passes.warp_memory import share
from mjtorch.compiler.targets.cpu.build import BuildError
from mjtorch.compiler.targets.cuda import build as cuda_build, driver as cuda_driver, native as cuda_native
from mjtorch.compiler.targets.cuda.build import compile_text, compile_to_ptx, resources
from mjtorch.compiler.targets.cuda.pipeline import scheduled
from mjtorch.compiler.targets.cuda.printer import print_program
from mjtorch.compiler.targets.cuda.report import Report, for_gpu, report
from mjtorch.compiler.targets.cuda.shape import Shape, shape_of
from mjtorch.compiler.targets.cuda.target import CudaTarget
from mjtorch.compiler.targets.emulated.target import DivergedError
from mjtorch.control_flow import cond, scan, while_loop

LANES = (1, 8, 32)
ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
WORLDS = 3


def lowered_of(f: Callable[..., Any], *inputs: Tensor) -> Lowered:
    return for_gpu(jit(f, strict=True).mapped, *inputs)


def assert_as_eager(f: Callable[..., Any], *inputs: Tensor, lanes: tuple[int, ...] = LANES, **options: int) -> None:
    """Compare each number of lanes with eager mode, bit for bit where nothing is added up."""
    lowered = lowered_of(f, *inputs)
    wanted = torch.utils._pytree.tree_leaves(torch.vmap(f)(*inputs))
    for count in lanes:
        found = emulate(lowered, count, seed=count, **options)(inputs, [0] * len(inputs), len(inputs[0]))
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-11, equal_nan=True)


def numbers(*shape: int) -> Tensor:
    return cases.Source(0).tensor(shape)


def spd(a: Tensor) -> Tensor:
    return a @ a.T + torch.eye(len(a), dtype=a.dtype)


# One for each way in which the lanes can work together.
PLACES = torch.tensor([2, 0, 3, 2, 2, 0])
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "elements": (lambda a: (a.sin() + a.mT, a.outer(a) if a.dim() == 1 else a * a), (9, 9)),
    "sums": (lambda a: (a.sum(), a.sum(0), a.max(), a.min(), (a > 0).any(), (a > 9).all(), a.prod(1)), (5, 40)),
    "products": (lambda a: (a @ a.T, a.T @ a, a[0] @ a.T, (a.T * a[:, 0]) @ a), (14, 20)),
    "zero rows": (lambda a: torch.where(a[:, :1] > 0, a, 0.0).T @ a, (40, 5)),
    "cholesky": (lambda a: torch.linalg.cholesky_ex(spd(a)), (20, 20)),
    "upper cholesky": (lambda a: torch.linalg.cholesky_ex(spd(a), upper=True)[0], (7, 7)),
    "cholesky of more rows than lanes": (lambda a: torch.linalg.cholesky_ex(spd(a)), (43, 43)),
    "not positive": (lambda a: torch.linalg.cholesky_ex(spd(a) - 5 * torch.eye(6, dtype=a.dtype))[1], (6, 6)),
    "triangular": (lambda a: torch.linalg.solve_triangular(spd(a).tril(), a[:, :2], upper=False), (20, 20)),
    "triangular with more rows than lanes": (
        lambda a: (
            torch.linalg.solve_triangular(spd(a).tril(), a[:, :1], upper=False),
            torch.linalg.solve_triangular(spd(a).triu(), a[:, :1], upper=True),
        ),
        (70, 70),
    ),
    "triangular with a diagonal of ones": (
        lambda a: torch.linalg.solve_triangular(spd(a).tril() / 20, a[:, :1], upper=False, unitriangular=True),
        (20, 20),
    ),
    "many columns": (lambda a: torch.linalg.solve_triangular(spd(a).triu(), a, upper=True), (20, 20)),
    "elimination": (lambda a: torch.linalg.solve(spd(a), a[0]), (6, 6)),
    "order": (lambda a: (a.sort(descending=True), a.topk(3), a.argmin(), a.cumsum(0)), (20,)),
    "long order": (lambda a: torch.where(a > 0, a, torch.inf).sort(stable=True), (70,)),
    "long order with nan": (lambda a: torch.where(a > 0, a, torch.nan).sort(stable=True), (70,)),
    "places": (lambda a: (a[a.argsort()], torch.zeros_like(a).scatter(0, a.argsort(), a)), (33,)),
    "loops": (lambda a: while_loop(lambda x: x.abs().sum() > 1, lambda x: 0.7 * x.roll(1), a), (40,)),
    "branch": (lambda a: cond(a.sum() > 0, lambda x: (x.sin() @ x.T, x[0]), lambda x: (x @ x.T, x[1]), a), (9, 9)),
    "sums of some": (
        lambda a: torch.zeros_like(a).scatter_add(0, a.argsort() // 2, torch.where(a > 0, a, 0.0)),
        (33,),
    ),
    "sums at known places": (
        lambda a: (
            a.new_ones(4, 5).index_put((PLACES, PLACES[:, None] % 3), a[:6], accumulate=True),
            a.index_add(0, PLACES, a[:6].cos()),
            torch.zeros_like(a).index_put((PLACES,), torch.where(a[:6] > 0, a[:6], 0.0), accumulate=True),
        ),
        (7, 6),
    ),
    "not finite": (lambda a: a + torch.tensor([1.0, torch.inf, -torch.inf, torch.nan], dtype=a.dtype), (9, 4)),
    "scan": (lambda a: scan(lambda c, x: (c + x.sin(), c.cumsum(0)), a[0], a), (5, 33)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lanes_compute_what_eager_does(name: str) -> None:
    f, shape = FUNCTIONS[name]
    assert_as_eager(f, numbers(*shape))


def test_elementary_functions() -> None:
    source = cases.Source(1)
    functions = [getattr(torch, name) for name in ("sin", "cos", "exp", "log1p", "atan", "sqrt", "floor", "isfinite")]
    assert_as_eager(lambda a: [f(a) for f in functions], source.tensor((50,), special=True), lanes=(8,))


def test_what_does_not_fit_into_shared_memory_lies_in_global_memory() -> None:
    f, shape = FUNCTIONS["cholesky"]
    lowered = lowered_of(f, numbers(*shape))
    near, far = (
        print_program(scheduled(lowered.program, 32, budget=1 << 16)),
        print_program(scheduled(lowered.program, 32, budget=2048)),
    )
    assert near.far == 0 and near.shared > 2048 and far.shared <= 2048 and far.far > 0
    assert_as_eager(f, numbers(*shape), lanes=(32,), budget=2048)


def test_what_all_worlds_share_is_computed_once() -> None:
    a, b = numbers(40), numbers(40)[0]
    f = jit(lambda x, y: x * (y.exp() + y).cumsum(0), in_dims=(0, None), strict=True)
    lowered = for_gpu(f.mapped, a, b)
    source = print_program(scheduled(lowered.program, 32))
    assert source.uniform >= 40 * 8
    # The lanes of one world compute it: where worlds share a warp, there are no others to wait for.
    shared = print_program(scheduled(lowered.program, 8)).text
    assert "KERNEL_UNIFORM(UNIFORM_MEMORY;PARTED;" in shared and "PARTED" not in source.text.split("\n#endif")[-1]
    (found,) = emulated_source(lowered, source)([a, b], [0, None], WORLDS)
    torch.testing.assert_close(found, f(a, b), rtol=1e-12, atol=1e-12)


def test_small_worlds_share_a_warp() -> None:
    programs = (lowered_of(lambda a: (a @ a).sin() @ a, numbers(n, n)).program for n in (6, 40))
    small, large = (print_program(scheduled(p)) for p in programs)
    assert small.lanes < 32 and large.lanes == 32
    assert shape_of(small, 227 * 1024) == Shape(4, 1, 32 // small.lanes, 32 // small.lanes * small.shared, small.rows)


def several(a: Tensor) -> Tensor:
    """Products of a matrix of few rows, all of which are needed until the end."""
    made = [a[0]]
    for _ in range(40):
        made.append((a @ made[-1] / 20).sin() + a[2])
    return sum((x * y for x, y in zip(made, made[::-1], strict=True)), a[1])


def test_two_worlds_of_a_warp_share_no_banks() -> None:
    """Worlds of some arrays, whose loops are short, are two in a warp, and what lies alike in both is apart."""
    a = numbers(14, 14)
    source = print_program(scheduled(lowered_of(several, a).program))
    assert source.lanes == 16 and source.meetings and source.shared % 128 == 64
    shape = shape_of(source, 227 * 1024)
    assert (shape.warps, shape.blocks, shape.worlds) == (16, 2, 2)
    assert 2 * source.shared <= share(lowered_of(several, a).program)
    assert_as_eager(several, a, lanes=(16,))


@pytest.mark.parametrize(("room", "warps", "blocks"), [(227, 16, 2), (99, 13, 1), (10, 1, 1), (1, 1, 1)])
def test_as_many_warps_as_have_room(room: int, warps: int, blocks: int) -> None:
    """And L1 keeps a seventh."""
    program = lowered_of(neighbours, numbers(400)).program
    each = share(program)
    source = dataclasses.replace(print_program(scheduled(program)), shared=each)
    assert source.rows == 48
    shape = shape_of(source, room * 1024)
    assert shape == Shape(warps, blocks, 1, each, 48) and shape.memory(warps) == warps * each + 48


def long_turn(x: Tensor) -> Tensor:
    """So many statements that a loop around them is not printed as one function."""
    for _ in range(60):
        x = 0.9 * x.roll(1) + 0.1 * x.sin().cumsum(0) / (1 + x.square().sum())
    return x


def test_long_loops_are_divided_into_functions() -> None:
    """Also loops in loops, which need the turn of the loop around them."""

    def f(a: Tensor) -> Any:
        def turn(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            c = while_loop(lambda y: y.abs().sum() > 1, lambda y: 0.1 * long_turn(y), long_turn(c + x))
            return c, c * x

        return scan(turn, a[0], a, unroll=False)

    a = numbers(3, 9)
    text = print_program(scheduled(lowered_of(f, a).program)).text
    functions = [line for line in text.splitlines() if line.startswith("FUNCTION void f")]
    assert len(functions) > 3 and any("(int " in line for line in functions)
    assert_as_eager(f, a, lanes=(1, 32))


# --- barriers ---------------------------------------------------------------------------------------------------------


def neighbours(a: Tensor) -> Tensor:
    """Each element of the result needs what other lanes have computed."""
    b = a.exp()
    return b.roll(5) * b.roll(-7) + (b @ b)


def test_a_missing_barrier_is_found() -> None:
    """The order of lanes is random, so a lane that does not wait for others meets memory that nobody wrote."""
    a = numbers(64)
    lowered = lowered_of(neighbours, a)
    source, wanted = print_program(scheduled(lowered.program, 32)), torch.vmap(neighbours)(a)
    parts = source.text.split("SYNC;")

    def found(text: str, seed: int) -> Tensor:
        return emulated_source(lowered, dataclasses.replace(source, text=text), seed)([a], [0], WORLDS)[0]

    seeds = range(5)
    assert all(torch.allclose(found(source.text, s), wanted, rtol=1e-12) for s in seeds)
    body = [k for k in range(1, len(parts)) if "FUNCTION void f" in "SYNC;".join(parts[:k])]
    assert body
    for k in body[:-1]:  # the last one ends the macro of the kernel
        text = "SYNC;".join(parts[:k]) + "SYNC;".join(["", *parts[k:]]).removeprefix("SYNC;")
        assert any(not torch.allclose(found(text, s), wanted, rtol=1e-12) for s in seeds)


def test_lanes_leave_a_loop_before_its_flag_changes() -> None:
    """A choice is a loop of one turn; what all lanes test there the first one sets anew in the next turn around."""

    def f(a: Tensor) -> Any:
        def turn(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return c, cond(x[0] > 0, lambda: long_turn(x), lambda: long_turn(x + 1))

        return scan(turn, a[0], a, unroll=False)

    assert_as_eager(f, numbers(12, 9), lanes=(32,))


@pytest.mark.parametrize("parting", ["if (LANE_ID < 3) { SYNC; }", "if (SOME(LANE_ID < 3)) {}"])
def test_lanes_that_part_are_found(parting: str) -> None:
    """At a barrier, and where a GPU would have all lanes go where one goes."""
    a = numbers(64)
    lowered = lowered_of(neighbours, a)
    source = print_program(scheduled(lowered.program, 32))
    assert source.text.count("{MEMORY;") == 1
    text = source.text.replace("{MEMORY;", "{MEMORY;" + parting)
    with pytest.raises(DivergedError):
        emulated_source(lowered, dataclasses.replace(source, text=text))([a], [0], WORLDS)


# --- without a GPU ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["loops", "not finite"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_compiles_for_gpus(architecture: str, name: str) -> None:
    f, shape = FUNCTIONS[name]
    found = resources(print_program(scheduled(lowered_of(f, numbers(*shape)).program)).text, architecture)
    assert found.architecture == architecture and found.registers > 16 and found.spills == 0 and found.code > 1000


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", ["branch", "loops"])
@pytest.mark.parametrize("lanes", [8, 32])
def test_where_lanes_go_the_same_way_nothing_is_guarded(lanes: int, name: str, architecture: str) -> None:
    """Else what comes behind a choice gathers the lanes before each barrier, and before sm_90 by a call."""
    f, shape = FUNCTIONS[name]
    source = print_program(scheduled(lowered_of(f, numbers(*shape)).program, lanes))
    assert resources(source.text, architecture, *shape_of(source, 200 * 1024).options).guards == 0


def test_a_gpu_that_nvrtc_does_not_know() -> None:
    for compiled in (compile_text, compile_to_ptx):
        with pytest.raises(BuildError, match=r"NVRTC \d+\.\d+ compiles for sm_.*sm_90.*, not for \w+_999: install"):
            compiled("", "sm_999")


@pytest.mark.parametrize(("version", "split"), [((12, 9), False), ((13, 0), True), ((14, 1), True)])
def test_functions_are_compiled_side_by_side(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], split: bool
) -> None:
    """Where NVRTC knows how to."""
    real, given = cuda_build.nvrtc(), []

    def compile_program(program: Any, count: int, options: list[bytes]) -> tuple:
        given.extend(options)
        return real.nvrtcCompileProgram(program, count, options)

    fake = {x: getattr(real, x) for x in dir(real) if x.startswith("nvrtc")}
    fake |= {"nvrtcCompileProgram": compile_program, "nvrtcVersion": lambda: (0, *version)}
    monkeypatch.setattr(cuda_build, "nvrtc", lambda: SimpleNamespace(**fake))
    assert compile_text('extern "C" __global__ void run() {}', "sm_90")[0]
    assert (b"--split-compile=0" in given) == split


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("CUDA_ERROR_OUT_OF_MEMORY", r"fewer worlds"),
        ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", r"older than NVRTC"),
        ("CUDA_ERROR_NO_BINARY_FOR_GPU", r"older than NVRTC"),
        ("CUDA_ERROR_INVALID_DEVICE", r"fewer GPUs"),
        ("CUDA_ERROR_LAUNCH_FAILED", r"\(CUDA_ERROR_LAUNCH_FAILED\)$"),
    ],
)
def test_errors_of_the_driver_say_what_to_do(monkeypatch: pytest.MonkeyPatch, name: str, advice: str) -> None:
    """With the names that NVIDIA's binding has for them."""
    real = cuda_driver.driver()
    monkeypatch.setattr(
        cuda_driver, "driver", lambda: SimpleNamespace(cuGetErrorString=lambda _: (0, b"words of the driver"))
    )
    with pytest.raises(RuntimeError, match=rf"^CUDA: words of the driver \({name}\).*") as found:
        cuda_driver.check((getattr(real.CUresult, name),))
    assert re.search(advice, str(found.value)) and "\n" not in str(found.value)


def test_report() -> None:
    f, shape = FUNCTIONS["loops"]
    found = report(jit(f, strict=True).mapped, ARCHITECTURES, numbers(*shape))
    assert isinstance(found, Report)
    text = str(found)
    assert "launches a call: 1\n" in text and not found.source.uniform
    assert all(a in text for a in ARCHITECTURES) and f"{found.source.shared:,} shared" in text
    assert all(t.worlds >= 1 for t in found.targets)
    with pytest.raises(ValueError, match=r"sm_1.; known are sm_80"):
        report(jit(f, strict=True).mapped, ["sm_1"], numbers(*shape))


def test_what_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernels find their arrays: the tables in the order of the program, and as many worlds as there are."""
    launched: list[tuple[Any, int, int, list[Any]]] = []

    def launch(kernels: Any, kernel: Any, blocks: int, threads: int, shared: int, arguments: Any, stream: int) -> None:
        launched.append((kernel, blocks, threads, [np.ctypeslib.as_array(arguments[0]).copy(), *arguments[1:]]))

    class Kernels:
        run, uniform = "run", "uniform"

    class Stream:
        cuda_stream = 0

    class Guard:
        def __init__(self, device: Any) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: Any) -> None: ...

    monkeypatch.setattr(cuda_native, "load", lambda *_: Kernels)
    monkeypatch.setattr(cuda_native, "resident", lambda *_: 1)
    monkeypatch.setattr(cuda_native, "shared_memory", lambda _: 227 * 1024)
    processors = SimpleNamespace(multi_processor_count=2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: processors)
    monkeypatch.setattr(cuda_native, "launch", launch)
    monkeypatch.setattr(cuda_native, "architecture", lambda _: "sm_90")
    monkeypatch.setattr(torch.cuda, "device", Guard)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream)
    unused, a, b = numbers(3), numbers(40), numbers(40)[0]
    two = torch.full((2,), 2.0)
    f = jit(lambda z, x, y: (x * (y.exp() + y).cumsum(0), x, x.sum(), two), in_dims=(0, 0, None), strict=True)
    native = CudaTarget(torch.device("cpu")).compile(for_gpu(f.mapped, unused, a, b))
    with monkeypatch.context() as patch:
        patch.setattr(
            torch.Tensor, "to", lambda *_: pytest.fail("a call copies from the host, which waits for kernels")
        )
        product, given, total, constant = native([unused, a, b], [0, 0, None], WORLDS)
    assert constant.tolist() == [[2.0, 2.0]] * WORLDS
    assert given is a and product.shape == (WORLDS, 40) and product.is_contiguous() and total.shape == (WORLDS,)
    assert native.source.launches == len(launched) == 2
    (uniform, *_), (run, blocks, threads, (table, count, _far, _common)) = launched
    assert (uniform, run, blocks, count.value) == (
        "uniform",
        "run",
        WORLDS * native.source.lanes // threads or 1,
        WORLDS,
    )
    rows = table.reshape(-1, 3).tolist()
    assert rows == [
        [a.data_ptr(), 1, 40],
        [b.data_ptr(), 1, 0],
        [product.data_ptr(), 1, 40],
        [total.data_ptr(), WORLDS, 1],
    ]
    assert isinstance(count, ctypes.c_int64)


@pytest.mark.parametrize("dims", [(0,), (1,), (2,)], ids=str)
def test_worlds_may_lie_in_any_order(dims: tuple[int]) -> None:
    """Programs read worlds whose elements lie beside each other; others are copied, and no address is multiplied."""
    a = numbers(5, 7)  # of so many worlds
    lowered = lowered_of(lambda x: (x.T @ x, x[0] * 2), a)
    given = a.movedim(0, dims[0]).contiguous()
    product, twice = emulate(lowered, 8)([given], dims, WORLDS)
    torch.testing.assert_close(product, a.mT @ a, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(twice, a[:, 0] * 2)
    text = print_program(scheduled(lowered.program)).text
    assert "* in[k].element" not in text and "* out[k].element" not in text


def test_a_number_of_each_world_is_read_where_it_is() -> None:
    a = numbers()
    lowered = lowered_of(lambda x: x.sin() + 1, a)
    made = emulate(lowered, 8)
    assert made.strides(a, 0) == (1, 1) and made.strides(numbers(4), 0) == (1, 4)
    assert made.strides(numbers(4).mT.contiguous(), 1) is None
    (found,) = made([a], [0], WORLDS)
    torch.testing.assert_close(found, a.sin() + 1)
