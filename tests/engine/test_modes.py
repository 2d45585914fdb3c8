"""The same numbers in every mode of stock PyTorch: eager, vmap, compiled, both; and one compilation is enough."""

import dataclasses
from collections.abc import Callable, Sequence

import mujoco
import pytest
import torch
from reference import (
    COLLECTION,
    FEATURES,
    MODELS,
    VARIED,
    Case,
    assert_fields_close,
    case,
    load,
    random_state,
    slow_but,
)

import mjtorch
from mjtorch import tree
from mjtorch.model import Data, Model

WORLDS = 3
# All but what the last bit decides.
FIELDS = [name for name in tree.tensor_fields(Data) if name not in ("efc_state", "solver_niter")]
SAME = 1e-10

Step = Callable[[Model, Data], Data]
many: Step = torch.vmap(mjtorch.step, in_dims=(None, 0))

# Of the models that people train on: each is compiled for a minute or more, and what they use is the same.
SOME = ("gym/hopper", "gym/humanoid")
MORE = (
    "collection/cartpole",
    "feature/sensors",
    "feature/contacts",
    "feature/muscles",
    "feature/weld",
    "collection/pile",
)


def single(model: str, **options: object) -> Case:
    mj_model = load(model, **options)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    mj_datas = tuple(random_state(mj_model, seed) for seed in range(WORLDS))
    return Case(mj_model, m, mj_datas, tuple(mjtorch.put_data(mj_model, d, model=m) for d in mj_datas))


def eager(m: Model, batch: Data) -> Data:
    """World by world."""
    return tree.stack([mjtorch.step(m, d) for d in tree.unstack(batch)])


def assert_compiles_once(fn: Step, wanted: Step, m: Model, inputs: Sequence[Data]) -> None:
    """Compiled without a break, right, and not compiled again: for new values, its own output, another model."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(fn, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for d in inputs:
            found = compiled(m, d)
            assert_fields_close(found, wanted(m, d), FIELDS, SAME, context="new values")
        for _ in range(2):
            found = compiled(m, found)
        heavier = dataclasses.replace(m, body_mass=m.body_mass * 1.1)
        found = compiled(heavier, inputs[0])
    assert_fields_close(found, wanted(heavier, inputs[0]), FIELDS, SAME, context="heavier")
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("converge", [True, False])
@pytest.mark.parametrize("model", slow_but(MODELS, *VARIED))
def test_vmap(model: str, converge: bool) -> None:
    this = case(model, converge=converge)
    batch = tree.stack(this.datas)
    assert_fields_close(many(this.m, batch), eager(this.m, batch), FIELDS, SAME)


@pytest.mark.slow
@pytest.mark.parametrize("model", SOME)
def test_compile(model: str) -> None:
    this = single(model)
    assert_compiles_once(mjtorch.step, mjtorch.step, this.m, this.datas)


@pytest.mark.slow  # `test_stock_compile.py` has quick ones
@pytest.mark.parametrize("model", [*SOME, *MORE])
def test_compile_of_vmap(model: str) -> None:
    this = single(model)
    assert_compiles_once(many, eager, this.m, [tree.stack(this.datas), tree.stack(this.datas[::-1])])


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, options",
    [
        ("gym/hopper", {"integrator": int(mujoco.mjtIntegrator.mjINT_EULER)}),
        ("gym/half_cheetah", {}),
    ],
)
def test_inductor(model: str, options: dict[str, int]) -> None:
    torch._dynamo.reset()
    this = single(model, **options)
    batch = tree.stack(this.datas)
    compiled = torch.compile(many, fullgraph=True)
    found = compiled(this.m, batch)
    assert_fields_close(found, eager(this.m, batch), FIELDS, SAME)
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert_fields_close(compiled(this.m, found), eager(this.m, found), FIELDS, SAME)


@pytest.mark.parametrize("model", slow_but(MODELS, *VARIED))
def test_the_default_dtype_does_not_matter(model: str, request: pytest.FixtureRequest) -> None:
    """Neither dtypes nor numbers depend on what PyTorch makes of a number that is no tensor."""
    mj_model = load(model)
    mj_data = random_state(mj_model)

    def step() -> Data:
        m = mjtorch.put_model(mj_model, dtype=torch.float32)
        return mjtorch.step(m, mjtorch.put_data(mj_model, mj_data, model=m))

    wanted = step()
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)
    for (path, x), y in zip(tree.leaves_with_path(step()), tree.leaves(wanted), strict=True):
        assert x.dtype == y.dtype and torch.equal(x.nan_to_num(), y.nan_to_num()), path


@pytest.mark.parametrize("model", ["collection/hopper", "feature/contacts"])
def test_autocast_does_not_matter(model: str) -> None:
    """Nothing is rounded to 16 bits where a policy around it is, or where the program is made there."""
    mj_model = load(model)
    m = mjtorch.put_model(mj_model, dtype=torch.float32)
    batch = mjtorch.batch(mjtorch.put_data(mj_model, random_state(mj_model), model=m), WORLDS)

    def run() -> list[Data]:
        jitted = mjtorch.jit(mjtorch.step, in_dims=(None, 0))
        return [mjtorch.step(m, tree.unstack(batch)[0]), many(m, batch), jitted(m, batch)]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run()  # first: what is traced here is found again outside
    for x, y in zip(found, run(), strict=True):
        assert_fields_close(x, y, FIELDS, 0.0)


@pytest.mark.parametrize("model", slow_but(MODELS, *VARIED))
def test_models_are_row_major(model: str) -> None:
    """Compilers are wrong about the strides of what is indexed by other tensors."""
    leaves = tree.leaves_with_path(case(model).m)
    assert not [path for path, x in leaves if not x.is_contiguous()]


@pytest.mark.parametrize("model", slow_but(FEATURES + COLLECTION, *VARIED, *COLLECTION))
def test_output_has_the_layout_of_a_fresh_data(model: str) -> None:
    """Compilers specialise on strides: an output laid out like a fresh `Data` can be the next input."""
    this = case(model)
    one, batch = mjtorch.step(this.m, this.datas[0]), many(this.m, tree.stack(this.datas))
    for d, like in ((one, this.datas[0]), (batch, tree.stack(this.datas))):
        assert strides(d) == strides(like)


def strides(d: Data) -> dict[str, tuple[int, ...]]:
    return {name: x.stride() for name, x in tree.leaves_with_path(d)}
