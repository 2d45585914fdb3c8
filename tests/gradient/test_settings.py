"""Useful gradients: what `Gradient` and `Substeps` change, and what they leave alone."""

from collections.abc import Callable

import mujoco
import pytest
import torch
from reference import load
from torch import Tensor

import mjtorch
from mjtorch import tree
from mjtorch.collision.box import rounded_normal as rounded_sphere_box
from mjtorch.constraint import force_from_distance
from mjtorch.control_flow import compilable
from mjtorch.model import Data, Model

F64 = torch.float64
SOFT = mjtorch.Gradient(distance=0.08, rounding=0.01)

# A finger that does not yet touch a box on rails, and a ball in the air over a bowl of walls.
PUSH = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <geom name="floor" type="plane" size="3 3 .1"/>
    <body name="finger" pos="-.2 0 .1"><joint type="slide" axis="1 0 0" damping=".1"/>
      <geom type="sphere" size=".05" mass="1" {finger}/></body>
    <body name="box" pos="0 0 .11"><joint type="slide" axis="1 0 0"/><geom type="box" size=".1 .1 .1" mass=".5"/></body>
    <body name="ball" pos="1 0 .35"><freejoint/><geom type="sphere" size=".1"/></body>
    <geom type="box" pos="1.14 .03 .35" size=".02 .1 .1"/>
  </worldbody>
</mujoco>
"""
# All pairs whose normals jump, in contact.
TOUCHING = """
<mujoco>
  <worldbody>
    <geom type="box" size=".2 .2 .1"/>
    <body pos=".15 .1 .18"><freejoint/><geom type="box" size=".1 .1 .1" euler="10 20 30"/></body>
    <body pos="-.15 .1 .14"><freejoint/><geom type="sphere" size=".05"/></body>
    <body pos="-.1 -.1 .14"><freejoint/><geom type="capsule" size=".05 .1" euler="80 10 0"/></body>
    <body pos="-.6 -.1 .14"><freejoint/><geom type="box" size=".05 .1 .05"/></body>
  </worldbody>
</mujoco>
"""
BOUNCE = """
<mujoco>
  <option timestep="0.02" gravity="0 0 -2"/>
  <default><geom solimp="0 .95 .01 .5 2" solref=".02 .1"/></default>
  <worldbody>
    <geom type="plane" size="3 3 .1"/>
    <body pos="0 0 .11"><freejoint/><geom type="sphere" size=".1"/></body>
  </worldbody>
