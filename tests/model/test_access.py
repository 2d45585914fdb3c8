"""Objects by name, worlds by number, copies, and what is saved."""

import io
import re
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from reference import Case, case, load

import mjtorch
from mjtorch import models, tree
from mjtorch.model.access import ALIASES, FIELDS, KINDS

MODELS = ("collection/humanoid", "feature/joints", "feature/servos", "feature/tendon_wrap", "feature/sensors")
MODELS += ("feature/weld", "feature/pairs")
# Kinds whose fields MuJoCo's bindings have, too.
IN_DATA = ("body", "joint", "geom", "site", "camera", "light", "tendon", "actuator", "sensor")
# In another form, or in another unit there: sizes of an actuator's part in a matrix, which is sparse in C.
OTHERWISE = {"moment", "J", "quat"}
# Where MuJoCo's binding has one row of each actuator, and it may have several.
SEVERAL = {"ctrl", "length", "velocity", "force", "moment", "gear", "acc0", "length0", "lengthrange", "ctrlrange"}
# Fields of joints and of dofs.
BOTH = {"bodyid", "solref", "solimp"}
WORLDS = 3


@pytest.mark.parametrize("name", MODELS)
def test_fields_are_those_of_mujocos_bindings(name: str) -> None:
    this = case(name, seeds=2)
    d, mj_data, mj_model = this.datas[1], this.mj_datas[1], this.mj_model
    several = SEVERAL if this.m.nout != this.m.nactuator or this.m.nu != this.m.nactuator else set()
    compared = 0
    for kind, k in KINDS.items():
        for i in range(getattr(this.m, k.size)):
            pairs = [(getattr(this.m, kind)(i), getattr(mj_model, kind)(i))]
            pairs += [(getattr(d, kind)(this.m, i), getattr(mj_data, kind)(i))] if kind in IN_DATA else []
            for mine, wanted in pairs:
                assert (mine.id, mine.name) == (wanted.id, wanted.name)
                for field in (set(dir(mine)) & set(dir(wanted))) - {"id", "name", "set"} - OTHERWISE - several:
                    both = kind == "joint" and field in BOTH  # theirs is that of the dofs
                    theirs = np.ravel(getattr(mj_model, f"jnt_{field}")[i] if both else getattr(wanted, field))
                    ours = np.ravel(getattr(mine, field))
                    np.testing.assert_allclose(ours.astype(float), theirs, atol=1e-12, err_msg=f"{kind} {i} {field}")
                    compared += 1
    assert compared > 100


def test_every_field_that_the_table_names_exists() -> None:
    fields = {*mjtorch.Model.__dataclass_fields__, *mjtorch.Data.__dataclass_fields__}
    assert {field for many in FIELDS.values() for field in many.split()} <= fields
    known = {*ALIASES, *KINDS}
    assert all(callable(getattr(mjtorch.put_model(load("feature/weld")), kind)) for kind in known)


@pytest.fixture(scope="module")
def humanoid() -> Case:
    return case("collection/humanoid", seeds=WORLDS)


def test_names_and_ids(humanoid: Case) -> None:
    for kind in KINDS.values():
        for name in range(getattr(humanoid.m, kind.size)):
            wanted = mujoco.mj_id2name(humanoid.mj_model, int(kind.objtype), name)
            assert mjtorch.id2name(humanoid.m, kind.objtype, name) == wanted
            assert wanted is None or mjtorch.name2id(humanoid.m, kind.objtype, wanted) == name
    assert mjtorch.name2id(humanoid.m, mujoco.mjtObj.mjOBJ_XBODY, "torso") == 2
    assert mjtorch.name2id(humanoid.m, mjtorch.ObjType.BODY, "nobody") == mjtorch.name2id(humanoid.m, 1, "") == -1
    assert mjtorch.id2name(humanoid.m, 1, 99) is mjtorch.id2name(humanoid.m, 1, -1) is None
    with pytest.raises(ValueError, match=r"name2id: type must be the mjtObj of one of body, joint, .*, got 23"):
        mjtorch.name2id(humanoid.m, 23, "x")


