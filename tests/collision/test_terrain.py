"""Terrain of many geoms, of which what moves is near few."""

from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from collision.contacts import FIELDS, double, posed
from torch import Tensor

import mjtorch
from mjtorch import jit
from mjtorch.collision import collision
from mjtorch.collision.broad_phase import Chosen, among_all, bounds, chosen, near_terrain
from mjtorch.model.plan import terrain

SIDE, SPACE = 24, 0.3
ROBOT = """
  <body name="{name}" pos="{pos}"><freejoint/>
    <geom type="box" size=".2 .15 .05"/>
    <geom type="capsule" fromto=".2 0 0 .4 0 -.1" size=".04"/>
    <geom type="sphere" pos="-.25 0 0" size=".06"/>
    <body pos="0 .2 0"><joint axis="1 0 0"/><geom type="cylinder" size=".06 .1"/></body>
  </body>"""


@pytest.fixture(autouse=True)
def few_pairs_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terrain, "LEAST_PAIRS", 100)


# Not in the middle of its box, as no mesh of a robot is.
ROCK = '<mesh name="rock" vertex="-.16 -.12 0 .16 -.12 0 -.16 .12 0 .16 .12 0 0 0 .3"/>'
CLOTH = """
  <flexcomp name="cloth" type="grid" dim="2" count="4 4 1" spacing=".12 .12 .1" pos=".3 .4 .1" radius=".01">
    <contact selfcollide="none"/>
  </flexcomp>"""


