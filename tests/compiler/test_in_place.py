"""Arrays that loops write some elements of: they are changed in place, and what is read of them is what was there."""

from typing import Any

import pytest
import torch
from compiler.interpreted import interpreted
from torch import Tensor

from mjtorch import jit
from mjtorch.compiler.ir.nodes import For, Load, Program, Scatter, Store, While
from mjtorch.compiler.ir.walk import walk
from mjtorch.compiler.passes import run_passes
from mjtorch.compiler.targets.cpu.pipeline import CPU
from mjtorch.compiler.targets.emulated.target import EmulatedWarp
from mjtorch.control_flow import fori_loop, scan, while_loop

SIZE = 12


def put(x: Tensor, k: Tensor, value: Tensor) -> Tensor:
    return x.scatter(0, (k % SIZE)[None], value[None])


def at(x: Tensor, k: Tensor) -> Tensor:
    return x.gather(0, (k % SIZE)[None])[0]


def nested(x: Tensor, n: Tensor) -> Any:
    """Worlds leave both loops at different times."""

    def outer(i: Tensor, y: Tensor) -> Tensor:
        return fori_loop(0, (n + i) % 4, lambda j, z: put(z, i + 3 * j, at(z, i + j) * 0.5 + j), y)

    return fori_loop(0, n, outer, x)


def three_deep(x: Tensor, n: Tensor) -> Any:
    def innermost(k: Tensor, y: Tensor) -> Tensor:
        return put(y, 5 * k + n, at(y, k) - 1)

    def inner(j: Tensor, y: Tensor) -> Tensor:
        return fori_loop(0, (n + j) % 3, innermost, y)

    return fori_loop(0, n, lambda i, y: fori_loop(0, (n + i) % 3, inner, y), x)


def reads_what_was_there(x: Tensor, n: Tensor) -> Any:
    """The inner loop reads the array as it was before it, in part by a view."""

    def outer(i: Tensor, y: Tensor) -> Tensor:
        first = y[:3]
        return fori_loop(0, n, lambda j, z: put(z, i + j, at(y, j) + first[2] * at(z, j + 1)), y)

    return fori_loop(0, 3, outer, x)


