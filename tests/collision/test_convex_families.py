"""Convex shapes without a formula of their own, as parts of models: their contacts and steps against C."""

import itertools
from operator import itemgetter

import mujoco
import numpy as np
import pytest
import torch
from collision.contacts import FIELDS, double
from collision.convex_pairs import ASSETS, IS_RECENT, SHAPES, aligned_poses, posed, random_poses, two_geoms
from collision.test_convex import matches
from reference import converged, load, poison, random_state, slow_but

import mjtorch
from mjtorch.collision import collision
from mjtorch.collision.convex import Contacts
from mjtorch.model.plan.geom_pairs import CONVEX

# Flat and round shapes on a cylinder, of three condims, one with a margin.
SCENE = """<mujoco>
  <option timestep="0.003"/>
  <default>
    <geom solref=".015 1" solimp=".9 .95 .002" contype="0"/>
  </default>
  <worldbody>
    <geom type="cylinder" size=".5 .1" pos="0 0 -.1" contype="1" conaffinity="0" friction=".8 .02 .001"/>
    <body pos="0 0 .15">
      <freejoint/>
      <geom type="box" size=".1 .12 .15" mass="1" contype="2"/>
    </body>
    <body pos=".35 0 .05" euler="90 0 20">
      <freejoint/>
      <geom type="capsule" size=".05 .15" mass=".5" margin=".01" gap=".004" condim="4"/>
    </body>
    <body pos="-.32 0 .08">
      <freejoint/>
      <geom type="cylinder" size=".1 .08" mass=".5"/>
    </body>
    <body pos="0 0 .36" euler="10 40 0">
      <freejoint/>
      <geom type="ellipsoid" size=".05 .1 .07" mass=".4" conaffinity="2" condim="6"/>
    </body>
  </worldbody>
</mujoco>"""
# A mesh that comes first is a brick, one that comes second a wedge.
PAIRS = [tuple(pair.split("-")) for pair in CONVEX]
PAIRS = [(first.replace("mesh", "brick"), second.replace("mesh", "wedge")) for first, second in PAIRS]
POSES = 60


def batched(poses, m):
    """Our contacts of n poses, as those of n pairs of which each has a world for itself."""
    d = mjtorch.make_data(m)
    xpos = torch.tensor(np.stack([d.geom_xpos for d in poses.mj_data]))
    xmat = torch.tensor(np.stack([d.geom_xmat for d in poses.mj_data])).unflatten(-1, (3, 3))
    run = torch.vmap(lambda xpos, xmat: collision(m, d.replace(geom_xpos=xpos, geom_xmat=xmat)).contact)
    contact = run(xpos, xmat)
    first = contact.detected.long().argmax(-1)
    normal = contact.frame[torch.arange(len(first)), first, 0]
    return Contacts(contact.dist[:, None], contact.pos[:, None], normal[:, None], contact.detected[:, None])


@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 finds them")
@pytest.mark.parametrize("flag", slow_but(["enable", "disable"], "enable"))
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_contacts(first, second, flag):
    mj_model = two_geoms(first, second, 0.01, "><flag multiccd='" + flag + "'/></option><option")
    poses = posed(mj_model, random_poses(POSES, 0.4) + aligned_poses(POSES, 0.05))
    found = batched(poses, double(mj_model))
    several = flag == "enable" and not {"sphere", "ellipsoid"} & {first, second}
    assert found.dist.shape[-1] == (1 if not several else 2 if first == "capsule" else 4)
    match = matches(poses, found, 0.01, exact=False)
    assert match.number.mean() > 0.97 and len(match.same) > 0.2 * POSES
    # Of polygons that are regular, rounding decides which four corners span most area.
    assert match.same.mean() > (0.93 if several else 0.97)


@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 finds them")
@pytest.mark.parametrize(("first", "second"), [("cylinder", "box"), ("cylinder", "brick"), ("box", "brick")])
def test_an_edge_that_is_nearly_level(first, second):
    """With its lower corner in a face it makes two contacts, in the end of a cylinder one, on its rim two."""
    mj_model = two_geoms(first, second)
    size, poses = np.array([0.1, 0.15, 0.2]), []
    for tilt, roll, turn, x in itertools.product(
        (0.5, 2.0, 4.0, 6.0), (1.0, 3.0, 35.0, 60.0), (10.0, 77.0), (0.0, 0.08)
    ):
        quat, mat = np.zeros(4), np.zeros(9)
        mujoco.mju_euler2Quat(quat, np.deg2rad([roll, tilt, turn]), "XYZ")
        mujoco.mju_quat2Mat(mat, quat)
        reach = (np.abs(mat[6:]) * size).sum()
        pos = np.array([x, 0.01, mj_model.geom_size[0, 1 if first == "cylinder" else 2] + reach - 0.01])
        poses.append((np.zeros(3), np.array([1.0, 0, 0, 0]), pos, quat))
    found = batched(posed(mj_model, poses), double(mj_model))
    wanted = [len(d.contact) for d in posed(mj_model, poses).mj_data]
    assert found.exists[:, 0].sum(-1).tolist() == wanted
    assert {1, 2, 4} <= set(wanted)


