"""Contact forces, and what bodies feel of constraints, against C; the latter also in `tests/engine`."""

import mujoco
import numpy as np
import pytest
import torch
from reference import case, converged, load, random_state

import mjtorch
from mjtorch.constraint import contact_force, rne_postconstraint
from mjtorch.model import get_data

MODELS = ("feature/forces", "feature/contacts", "feature/pairs", "gym/ant", "gym/humanoid")


@pytest.mark.parametrize("model", MODELS)
def test_contact_force(model: str) -> None:
    this = case(model, converge=True)
    found = 0
    for mj_data, d in zip(this.mj_datas, this.datas, strict=True):
        force = contact_force(this.m, d)
        assert force.shape == (len(d.contact.dim), 6)
        assert not force[~d.contact.active].any()
        wanted = np.zeros((mj_data.ncon, 6))
        for k, row in enumerate(wanted):
            mujoco.mj_contactForce(this.mj_model, mj_data, k, row)
        # the slots of a `dim` are in C's order
        for dim in set(d.contact.dim):
            slots = torch.tensor(d.contact.dim) == dim
            mine = force[slots & d.contact.detected]
            np.testing.assert_allclose(mine, wanted[mj_data.contact.dim == dim], rtol=1e-12, atol=1e-12)
        found += mj_data.ncon
    assert found


@pytest.mark.parametrize("flags", ["SPRING", "DAMPER", "SPRING DAMPER", "FRICTIONLOSS LIMIT", "EQUALITY", "ACTUATION"])
def test_spatial_tendons(flags: str) -> None:
    """What each of their forces does to bodies, by leaving it out."""
    mj_model = converged(load("feature/tendon_spatial"))
    mj_model.eq_obj1id[0], mj_model.eq_obj2id[0] = mj_model.eq_obj2id[0], mj_model.eq_obj1id[0]
    for flag in flags.split():
        mj_model.opt.disableflags |= getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}")
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    for seed in range(2):
        mj_data = random_state(mj_model, seed)
        d = rne_postconstraint(m, mjtorch.put_data(mj_model, mj_data, model=m))
        for name in ("cfrc_ext", "cfrc_int"):
            wanted = getattr(mj_data, name)
            np.testing.assert_allclose(getattr(d, name), wanted, rtol=0, atol=1e-9 * np.abs(wanted).max())
        assert mj_data.cfrc_ext.any()

    def total(qvel: torch.Tensor) -> torch.Tensor:
        return rne_postconstraint(m, mjtorch.forward(m, d.replace(qvel=qvel))).cfrc_ext.sum()

    assert torch.func.grad(total)(d.qvel).isfinite().all()


def test_no_contacts() -> None:
    mj_model = load("feature/contacts")
    mj_model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    mj_data = random_state(mj_model)
    d = mjtorch.put_data(mj_model, mj_data, model=m)
    assert not contact_force(m, d).any()
    np.testing.assert_allclose(rne_postconstraint(m, d).cfrc_int, mj_data.cfrc_int, rtol=1e-9, atol=1e-9)


def test_weight_rests_on_the_floor() -> None:
    """At rest the world carries what all bodies weigh, and contacts push up with as much."""
    mj_model = load("collection/pile", timestep=0.005)
    mj_data = mujoco.MjData(mj_model)
    mj_model.dof_damping[:] = 1.0
    for _ in range(1500):
        mujoco.mj_step(mj_model, mj_data)
    m = mjtorch.put_model(mj_model, dtype=torch.float64, contact_capacity=int(mj_data.ncon) + 8)
    d = mjtorch.forward(m, mjtorch.put_data(mj_model, mj_data, model=m))
    pushed = rne_postconstraint(m, d).cfrc_ext.sum(0)[5]
    torch.testing.assert_close(pushed, 9.81 * m.body_mass.sum(), rtol=0.02, atol=0.0)


@pytest.mark.parametrize("model", [pytest.param("feature/forces", marks=pytest.mark.slow), "feature/contacts"])
def test_vmap_jit_and_gradient(model: str) -> None:
    this = case(model, converge=True)

    def felt(m: mjtorch.Model, d: mjtorch.Data) -> mjtorch.Data:
        return rne_postconstraint(m, mjtorch.forward(m, d))

    worlds = mjtorch.tree.stack(this.datas)
    wanted = mjtorch.tree.stack([felt(this.m, d) for d in this.datas])
    for transform in (torch.vmap(felt, (None, 0)), mjtorch.jit(felt, in_dims=(None, 0), strict=True)):
        found = transform(this.m, worlds)
        for name in ("cacc", "cfrc_int", "cfrc_ext", "sensordata"):
            scale = getattr(wanted, name).abs().max() if getattr(wanted, name).numel() else 1.0
            torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=0, atol=1e-9 * float(scale))

    def total(qvel: torch.Tensor, d: mjtorch.Data) -> torch.Tensor:
        d = felt(this.m, d.replace(qvel=qvel))
        return d.cfrc_int.abs().sum() + d.cfrc_ext.square().sum() + d.sensordata.sum()

    for d in this.datas:
        assert torch.func.grad(total)(d.qvel, d).isfinite().all()
    assert get_data(this.mj_model, felt(this.m, this.datas[0])).cfrc_int.any()
