"""Blocks: what is given and returned world by world, and computed side by side, is transposed between."""

import pytest
import torch
from torch import Tensor

from mjtorch import jit
from mjtorch.compiler.targets.cpu.build import BuildError, compiler

try:
    compiler()
except BuildError:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

# Below, at and past one square and two, of any vectors; one and two worlds have code without lanes.
SIZES = (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 33, 100, 1000)
WORLDS = (1, 2, 3, 4, 16, 17, 31, 64)
DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool)


def computed(xs: list[Tensor], k: Tensor) -> tuple[Tensor, ...]:
    """Of each array something of its size, and rows past the first k filled with a number."""
    found = []
    for x in xs:
        y = ~x if x.dtype == torch.bool else x * 3 + 1
        rows = torch.arange(len(x)) < k
        found += [y, torch.where(rows[:, None], torch.stack([x, y], 1), x.new_ones(1)), torch.full_like(x, 1)]
    return tuple(found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("worlds", WORLDS)
def test_worlds_get_and_return_what_is_theirs(dtype: torch.dtype, worlds: int) -> None:
    torch.manual_seed(0)
    xs = [(10 * torch.randn(worlds, n)).to(dtype) for n in SIZES]
    k = torch.randint(0, 20, (worlds,))
    wanted = torch.vmap(computed)(xs, k)
    f = jit(computed, in_dims=0, backend="native", strict=True)
    worlds_last = [x.T.contiguous().T for x in xs]
    apart = [torch.stack([x, x], 1)[:, 0] for x in xs]
    turned = [x.flip(1).contiguous().flip(1) for x in xs]
    for given in (xs, worlds_last, apart, turned):
        for x, y in zip(f(given, k), wanted, strict=True):
            assert torch.equal(x, y)


def test_results_lie_world_after_world() -> None:
    x = torch.randn(20, 7, 5)
    y = jit(lambda x: (x.T @ x, x.sum(0)), in_dims=0, backend="native", strict=True)(x)
    assert all(part.is_contiguous() for part in y)
