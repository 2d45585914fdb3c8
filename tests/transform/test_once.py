"""What is computed once for all worlds, and what is left out because no world needs it."""

import pytest
import torch
from torch import Tensor

from mjtorch import jit
from mjtorch.control_flow import scan

TABLE = torch.linspace(-1, 1, 24).reshape(8, 3)
WORLDS = (1, 3, 40)


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
    once = jit(look_up, in_dims=(None, 0, 0)).lower(table, i, x[:, :1, None]).as_text().split("\n# ")[0]
    assert "once:" in once and "sin(" in once
    text = jit(in_a_loop, in_dims=(None, 0, 0)).lower(table, i, x).as_text()
    before, after = text.split("once:")[1].split("\n#", 1)
    assert "mul(" in before, "the product of the tables"
    assert "exp(" in after, "it depends on the turn"
    # Nothing is told apart where every world has a table of its own, or where there is one world.
    assert "once:" not in jit(look_up, in_dims=0).lower(table.expand(3, 8, 3), i, x[:, :1, None]).as_text()
    assert "once:" not in jit(look_up, in_dims=None).lower(table, i[0], x[0, :1, None]).as_text()


def test_choices_that_no_world_makes_are_skipped() -> None:
    table, i, x = arguments(3)
    text = jit(contacts, in_dims=(None, 0, 0)).lower(table, i, x).as_text()
    assert text.count("if ") == text.count("else:") == 1
    chosen, other = text.split("if ")[1].split("else:")
    assert "exp(" in chosen and "exp(" not in other
