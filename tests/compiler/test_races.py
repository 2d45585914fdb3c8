"""The emulated warp watches what lanes read and write: a barrier that is missing is found, wherever it is."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiler.emulated import emulated_source
from compiler.test_cuda import FUNCTIONS, lowered_of, neighbours, numbers
from reference import COLLECTION, FEATURES, case

import mjtorch
from mjtorch import tree
from mjtorch.compiler.passes import symmetric
from mjtorch.compiler.targets.cuda.report import for_gpu
from mjtorch.compiler.targets.emulated.target import EmulatedWarp, RaceError

QUICK = ("products", "triangular with more rows than lanes", "loops", "branch", "places")


def watch_step(name: str) -> None:
    """Take a step of two worlds, watched."""
    this = case(name, seeds=2)
    step = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)
    arguments = (this.m, tree.stack(list(this.datas)))
    call = step.parameters.call(arguments, {})
    EmulatedWarp(races=True).compile(for_gpu(step.mapped, *arguments))(call.leaves, call.signature.dims, 2)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FUNCTIONS])
def test_lanes_wait_for_each_other(name: str) -> None:
    f, shape = FUNCTIONS[name]
    a = numbers(*shape)
    (found, *_) = EmulatedWarp(races=True).compile(lowered_of(f, a))([a], [0], len(a))
    torch.testing.assert_close(
        found, torch.utils._pytree.tree_leaves(torch.vmap(f)(a))[0], rtol=1e-11, atol=1e-11, equal_nan=True
    )


@pytest.mark.parametrize("f", [neighbours, FUNCTIONS["loops"][0]], ids=["sums", "loops"])
def test_each_barrier_that_is_taken_away_is_found(f: Callable[..., Any]) -> None:
    """In one run, and by name; what is not told does no harm, in whatever order lanes take their turns."""
    a = numbers(40)
    lowered = lowered_of(f, a)
    target = EmulatedWarp(races=True)
    source = target.print(target.schedule(lowered))
    begin = source.text.index("FUNCTION void f")
    parts = source.text[begin:].split("SYNC;")
    wanted, told = torch.utils._pytree.tree_leaves(torch.vmap(f)(a)), []
    for k in range(1, len(parts)):
        text = source.text[:begin] + "SYNC;".join(parts[:k]) + "SYNC;".join(["", *parts[k:]]).removeprefix("SYNC;")
        made = target.load(target.build(dataclasses.replace(source, text=text)), lowered)
        try:
            made([a], [0], len(a))
        except RaceError as e:
            told.append(str(e))
            continue
        for seed in range(3):
            torch.testing.assert_close(
                emulated_source(lowered, dataclasses.replace(source, text=text), seed)([a], [0], len(a)),
                wanted,
            )
    assert told and all(re.search(r"lane \d+ (reads|overwrites) what lane \d+ (read|wrote) in \w+", x) for x in told)


@pytest.mark.parametrize(
    "name",
    [n if n == "collection/cartpole" else pytest.param(n, marks=pytest.mark.slow) for n in COLLECTION + FEATURES],
)
def test_no_step_has_a_race(name: str) -> None:
    watch_step(name)


@pytest.mark.slow
def test_a_matrix_that_is_read_by_columns_while_its_rows_are_filled_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = symmetric._symmetric
    monkeypatch.setattr(symmetric, "_symmetric", lambda statements: (real(statements)[0], set()))
    with pytest.raises(RaceError, match="detach"):
        watch_step("feature/landing")