</mujoco>
"""


def put(xml: str, **settings: object) -> tuple[Model, Data]:
    mj_model = mujoco.MjModel.from_xml_string(xml.format(finger=""))
    m = mjtorch.put_model(mj_model, dtype=F64, **settings)
    return m, mjtorch.make_data(m)


def steps(m: Model, d: Data, n: int) -> Data:
    for _ in range(n):
        d = mjtorch.step(m, d)
    return d


def assert_same_bits(found: Data, wanted: Data) -> None:
    for (name, x), (_, y) in zip(tree.leaves_with_path(found), tree.leaves_with_path(wanted), strict=True):
        assert torch.equal(x, y), name


@pytest.mark.parametrize("xml, touches", [(PUSH, False), (TOUCHING, True)])
def test_simulation_is_the_same_to_the_last_bit(xml: str, touches: bool) -> None:
    m, d = put(xml)
    soft, _ = put(xml, gradient=SOFT)
    twin = d
    for _ in range(4):
        d, twin = mjtorch.step(m, d), mjtorch.step(soft, twin)
        assert_same_bits(twin, d)
    assert bool(d.ncon > 0) is touches


def pushed(speed: Tensor, m: Model, d: Data) -> Tensor:
    """How far the box gets by a finger that moves at `speed` () [m/s] and does not reach it."""
    qvel = torch.cat([speed[None], torch.zeros_like(d.qvel[1:])])
    return steps(m, d.replace(qvel=qvel), 5).qpos[1]


def test_finger_that_does_not_touch_learns_to_push() -> None:
    speed = torch.tensor(0.2, dtype=F64)
    exact = torch.func.grad(pushed)(speed, *put(PUSH))
    soft, d = put(PUSH, gradient=SOFT)
    found = torch.func.grad(pushed)(speed, soft, d)
    assert exact == 0
    assert found > 1e-5
    _, forward_mode = torch.func.jvp(lambda speed: pushed(speed, soft, d), (speed,), (torch.ones_like(speed),))
    torch.testing.assert_close(forward_mode, found, rtol=1e-10, atol=0)


def test_ball_that_misses_the_wall_is_sent_away_from_it() -> None:
    soft, d = put(PUSH, gradient=SOFT)

    def missed(qpos: Tensor) -> Tensor:
        return steps(soft, d.replace(qpos=qpos), 2).qvel[2]

    # Nearer to the wall, faster away from it; and nothing is felt of the floor, which is too far.
    slope = torch.func.grad(missed)(d.qpos)
    assert slope[2] < -1e-3
    assert slope[4].abs() < 1e-6


def test_derivative_is_that_of_the_force_where_nothing_touches() -> None:
    """`qacc` has the derivatives of `M^-1 (smooth forces + force from a distance)`, which finite differences give."""
    xml = PUSH.replace('pos="0 0 .11"', 'pos="0 0 .13"')
    m, d = put(xml, gradient=mjtorch.Gradient(distance=0.08))
    start = d.qpos

    def felt(qpos: Tensor) -> Tensor:
        d2 = mjtorch.forward(m, d.replace(qpos=qpos))
        force = d2.qfrc_smooth + force_from_distance(m, d2)
        return mjtorch.solve_m(m, d2, force)

    at = start + 0.01 * torch.arange(len(start), dtype=F64).sin()
    assert mjtorch.forward(m, d.replace(qpos=at)).nefc == 0
    direction = torch.arange(1.0, 1 + len(start), dtype=F64).cos()
    _, found = torch.func.jvp(lambda qpos: mjtorch.forward(m, d.replace(qpos=qpos)).qacc, (at,), (direction,))
    eps = 1e-6
    wanted = (felt(at + eps * direction) - felt(at - eps * direction)) / (2 * eps)
    assert wanted.abs().max() > 1
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_force_begins_smoothly_and_ends_at_touching() -> None:
    m, d = put(PUSH, gradient=SOFT)

    def force(gap: float) -> float:
        moved = mjtorch.forward(m, d.replace(qpos=d.qpos.index_fill(0, torch.tensor(0), 0.05 - gap)))
        return float(force_from_distance(m, moved)[1])

    weight = 1 / 1.0 + 1 / 0.5
    assert force(0.081) == 0
    assert force(0.04) == pytest.approx(0.04**2 / (2 * 0.08 * 0.02**2 * weight))
    assert force(1e-9) == pytest.approx(0.08 / (2 * 0.02**2 * weight))
    assert force(-1e-9) == 0


@pytest.mark.parametrize("margin", [0.0, 0.01])
def test_contacts_that_touch_keep_their_exact_derivatives(margin: float) -> None:
    xml = BOUNCE.replace('size=".1"', f'size=".1" margin="{margin}"')
    m, d = put(xml)
    soft, _ = put(xml, gradient=mjtorch.Gradient(distance=0.05))
    qpos = d.qpos.index_fill(0, torch.tensor(2), 0.1 + margin - 0.001)

    def speed(qpos: Tensor, m: Model) -> Tensor:
        return mjtorch.step(m, d.replace(qpos=qpos)).qvel[2]

    assert torch.func.grad(speed)(qpos, m)[2] != 0
    assert torch.equal(torch.func.grad(speed)(qpos, soft), torch.func.grad(speed)(qpos, m))


def same_in(transform: Callable, xml: str, settings: dict[str, object], n: int = 2) -> None:
    """Gradients of n steps of a few worlds, transformed and one by one."""

    def soft_gradient(qvel: Tensor, m: Model, d: Data) -> Tensor:
        return torch.func.grad(lambda qvel: steps(m, d.replace(qvel=qvel), n).qpos[:4].sum())(qvel)

    m, d = put(xml, **settings)
    worlds = 0.1 * torch.arange(3 * m.nv, dtype=F64).sin().reshape(3, m.nv)
    wanted = torch.stack([soft_gradient(qvel, m, d) for qvel in worlds])
    assert wanted.isfinite().all() and (wanted != 0).any()
    torch.testing.assert_close(transform(soft_gradient)(worlds, m, d), wanted, rtol=1e-8, atol=1e-8)


SETTINGS = [
    pytest.param(PUSH, {"gradient": SOFT}, id="gradient"),
    pytest.param(
        BOUNCE.replace("0 0 .11", "0 0 .098"), {"substeps": mjtorch.Substeps(tolerance=1e-3, limit=4)}, id="substeps"
    ),
]


def vmapped(fn: Callable) -> Callable:
    return torch.vmap(fn, in_dims=(0, None, None))


@pytest.mark.parametrize("xml, settings", SETTINGS)
def test_vmap(xml: str, settings: dict[str, object]) -> None:
    same_in(vmapped, xml, settings)


@pytest.mark.slow
@pytest.mark.parametrize("xml, settings", SETTINGS)
def test_jit(xml: str, settings: dict[str, object]) -> None:
    same_in(lambda fn: mjtorch.jit(fn, in_dims=(0, None, None)), xml, settings)


@pytest.mark.slow
@pytest.mark.parametrize("xml, settings", SETTINGS)
def test_compile(xml: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one step, as a second is traced by itself; nor does PyTorch trace all of it twice for its float64 scalars."""
    monkeypatch.setenv("TENSORIFY_PYTHON_SCALARS", "0")
    same_in(lambda fn: torch.compile(vmapped(compilable(fn)), backend="aot_eager"), xml, settings, n=1)