def test_several_objects_of_many_worlds(humanoid: Case) -> None:
    m, d = humanoid.m, tree.stack(humanoid.datas)
    feet = d.body(m, ["left_foot", "right_foot"])
    assert feet.name == ("left_foot", "right_foot") and feet.xpos.shape == (WORLDS, 2, 3)
    assert torch.equal(feet.xpos, d.xpos[:, list(feet.id)])
    root = d.jnt(m, "root")
    assert root.qpos.shape == (WORLDS, 7) and root.qvel.shape == (WORLDS, 6)
    both = d.joint(m, ["left_knee", "root"])
    assert torch.equal(both.qpos, torch.cat([d.joint(m, "left_knee").qpos, root.qpos], dim=1))
    assert torch.equal(d.sensor(m, "gyro").data, d.sensordata[:, 3:6])
    heavy = m.replace(body_mass=m.body_mass.expand(WORLDS, -1))
    assert heavy.body("torso").mass.shape == (WORLDS,) and heavy.body("torso").pos.shape == (3,)
    assert "of each world: body_mass" in repr(heavy) and "nsite=3: imu, left_sole, right_sole" in repr(m)


def test_set(humanoid: Case) -> None:
    m, d = humanoid.m, tree.stack(humanoid.datas)
    new = d.joint(m, ["left_knee", "root"]).set("qvel", torch.arange(7.0))
    assert torch.equal(new.joint(m, "root").qvel, torch.arange(1.0, 7.0).double().expand(WORLDS, -1))
    assert torch.equal(new.joint(m, "right_knee").qvel, d.joint(m, "right_knee").qvel)
    pushed = d.body(m, "torso").set("xfrc_applied", [0, 0, 1, 0, 0, 0])
    assert pushed.body(m, "torso").xfrc_applied.sum() == WORLDS and pushed.body(m, "torso").xfrc_applied[1, 2] == 1
    assert m.body("torso").set("mass", 3.0).body_mass[2] == 3.0 and m.body_mass[2] != 3.0
    assert d.body(m, "torso").set("mass", 3.0).body_mass[2] == 3.0, "a Bound of both changes the one that has it"
    with pytest.raises(ValueError, match="body: body_parentid is static"):
        m.body("torso").set("parentid", 0)


@pytest.mark.parametrize(
    "look, error, says",
    [
        (lambda m, d: m.body("tors"), KeyError, "there is none called 'tors'; did you mean torso"),
        (lambda m, d: m.site(["imu", "x"]), KeyError, "site: there is none called 'x'; did you mean imu or left_sole"),
        (lambda m, d: m.geom(19), IndexError, "geom: there is no number 19; there are 19"),
        (lambda m, d: m.body("torso").maas, AttributeError, "body has no field 'maas'; did you mean mass"),
        (lambda m, d: m.body("torso").xpos, AttributeError, "what a Data holds is in d.bind(m, ...)"),
        (lambda m, d: d.bind(m, 3), TypeError, "bind: objects must be those of a mujoco.MjSpec or MjModel"),
        (lambda m, d: d.bind(m, []), TypeError, "bind: objects must be of one kind, got none"),
        (lambda m, d: d.bind(m, [m.body(0), m.geom(0)]), TypeError, "bind: objects must be"),
        (
            lambda m, d: d.body("torso"),
            TypeError,
            "body: a Data has no names; give the model first: d.body(m, ",
        ),
        (lambda m, d: len(d), TypeError, "this Data is one world, and has no length"),
        (lambda m, d: d[0], TypeError, "this Data is one world, and has no parts"),
    ],
)
def test_errors(humanoid: Case, look: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=re.escape(says)):
        look(humanoid.m, humanoid.datas[0])


def test_bind_takes_objects_of_specs_and_models(humanoid: Case) -> None:
    m, d = humanoid.m, humanoid.datas[0]
    spec = mujoco.MjSpec.from_file(str(models.path("humanoid")))
    spec.compile()
    assert torch.equal(d.bind(m, spec.body("torso")).xpos, d.xpos[2])
    assert torch.equal(d.bind(m, spec.sites).xpos, d.site_xpos)
    assert torch.equal(m.bind(spec.actuators).gear, m.actuator_gear)
    for thing in (humanoid.mj_model.joint("root"), humanoid.mj_datas[0].joint("root"), m.joint("root")):
        assert torch.equal(d.bind(m, thing).qpos, d.qpos[:7])


