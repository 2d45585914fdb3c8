"""Compiled steps: those of eager mode, whatever the batch, the place in it, and the number of threads."""

import pytest
import torch
from reference import MODELS, Case, assert_fields_close, case, slow_but

import mjtorch
from mjtorch import tree
from mjtorch.model import Data

# From this many worlds on a program computes several side by side.
MANY = (3, 64, 257, 1000)
FEW = (1, 2)
FIELDS = [name for name in tree.tensor_fields(Data) if name != "efc_state"]  # which the last bit decides
SAME = 1e-10
# Models that between them use all that is another program where worlds are computed alone.
ALONE = (
    *("gym/humanoid", "gym/half_cheetah", "collection/pile", "feature/contacts", "feature/tendon_wrap"),
    *("feature/sensors", "feature/muscles", "feature/weld", "feature/hulls", "feature/surfaces"),
)
QUICK = ("feature/contacts", "feature/muscles", "feature/sensors", "feature/tendon_wrap")


def tiled(datas: list[Data], worlds: int) -> Data:
    """A batch in which the same states come again and again."""
    stacked = tree.stack(datas)
    which = torch.arange(worlds) % len(datas)
    return tree.map(lambda x: x[which], stacked)


def assert_bitwise(found: Data, wanted: Data) -> None:
    for (path, x), (_, y) in zip(tree.leaves_with_path(found), tree.leaves_with_path(wanted), strict=True):
        assert torch.equal(x.nan_to_num(), y.nan_to_num()), path


def stepped(this: Case) -> list[Data]:
    """The states one step later, in eager mode."""
    return [mjtorch.step(this.m, d) for d in this.datas]


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("model", slow_but(MODELS, *QUICK))
def test_batches(model: str, device: str) -> None:
    """Built as users do: what a C++ compiler does wrong it does where it optimises."""
    this = case(model, device=device)
    jitted = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)
    first = jitted(this.m, tree.stack(list(this.datas)))
    wanted = tree.stack(stepped(this))
    assert_fields_close(first, wanted, FIELDS, SAME)
    assert torch.equal(first.solver_niter, wanted.solver_niter)
    ones = tree.unstack(first)
    for worlds in MANY:
        assert_bitwise(jitted(this.m, tiled(list(this.datas), worlds)), tiled(ones, worlds))
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            assert_bitwise(jitted(this.m, tiled(list(this.datas), 64)), tiled(ones, 64))
    finally:
        torch.set_num_threads(threads)
    assert jitted.traces <= 1
    (program,) = (p for known in jitted.programs.values() for p in known)
    assert set(program.builds) == {False}


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("model", slow_but(("gym/hopper", *ALONE), "gym/hopper"))
def test_few(model: str, device: str) -> None:
    """Loops over numbers, not vectors of them, are what C++ compilers change most: so these are built as users do."""
    this = case(model, device=device)
    jitted = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)
    wanted = stepped(this)
    for worlds in FEW:
        found = jitted(this.m, tiled(list(this.datas), worlds))
        assert_fields_close(found, tiled(wanted, worlds), FIELDS, SAME)
        assert torch.equal(found.solver_niter, tiled(wanted, worlds).solver_niter)
    assert jitted.traces <= 1