def field(nested: bool = False, rocks: bool = False, more: str = "") -> mujoco.MjModel:
    """Boxes of different heights, some of them turned, and two robots.

    nested: half of the boxes have bodies; rocks: a third of them are meshes; more: what else there is
    """
    rng = np.random.default_rng(0)
    boxes = []
    for k in range(SIDE * SIDE):
        x, y = SPACE * (k % SIDE - SIDE / 2), SPACE * (k // SIDE - SIDE / 2)
        shape = f'type="box" size=".16 .16 {rng.uniform(0.02, 0.2)}"'
        shape = 'type="mesh" mesh="rock"' if rocks and k % 3 == 0 else shape
        box = f'{shape} euler="0 {20 * (k % 5 == 0)} {30 * rocks * (k % 7)}"'
        at = f'pos="{x} {y} 0"'
        boxes.append(f"<body {at}><geom {box}/></body>" if nested and k % 2 else f"<geom {at} {box}/>")
    robots = ROBOT.format(name="one", pos="0 0 .2") + ROBOT.format(name="two", pos="2 -1.5 .2")
    world = f"<asset>{ROCK}</asset><worldbody>{''.join(boxes)}{robots}{more}</worldbody>"
    return mujoco.MjModel.from_xml_string(f"<mujoco>{world}</mujoco>")


def states(mj_model: mujoco.MjModel, count: int = 6) -> list[mujoco.MjData]:
    """The robots over the field, in it, beside it and on each other."""
    rng, found = np.random.default_rng(1), []
    for k in range(count):
        d = mujoco.MjData(mj_model)
        for first in (0, 8):
            d.qpos[first : first + 3] = *rng.uniform(-3, 3, 2), rng.uniform(0.0, 0.3)
            d.qpos[first + 3 : first + 7] = rng.normal(size=4)
        if k == 1:
            d.qpos[8:11] = d.qpos[:3] + 0.1
        if k == 2:
            d.qpos[:3] = 20
        mujoco.mj_normalizeQuat(mj_model, d.qpos)
        mujoco.mj_fwdPosition(mj_model, d)
        found.append(d)
    return found


@pytest.mark.parametrize(
    "kind", [{}, {"nested": True}, {"rocks": True}, {"more": CLOTH}], ids=["plain", "nested", "rocks", "cloth"]
)
def test_the_contacts_of_c_and_those_of_all_pairs(kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    mj_model = field(**kind)
    m = double(mj_model)
    monkeypatch.setattr(terrain, "LEAST_PAIRS", 10**9)
    everything = double(mj_model)
    assert m.plan.collision.terrain and not everything.plan.collision.terrain
    assert any(any(family.terrain) for family in m.plan.collision.families)
    touching = 0
    for mj_data in states(mj_model):
        one, other = (collision(x, mjtorch.put_data(mj_model, mj_data, model=x)) for x in (m, everything))
        assert int(one.ncon) == int(other.ncon) == mj_data.ncon and not one.warning.any()
        touching += mj_data.ncon
        for name in (*FIELDS, "geom"):
            torch.testing.assert_close(getattr(one.contact, name), getattr(other.contact, name), msg=name)
        assert np.sort(one.contact.dist[one.contact.detected]) == pytest.approx(np.sort(mj_data.contact.dist), abs=1e-6)
    assert touching > 30


@pytest.mark.parametrize("nested", [False, True])
def test_poses_of_what_belongs_to_the_world(nested: bool) -> None:
    """They are computed apart from those that joints move."""
    mj_model = field(nested)
    mj_model.geom_pos[:] = np.random.default_rng(2).normal(size=mj_model.geom_pos.shape)
    m = double(mj_model)
    assert len(m.plan.kinematics.still) > SIDE
    mj_data = mujoco.MjData(mj_model)
    mj_data.qpos[:] = states(mj_model)[0].qpos
    mujoco.mj_kinematics(mj_model, mj_data)
    d = mjtorch.kinematics(m, mjtorch.make_data(m).replace(qpos=torch.tensor(mj_data.qpos)))
    for name in ("geom_xpos", "geom_xmat", "xipos", "ximat", "xpos", "xmat"):
        found, wanted = getattr(d, name), getattr(mj_data, name)
        assert found.numpy() == pytest.approx(wanted.reshape(found.shape), abs=1e-12), name


def test_in_many_worlds() -> None:
    mj_model = field(rocks=True)
    m = double(mj_model)
    each = [posed(m, mj_data) for mj_data in states(mj_model)]
    d = mjtorch.tree.map(lambda *x: torch.stack(x), *each)
    wanted = mjtorch.tree.map(lambda *x: torch.stack(x), *(collision(m, x) for x in each))
    for run in (torch.vmap(collision, in_dims=(None, 0)), jit(collision, in_dims=(None, 0), strict=True)):
        found = run(m, d)
        for name in (*FIELDS, "geom"):
            torch.testing.assert_close(getattr(found.contact, name), getattr(wanted.contact, name), msg=name)


def pairs(found: Chosen) -> set[tuple[int, ...]]:
    assert found.near is not None
    return {tuple(x) for x in found.geom.mT[found.near].tolist()}


@pytest.mark.parametrize(("room", "places"), [(None, None), (2, None), (None, 3), (2, 3)])
def test_what_finds_no_room(room: int | None, places: int | None) -> None:
    """Where more is near than there is room for, all pairs are looked at; of too many the deepest are taken."""
    mj_model = field()
    m = double(mj_model)
    (plan,) = m.plan.collision.terrain
    plan = plan.replace(room=room or plan.room)
    threshold = torch.zeros(len(m.plan.collision.geom), dtype=torch.float64)
    asleep = torch.arange(m.ngeom) != SIDE * SIDE
    full = 0
    for mj_data in states(mj_model):
        bound = bounds(m, posed(m, mj_data))
        near = near_terrain(m, plan, bound, threshold)
        for family in m.plan.collision.families:
            if not any(family.terrain):
                continue
            block = family.blocks[0]
            family = family.replace(blocks=(block._replace(places=places or block.places), *family.blocks[1:]))
            for stirs in (None, asleep):
                found = chosen(family, bound, threshold, stirs, (plan, near))
                wanted = among_all(family, bound, threshold[family.candidate], stirs)
                assert pairs(found) == pairs(wanted)
                assert found.lost is not None and wanted.lost is not None and int(found.lost) == int(wanted.lost)
                full += int(found.lost)
    assert (full > 0) == (places is not None)


def test_nothing_is_near_what_is_lost() -> None:
    """Robots whose positions are not finite."""
    mj_model = field()
    m = double(mj_model)
    d = posed(m, states(mj_model)[0])
    lost: Tensor = torch.where(torch.arange(m.nq) < 3, torch.nan, d.qpos)
    d = mjtorch.kinematics(m, d.replace(qpos=lost))
    near = near_terrain(m, m.plan.collision.terrain[0], bounds(m, d), torch.zeros(1, dtype=torch.float64))
    assert not near.more and near.there.sum() < len(near.there)


@pytest.mark.parametrize("rocks", [False, True])
def test_what_touches_only_just_is_near(rocks: bool) -> None:
    """In single precision, too: boxes around trees and around geoms are rounded otherwise."""
    mj_model = field(rocks=rocks)
    m = mjtorch.put_model(mj_model, dtype=torch.float32)
    (plan,) = m.plan.collision.terrain
    threshold = torch.zeros(len(m.plan.collision.geom))
    rng, touching = np.random.default_rng(0), 0
    first = mjtorch.kinematics(m, mjtorch.make_data(m))
    bound, robot = bounds(m, first), plan.geom[0]
    lowest = (bound.pos[robot, 2] - bound.world[robot, 2]).amin()
    for geom in rng.choice(plan.fixed.numpy(), 60):
        top = bound.pos[geom, 2] + bound.world[geom, 2]
        onto = torch.cat([bound.pos[geom, :2], (first.qpos[2] + top - lowest)[None]])
        d = mjtorch.kinematics(m, first.replace(qpos=torch.cat([onto, first.qpos[3:8], onto + 50, first.qpos[11:]])))
        boxes = bounds(m, d)
        near = near_terrain(m, plan, boxes, threshold)
        for family in m.plan.collision.families:
            if any(family.terrain):
                wanted = pairs(among_all(family, boxes, threshold[family.candidate], None))
                assert pairs(chosen(family, boxes, threshold, None, (plan, near))) == wanted
                touching += len(wanted)
    assert touching > 20
