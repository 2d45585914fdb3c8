"""Large sheets of which equalities hold the edges: no row is stored of all dofs."""

import mujoco
import pytest
import torch
from reference import SINCE_4, assert_fields_close, load

import mjtorch
from mjtorch.constraint import bodies
from mjtorch.model import Model, put_data, put_model

pytestmark = SINCE_4

# A sheet of 9 x 8 vertices, two of them pinned, on a ball: all that moves slides.
SHEET = """
<mujoco>
  <option timestep="1e-3" tolerance="1e-12" iterations="100"/>
  <worldbody>
    <geom type="plane" size="0 0 1" pos="0 0 -.1"/><geom size=".2" pos=".02 .03 -.19" friction=".7"/>{more}
    <flexcomp name="sheet" type="grid" count="9 8 1" spacing=".05 .05 .05" mass=".2" radius=".01" dim="2" pos="0 0 .03">
      <contact selfcollide="none"/><edge equality="true" damping=".01"/><pin id="0 8"/>
    </flexcomp>
  </worldbody>
  <equality>{held}</equality>
</mujoco>
"""
# Beside it a crate that is held at a point, and a slide at its limit: edges are neither the first rows nor all.
CRATE = """<body name="crate" pos=".1 .1 .15"><freejoint/><geom type="box" size=".05 .05 .05" mass=".1"/></body>
  <body pos="2 0 1"><joint type="slide" axis="0 0 1" range="-.01 .3" limited="true" frictionloss=".1"/>
    <geom size=".05"/></body>"""
MODELS = {
    "slides": (SHEET.format(more="", held=""), False),
    "crate": (SHEET.format(more=CRATE, held='<connect body1="crate" anchor="0 0 .05"/>'), True),
}


def moved(model: str) -> tuple[Model, mujoco.MjModel, mujoco.MjData]:
    """A sheet that has fallen on the ball."""
    mj_model = load(MODELS[model][0])
    mj_data = mujoco.MjData(mj_model)
    for _ in range(60):
        mujoco.mj_step(mj_model, mj_data)
    mujoco.mj_forward(mj_model, mj_data)
    return put_model(mj_model, dtype=torch.float64), mj_model, mj_data


@pytest.mark.parametrize("model", MODELS)
def test_rows_are_those_of_all_dofs_and_give_what_c_does(model: str) -> None:
    m, mj_model, mj_data = moved(model)
    (forest,), (plan,) = m.plan.solver.forest, m.plan.solver.bodies
    assert plan.turning == MODELS[model][1] and len(plan.edges) == 1 and not len(forest.shared)
    for _ in range(3):
        d = mjtorch.forward(m, put_data(mj_model, mj_data, model=m))
        rows = bodies.build(m, d)
        x, y = torch.randn(m.nv, dtype=torch.float64), torch.randn(m.plan.constraint.nefc, dtype=torch.float64)
        assert d.ncon > 10 and d.nefc > 200 + d.ncon
        assert torch.allclose(rows.dense(), d.efc_J)
        assert torch.allclose(rows.times(x), d.efc_J @ x)
        assert torch.allclose(rows.transpose_times(y), y @ d.efc_J)
        weight = y.abs() * (d.efc_D != 0)
        assert torch.allclose(rows.springs_times(rows.springs(weight), x), d.efc_J.mT @ (weight * (d.efc_J @ x)))
        assert_fields_close(d, mj_data, ["contact", "efc_D", "efc_J"], 1e-6, m=m)
        assert_fields_close(d, mj_data, ["qacc"], 1e-5, m=m)
        for _ in range(10):
            mujoco.mj_step(mj_model, mj_data)
        mujoco.mj_forward(mj_model, mj_data)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_worlds_compiled_are_as_one(model: str) -> None:
    m, mj_model, mj_data = moved(model)
    d = put_data(mj_model, mj_data, model=m)
    worlds = mjtorch.batch(d, 3).replace(qvel=d.qvel + 0.1 * torch.randn(3, m.nv, dtype=torch.float64))
    compiled = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)(m, worlds)
    eager = torch.vmap(mjtorch.step, in_dims=(None, 0))(m, worlds)
    assert torch.allclose(compiled.qvel, eager.qvel, atol=1e-8)
    alone = mjtorch.step(m, mjtorch.tree.map(lambda x: x[1], worlds))
    assert torch.allclose(compiled.qvel[1], alone.qvel, atol=1e-8)


@pytest.mark.slow
def test_derivative_is_that_of_differences() -> None:
    m, mj_model, mj_data = moved("slides")
    d = put_data(mj_model, mj_data, model=m)
    along = torch.randn(m.nv, dtype=torch.float64)

    def qacc(force: torch.Tensor) -> torch.Tensor:
        return mjtorch.forward(m, d.replace(qfrc_applied=force)).qacc

    zero = torch.zeros_like(along)
    _, found = torch.func.jvp(qacc, (zero,), (along,))
    wanted = (qacc(1e-5 * along) - qacc(-1e-5 * along)) / 2e-5
    assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))