def used_afterwards(x: Tensor, n: Tensor) -> Any:
    """What was computed from the array before the inner loop is used after it."""

    def outer(i: Tensor, carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        y, total = carry
        twice = 2 * y
        y = fori_loop(0, n, lambda j, z: put(z, i + 2 * j, at(z, j) + 1), y)
        return y, total + twice.sum() + y[0]

    return fori_loop(0, 3, outer, (x, x.sum()))


def carried_twice(x: Tensor, n: Tensor) -> Any:
    """One array is where two of the inner loop begin."""

    def outer(i: Tensor, y: Tensor) -> Tensor:
        def inner(j: Tensor, both: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            one, two = both
            return put(one, i + j, at(two, j) + 1), put(two, j, at(one, i) - 1)

        return fori_loop(0, n, inner, (y, y))[0]

    return fori_loop(0, 3, outer, x)


def returned_twice(x: Tensor, n: Tensor) -> Any:
    def outer(carry: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        i, y, before = carry
        new = fori_loop(0, n, lambda j, z: put(z, i + j, at(z, j) + at(before, i)), y)
        return i + 1, new, new

    return while_loop(lambda c: c[0] < 3, outer, (n * 0, x, x))[1:]


def handed_up(x: Tensor, n: Tensor) -> Any:
    """A tree, from the last node to the first: each adds what it has, and what it was given, to the one above it."""

    def node(given: Tensor, it: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        number, above, own = it
        total = own + given.index_select(0, number[None])[0]
        return given.index_add(0, above[None], total[None]), total

    above = torch.tensor([SIZE, 0, 1, 1, 0, 4, 5, 5, 7, 0, 9, 10])
    given = torch.cat([0.5 * x, n[None].to(x)])
    given, totals = scan(node, given, (torch.arange(SIZE), above, x), reverse=True, unroll=False)
    return given, totals


def handed_anywhere(x: Tensor, n: Tensor) -> Any:
    """As `handed_up`, to where each world says, and what is read afterwards is what was there before."""

    def node(given: Tensor, it: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        place, own = it
        before = given.index_select(0, place[None])[0]
        given = given.index_add(0, place[None], own[None])
        return given, before + 2 * given.index_select(0, place[None])[0]

    return scan(node, x, ((torch.arange(SIZE) * (n + 1)) % SIZE, x.flip(0)), unroll=False)


def one_after_the_other(x: Tensor, n: Tensor) -> Any:
    """The second loop goes on with what the first has made, which nothing else reads; it adds to elements."""

    def outer(i: Tensor, y: Tensor) -> Tensor:
        y = fori_loop(0, (n + i) % 4, lambda j, z: put(z, i + 3 * j, at(z, j) * 0.5), y)
        return fori_loop(0, n, lambda j, z: z.scatter_add(0, ((i + j) % SIZE)[None], (at(x, j) + i)[None]), y)

    return fori_loop(0, n, outer, x)


def begins_empty(x: Tensor, n: Tensor) -> Any:
    """All that is read of it was written."""
    made = fori_loop(0, n + 1, lambda k, y: put(y, k, at(x, k) + k), x.new_empty(SIZE))
    return torch.where(torch.arange(SIZE) <= n, made, 0.0)


def adds_some(x: Tensor, n: Tensor) -> Any:
    """What is added is said to be zero in part, and then all of it; worlds leave the loop at different times."""

    def body(i: Tensor, y: Tensor) -> Tensor:
        place = (torch.arange(SIZE) * (n + i)) % SIZE
        y = y.index_add(0, place, torch.where(x > 0, x, 0.0))
        return y.index_add(0, place, 0.5 * x)

    return fori_loop(0, n, body, x)


def scan_hands_on(x: Tensor, n: Tensor, given: Tensor | None = None) -> Any:
    """Of the carry the loop changes one number; an array it reads, and the other comes back as it was."""

    def trip(carry: tuple[Tensor, Tensor, Tensor | None], k: Tensor) -> tuple[Any, None]:
        total, read, given = carry
        return (total + at(read, k), read, given), None

    return scan(trip, (n.to(x), x.flip(0), x if given is None else given), torch.arange(SIZE), unroll=False)[0]


def while_hands_on(x: Tensor, n: Tensor, given: Tensor | None = None) -> Any:
    """As `scan_hands_on`, for worlds that leave the loop at different times."""

    def trip(carry: tuple[Tensor, Tensor, Tensor, Tensor | None]) -> Any:
        k, total, read, given = carry
        return k + 1, total + at(read, k), read, given

    return while_loop(lambda carry: carry[0] < n, trip, (0 * n, n.to(x), x.flip(0), x if given is None else given))[1:]


PROBLEMS = (
    nested,
    three_deep,
    reads_what_was_there,
    used_afterwards,
    carried_twice,
    returned_twice,
    handed_up,
    handed_anywhere,
    one_after_the_other,
    begins_empty,
    adds_some,
    scan_hands_on,
    while_hands_on,
)


@pytest.fixture(scope="module")
def worlds() -> tuple[Tensor, Tensor]:
    x = torch.randn(11, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, torch.arange(11) % 6


def assert_equal(got: Any, wanted: Any) -> None:
    for a, b in zip(leaves(got), leaves(wanted), strict=True):
        torch.testing.assert_close(a, b)


def leaves(x: Any) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else list(x)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda f: f.__name__)
def test_results_are_those_of_eager_mode(problem: Any, worlds: tuple[Tensor, Tensor]) -> None:
    wanted = torch.vmap(problem)(*worlds)
    assert_equal(jit(problem, in_dims=0, strict=True)(*worlds), wanted)
    assert_equal(jit(problem, in_dims=0, backend=EmulatedWarp(8))(*worlds), wanted)
    lowered = jit(problem, in_dims=0).lower(*worlds)
    for passes in (lambda p: p, lambda p: run_passes(p, CPU)):
        assert_equal(interpreted(lowered, worlds, (0, 0), 11, passes), leaves(wanted))


@pytest.mark.parametrize("problem", [nested, three_deep, one_after_the_other], ids=lambda f: f.__name__)
def test_nothing_is_copied_in_loops(problem: Any, worlds: tuple[Tensor, Tensor]) -> None:
    """All that the loops do to the array is to write single elements."""
    program = run_passes(jit(problem, in_dims=0).lower(*worlds).program, CPU)
    assert whole_arrays(program) == 0
    assert whole_arrays(run_passes(jit(carried_twice, in_dims=0).lower(*worlds).program, CPU))


@pytest.mark.parametrize("problem", [scan_hands_on, while_hands_on], ids=lambda f: f.__name__)
def test_what_loops_hand_on_as_it_was_is_not_read(problem: Any, worlds: tuple[Tensor, Tensor]) -> None:
    """A step by Runge-Kutta carries all of `Data`, and user data may be of any size."""
    program = jit(lambda *args: problem(*args)[0], in_dims=0).lower(*worlds, torch.zeros(11, 1000)).program
    assert [x.size for x in program.inputs] == [SIZE, 1]


def test_a_scan_along_a_tree_writes_what_it_hands_on() -> None:
    """Where that goes is known, so that nothing is scattered either."""
    x = torch.zeros(3, SIZE, 8)
    problem = jit(lambda x: handed_up(x, x[0, 0, None].expand(8)), in_dims=0)
    program = run_passes(problem.lower(x).program, CPU)
    inner = [s for loop in walk(program.body) if isinstance(loop, For) for s in walk(loop.body) if isinstance(s, For)]
    assert inner and not any(s.stop.base == SIZE + 1 for s in inner)
    assert not any(isinstance(s, Scatter) for s in walk(program.body))


def test_a_scan_keeps_no_state_that_no_iteration_reads() -> None:
    """What each iteration makes anew is left as the last one made it, and what never changes is not copied."""

    def turn(c: tuple[Tensor, Tensor, Tensor], y: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], None]:
        rate, found, same = c
        found = (rate * y).cumsum(0) * same
        return (rate + found.flip(0), found, same), None

    f = jit(lambda x: scan(turn, (x[0], x[1], x[2].sin()), x, unroll=False)[0], in_dims=0)
    (loop,) = (s for s in f.lower(torch.zeros(3, 9, SIZE)).program.body if isinstance(s, For) and s.scope)
    copies = [s for s in walk(loop.body) if isinstance(s, Store) and isinstance(s.value, Load)]
    assert len(copies) == 1  # the rate


def whole_arrays(program: Program) -> int:
    """How many loops in loops of unknown length write as many elements as the array has."""
    inner = [s for loop in walk(program.body) if isinstance(loop, While) for s in walk(loop.body)]
    assert any(isinstance(s, Scatter) for s in inner)
    fills = [s for s in inner if isinstance(s, For) and s.stop.base == SIZE]
    return sum(any(isinstance(x, Store) for x in walk(s.body)) for s in fills)