def test_in_every_mode(humanoid: Case) -> None:
    m, many = humanoid.m, tree.stack(humanoid.datas)

    def lift(m: mjtorch.Model, d: mjtorch.Data) -> tuple[torch.Tensor, mjtorch.Data]:
        feet = d.bind(m, FEET)
        return feet.xpos[:, 2].mean() * m.body("torso").mass, d.actuator(m, "left_knee").set("ctrl", feet.xpos[:1, 2])

    FEET = m.body(["left_foot", "right_foot"])
    wanted = many.xpos[:, list(FEET.id), 2]
    for run in (torch.vmap, mjtorch.jit):
        height, d = run(lift, in_dims=(None, 0))(m, many)
        torch.testing.assert_close(height, wanted.mean(1) * m.body_mass[2])
        torch.testing.assert_close(d.ctrl[:, m.actuator("left_knee").id], wanted[:, 0])


# --- worlds, copies, files ---


def test_worlds(humanoid: Case) -> None:
    d = tree.stack(humanoid.datas)
    assert (
        len(d) == WORLDS
        and bool(d)
        and bool(d[0])
        and len(d[1:]) == 2
        and len(d[torch.tensor([True, False, True])]) == 2
    )
    for world, one in zip(d, humanoid.datas, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(tree.leaves(world), tree.leaves(one), strict=True))
    with pytest.raises(IndexError):
        d[WORLDS]


def test_where_takes_one_world_for_many(humanoid: Case) -> None:
    d, fresh, done = tree.stack(humanoid.datas), mjtorch.make_data(humanoid.m), torch.tensor([True, False, True])
    wanted = tree.where(done, tree.batch(fresh, WORLDS), d)
    for found in (tree.where(done, fresh, d), tree.where(~done, d, fresh)):
        assert all(torch.equal(a, b) for a, b in zip(tree.leaves(found), tree.leaves(wanted), strict=True))
    with pytest.raises(ValueError, match="where: leaf time has shapes"):
        tree.where(done, tree.batch(fresh, 2), d)
    with pytest.raises(ValueError, match="where: leaf time has shapes"):
        tree.where(done, fresh, fresh)


def test_to_clone_detach(humanoid: Case) -> None:
    d = humanoid.datas[0].replace(ctrl=humanoid.datas[0].ctrl.clone().requires_grad_())
    for single in (d.to(torch.float32), d.to("cpu", dtype=torch.float32), d.to(dtype=torch.float32)):
        assert single.qpos.dtype == single.contact.dist.dtype == torch.float32 and single.ncon.dtype == torch.int64
    m = humanoid.m.to(torch.float32)
    assert mjtorch.step(m, d.to(torch.float32)).qpos.dtype == torch.float32
    assert m.to("meta").qpos0.device.type == "meta"
    assert d.clone().qpos.data_ptr() != d.qpos.data_ptr() and torch.equal(d.clone().qpos, d.qpos)
    assert not d.detach().ctrl.requires_grad


def test_save_and_load(humanoid: Case) -> None:
    """With the default of `torch.load`, which unpickles tensors only."""
    d = tree.stack(humanoid.datas)
    file = io.BytesIO()
    torch.save(tree.state_dict(d), file)
    file.seek(0)
    back = tree.load_state_dict(mjtorch.make_data(humanoid.m), torch.load(file))
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(back), tree.leaves(d), strict=True))
    m = tree.load_state_dict(humanoid.m, tree.map(lambda x: 2 * x, tree.state_dict(humanoid.m)))
    assert torch.equal(m.body_mass, 2 * humanoid.m.body_mass)
    assert torch.equal(m.plan.kinematics.body_dof, humanoid.m.plan.kinematics.body_dof), "constants are not parameters"
    for state in ({}, tree.state_dict(d) | {"x": d.time}):
        with pytest.raises(
            KeyError, match=r"load_state_dict: state (lacks|has in excess) .*; it is that of another tree"
        ):
            tree.load_state_dict(d, state)


def test_reset_of_many_worlds() -> None:
    this = case("gym/hopper")
    d = tree.stack(this.datas[:2])
    assert mjtorch.reset_data(this.m, d).qpos.shape == (2, this.m.nq)
    m = mjtorch.put_model(load("collection/quadruped"), dtype=torch.float64)
    many = mjtorch.batch(mjtorch.make_data(m), WORLDS)
    assert m.nkey
    for key in (0, torch.tensor(0), torch.zeros(WORLDS, dtype=torch.int64)):
        reset = mjtorch.reset_data_keyframe(m, many, key)
        assert torch.equal(reset.qpos, m.key_qpos[:1].expand(WORLDS, -1)) and reset.mocap_pos.shape == (WORLDS, 0, 3)
        assert len(reset) == WORLDS and reset.xpos.shape[0] == WORLDS
