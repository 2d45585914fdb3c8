"""Islands against C, on every model and on scenes made for them."""

import mujoco
import numpy as np
import pytest
import torch
from reference import MODELS, SINCE_4, VARIED, case_of, load, slow_but

import mjtorch
from mjtorch import tree
from mjtorch.model.get_data import _Layout

BY_ISLAND = "ntree itreeadr nv idofadr dofadr ne nf nefc iefcadr".split()
BALL = '<body pos="{}"><freejoint/><geom size=".1" mass="1"/></body>'
# Balls in a row that touch in an order of their own, two rows apart, one ball that touches nothing.
CHAIN = "".join(BALL.format(f"{0.19 * k} 0 1") for k in (4, 0, 5, 2, 1, 3))
MIDDLE = 3
OTHER = "".join(BALL.format(f"{0.19 * k} 3 .099") for k in (0, 2, 1)) + BALL.format("0 0 4")
SLIDERS = "".join(
    f'<body pos="{k} 6 1"><joint name="s{k}" type="slide" frictionloss="{k % 2}"/><geom size=".1"/></body>'
    for k in range(5)
)
SCENE = f"""<mujoco><option gravity="0 0 0"/><worldbody><geom type="plane" size="9 9 1"/>{CHAIN}{OTHER}{SLIDERS}
<site name="a" pos="9 0 1"/></worldbody>
<tendon><fixed name="t" limited="true" range="1 2"><joint joint="s4" coef="1"/><joint joint="s0" coef="1"/>
<joint joint="s2" coef="1"/></fixed></tendon>
<equality><joint joint1="s3" joint2="s2" active="{{active}}"/></equality></mujoco>"""


def assert_matches_c(m: mjtorch.Model, mj_model: mujoco.MjModel, mj_data: mujoco.MjData) -> None:
    """`mj_data`: what `mj_forward` gave with islands."""
    d = mjtorch.put_data(mj_model, mj_data, model=m)
    found = tree.map(lambda x: x.numpy(), mjtorch.island(m, d))
    n = mj_data.nisland
    assert (found.nisland, found.nidof) == (n, mj_data.nidof)
    for name in BY_ISLAND:
        values = getattr(found, f"island_{name}")
        assert values.tolist() == [*getattr(mj_data, f"island_{name}")[:n], *[0] * (mj_model.ntree - n)], name
    if not n:
        assert (found.tree_island == -1).all() and (found.efc_island == -1).all()
        return
    for name in ("tree_island", "map_itree2tree", "dof_island", "map_dof2idof", "map_idof2dof"):
        assert getattr(found, name).tolist() == getattr(mj_data, name).tolist(), name
    layout = _Layout(mj_model, d.contact.dim)
    host = tree.map(lambda x: x.numpy(), d)
    rows = layout.rows(host, layout.contacts(host))
    assert found.efc_island[rows].tolist() == mj_data.efc_island.tolist()
    assert (np.delete(found.efc_island, rows) == -1).all()
    order = np.where(found.efc_island < 0, mj_model.ntree, found.efc_island)
    assert found.map_iefc2efc.tolist() == np.argsort(order, kind="stable").tolist()
    assert (found.map_efc2iefc[found.map_iefc2efc] == np.arange(m.plan.constraint.nefc)).all()


def with_islands(mj_model: mujoco.MjModel) -> mujoco.MjModel:
    mj_model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    return mj_model


@pytest.mark.parametrize("model", slow_but(MODELS, *VARIED, "feature/tendon_forces", "collection/pile"))
def test_islands_match_c(model: str) -> None:
    this = case_of(with_islands(load(model)), seeds=3)
    for mj_data in this.mj_datas:
        assert_matches_c(this.m, this.mj_model, mj_data)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("active", ["false", "true"])
def test_chains_match_c(active: str, sparse: bool) -> None:
    """Balls that touch, in another order than their numbers; tendons over three trees; equalities and friction."""
    mj_model = mujoco.MjModel.from_xml_string(SCENE.format(active=active))
    mj_model.opt.jacobian = mujoco.mjtJacobian.mjJAC_SPARSE if sparse else mujoco.mjtJacobian.mjJAC_DENSE
    mj_data = mujoco.MjData(mj_model)
    mujoco.mj_forward(mj_model, mj_data)
    assert mj_data.nisland == 5 - (active == "true")
    assert_matches_c(mjtorch.put_model(mj_model, dtype=torch.float64), mj_model, mj_data)


