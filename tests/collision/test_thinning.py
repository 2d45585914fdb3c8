"""Of very many contacts of a rigid flex or a grid with one thing, those are kept that C keeps."""

import mujoco
import numpy as np
import pytest
import torch
from collision.convex_pairs import IS_RECENT

import mjtorch
from mjtorch.model.plan.thinning import MOST

FLEX = """<flexcomp name="a" type="{type}" dim="{dim}" count="{count}" spacing=".05 .05 .05" pos="{pos}" radius=".01"
  dof="{dof}" mass="1" rigid="{rigid}">{elasticity}<contact selfcollide="none"/></flexcomp>"""
SOFT = '<elasticity young="1e4" poisson=".1" damping=".01"/>'
GRID = {"type": "grid", "dim": 3, "count": "9 9 2", "pos": "0 0 .027", "rigid": "false"}


PLANES = '<geom type="plane" size="2 2 .1"/><geom type="plane" size="2 2 .1" pos="-.18 0 0" zaxis="1 0 .1"/>'
SCENES = {
    "grid": PLANES + FLEX.format(**GRID, dof="trilinear", elasticity=SOFT),
    "shell on a grid": '<geom type="box" size=".15 .18 .1" euler="3 5 0"/>'
    + FLEX.format(
        type="ellipsoid", dim=2, count="12 12 12", pos="0 0 .28", rigid="false", dof="trilinear", elasticity=SOFT
    ),
    "rigid": PLANES
    + '<body name="b"><freejoint/><geom size=".01" contype="0" conaffinity="0"/>'
    + FLEX.format(**GRID | {"rigid": "true"}, dof="full", elasticity="")
    + "</body>",
    "of full dofs": PLANES + FLEX.format(**GRID, dof="full", elasticity=""),
}


def scene(name: str) -> tuple[mujoco.MjModel, mjtorch.Model]:
    mj_model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><option integrator="discrete"/><size memory="50M"/><worldbody>{SCENES[name]}</worldbody></mujoco>"""
    )
    # Rigid ones are bent here, others in their states: so that no two contacts are as far from others.
    mj_model.flex_vert += 1e-3 * np.random.default_rng(0).normal(size=mj_model.flex_vert.shape)
    return mj_model, mjtorch.put_model(mj_model, dtype=torch.float64, contact_capacity=400)


def bent(mj_model: mujoco.MjModel, seed: int) -> mujoco.MjData:
    mj_data = mujoco.MjData(mj_model)
    mujoco.mj_integratePos(mj_model, mj_data.qpos, np.random.default_rng(seed).normal(size=mj_model.nv), 2e-3)
    mujoco.mj_forward(mj_model, mj_data)
    return mj_data


@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 keeps them")
@pytest.mark.parametrize("name", SCENES)
def test_those_are_kept_that_c_keeps(name):
    mj_model, m = scene(name)
    assert bool(m.plan.collision.thinning) == (name != "of full dofs")
    for seed in range(2):
        mj_data = bent(mj_model, seed)
        theirs = np.concatenate(
            [mj_data.contact.geom[:, :1], mj_data.contact.dist[:, None], mj_data.contact.pos], axis=1
        )
        assert len(theirs) >= MOST
        d = mjtorch.collision(m, mjtorch.put_data(mj_model, mj_data, model=m))
        c = d.contact
        ours = torch.cat([c.geom[:, :1], c.dist[:, None], c.pos], dim=1)[c.detected].numpy()
        assert d.warning.sum() == 0 and len(ours) == len(theirs)
        order = [np.lexsort(np.round(x, 7).T) for x in (ours, theirs)]
        np.testing.assert_allclose(ours[order[0]], theirs[order[1]], rtol=0, atol=1e-8)


@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 keeps them")
def test_of_each_world_its_own():
    """Side by side and compiled, of worlds in which there are too many contacts, and one in which there are few."""
    mj_model, m = scene("grid")
    datas = [mjtorch.put_data(mj_model, bent(mj_model, seed), model=m) for seed in range(3)]
    datas[1] = datas[1].replace(flexvert_xpos=datas[1].flexvert_xpos + torch.tensor([0.0, 0.0, 0.02]))
    alone = [mjtorch.collision(m, d) for d in datas]
    together = mjtorch.tree.map(lambda *x: torch.stack(x), *datas)
    assert alone[1].ncon < MOST <= alone[0].ncon
    for run in (torch.vmap(mjtorch.collision, in_dims=(None, 0)), mjtorch.jit(mjtorch.collision, in_dims=(None, 0))):
        found = run(m, together)
        for k, d in enumerate(alone):
            assert torch.equal(found.contact.detected[k], d.contact.detected)
            torch.testing.assert_close(found.contact.pos[k], d.contact.pos, rtol=0, atol=1e-12)
    single = mjtorch.put_model(mj_model, dtype=torch.float32, contact_capacity=400)
    d = mjtorch.put_data(mj_model, bent(mj_model, 0), model=single)
    one = mjtorch.jit(mjtorch.collision, in_dims=(None, 0))(single, mjtorch.batch(d, 1))
    assert one.ncon.tolist() == [int(alone[0].ncon)]
