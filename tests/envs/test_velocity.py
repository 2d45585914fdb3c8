"""Velocity tracking: a small quadruped through all that the robots of packages go through, and those where they are."""

import dataclasses
import importlib.util
import math
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from mujoco import MjSpec
from torch import Tensor

import mjtorch
from mjtorch import envs, jit, random
from mjtorch.cli import main
from mjtorch.compiler.cache import store
from mjtorch.envs.velocity import terrain
from mjtorch.envs.velocity.equip import COMMAND, TIMESTEP, compiled, equipped
from mjtorch.envs.velocity.randomize import FRICTION, LOAD, MASS, SHIFT, STRENGTH, Variation
from mjtorch.envs.velocity.robots import Motor, Robot, fitting
from mjtorch.envs.velocity.table import ROBOTS, SKIP, TASKS, velocity
from mjtorch.envs.velocity.task import LIFT, WEIGHTS, Velocity

DOUBLE = torch.float64
reset = torch.vmap(envs.reset, in_dims=(None, 0))
step = torch.vmap(envs.step, in_dims=(None, 0, 0))

LEG = """
<body name="{name}_thigh" pos="{x} {y} 0">
  <joint name="{name}_hip" axis="0 1 0" range="-1.5 2"/><geom type="capsule" fromto="0 0 0 0 0 -0.2" size="0.02"/>
  <body name="{name}_shank" pos="0 0 -0.2">
    <joint name="{name}_knee" axis="0 1 0" range="-2.5 -0.2"/>
    <geom type="capsule" fromto="0 0 0 0 0 -0.2" size="0.015"/>
    <geom name="{name}_sole" type="sphere" pos="0 0 -0.2" size="0.025"/><site name="{name}" pos="0 0 -0.2"/>
  </body>
</body>
"""
LEGS = {"FL": (0.2, 0.1), "FR": (0.2, -0.1), "RL": (-0.2, 0.1), "RR": (-0.2, -0.1)}
XML = f"""
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <body name="trunk" pos="0 0 1">
      <freejoint/><geom type="box" size="0.25 0.08 0.05" mass="6"/><site name="middle"/>
      {"".join(LEG.format(name=name, x=x, y=y) for name, (x, y) in LEGS.items())}
    </body>
  </worldbody>
  <sensor><velocimeter site="middle"/><gyro site="middle"/></sensor>
</mujoco>
"""
SMALL = Robot(
    file="none",
    feet={leg: f"{leg}_sole" for leg in LEGS},
    motors={"*": Motor(5e-3, 20.0)},
    pose={"*_hip": 0.7, "*_knee": -1.4},
    loose={"*": 0.3},
    tight={"*": 0.05},
    late={"FL": 0.0, "FR": 0.5, "RL": 0.5, "RR": 0.0},
    strides=2.0,
)


def model(ground: str = "flat") -> mujoco.MjModel:
    return equipped(MjSpec.from_string(XML), SMALL, ground)


def small(ground: str = "flat", randomize: bool = False, **options: object) -> envs.Env:
    return velocity(model(ground), SMALL, "small", randomize=randomize, dtype=DOUBLE, **options)


def begin(env: envs.Env, worlds: int = 3, seed: int = 0) -> envs.State:
    return reset(env, random.split(random.key(seed), worlds))


def standing(env: envs.Env, worlds: int = 3) -> Tensor:
    return env.task.rest.ctrl.expand(worlds, -1)


