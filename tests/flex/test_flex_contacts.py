"""Contacts of flexes with geoms of all kinds, with each other and with themselves, where the tables do not look."""

import itertools
from collections.abc import Iterable
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from reference import SINCE_4, assert_fields_close, converged, load, oracle

import mjtorch
from mjtorch.collision import collision
from mjtorch.constraint import bodies
from mjtorch.integrate import integrate_pos
from mjtorch.model import put_data, put_model

pytestmark = SINCE_4

OPTION = '<option ccd_iterations="200" ccd_tolerance="1e-10" tolerance="1e-12"/>'
MESH = """<asset><mesh name="wedge" vertex="-.1 -.1 -.05  .1 -.1 -.05  0 .1 -.05  -.02 0 .06"/>
  <hfield name="hill" nrow="3" ncol="4" size=".15 .12 .06 .05" elevation="0 3 1 2  2 1 4 0  1 2 0 3"/></asset>"""
GEOMS = {
    "sphere": 'size=".08"',
    "capsule": 'size=".05 .06"',
    "ellipsoid": 'size=".1 .07 .05"',
    "cylinder": 'size=".07 .06"',
    "box": 'size=".09 .07 .05"',
    "mesh": 'mesh="wedge"',
    "hfield": 'hfield="hill" mass="1"',
}
COUNTS = {1: "5 1 1", 2: "4 3 1", 3: "3 2 2"}
PAIRS = [
    *itertools.product(GEOMS, COUNTS),
    *itertools.combinations_with_replacement(COUNTS, 2),
]


def slow_tuples(rows: Iterable[tuple], *quick: tuple) -> list[Any]:
    """Rows of parameters, which are slow but for these."""
    return [row if row in quick else pytest.param(*row, marks=pytest.mark.slow) for row in rows]


def flex(name: str, dim: int, contact: str, place: str = "-.1 -.05 0") -> str:
    """A flex whose vertices are free."""
    return f"""<flexcomp name="{name}" type="grid" count="{COUNTS[dim]}" spacing=".07 .06 .05" mass=".2" radius=".01"
      dim="{dim}" pos="{place}"><contact {contact}/><edge damping="1"/></flexcomp>"""


def scene(first: str | int, second: int) -> mujoco.MjModel:
    """A geom, or a flex, and a flex."""
    quiet = 'selfcollide="none" condim="3" margin=".004" gap=".002"'
    other = (
        f'<body><freejoint/><geom type="{first}" {GEOMS[first]} margin=".003"/></body>'
        if isinstance(first, str)
        else flex("one", first, quiet, "-.08 -.04 .01")
    )
    world = f"<worldbody>{other}{flex('two', second, quiet)}</worldbody>"
    return oracle(mujoco.MjModel.from_xml_string(f"<mujoco>{OPTION}{MESH}{world}</mujoco>"))


def states(mj_model: mujoco.MjModel, count: int, scale: float = 0.02) -> list[mujoco.MjData]:
    """Random ones, and all that C computes from them."""
    datas = []
    for seed in range(count):
        rng, d = np.random.default_rng(seed), mujoco.MjData(mj_model)
        mujoco.mj_integratePos(mj_model, d.qpos, scale * rng.standard_normal(mj_model.nv), 1.0)
        d.qvel[:] = 0.1 * rng.standard_normal(mj_model.nv)
        mujoco.mj_forward(mj_model, d)
        datas.append(d)
    return datas


def contacts(d: mujoco.MjData | mjtorch.Data) -> dict[tuple[int, ...], list[np.ndarray]]:
    """What touches, in any order -> distance, position and normal from the first to the second."""
    c, found = d.contact, {}
    there = range(d.ncon) if isinstance(d, mujoco.MjData) else torch.nonzero(c.detected)[:, 0].tolist()
    geom, flex, elem, dist, pos, frame = (np.asarray(x) for x in (c.geom, c.flex, c.elem, c.dist, c.pos, c.frame))
    for k in there:
        pair = [(int(g), int(f), int(e)) for g, f, e in zip(geom[k], flex[k], elem[k], strict=True)]
        sign = 1 if pair == sorted(pair) else -1
        numbers = np.concatenate([dist[k : k + 1], pos[k], sign * frame[k].reshape(-1)[:3]])
        found.setdefault((*sorted(pair)[0], *sorted(pair)[1]), []).append(numbers)
    return found