@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 finds them")
@pytest.mark.parametrize(("lying", "counts"), [("cylinder", [2, 1, 1, 1]), ("capsule", [2, 2, 2, 1])])
def test_a_line_that_is_nearly_level_on_a_round_end(lying, counts):
    """A cylinder makes two contacts where its side is level, a capsule also where it is nearly so, as in C."""
    mj_model = two_geoms("cylinder", lying)
    radius, half = mj_model.geom_size[1, :2]
    poses = []
    for tilt, turn, roll in itertools.product(np.deg2rad([0.0, 0.3, 1.0, 8.0]), (0.3, 2.0, 4.0), (0.0, 1.0)):
        axis = np.array([np.cos(turn) * np.cos(tilt), np.sin(turn) * np.cos(tilt), -np.sin(tilt)])
        quat, about = np.zeros(4), np.array([np.cos(roll / 2), 0, 0, np.sin(roll / 2)])
        mujoco.mju_quatZ2Vec(quat, axis)
        mujoco.mju_mulQuat(quat, quat.copy(), about)
        reach = half * np.sin(tilt) + radius * (np.cos(tilt) if lying == "cylinder" else 1)
        pos = np.array([0, 0, mj_model.geom_size[0, 1] + reach - 0.004]) - 0.9 * half * axis * [1, 1, 0]
        poses.append((np.zeros(3), np.array([1.0, 0, 0, 0]), pos, quat))
    found = batched(posed(mj_model, poses), double(mj_model)).exists[:, 0].sum(-1)
    assert found.tolist() == [len(d.contact) for d in posed(mj_model, poses).mj_data]
    assert found.unflatten(0, (4, -1)).unique(dim=1).flatten().tolist() == counts


def test_iterations_and_tolerance_are_those_of_the_options():
    def depths(option):
        mj_model = two_geoms("ellipsoid", "cylinder")
        for name, value in option.items():
            setattr(mj_model.opt, name, value)
        return batched(posed(mj_model, random_poses(POSES, 0.2)), double(mj_model)).dist

    best = depths({})
    for option, least in (({"ccd_iterations": 3}, 1e-3), ({"ccd_tolerance": 0.05}, 1e-3)):
        assert (depths(option) - best).abs().max() > least


def strewn() -> mujoco.MjModel:
    """One of each shape, some dropped on a box, some on others."""
    bodies = "".join(
        f'<body pos="{0.4 * (k % 4)} 0 {0.3 + 0.5 * (k // 4)}" euler="{90 * (k % 3)} 3 {20 * k}">'
        f"<freejoint/><geom {shape} density='500'/></body>"
        for k, shape in enumerate((*SHAPES.values(), SHAPES["cylinder"], SHAPES["stone"]))
    )
    floor = '<geom type="box" size="1 .4 .1" pos=".6 0 -.1"/>'
    return mujoco.MjModel.from_xml_string(f"<mujoco>{ASSETS}<worldbody>{floor}{bodies}</worldbody></mujoco>")


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("dtype", slow_but([torch.float64, torch.float32], torch.float64))
def test_any_number_of_worlds(dtype):
    """Compiled for few worlds, or for many side by side, contacts are those of each world alone.

    Of curved shapes up to a few times `ccd_tolerance`, at which searches end by other ways.
    """
    mj_model, worlds = strewn(), []
    m, mj_data = mjtorch.put_model(mj_model, dtype=dtype), mujoco.MjData(mj_model)
    for _ in range(16):
        mujoco.mj_step(mj_model, mj_data, 25)
        mujoco.mj_kinematics(mj_model, mj_data)
        worlds.append(mjtorch.put_data(mj_model, mj_data, model=m))
    d = poison(mjtorch.tree.stack(worlds), ("contact", "ncon"))
    compiled = mjtorch.jit(lambda m, d: collision(m, d).contact, in_dims=(None, 0))
    eager = torch.vmap(lambda d: collision(m, d).contact)(d)
    assert (eager.detected.sum(-1) > 12).sum() > 8
    for count in (1, 2, 16):
        for first in range(0, 16, count):
            some = slice(first, first + count)
            found = compiled(m, mjtorch.tree.map(itemgetter(some), d))
            for name in FIELDS:
                actual, expected = getattr(found, name), getattr(eager, name)[some]
                torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 if dtype == torch.float64 else 1e-4)


@pytest.fixture(scope="module")
def scene():
    """The model, C's and ours, and states in which shapes touch without being as deep as they are thick."""
    mj_model = converged(load(SCENE))
    # C's depths of round shapes depend on when it stops.
    mj_model.opt.ccd_tolerance, mj_model.opt.ccd_iterations = 1e-10, 200
    mj_datas = [random_state(mj_model, seed) for seed in range(2, 6)]
    mj_model.opt.ccd_tolerance, mj_model.opt.ccd_iterations = 1e-6, 35
    m = double(mj_model)
    return mj_datas, m, [mjtorch.put_data(mj_model, d, model=m) for d in mj_datas]


def error(ours, theirs):
    return np.abs(ours.numpy() - theirs).max() / np.abs(theirs).max()


@pytest.mark.skipif(not IS_RECENT, reason="contacts as MuJoCo 4 finds them")
def test_forward_matches_c(scene):
    mj_datas, m, datas = scene
    types = set()
    for mj_data, d in zip(mj_datas, datas, strict=True):
        d = mjtorch.forward(m, poison(d, ("contact", "ncon", "qacc", "qfrc_constraint")))
        assert int(d.ncon) == mj_data.ncon
        assert error(d.qacc, mj_data.qacc) < 1e-3
        assert error(d.qfrc_constraint, mj_data.qfrc_constraint) < 1e-3
        types |= {d.contact.dim[k] for k in d.contact.detected.nonzero()[:, 0]}
    assert types == {3, 4, 6}


def test_derivatives_are_finite(scene):
    _, m, datas = scene

    def speed(qpos, d):
        return (mjtorch.step(m, d.replace(qpos=qpos)).qvel ** 2).sum()

    for d in datas:
        gradient = torch.func.grad(speed)(d.qpos, d)
        assert gradient.isfinite().all() and gradient.abs().max() > 0
