"""What is computed once for all worlds, and what is left out because no world needs it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from mjtorch import jit
from mjtorch.compiler.analysis.dependence import accesses
from mjtorch.compiler.ir.nodes import SCRATCH
from mjtorch.compiler.ir.text import as_text
from mjtorch.compiler.lowered import Lowered
from mjtorch.compiler.passes import run_passes
from mjtorch.compiler.targets.cpu.pipeline import CPU
from mjtorch.control_flow import scan

TABLE = torch.linspace(-1, 1, 24).reshape(8, 3)
WORLDS = (1, 3, 40)


def program_text(lowered: Lowered) -> str:
    """What a CPU executes."""
    return as_text(run_passes(lowered.program, CPU))


def look_up(table: Tensor, i: Tensor, x: Tensor) -> Tensor:
    """Rows of a table that is made of what all worlds share, picked by each for itself."""
    made = torch.cat([table.sin(), table.abs().sum(1, keepdim=True)], dim=1)
    keep = (table[:, 0] > 0)[i]
    return torch.where(keep[:, None], made[i], -made[i]) * x


def in_a_loop(table: Tensor, i: Tensor, x: Tensor) -> Tensor:
    """The same in every turn of a loop, next to what is not."""

    def turn(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        gram = table @ table.mT  # the same in all turns
        return carry + gram.diagonal()[i] * row.sum(), carry * row.exp().sum()

    return scan(turn, x, table, unroll=False)[1]


def contacts(table: Tensor, i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Choices that no world may make."""
    near = x > 0.5
    rows = torch.where(near[:, None], table[i] * x[:, None].exp() + x[:, None].cos(), table[0])
    return rows, near


