"""How the parameters of two geoms make those of a contact."""

import itertools

import mujoco
import numpy as np
import pytest
import torch
from collision.contacts import assert_same_contacts, double

from mjtorch.collision.parameters import mix_factor

TYPES = ('type="plane" size="1 1 .1"', 'type="capsule" size=".1 .1"', 'size=".12"')


def random_geom(rng: np.random.Generator, kind: str) -> str:
    """A geom that overlaps with the others and has random parameters."""
    numbers = {
        "friction": rng.uniform(0, 1, 3) * (rng.random(3) < 0.8),
        "solref": rng.uniform(0.01, 0.5, 2) if rng.random() < 0.7 else -rng.uniform(10, 100, 2),
        "solimp": [*np.sort(rng.uniform(0.1, 0.9, 2)), rng.uniform(0.001, 0.1), rng.uniform(0.1, 0.9), 2.5],
        "solmix": [rng.choice([0.0, 1e-16, rng.uniform(0.1, 3.0)])],
        "margin": [rng.choice([0.0, rng.uniform(0, 0.05)])],
        "gap": [rng.choice([0.0, rng.uniform(0, 0.3)])],
        "priority": [rng.integers(2)],
        "condim": [rng.choice([1, 3, 4, 6])],
    }
    text = " ".join(f'{name}="{" ".join(str(x) for x in value)}"' for name, value in numbers.items())
    return f'<geom name="g{{}}" {kind} {text} pos="0 0 {rng.uniform(0, 0.3)}"/>'


def random_scene(seed: int, flags: str = "") -> mujoco.MjModel:
    rng = np.random.default_rng(seed)
    names = itertools.count()
    world = random_geom(rng, TYPES[0]).format(next(names))
    bodies = "".join(
        f"<body><freejoint/>{random_geom(rng, TYPES[1 + rng.integers(2)]).format(next(names))}</body>" for _ in range(5)
    )
    friction, solref = rng.uniform(0, 1, 5), rng.uniform(0.01, 0.1, 2)
    pairs = f"""
      <pair geom1="g3" geom2="g1" condim="4" friction="{" ".join(map(str, friction))}" margin=".02" gap=".3"
        solref="{solref[0]} {solref[1]}" solreffriction=".03 .9" solimp=".5 .8 .01 .4 3"/>
      <pair geom1="g0" geom2="g4" solref="-50 -3"/>"""
    return mujoco.MjModel.from_xml_string(
        f"<mujoco><option>{flags}</option><worldbody>{world}{bodies}</worldbody><contact>{pairs}</contact></mujoco>"
    )


@pytest.mark.parametrize("flags", ["", '<flag override="enable"/>'])
@pytest.mark.parametrize("seed", range(10))
def test_mixing(seed, flags):
    mj_model = random_scene(seed, flags)
    mj_model.opt.o_margin = 0.013
    mj_model.opt.o_solref = (0.03, 0.8)
    mj_model.opt.o_solimp = (0.5, 0.6, 0.02, 0.3, 2.2)
    mj_model.opt.o_friction = (0.3, 0.4, 0.0, 0.001, 0.002)
    if flags:
        # C's broad phase forgets the gaps then, and misses some contacts that exert no force.
        mj_model.geom_gap[:] = 0
    m = double(mj_model, contact_capacity=10**6)
    mj_data = mujoco.MjData(mj_model)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        mujoco.mj_integratePos(mj_model, mj_data.qpos, 0.05 * rng.normal(size=mj_model.nv), 1.0)
        mujoco.mj_fwdPosition(mj_model, mj_data)
        d = assert_same_contacts(m, mj_data, atol=1e-12)
        assert int(d.ncon) > 5


def test_contact_in_the_gap_is_detected_but_not_active():
    mj_model = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><geom type="plane" size="1 1 .1" gap=".05"/>
          <body pos="0 0 .14"><freejoint/><geom size=".1" gap=".01" margin=".02"/></body>
        </worldbody></mujoco>"""
    )
    m = double(mj_model)
    for height, detected, active in ((0.0, True, False), (-0.03, True, True), (0.05, False, False)):
        mj_data = mujoco.MjData(mj_model)
        mj_data.qpos[2] += height
        mujoco.mj_fwdPosition(mj_model, mj_data)
        d = assert_same_contacts(m, mj_data)
        assert d.contact.detected.tolist() == [detected]
        assert d.contact.active.tolist() == [active]


def test_mix_factor():
    one, two = torch.tensor([1.0, 0.0, 1e-16, 3.0]), torch.tensor([3.0, 1.0, 0.0, 0.0])
    assert mix_factor(one, two).tolist() == [0.25, 0.0, 0.5, 1.0]
