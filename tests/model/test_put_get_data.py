"""`put_data` and `get_data`: there and back, in every layout that MuJoCo has."""

import dataclasses
import re

import mujoco
import numpy as np
import pytest
import torch
from reference import COMPUTED, FEATURES, GYM, MODELS, VARIED, case, load, random_state, slow_but

from mjtorch import tree
from mjtorch.model import get_data, make_data, put_data, put_model
from mjtorch.model.put_data import contact_slots

FIELDS = (
    "time qpos qvel act qacc_warmstart ctrl qfrc_applied xfrc_applied eq_active mocap_pos mocap_quat userdata xpos "
    "xquat xmat xipos ximat xanchor xaxis geom_xpos geom_xmat site_xpos site_xmat cam_xpos cam_xmat light_xpos "
    "light_xdir subtree_com cdof cinert crb ten_length ten_J actuator_length actuator_moment moment_rownnz "
    "moment_colind M qLD qLDiagInv ten_velocity actuator_velocity cvel cdof_dot qfrc_bias qfrc_spring qfrc_damper "
    "qfrc_gravcomp qfrc_fluid qfrc_passive subtree_linvel subtree_angmom act_dot actuator_force qfrc_actuator "
    "qfrc_smooth qacc_smooth qfrc_constraint qacc qfrc_inverse tree_asleep tree_awake body_awake cacc cfrc_int "
    "cfrc_ext energy sensordata ncon ne nf nl nefc efc_type efc_id efc_pos efc_margin efc_frictionloss efc_KBIP efc_D "
    "efc_R efc_vel efc_aref efc_b efc_force efc_state"
)
CONTACT = (
    "dist pos frame includemargin friction solref solreffriction solimp geom geom1 dim exclude efc_address mu flex"
)


def assert_same(found: mujoco.MjData, wanted: mujoco.MjData, rtol: float) -> None:
    for name in FIELDS.split():
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=rtol, atol=rtol, err_msg=name)
    for name in CONTACT.split():
        a, w = getattr(found.contact, name), getattr(wanted.contact, name)
        np.testing.assert_allclose(a, w, rtol=rtol, atol=rtol, err_msg=f"contact.{name}")
    np.testing.assert_allclose(jacobian(found), jacobian(wanted), rtol=rtol, atol=rtol, err_msg="efc_J")


def jacobian(mj_data: mujoco.MjData) -> np.ndarray:
    """efc_J, dense."""
    mj_model = mj_data.model
    if not mujoco.mj_isSparse(mj_model):
        return mj_data.efc_J.reshape(-1, mj_model.nv)
    dense = np.zeros((mj_data.nefc, mj_model.nv))
    if mj_data.nefc:
        sparse = (mj_data.efc_J_rownnz, mj_data.efc_J_rowadr, mj_data.efc_J_colind)
        mujoco.mju_sparse2dense(dense, mj_data.efc_J, *sparse)
    return dense


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("model", slow_but(MODELS, *VARIED, *MODELS[::4]))
def test_round_trip(model: str, sparse: bool) -> None:
    mj_model = load(model, jacobian=int(sparse))
    m = put_model(mj_model, dtype=torch.float64)
    for seed in range(2):
        mj_data = random_state(mj_model, seed)
        assert_same(get_data(mj_model, put_data(mj_model, mj_data, model=m)), mj_data, 1e-12)


@pytest.mark.parametrize("cone", [0, 1])
def test_round_trip_of_every_condim(cone: int) -> None:
    mj_model = load("feature/contacts", cone=cone)
    dims = set()
    for seed in range(6):
        mj_data = random_state(mj_model, seed)
        assert_same(get_data(mj_model, put_data(mj_model, mj_data, dtype=torch.float64)), mj_data, 1e-12)
        dims |= set(mj_data.contact.dim.tolist())
    assert dims == {1, 3, 4, 6}


def test_paths_of_tendons_are_there_to_be_drawn() -> None:
    this = case("feature/tendon_wrap")
    found, wanted = get_data(this.mj_model, this.datas[0]), this.mj_datas[0]
    np.testing.assert_allclose(found.wrap_xpos, wanted.wrap_xpos, atol=1e-12)
    assert (found.wrap_obj == wanted.wrap_obj).all()


def test_batch_gives_a_list() -> None:
    this = case("gym/humanoid")
    worlds = get_data(this.mj_model, tree.stack(this.datas))
    assert isinstance(worlds, list)
    assert len(worlds) == len(this.datas)
    for found, wanted in zip(worlds, this.mj_datas, strict=True):
        assert_same(found, wanted, 1e-12)