def test_rounded_normals_know_what_is_behind_the_edge() -> None:
    """Along a path across an edge, exact derivatives of the normal miss the jump, and smooth ones add up to it."""
    upright = TOUCHING.replace('euler="10 20 30"', "")
    m, d = put(upright)
    soft, _ = put(upright, gradient=mjtorch.Gradient(rounding=0.003))
    first = torch.tensor([[0.12, 0.0, 0.17, 1, 0, 0, 0]], dtype=F64)  # over the upper face, then beside the box

    def normal(m: Model, way: Tensor) -> Tensor:
        qpos = torch.cat([first[0] + way * torch.tensor([1.0, 0, 0, 0, 0, 0, 0], dtype=F64), d.qpos[7:]])
        d2 = mjtorch.forward(m, d.replace(qpos=qpos))
        mine = (d2.contact.geom == torch.tensor([0, 1])).all(-1)
        lead = mine & (mine.cumsum(0) == 1)
        return torch.where(lead[:, None], d2.contact.frame[:, 0, [0, 2]], 0.0).sum(0)

    ways = torch.linspace(0, 0.17, 86, dtype=F64)
    start, end = normal(m, ways[0]), normal(m, ways[-1])
    torch.testing.assert_close(start, torch.tensor([0.0, 1.0], dtype=F64))
    torch.testing.assert_close(end, torch.tensor([1.0, 0.0], dtype=F64))
    one = torch.ones_like(ways[0])
    total = {}
    for name, which in (("exact", m), ("smooth", soft)):
        assert torch.vmap(lambda w, m=which: normal(m, w))(ways).any(-1).all(), "somewhere they do not touch"
        turns = torch.vmap(lambda w, m=which: torch.func.jvp(lambda w: normal(m, w), (w,), (one,))[1])(ways)
        total[name] = turns.sum(0) * (ways[1] - ways[0])
    assert total["exact"].abs().max() < 1e-6
    torch.testing.assert_close(total["smooth"], end - start, rtol=0.05, atol=0.05)


def test_rounded_normal_becomes_the_exact_one() -> None:
    size = torch.tensor([0.1, 0.2, 0.3], dtype=F64)
    outside = torch.tensor([[0.2, 0.0, 0.1], [0.13, 0.24, 0.0], [-0.15, 0.3, 0.35]], dtype=F64)
    wanted = torch.nn.functional.normalize(torch.maximum(torch.minimum(outside, size), -size) - outside, dim=-1)
    torch.testing.assert_close(rounded_sphere_box(outside, size, torch.tensor(1e-3, dtype=F64)), wanted)
    inside = torch.tensor([0.09, 0.05, -0.2], dtype=F64)
    wanted = torch.tensor([-1.0, 0, 0], dtype=F64)
    torch.testing.assert_close(rounded_sphere_box(inside, size, torch.tensor(1e-3, dtype=F64)), wanted)
    center = torch.zeros(3, dtype=F64)
    assert torch.func.jacrev(rounded_sphere_box)(center, size, torch.tensor(1e-3, dtype=F64)).isfinite().all()