# What couples trees in the effective inertia, and what does not.
COUPLINGS = {
    "spring": ('stiffness="2" springlength="-1 1"', ""),
    "damping": ('damping="0 2"', ""),
    "armature": ('armature="2"', ""),
    "motor": ("", '<motor tendon="t"/>'),
    "reflected": ("", '<motor tendon="t" armature="2"/>'),
    "affine": ("", '<general tendon="t" biastype="affine"/>'),
    "dcmotor": ("", '<general tendon="t" gaintype="dcmotor" gainprm="2 .3" dynprm="0"/>'),
    "user": ("", '<general tendon="t" gaintype="user" biastype="user"/>'),
    "site": ("", '<position site="a" refsite="b" gear="0 0 1 0 0 0"/>'),
    "world": ("", '<position site="a" gear="0 0 1 0 0 0"/>'),
}


@SINCE_4
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_forces_join_trees_with_the_integrator_discrete(coupling: str) -> None:
    tendon, actuator = COUPLINGS[coupling]
    sliders = "".join(
        f'<body pos="{k} 0 1"><joint name="{k}" type="slide" frictionloss="{k // 2}"/><geom size=".1"/>'
        f'<site name="{"abc"[k]}"/></body>'
        for k in range(3)
    )
    mj_model = mujoco.MjModel.from_xml_string(f"""<mujoco>
        <option integrator="discrete"/><worldbody>{sliders}</worldbody>
        <tendon><fixed name="t" {tendon}><joint joint="0" coef="1"/><joint joint="1" coef="1"/></fixed></tendon>
        <actuator>{actuator}</actuator></mujoco>""")
    flags = mujoco.mjtDisableBit
    for solver in (mujoco.mjtSolver.mjSOL_NEWTON, mujoco.mjtSolver.mjSOL_PGS):
        for flag in (0, flags.mjDSBL_SPRING, flags.mjDSBL_DAMPER, flags.mjDSBL_ACTUATION):
            mj_model.opt.solver, mj_model.opt.disableflags = int(solver), int(flag)
            mj_data = mujoco.MjData(mj_model)
            mujoco.mj_forward(mj_model, mj_data)
            assert_matches_c(mjtorch.put_model(mj_model, dtype=torch.float64), mj_model, mj_data)


def test_there_are_none_without_rows_or_with_the_flag_disabled() -> None:
    mj_model = mujoco.MjModel.from_xml_string(SCENE.format(active="true"))
    mj_model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_ISLAND
    mj_data = mujoco.MjData(mj_model)
    mujoco.mj_forward(mj_model, mj_data)
    assert_matches_c(mjtorch.put_model(mj_model, dtype=torch.float64), mj_model, mj_data)
    still = mjtorch.put_model(mujoco.MjModel.from_xml_string("<mujoco/>"))
    assert mjtorch.island(still, mjtorch.forward(still, mjtorch.make_data(still))).nisland == 0


def test_each_world_has_its_own() -> None:
    """Compiled, and by `torch.vmap`: one world's chain is cut in the middle."""
    mj_model = mujoco.MjModel.from_xml_string(SCENE.format(active="true"))
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    d = mjtorch.forward(m, mjtorch.make_data(m))
    apart = mjtorch.forward(m, d.replace(qpos=d.qpos.index_fill(0, torch.tensor(7 * MIDDLE), 9.0)))
    alone = [mjtorch.island(m, x) for x in (d, apart)]
    both = tree.stack([d, apart])
    for run in (torch.vmap(mjtorch.island, in_dims=(None, 0)), mjtorch.jit(mjtorch.island, in_dims=(None, 0))):
        found = run(m, both)
        for k, wanted in enumerate(alone):
            for (name, x), y in zip(tree.leaves_with_path(wanted), tree.leaves(found), strict=True):
                assert torch.equal(x, y[k]), (run, name)
    assert alone[0].nisland != alone[1].nisland