def test_float32_is_close() -> None:
    mj_model = load("gym/hopper")
    mj_data = random_state(mj_model, 1)
    d = put_data(mj_model, mj_data, dtype=torch.float32)
    assert d.qpos.dtype == d.efc_J.dtype == d.contact.dist.dtype == torch.float32
    np.testing.assert_allclose(get_data(mj_model, d).qacc, mj_data.qacc, rtol=1e-6)


def test_result_can_be_stepped_by_mujoco() -> None:
    this = case("gym/ant")
    found = get_data(this.mj_model, this.datas[0])
    wanted = mujoco.MjData(this.mj_model)
    mujoco.mj_copyData(wanted, this.mj_model, this.mj_datas[0])
    for mj_data in (found, wanted):
        mujoco.mj_step(this.mj_model, mj_data)
    np.testing.assert_allclose(found.qpos, wanted.qpos, rtol=1e-12)


@pytest.mark.parametrize("model", FEATURES + GYM)
def test_state_alone(model: str) -> None:
    """A fresh MjData is what make_data gives; with sleeping enabled C has computed what follows."""
    mj_model = load(model)
    m = put_model(mj_model, dtype=torch.float64)
    found, wanted = put_data(mj_model, mujoco.MjData(mj_model), model=m), make_data(m)
    for (name, a), (_, w) in zip(tree.leaves_with_path(found), tree.leaves_with_path(wanted), strict=True):
        assert a.dtype == w.dtype, name
        assert a.shape == w.shape, name
        assert a.stride() == w.stride(), name
        assert (m.plan.sleep and name.split(".")[0] in (*COMPUTED, "contact")) or torch.equal(a, w), name


def test_contacts_without_a_slot_are_counted() -> None:
    mj_model = load("feature/contacts")
    mj_data = random_state(mj_model, 3)
    m = put_model(mj_model, dtype=torch.float64, contact_capacity=4)
    d = put_data(mj_model, mj_data, model=m)
    kept = int(d.contact.detected.sum())
    assert 0 < kept <= 4 < mj_data.ncon
    assert d.warning[mujoco.mjtWarning.mjWARN_CONTACTFULL] == mj_data.ncon - kept
    assert get_data(mj_model, d).ncon == kept


def test_contact_slots_keep_the_closest_in_order() -> None:
    dim, dist = np.array([3, 1, 3, 3]), np.array([0.3, 0.0, -0.1, 0.2])
    slots, lost = contact_slots((1, 3, 3), dim, dist)
    assert slots.tolist() == [-1, 0, 1, 2]
    assert lost == 1


def test_put_data_does_not_share_memory() -> None:
    mj_model = load("gym/hopper")
    mj_data = random_state(mj_model, 0)
    d = put_data(mj_model, mj_data, dtype=torch.float64)
    before = d.qpos.clone()
    mj_data.qpos[:] = 7.0
    assert torch.equal(d.qpos, before)


def test_errors_name_the_argument() -> None:
    hopper, ant = load("gym/hopper"), load("gym/ant")
    m, d = put_model(hopper), mujoco.MjData(hopper)
    with pytest.raises(TypeError, match=r"put_data: mj_model must be a mujoco\.MjModel, got Model"):
        put_data(m, d)
    with pytest.raises(TypeError, match=r"put_data: mj_data must be a mujoco\.MjData, got Data"):
        put_data(hopper, make_data(m))
    with pytest.raises(ValueError, match=re.escape("mj_data.qpos has 6 rows, but mj_model has nq = 15")):
        put_data(ant, d)
    with pytest.raises(ValueError, match="model has nq = 6, but mj_model has 15; pass what put_model"):
        put_data(ant, mujoco.MjData(ant), model=m)
    with pytest.raises(ValueError, match="device and dtype are those of `model`"):
        put_data(hopper, d, model=m, dtype=torch.float32)
    with pytest.raises(TypeError, match="get_data: d must be a mjtorch Data, got MjData"):
        get_data(hopper, d)
    with pytest.raises(ValueError, match=re.escape("d.qpos must have shape (15,) for one world or (worlds, 15)")):
        get_data(ant, make_data(m))
    short = dataclasses.replace(make_data(m), efc_D=torch.zeros(3))
    with pytest.raises(ValueError, match="d has 3 constraint rows"):
        get_data(hopper, short)