def fallen(speed: float, n: int, timestep: float) -> float:
    """Where C's ball is after n short steps."""
    mj_model = mujoco.MjModel.from_xml_string(BOUNCE)
    mj_model.opt.timestep, mj_model.opt.integrator = timestep, mujoco.mjtIntegrator.mjINT_RK4
    mj_model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_REFSAFE
    data = mujoco.MjData(mj_model)
    data.qvel[2] = speed
    for _ in range(n):
        mujoco.mj_step(mj_model, data)
    return float(data.qpos[2])


def test_substeps_find_the_bounce_and_its_slope() -> None:
    """Ten time steps of 20 ms from just above the floor, against C at 20 us."""
    xml = BOUNCE.replace("<worldbody>", '<option><flag refsafe="disable"/></option><worldbody>')

    def height(speed: Tensor, m: Model, d: Data) -> Tensor:
        qvel = torch.cat([torch.zeros_like(d.qvel[:2]), speed[None], torch.zeros_like(d.qvel[3:])])
        return steps(m, d.replace(qvel=qvel), 5).qpos[2]

    speed, eps = torch.tensor(-0.5, dtype=F64), 1e-4
    wanted = fallen(-0.5, 5000, 2e-5)
    slope = (fallen(-0.5 + eps, 5000, 2e-5) - fallen(-0.5 - eps, 5000, 2e-5)) / (2 * eps)
    plain = torch.func.grad_and_value(height)(speed, *put(xml))
    fine = torch.func.grad_and_value(height)(speed, *put(xml, substeps=mjtorch.Substeps(tolerance=1e-5, limit=40)))
    assert float(fine[1]) == pytest.approx(wanted, abs=1e-4)
    assert float(fine[0]) == pytest.approx(slope, rel=0.02)
    assert abs(float(plain[0]) - slope) > 5 * abs(float(fine[0]) - slope)


def test_a_time_step_is_completed_within_the_limit() -> None:
    for limit in (1, 3):
        m, d = put(BOUNCE, substeps=mjtorch.Substeps(tolerance=1e-12, limit=limit))
        d = steps(m, d.replace(qvel=d.qvel.index_fill(0, torch.tensor(2), -1.0)), 3)
        assert float(d.time) == pytest.approx(0.06)
        assert d.qpos.isfinite().all()


def test_substeps_move_everything_that_has_a_state() -> None:
    """Quaternions and activations: as the fine steps of C."""
    mj_model = load("feature/muscles")
    mj_model.opt.timestep = 0.01
    m = mjtorch.put_model(mj_model, dtype=F64, substeps=mjtorch.Substeps(tolerance=1e-8, limit=40))
    data = mujoco.MjData(mj_model)
    data.ctrl[:] = 0.3
    data.qvel[:] = 0.2
    d = steps(m, mjtorch.put_data(mj_model, data, model=m), 2)
    mj_model.opt.timestep = 1e-5
    for _ in range(2000):
        mujoco.mj_step(mj_model, data)
    for name in ("qpos", "qvel", "act"):
        wanted = torch.from_numpy(getattr(data, name))
        torch.testing.assert_close(getattr(d, name), wanted, rtol=1e-3, atol=1e-4, msg=name)


BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: mjtorch.Gradient(distance=-1.0), ValueError, "distance"),
    (lambda: mjtorch.Gradient(timeconst=0.0), ValueError, "timeconst"),
    (lambda: mjtorch.Gradient(rounding=float("nan")), ValueError, "rounding"),
    (lambda: mjtorch.Substeps(tolerance=0.0), ValueError, "tolerance"),
    (lambda: mjtorch.Substeps(limit=0), ValueError, "limit"),
    (lambda: put(BOUNCE, gradient=0.05), TypeError, "mjtorch.Gradient"),
    (lambda: put(BOUNCE, substeps=4), TypeError, "mjtorch.Substeps"),
    (lambda: mjtorch.put_model(load("feature/delays"), substeps=mjtorch.Substeps()), NotImplementedError, "delays"),
]


@pytest.mark.parametrize("make, error, what", BAD, ids=[what for _, _, what in BAD])
def test_bad_settings_are_loud(make: Callable[[], object], error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        make()


def test_off_is_off() -> None:
    for settings in ({}, {"gradient": mjtorch.Gradient()}, {"gradient": None, "substeps": None}):
        m, _ = put(PUSH, **settings)
        assert not tree.leaves(m.settings)