def arguments(worlds: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(worlds)
    i = torch.randint(0, 8, (worlds, 5), generator=generator)
    return TABLE.to(dtype), i, torch.rand(worlds, 5 if worlds else 1, generator=generator, dtype=dtype)


@pytest.mark.parametrize("worlds", WORLDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_results_are_those_of_eager_mode(dtype: torch.dtype, worlds: int) -> None:
    table, i, x = arguments(worlds, dtype)
    for f, y in ((look_up, x[:, :1, None]), (in_a_loop, x), (contacts, x), (contacts, 0.4 * x)):
        found = jit(f, in_dims=(None, 0, 0), strict=True)(table, i, y)
        torch.testing.assert_close(found, torch.vmap(f, in_dims=(None, 0, 0))(table, i, y))


def test_what_all_worlds_share_is_computed_once() -> None:
    table, i, x = arguments(3)
    text = program_text(jit(look_up, in_dims=(None, 0, 0)).lower(table, i, x[:, :1, None]))
    assert "sin(" in text.split("uniform:")[1].split("\nbody:")[0]
    text = program_text(jit(in_a_loop, in_dims=(None, 0, 0)).lower(table, i, x))
    before, after = text.split("uniform:")[1].split("\nbody:")
    assert "mul(" in before, "the product of the tables"
    assert "exp(" in after, "it depends on the iteration"
    # Nothing is told apart where every world has a table of its own, or where there is one world.
    assert "uniform:" not in jit(look_up, in_dims=0).lower(table.expand(3, 8, 3), i, x[:, :1, None]).as_text()
    assert "uniform:" not in jit(look_up, in_dims=None).lower(table, i[0], x[0, :1, None]).as_text()


def test_choices_that_no_world_makes_are_skipped() -> None:
    table, i, x = arguments(3)
    text = program_text(jit(contacts, in_dims=(None, 0, 0)).lower(table, i, x))
    assert text.count("if ") == text.count("else:") == 1
    chosen, other = text.split("if ")[1].split("else:")
    assert "exp(" in chosen and "exp(" not in other


def forces(table: Tensor, i: Tensor, x: Tensor) -> Tensor:
    """Sums at places of each world's own, to which not all add."""
    given = torch.where((x > 0.5)[:, None], x[:, None] + table[:5], 0.0)
    return torch.zeros_like(table[:4]).index_add(0, i % 4, given)


def forces_at_fixed(table: Tensor, _: Tensor, x: Tensor) -> Tensor:
    """Sums at places that are the same in all worlds."""
    return forces(table, torch.tensor([0, 3, 3, 1, 2]), x)


@pytest.mark.parametrize("worlds", WORLDS)
@pytest.mark.parametrize("forces", [forces, forces_at_fixed])
def test_what_no_world_adds_is_not_added(forces: Callable[..., Tensor], worlds: int) -> None:
    table, i, x = arguments(worlds)
    for y in (x, 0.4 * x):
        found = jit(forces, in_dims=(None, 0, 0), strict=True)(table, i, y)
        torch.testing.assert_close(found, torch.vmap(forces, in_dims=(None, 0, 0))(table, i, y))
    text = jit(forces, in_dims=(None, 0, 0)).lower(table, i, x).as_text()
    assert text.count("if ") == 1, "a look at each row, not at each number"


def blocks(x: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks of a matrix that is made of a list of its elements, picked by a table."""
    dense = torch.cat([x, torch.zeros(1, dtype=x.dtype)])[torch.arange(64).reshape(8, 8).clamp(max=40)]
    dofs = torch.tensor([[0, 1, 2], [5, 6, 7]])
    return dense[dofs[:, :, None], dofs[:, None, :]] + 1, dense[:, dofs[0]].flip(0)


def test_picks_of_picks() -> None:
    """What lies between the blocks is not even written."""
    x = torch.rand(3, 40, dtype=torch.float64)
    torch.testing.assert_close(jit(blocks, in_dims=0, strict=True)(x), torch.vmap(blocks)(x))
    used = {a.buffer for a in accesses(jit(blocks, in_dims=0).lower(x).program.body, {})}
    assert max(b.size for b in used if b.kind == SCRATCH) < 64


def planes(x: Tensor) -> Tensor:
    """Normals and distances of planes through three points, of two parts that are stored in one array."""
    a, b, c = x.unbind(1)
    normal = torch.linalg.cross((b - a).exp(), (c - a).exp())
    unit = normal / normal.norm(dim=-1, keepdim=True)
    return torch.cat([unit, (unit * a).sum(-1, keepdim=True)], dim=-1)


def chosen_planes(x: Tensor) -> tuple[Tensor, ...]:
    """Work that only a choice needs."""
    near = x[:, 0, 0] > 0.5
    return torch.where(near[:, None], planes(x), 0.0), near


def planes_of_neighbours(x: Tensor) -> tuple[Tensor, ...]:
    """Work that another turn of the loop needs."""
    near = x[:, 0, 0] > 0.5
    return torch.where(near[:, None], planes(x).roll(1, 0), 0.0), near


def planes_needed_twice(x: Tensor) -> tuple[Tensor, ...]:
    """Work that is needed whatever is chosen."""
    near, found = x[:, 0, 0] > 0.5, planes(x)
    return torch.where(near[:, None], found, 0.0), near, found.flip(0)


@pytest.mark.parametrize("f", [chosen_planes, planes_of_neighbours, planes_needed_twice])
def test_work_for_a_choice_alone_is_left_out_with_it(f: Callable[..., object]) -> None:
    x = torch.rand(17, 6, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for y in (x, 0.4 * x, x[:1]):
        torch.testing.assert_close(jit(f, in_dims=0, strict=True)(y), torch.vmap(f)(y))
    text = program_text(jit(f, in_dims=0).lower(x))
    outside = "".join(part.split("else:")[-1] for part in text.split("if "))
    assert ("exp(" in outside) == (f is not chosen_planes)


@pytest.mark.parametrize("worlds", WORLDS)
def test_searches_among_some(worlds: int) -> None:
    """What is masked is not looked at: with ties, without any that counts, and next to what is no number."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        x = torch.where(x > 3, torch.nan, x.round())
        return (
            torch.where(x > 0, x, torch.inf).argmin(-1),
            torch.where(x > 0, torch.inf, x).min(-1),
            torch.where(x > 0.9, -torch.inf, x).argmax(-1),
            torch.where(x.isnan(), torch.inf, x).argmin(-1),
        )

    x = 2 * torch.randn(worlds, 3, 40, generator=torch.Generator().manual_seed(0))
    x[0, 0], x[0, 1], x[-1, 2] = 1, -1, 4
    for found, wanted in zip(tree_leaves(jit(f, strict=True)(x)), tree_leaves(torch.vmap(f)(x)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("worlds", WORLDS)
def test_integers_divided_and_picked(worlds: int) -> None:
    """By powers of two, of either sign; whole matrices of a table, and of each world's own."""

    def f(table: Tensor, i: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        n = 7 * i - 25
        return (
            n // 8,
            n % 8,
            n // 1,
            n % 1,
            n // 7,
            n % -8,
            table.view(2, 4, 3)[i % 2],
            (table * x[0]).view(4, 2, 3)[i % 4],
        )

    table, i, x = arguments(worlds)
    found = jit(f, in_dims=(None, 0, 0), strict=True)(table, i, x)
    torch.testing.assert_close(found, torch.vmap(f, in_dims=(None, 0, 0))(table, i, x), rtol=0, atol=0)