def test_stands_on_flat_ground_and_sees_what_it_should() -> None:
    env = small(standing=0.0)
    state = first = begin(env)
    for _ in range(10):
        state = step(env, state, standing(env))
    assert not state.done.any() and (state.info["reward_upright"] > 0.99 * SKIP * TIMESTEP).all()
    assert ((state.data.qpos[:, 2] - env.task.rest.qpos[2]).abs() < 0.05).all()
    linear, angular, down, joints, speeds, used, command, phase = first.obs.split([3, 3, 3, 8, 8, 8, 3, 2], dim=1)
    assert first.obs.shape == (3, 38) and not torch.cat([linear, angular, joints, speeds], 1).any()
    torch.testing.assert_close(down, torch.tensor([[0.0, 0.0, -1.0]]).double().expand(3, 3))
    assert torch.equal(command, first.data.userdata) and (used.abs() < 1e-12).all()
    assert torch.equal(phase, torch.tensor([[0.0, 1.0]]).double().expand(3, 2))
    late = torch.tensor(2 * math.pi * 10 * SKIP * TIMESTEP * SMALL.strides).double()
    torch.testing.assert_close(state.obs[:, -2:], torch.stack([late.sin(), late.cos()]).expand(3, 2))
    yaw = 2 * torch.atan2(first.data.qpos[:, 6], first.data.qpos[:, 3])
    assert len({round(x, 6) for x in yaw.tolist()}) == 3 and len({round(x, 6) for x in command[:, 0].tolist()}) == 3