@pytest.mark.parametrize("first, second", slow_tuples(PAIRS, ("ellipsoid", 3), ("cylinder", 2), ("mesh", 1), (2, 3)))
def test_contacts_match_c(first: str | int, second: int) -> None:
    """C finds points and normals of what is round by polytopes, and these less closely than distances."""
    mj_model = scene(first, second)
    m = put_model(mj_model, dtype=torch.float64, contact_capacity=400)
    number = 0
    for mj_data in states(mj_model, 4):
        d = collision(m, put_data(mj_model, mj_data, model=m))
        ours, wanted = contacts(d), contacts(mj_data)
        assert {k: len(v) for k, v in ours.items()} == {k: len(v) for k, v in wanted.items()}
        for pair, some in wanted.items():
            error = np.abs(np.array(ours[pair]) - np.array(some)).max(0)
            assert error[0] < 1e-8 and error[1:4].max() < 2e-5 and error[4:].max() < 2e-3, (pair, error)
        number += mj_data.ncon
    assert number > 4


def folded(selfcollide: str, dim: int = 2) -> mujoco.MjModel:
    """A flex that touches itself."""
    kind = {1: 'type="grid" count="14 1 1"', 2: 'type="grid" count="6 3 1"', 3: 'type="grid" count="4 3 3"'}[dim]
    return oracle(
        mujoco.MjModel.from_xml_string(
            f"""<mujoco>{OPTION}<worldbody><flexcomp name="one" {kind} spacing=".05 .05 .05" mass=".2" radius=".01"
              dim="{dim}"><contact selfcollide="{selfcollide}" condim="3" margin=".01" gap=".005"/>
              <edge damping="1"/></flexcomp></worldbody></mujoco>"""
        )
    )


@pytest.mark.parametrize(
    "dim, selfcollide",
    slow_tuples(itertools.product(COUNTS, ("narrow", "bvh", "sap", "auto")), (1, "auto"), (2, "auto")),
)
def test_a_flex_touches_itself_as_in_c(dim: int, selfcollide: str) -> None:
    """In C's midphase the order, and which element is the first, depend on the state: what comes of it does not."""
    mj_model = folded(selfcollide, dim)
    m = put_model(mj_model, dtype=torch.float64, contact_capacity=400)
    number = 0
    for mj_data in states(mj_model, 3, scale=0.05 if dim > 1 else 0.12):
        d = mjtorch.forward(m, put_data(mj_model, mj_data, model=m))
        ours, wanted = contacts(d), contacts(mj_data)
        assert ours.keys() == wanted.keys()
        assert_fields_close(d, mj_data, ["qacc"], 2e-3, m=m)
        number += mj_data.ncon
    assert number > (0 if dim == 1 else 5)
    assert m.plan.collision.itself


