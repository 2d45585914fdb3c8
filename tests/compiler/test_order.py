"""Worlds that took about the same in the last call are side by side in the next one, which changes nothing in them."""

from typing import Any

import pytest
import torch
from compiler.test_tails import solved, worlds
from torch import Tensor

from mjtorch import jit
from mjtorch.compiler.targets.cpu.build import BuildError, compiler
from mjtorch.compiler.targets.cpu.order import Order
from mjtorch.control_flow import while_loop

try:
    compiler()
except BuildError:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

DTYPES = (torch.float32, torch.float64)


def halved(x: Tensor) -> dict[str, Tensor]:
    """A vector, halved as often as it is longer than one."""

    def body(c: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return c[0] - torch.outer(c[0], c[0]) @ c[0] / (2 * c[0] @ c[0]), c[1] + 1

    z, times = while_loop(lambda c: (c[0] @ c[0]) > 1, body, (torch.sin(x[1:]) * x[0], 0 * x.sum().long()))
    return {"z": z, "times": times, "even": times % 2 == 0}


def lengths(number: int, dtype: torch.dtype) -> Tensor:
    """(number, 9): neighbours are halved 0 to 20 times."""
    generator = torch.Generator().manual_seed(number)
    x = torch.rand(number, 9, generator=generator, dtype=dtype) + 0.2
    return torch.cat([2.0 ** (7 * torch.arange(number) % 21).to(dtype)[:, None], x[:, 1:]], 1)


def order(f: Any) -> Order:
    """That of the calls of a function."""
    (prepared,) = f.calls.kept
    assert isinstance(prepared.ready.order, Order)
    return prepared.ready.order


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [17, 512, 1100])
def test_worlds_that_take_alike_are_side_by_side(number: int, dtype: torch.dtype) -> None:
    x = lengths(number, dtype)
    wanted = torch.vmap(halved)(x)
    for threads, given, dims in ((1, x, 0), (3, x, 0), (1, x.mT.contiguous(), 1)):
        f = jit(halved, in_dims=dims, strict=True, threads=threads)
        for k in range(5):
            found = f(given)
            for name in wanted:
                torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=0)
            assert k < 2 or order(f).holds == (k > 2)
        mine = order(f)
        assert sorted(mine.places) == list(range(number))
        for first in range(0, number, 512):
            assert (mine.places[first : first + 512] // 512 == first // 512).all(), "neighbours stay near"
            taken = wanted["times"].numpy()[mine.places[first : first + 512]]
            assert (taken[1:] <= taken[:-1]).all(), "those first that took most"


def test_places_change_nothing() -> None:
    """Worlds with few and with many slots taken: to the last bit as in the first call, which takes them as they are."""
    for dtype in DTYPES:
        args = worlds(70, dtype)
        args = tuple(x[torch.randperm(70, generator=torch.Generator().manual_seed(3))] for x in args)
        f = jit(lambda x, y: {name: solved(x, y)[name] for name in ("z", "worst", "any")}, strict=True)
        first = f(*args)
        for _ in range(4):
            again = f(*args)
            assert all(torch.equal(again[name], first[name]) for name in first)
        assert order(f).holds


def test_an_order_that_does_not_come_again_is_not_kept() -> None:
    x = lengths(512, torch.float32)
    f = jit(halved, strict=True)
    for _ in range(4):
        f(x)
    assert order(f).holds
    f(x[torch.randperm(512, generator=torch.Generator().manual_seed(0))])
    assert not order(f).holds
    for _ in range(4):
        f(x.sort(dim=0).values)  # as good as in any order
    assert not order(f).holds


def test_worlds_that_all_take_the_same_are_as_they_were() -> None:
    f = jit(halved, strict=True)
    for _ in range(4):
        f(torch.full((40, 9), 3.0))
    assert not order(f).holds and (order(f).places == range(40)).all()


def test_where_all_fit_side_by_side_there_is_no_order() -> None:
    f = jit(halved, strict=True)
    for _ in range(4):
        f(lengths(4, torch.float64))
    assert not order(f).holds and (order(f).places == range(4)).all() and order(f).work.any()