def test_its_motion_is_what_sensors_show() -> None:
    """Against C's velocimeter and gyro at the base, in any state."""
    mj_model, task = model(), small().task
    assert isinstance(task, Velocity)
    data, rng = mujoco.MjData(mj_model), np.random.default_rng(0)
    for _ in range(3):
        data.qpos[:], data.qvel[:] = rng.standard_normal(mj_model.nq), rng.standard_normal(mj_model.nv)
        mujoco.mj_normalizeQuat(mj_model, data.qpos)
        mujoco.mj_forward(mj_model, data)
        linear, angular, down = task.motion(mjtorch.put_data(mj_model, data, dtype=DOUBLE))
        np.testing.assert_allclose(torch.cat([linear, angular]), data.sensordata, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(down, -data.xmat[1].reshape(3, 3)[2], rtol=1e-12, atol=1e-12)


def test_what_it_is_worth() -> None:
    """By hand: moving as commanded, or off by known speeds, feet at known heights."""
    env = small(push_seconds=1e9, command_seconds=1e9)
    task, dt = env.task, SKIP * TIMESTEP
    d = task.complete(task.rest.replace(userdata=torch.tensor([0.5, 0.0, 0.3], dtype=DOUBLE)))
    qvel = torch.zeros(14).double()
    qvel[0], qvel[5] = 0.5, 0.3
    moved = task.complete(d.replace(qvel=qvel, qpos=d.qpos + dt * torch.eye(15)[0].double() * 0.5))
    reward, over, info = task.outcome(d, moved, d.ctrl)
    assert not over and info["error_speed"] < 1e-12 and info["error_turn"] < 1e-12
    best = {name: weight * dt for name, weight in WEIGHTS.items() if weight > 0}
    for name, value in best.items():
        assert math.isclose(info[f"reward_{name}"], value, rel_tol=1e-9), name
    # four soles at height 0, going over the ground at half a metre a second
    slip = WEIGHTS["slip"] * dt * 4 * 0.25
    assert math.isclose(info["reward_slip"], slip, rel_tol=1e-9)
    assert math.isclose(reward, sum(best.values()) + slip, rel_tol=1e-9)
    slow = moved.replace(qvel=0 * qvel)
    _, _, info = task.outcome(d, slow, d.ctrl)
    assert math.isclose(info["reward_speed"], WEIGHTS["speed"] * dt * math.exp(-1), rel_tol=1e-9)
    assert math.isclose(info["reward_turn"], 2 * dt * math.exp(-((0.3 / 0.7) ** 2)), rel_tol=1e-9)
    high = task.action_range[1]
    _, _, info = task.outcome(d, moved.replace(ctrl=high), high)
    assert math.isclose(info["reward_jerk"], WEIGHTS["jerk"] * dt * 8, rel_tol=1e-9)


def test_strides_go_by_the_clock() -> None:
    """A quarter of a stride after it began, two feet are to be up; three quarters after, the other two."""
    task, quarter = small().task, 0.25 / SMALL.strides
    d = task.complete(task.rest.replace(userdata=torch.tensor([0.5, 0.0, 0.0]).double()))
    first = torch.tensor([LIFT, 0.0, 0.0, LIFT], dtype=DOUBLE)
    for k, wanted in enumerate((0 * first, first, 0 * first, LIFT - first)):
        now = d.replace(time=torch.tensor(k * quarter).double())
        torch.testing.assert_close(task.lifted(now), wanted, rtol=0, atol=1e-12)
        _, _, info = task.outcome(d, now, d.ctrl)  # all soles are down
        cost = WEIGHTS["gait"] * SKIP * TIMESTEP * 2 * (k % 2)
        assert math.isclose(info["reward_gait"], cost, rel_tol=1e-9, abs_tol=1e-12)
    stands = now.replace(userdata=torch.zeros(3).double())
    assert not task.lifted(stands).any() and not task.phase(stands).any()


def test_commands_change_and_bases_are_pushed() -> None:
    often = SKIP * TIMESTEP
    env = small(
        command_seconds=often, push_seconds=often, push_speed=0.4, push_turn=0.2, forward=(0.5, 0.6), turn=(0, 0)
    )
    state = begin(env, 40)
    told = state.data.userdata
    change = torch.vmap(env.task.disturbed)(random.split(random.key(1), 40), state.data)
    assert (change.userdata != told).any(1).all() | (change.userdata == 0).all(1).any()
    moving = change.userdata[change.userdata[:, 0] != 0]
    assert ((moving[:, 0] >= 0.5) & (moving[:, 0] <= 0.6)).all() and not moving[:, 2].any()
    assert 25 <= len(moving) < 40  # one in ten is to stand
    pushed = change.qvel[:, :6].abs().amax(0)
    assert (pushed[:3] > 0.3).all() and (pushed[:3] <= 0.4).all() and (pushed[3:] <= 0.2).all()
    assert not change.qvel[:, 6:].any()
    calm = small(command_seconds=1e9)
    same = torch.vmap(calm.task.disturbed)(random.split(random.key(1), 40), state.data)
    assert torch.equal(same.userdata, told) and not same.qvel.any()


def test_it_is_over_when_it_falls() -> None:
    env = small()
    state = begin(env, 3)
    qpos = state.data.qpos.clone()
    qpos[1, 3:7] = torch.tensor([math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0]).double()  # on its side
    state = step(env, state.replace(data=state.data.replace(qpos=qpos)), standing(env))
    assert state.terminated.tolist() == [False, True, False] and not state.truncated.any()
    task, d = env.task, env.task.complete(env.task.rest)
    for share, over in ((0.55, False), (0.45, True)):
        low = d.replace(qpos=torch.cat([d.qpos[:2], share * d.qpos[2:3], d.qpos[3:]]))
        assert bool(task.outcome(d, low, d.ctrl)[1]) == over


def test_rough_ground_is_where_c_has_it() -> None:
    """Heights at corners of cells are those that C's rays meet, and between them within a cell's."""
    mj_model, task = model("rough"), small("rough").task
    assert isinstance(task, Velocity)
    data = mujoco.MjData(mj_model)
    data.qpos[2] = 50.0
    mujoco.mj_forward(mj_model, data)
    field, rng = terrain.heights(), np.random.default_rng(0)
    n, side = len(field), terrain.PLOTS * terrain.PLOT / 2
    hit = np.zeros(1, np.int32)
    for row, column in rng.integers(1, n - 2, (20, 2)):
        x, y = ((2 * k / (n - 1) - 1) * side for k in (column, row))
        assert np.isclose(
            task.ground(torch.tensor([x, y])), field[row, column], atol=1e-6
        )  # MuJoCo has them in single precision
        share, cell = rng.uniform(size=2), 2 * side / (n - 1)
        place = np.array([x + share[0] * cell, y + share[1] * cell, 10.0])
        far = mujoco.mj_ray(mj_model, data, place, np.array([0.0, 0.0, -1.0]), None, 1, -1, hit)
        corners = field[row : row + 2, column : column + 2]
        assert abs(task.ground(torch.tensor(place[:2])) - (10 - far)) <= np.ptp(corners) + 1e-6
    edge = np.concatenate([field[0], field[-1], field[:, 0], field[:, -1]])
    assert abs(edge).max() < 0.1 and np.ptp(field) > 0.5


def test_rough_ground_is_seen_and_ends_at_its_edge() -> None:
    env = small("rough")
    state = begin(env, 4)
    assert state.obs.shape == (4, 38 + 9 * 5) and state.obs[:, 38:].std() > 0
    above = state.data.qpos[:, 2] - torch.vmap(env.task.ground)(state.data.qpos[:, :2])
    assert (above >= env.task.rest.qpos[2] - 1e-9).all() and len(set(state.data.qpos[:, 0].tolist())) == 4
    # turned by a quarter, what was ahead is at its right
    flat = env.task.rest.replace(qpos=torch.cat([torch.tensor([3.0, 2.0, 1.0]).double(), env.task.rest.qpos[3:]]))
    turned = flat.replace(
        qpos=torch.cat([flat.qpos[:3], torch.tensor([0.5, 0, 0, 0.5]).double().sqrt(), flat.qpos[7:]])
    )
    seen, seen_turned = (env.task.relief(d)[0].view(9, 5) for d in (flat, turned))
    assert torch.allclose(seen[4, 4], seen_turned[6, 2]) and not torch.allclose(seen, seen_turned)
    out = state.data.qpos.clone()
    out[0, 0] = 0.99 * terrain.PLOTS * terrain.PLOT / 2
    out[:, 2] += 0.5
    state = step(env, state.replace(data=state.data.replace(qpos=out)), standing(env, 4))
    assert state.truncated.tolist() == [True, False, False, False]


def test_robots_differ() -> None:
    m = small().task.m
    draw = Variation(base=1, feet=tuple(np.flatnonzero(model().geom_conaffinity).tolist()))
    drawn = torch.vmap(draw, in_dims=(0, None))(random.split(random.key(0), 30), m)
    soles = drawn.geom_friction[:, list(draw.feet), 0]
    assert (soles == soles[:, :1]).all() and soles.min() >= FRICTION[0] and soles.max() <= FRICTION[1]
    others = [k for k in range(m.ngeom) if k not in draw.feet]
    assert torch.equal(drawn.geom_friction[:, others], m.geom_friction[others].expand(30, -1, -1))
    factor = drawn.body_mass[:, 1:] / m.body_mass[1:]
    assert (factor[:, 1:] >= MASS[0]).all() and (factor[:, 1:] <= MASS[1]).all()
    assert (factor[:, 0] >= MASS[0] * LOAD[0]).all() and (factor[:, 0] <= MASS[1] * LOAD[1]).all()
    torch.testing.assert_close(drawn.body_inertia[:, 1:] / m.body_inertia[1:], factor[..., None].expand(-1, -1, 3))
    shift = drawn.body_ipos - m.body_ipos
    assert 0 < shift[:, 1].abs().max() <= SHIFT and not shift[:, 2:].any()
    strength = drawn.actuator_gainprm[..., 0] / m.actuator_gainprm[:, 0]
    assert (strength >= STRENGTH[0]).all() and (strength <= STRENGTH[1]).all() and strength.std() > 0.01
    torch.testing.assert_close(drawn.actuator_forcerange[..., 1] / m.actuator_forcerange[:, 1], strength)
    torch.testing.assert_close(
        drawn.actuator_biasprm[..., 1:3] / m.actuator_biasprm[:, 1:3], strength[..., None].expand(-1, -1, 2)
    )


def test_all_of_it_together() -> None:
    """Models, delays and noise: episodes of their own, the same again from the same keys."""
    env = envs.AutoReset(env=envs.TimeLimit(env=small(randomize=True), limit=2), mode="same_step")
    state = begin(env, 2)
    assert state.memory["model"]["body_mass"].shape == (2, 10)
    told = [state.obs[:, 33 : 33 + COMMAND]]
    for _ in range(2):
        state = step(env, state, standing(env, 2))
        told.append(state.obs[:, 33 : 33 + COMMAND])
    assert state.truncated.all() and not torch.equal(told[0], told[2])
    again = begin(env, 2)
    for _ in range(2):
        again = step(env, again, standing(env, 2))
    assert torch.equal(again.obs, state.obs) and torch.equal(again.info["final_obs"], state.info["final_obs"])
    # commands and the last controls are known for certain
    exact = torch.vmap(env.task.observe)(state.data)
    off = (state.obs - exact).abs()
    assert not off[:, 25:].any() and (off[:, :25] > 0).any(0).all() and off[:, 9:17].max() <= 0.025


@pytest.mark.slow
@pytest.mark.parametrize("ground", ["flat", "rough"])
def test_compiled_is_as_eager(ground: str) -> None:
    env = envs.AutoReset(env=envs.TimeLimit(env=small(ground, randomize=True), limit=3), mode="same_step")
    fast = jit(envs.step, in_dims=(None, 0, 0), strict=True)
    state = other = begin(env, 3)
    actions = standing(env) + 0.3 * torch.randn(6, 3, 8, dtype=DOUBLE)
    for action in actions:
        state, other = step(env, state, action), fast(env, other, action)
        for name in ("obs", "reward", "terminated", "truncated"):
            torch.testing.assert_close(getattr(other, name), getattr(state, name), rtol=1e-8, atol=1e-8)


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(TASKS) == {"go1-flat", "go1-rough", "g1-flat", "g1-rough"} <= set(envs.names())
    assert main(["tasks"]) == 0
    assert tuple(capsys.readouterr().out.split()) == envs.names()


def test_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="small has no parameter 'speed'; it has forward, left, turn, "):
        small(speed=3)
    with pytest.raises(ValueError, match="motors: no pattern fits 'x'; there are a, b"):
        fitting({"a": 1, "b": 2}, "x", "motors")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps mjlab"):
        envs.make("go1-flat")