@pytest.mark.parametrize(
    "first, second",
    slow_tuples([("mesh", 3), ("ellipsoid", 2), ("cylinder", 1), (2, 3), (2, 2), (1, 1)], ("mesh", 3), (2, 3)),
)
def test_contacts_differentiate(first: str | int, second: int) -> None:
    """With respect to positions, against differences: distances, and where they are smooth points and normals."""
    mj_model = scene(first, second)
    m = put_model(mj_model, dtype=torch.float64, contact_capacity=400)
    step, checked, close = 1e-6, 0, []
    for mj_data in states(mj_model, 3):
        d = put_data(mj_model, mj_data, model=m)
        move = torch.randn(m.nv, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

        def value(t: torch.Tensor, d: mjtorch.Data = d, move: torch.Tensor = move) -> tuple[torch.Tensor, ...]:
            after = mjtorch.forward(m, d.replace(qpos=integrate_pos(m, d.qpos, move, t)))
            c = after.contact
            there = c.detected[:, None]
            return c.dist * there[:, 0], c.pos * there, c.frame[:, 0] * there

        zero = torch.zeros((), dtype=torch.float64)
        _, found = torch.func.jvp(value, (zero,), (torch.ones_like(zero),))
        low, high = value(zero - step), value(zero + step)
        same = (low[0] != 0) == (high[0] != 0)
        for below, above, derivative in zip(low, high, found, strict=True):
            wanted = (above - below) / (2 * step)
            error = (derivative - wanted).reshape(len(same), -1).abs().amax(1)
            close.append((error < 1e-3 * (1 + wanted.reshape(len(same), -1).abs().amax(1)))[same & (low[0] != 0)])
        checked += int((same & (low[0] != 0)).sum())
    assert checked > 5
    assert torch.cat(close[::3]).double().mean() > 0.97
    assert torch.cat(close).double().mean() > 0.9


def on_grids(dof: str, cells: str, law: str) -> mujoco.MjModel:
    """A grid on a ball that moves, and below another grid."""
    grid = 'type="grid" spacing=".12 .12 .12" mass=".2" radius="0" dim="3"'
    return oracle(
        mujoco.MjModel.from_xml_string(
            f"""<mujoco>{OPTION}<worldbody>
              <body pos="0 0 -.1"><freejoint/><geom size=".06" condim="4" margin=".003"/></body>
              <flexcomp name="one" {grid} count="3 3 2" dof="{dof}" cellcount="{cells}" euler="5 10 0">
                <contact conaffinity="0" selfcollide="bvh"/><elasticity young="1e3" poisson=".2" {law}/></flexcomp>
              <flexcomp name="two" {grid} count="2 2 2" dof="trilinear" pos=".03 .02 .12" euler="10 5 20">
                <contact contype="0" selfcollide="none"/><elasticity young="1e3" poisson=".2"/></flexcomp>
            </worldbody></mujoco>"""
        )
    )


SHELL = 'thickness=".05" elastic2d="stretch"'
GRIDS = [
    ("trilinear", "2 2 1", ""),
    ("quadratic", "1 1 1", ""),
    ("trilinear", "2 2 2", SHELL),
    ("quadratic", "1 1 1", SHELL),
]


@pytest.mark.parametrize("dof, cells, law", slow_tuples(GRIDS, GRIDS[1], GRIDS[2]))
def test_grids_touch_as_in_c(dof: str, cells: str, law: str) -> None:
    """A ball and another grid; not themselves, whatever they ask for."""
    mj_model = converged(on_grids(dof, cells, law))
    m = put_model(mj_model, dtype=torch.float64, contact_capacity=200)
    balls = grids = 0
    for mj_data in states(mj_model, 4):
        d = mjtorch.forward(m, put_data(mj_model, mj_data, model=m))
        ours, wanted = contacts(d), contacts(mj_data)
        assert ours.keys() == wanted.keys()
        assert_fields_close(d, mj_data, ["qacc"], 1e-6, m=m)
        balls += sum(pair[:3] == (-1, 0, pair[2]) and pair[3] == 0 for pair in wanted)
        grids += sum(pair[1] >= 0 and pair[4] >= 0 for pair in wanted)
    assert balls > 3 and grids > 3
    assert not m.plan.collision.itself


DRAPED = """
<mujoco>
  <option timestep="1e-3" tolerance="1e-12" iterations="100"/>
  <worldbody>
    <geom name="ball" size=".2" pos="0 0 -.2" condim="4" friction=".7 .02 .01"/>
    <body pos=".1 .1 .08"><freejoint/><geom type="box" size=".05 .05 .05" mass=".1" euler="10 20 0"/></body>
    <flexcomp name="sheet" type="grid" count="9 8 1" spacing=".05 .05 .05" mass=".2" radius=".01" dim="2" pos="0 0 .02">
      <contact/>
      <elasticity young="1e3" poisson=".2" thickness="5e-3" damping=".001" elastic2d="both"/>
    </flexcomp>
  </worldbody>
</mujoco>
"""


@pytest.mark.slow
def test_a_large_cloth_needs_no_dense_rows() -> None:
    """On a ball and under a crate, and on itself: rows are those of all dofs, and what comes of them is C's."""
    mj_model = load(DRAPED)
    m = put_model(mj_model, dtype=torch.float64)
    (forest,) = m.plan.solver.forest
    assert not forest.joins and not any(g.own for g in forest.groups) and m.plan.collision.itself
    mj_data = mujoco.MjData(mj_model)
    for _ in range(80):
        mujoco.mj_step(mj_model, mj_data)
    for _ in range(3):
        mujoco.mj_forward(mj_model, mj_data)
        d = mjtorch.forward(m, put_data(mj_model, mj_data, model=m))
        rows = bodies.build(m, d)
        x, y = torch.randn(m.nv, dtype=torch.float64), torch.randn(m.plan.constraint.nefc, dtype=torch.float64)
        assert d.nefc > 50
        assert torch.allclose(rows.dense(), d.efc_J)
        assert torch.allclose(rows.times(x), d.efc_J @ x)
        assert torch.allclose(rows.transpose_times(y), y @ d.efc_J)
        assert_fields_close(d, mj_data, ["contact", "efc_D"], 1e-3, m=m)
        assert_fields_close(d, mj_data, ["qacc"], 1e-4, m=m)
        for _ in range(10):
            mujoco.mj_step(mj_model, mj_data)
