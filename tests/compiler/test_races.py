"""The emulated warp watches what lanes read and write: a barrier that is missing is found, wherever it is."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiler.test_cuda import FUNCTIONS, lowered_of, neighbours, numbers
from reference import COLLECTION, FEATURES, GYM, case

import mjtorch
from mjtorch import tree
from mjtorch.compiler.lowered import Lowered
from mjtorch.compiler.passes import symmetric
from mjtorch.compiler.targets.cuda.report import for_gpu
from mjtorch.compiler.targets.emulated.barriers import without_each
from mjtorch.compiler.targets.emulated.target import EmulatedWarp, RaceError, Watched

# Barriers of a step that are taken away, one at a time.
BARRIERS = 40
QUICK = ("products", "triangular with more rows than lanes", "loops", "branch", "places")


def watched_step(name: str) -> tuple[Watched, Any]:
    """A step of two worlds, and how to call it."""
    this = case(name, seeds=2)
    step = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)
    arguments = (this.m, tree.stack(list(this.datas)))
    call = step.parameters.call(arguments, {})
    return watched(for_gpu(step.mapped, *arguments)), (call.leaves, call.signature.dims, 2)


def watched(lowered: Lowered) -> Watched:
    """The program for a warp that is watched."""
    warp = EmulatedWarp(races=True).compile(lowered)
    assert isinstance(warp, Watched)
    return warp


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FUNCTIONS])
def test_lanes_wait_for_each_other(name: str) -> None:
    f, shape = FUNCTIONS[name]
    a = numbers(*shape)
    (found, *_) = watched(lowered_of(f, a))([a], [0], len(a))
    torch.testing.assert_close(
        found, torch.utils._pytree.tree_leaves(torch.vmap(f)(a))[0], rtol=1e-11, atol=1e-11, equal_nan=True
    )


@pytest.mark.parametrize("f", [neighbours, FUNCTIONS["loops"][0]], ids=["sums", "loops"])
def test_each_barrier_that_is_taken_away_is_found(f: Callable[..., Any]) -> None:
    """In one run, and by name; what is not told does no harm, in whatever order lanes take their turns."""
    a = numbers(40)
    lowered = lowered_of(f, a)
    warp = watched(lowered)
    found = without_each(warp, [a], [0], len(a))
    assert found.told and not found.missed and len(found.told) + len(found.idle) == warp.barriers
    told = [x for x in found.told.values() if x]
    assert told and all(re.search(r"lane \d+ (reads|overwrites) what lane \d+ (read|wrote) in \w+", x) for x in told)
    wanted = torch.utils._pytree.tree_leaves(torch.vmap(f)(a))
    for k in found.idle:
        warp.take_away(k)
        for warp.seed in range(3):
            torch.testing.assert_close(warp([a], [0], len(a)), wanted)


def doubles_where_floats_were(a: torch.Tensor) -> torch.Tensor:
    """Of floats only every other is read, and its place is then the second half of a double of another lane."""
    floats = a.float().exp()
    total = (floats[1::2].roll(5) * floats[1::2].roll(-7)).sum()
    doubles = (a[::2] + total).sin()
    return doubles.roll(3) * doubles.roll(-9)


def test_each_word_of_a_wide_element_is_watched() -> None:
    a = numbers(80)
    found = without_each(watched(lowered_of(doubles_where_floats_were, a)), [a], [0], len(a))
    assert not found.missed
    assert any(re.search(r"in sin\S* .* overwrites what lane \d+ read in sum", x) for x in found.told.values())


def test_a_single_lane_has_no_barriers() -> None:
    a = numbers(40)
    warp = EmulatedWarp(1, races=True).compile(lowered_of(neighbours, a))
    assert isinstance(warp, Watched)
    found = without_each(warp, [a], [0], len(a))
    assert (warp.barriers, found.told, found.idle, found.missed) == (0, {}, (), ())


@pytest.mark.parametrize(
    "name",
    [n if n == "collection/cartpole" else pytest.param(n, marks=pytest.mark.slow) for n in COLLECTION + FEATURES + GYM],
)
def test_no_step_has_a_race_and_no_barrier_that_is_missing_goes_unnoticed(name: str) -> None:
    warp, call = watched_step(name)
    found = without_each(warp, *call, tried=BARRIERS)
    assert found.told
    assert not found.missed


@pytest.mark.slow
def test_a_matrix_that_is_read_by_columns_while_its_rows_are_filled_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = symmetric._symmetric
    monkeypatch.setattr(symmetric, "_symmetric", lambda statements: (real(statements)[0], set()))
    warp, call = watched_step("feature/landing")
    with pytest.raises(RaceError, match="detach"):
        warp(*call)