MJLAB = pytest.mark.skipif(importlib.util.find_spec("mjlab") is None, reason="pip install --no-deps mjlab")


@MJLAB
@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_robots_of_the_package_stand_and_begin_again(name: str) -> None:
    """On their feet, which are all that touches the ground; the body is as high as Unitree says."""
    env = envs.make(name, mode="same_step", randomize=False)
    fast = jit(envs.step, in_dims=(None, 0, 0))
    state = jit(envs.reset, in_dims=(None, 0))(env, random.split(random.key(0), 8))
    assert abs(env.task.rest.qpos[2] - {"go1": 0.29, "g1": 0.76}[name.split("-")[0]]) < 0.02
    for _ in range(15):
        state = fast(env, state, env.task.rest.ctrl.expand(8, -1))
    assert state.reward.isfinite().all() and not state.memory["diverged"].any()
    if name.endswith("flat"):
        assert not state.done.any()
    mj_model, robot = envs.mj_model(name), ROBOTS[name.split("-")[0]]
    assert mj_model.nu == mj_model.nv - 6 == len(env.task.stand) and len(robot.feet) == len(env.task.feet)


def test_compiled_models_are_kept_and_made_anew_where_a_file_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "packaged_robots" / "xmls"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    file = folder / "small.xml"
    file.write_text(XML)
    monkeypatch.syspath_prepend(str(tmp_path))
    cache = tmp_path / "cache"
    monkeypatch.setenv("MJTORCH_CACHE_DIR", str(cache))
    robot = dataclasses.replace(SMALL, package="packaged_robots", file="xmls/small.xml")
    assert as_bytes(compiled(robot, "rough")) == as_bytes(equipped(MjSpec.from_file(str(file)), robot, "rough"))
    (entry,) = cache.glob("*.mjb")

    # What is kept is taken, whatever it is.
    store.forget(entry)
    store.save(entry.name, as_bytes(model()))
    assert as_bytes(compiled(robot, "rough")) == as_bytes(model())

    assert compiled(robot, "flat").nhfield == 0
    file.write_text(XML.replace('mass="6"', 'mass="7"'))
    assert compiled(robot, "rough").body("trunk").mass == 7
    assert len(list(cache.glob("*.mjb"))) == 3

    for entry in cache.glob("*.mjb"):
        entry.write_bytes(b"")
    assert compiled(robot, "rough").body("trunk").mass == 7


def as_bytes(mj_model: mujoco.MjModel) -> bytes:
    content = np.empty(mujoco.mj_sizeModel(mj_model), np.uint8)
    mujoco.mj_saveModel(mj_model, None, content)
    return content.tobytes()
