"""Tendons around and through spheres and cylinders: lengths and Jacobians against C, derivatives, degenerate places."""

from functools import partial

import mujoco
import numpy as np
import pytest
import torch
from reference import assert_fields_close, load

import mjtorch
from mjtorch import tree
from mjtorch.model import Model, put_model
from mjtorch.model.put_data import tendon_jacobian

RADIUS = 0.3
KINDS = ("sphere", "cylinder")
SIDES = ("", "outside", "inside", "anywhere")
POINT = (
    '<joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 1 0"/><joint type="slide" axis="0 0 1"/>'
    '<geom size=".01" contype="0" conaffinity="0"/>'
)
# Two ends, a side site and a geom, all of which may be anywhere.
SCENE = f"""
<mujoco>
  <worldbody>
    <body>{POINT}<site name="a"/></body>
    <body>{POINT}<site name="b"/></body>
    <body>{POINT}<site name="s"/></body>
    <body>{POINT}<joint type="ball"/>
      <geom name="g" type="{{kind}}" size="{RADIUS} 1" contype="0" conaffinity="0"/>
    </body>
  </worldbody>
  <tendon><spatial><site site="a"/><geom geom="g" {{side}}/><site site="b"/></spatial></tendon>
</mujoco>
"""
# Ends and side sites at which something is not defined, for a sphere or cylinder at the origin.
ABOVE, FAR = (0.0, 0.5, 0.0), (1.0, 0.0, 0.0)
DEGENERATE = {
    "both ends in one place": (FAR, FAR, ABOVE),
    "at the centre": ((0.0, 0.0, 0.0), FAR, ABOVE),
    "on the surface": ((RADIUS, 0.0, 0.0), (-1.0, 0.0, 0.0), ABOVE),
    "on the surface, passing through": ((RADIUS, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 0.0)),
    "on opposite sides": (FAR, (-1.0, 0.0, 0.0), ABOVE),
    "one behind the other": (FAR, (2.0, 0.0, 0.0), ABOVE),
    "one behind the other, passing through": (FAR, (2.0, 0.0, 0.0), (0.1, 0.0, 0.0)),
    "just touching": ((1.0, RADIUS, 0.0), (-1.0, RADIUS, 0.0), ABOVE),
    "just touching, passing through": ((1.0, RADIUS, 0.0), (-1.0, RADIUS, 0.0), (0.1, 0.0, 0.0)),
    "side site at the centre": (FAR, (0.2, 1.0, 0.0), (0.0, 0.0, 0.0)),
    "along the axis": ((0.0, 0.0, 1.0), (0.0, 0.0, -1.0), ABOVE),
}


def scene(kind: str, side: str) -> mujoco.MjModel:
    return load(SCENE.format(kind=kind, side='sidesite="s"' if side else ""))


def random_places(mj_model: mujoco.MjModel, side: str, count: int) -> list[mujoco.MjData]:
    """States with the side site on the given side of the surface."""
    near, far = {"outside": (1.0, 4.0), "inside": (0.0, 0.95)}.get(side, (0.0, 3.0))
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        d = mujoco.MjData(mj_model)
        center, direction = 0.1 * rng.standard_normal(3), rng.standard_normal(3)
        ends = rng.choice([0.3, 0.5, 1.0]) * rng.standard_normal((2, 3))
        site = rng.uniform(near, far) * RADIUS * direction / np.linalg.norm(direction)
        d.qpos[:12] = np.concatenate([(np.array([*ends, site]) + center).ravel(), center])
        d.qpos[12:] = rng.standard_normal(4)
        mujoco.mj_forward(mj_model, d)
        found.append(d)
    return found


def length_and_jacobian(m: Model, qpos: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    d = mjtorch.make_data(m).replace(qpos=qpos)
    d = mjtorch.tendon(m, mjtorch.com_pos(m, mjtorch.kinematics(m, d)))
    return d.ten_length[0], d.ten_J[0]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_matches_c(kind: str, side: str) -> None:
    """The Jacobian of a tendon that passes through a geom less closely: C's iteration stops at 1e-6."""
    mj_model = scene(kind, side)
    m = put_model(mj_model, dtype=torch.float64)
    mj_datas = random_places(mj_model, side, 300)
    qpos = torch.tensor(np.array([d.qpos for d in mj_datas]))
    length, J = torch.vmap(lambda q: length_and_jacobian(m, q))(qpos)
    wanted = torch.tensor(np.array([d.ten_length[0] for d in mj_datas]))
    wanted_J = torch.tensor(np.array([tendon_jacobian(mj_model, d)[0] for d in mj_datas]))
    straight = torch.tensor(np.array([np.linalg.norm(d.site_xpos[0] - d.site_xpos[1]) for d in mj_datas]))
    assert 40 < (wanted > straight + 1e-9).sum() < 260
    torch.testing.assert_close(length, wanted, rtol=0, atol=1e-11)
    torch.testing.assert_close(J, wanted_J, rtol=0, atol=1e-5 if side in ("inside", "anywhere") else 1e-11)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_jacobian_is_the_derivative_of_the_length(kind: str, side: str) -> None:
    mj_model = scene(kind, side)
    m = put_model(mj_model, dtype=torch.float64)
    qpos = torch.tensor(np.array([d.qpos for d in random_places(mj_model, side, 50)]))
    J = torch.vmap(lambda q: length_and_jacobian(m, q)[1])(qpos)
    slope = torch.vmap(torch.func.jacrev(lambda q: length_and_jacobian(m, q)[0]))(qpos)
    torch.testing.assert_close(slope[:, :12], J[:, :12], rtol=0, atol=1e-10)
    assert torch.allclose(slope[:, 6:9], torch.zeros(()).double())  # the side site chooses, and no more


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_jacobian_has_a_derivative(kind: str, side: str) -> None:
    mj_model = scene(kind, side)
    m = put_model(mj_model, dtype=torch.float64)
    for d in random_places(mj_model, side, 5):
        qpos = torch.tensor(d.qpos).requires_grad_()
        torch.autograd.gradcheck(lambda q: length_and_jacobian(m, q)[1], qpos, fast_mode=True, rtol=1e-4)


@pytest.mark.parametrize("place", DEGENERATE)
@pytest.mark.parametrize("side", ["", "sided"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_is_finite_everywhere(kind: str, side: str, place: str) -> None:
    for dtype in (torch.float32, torch.float64):
        m = put_model(scene(kind, side), dtype=dtype)
        qpos = m.qpos0.clone()
        qpos[:9] = torch.tensor(DEGENERATE[place], dtype=dtype).flatten()
        found = (*length_and_jacobian(m, qpos), *torch.func.jacrev(partial(length_and_jacobian, m))(qpos))
        assert all(x.isfinite().all() for x in found)


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_through_a_geom(kind: str) -> None:
    mj_model = scene(kind, "inside")
    m = put_model(mj_model, dtype=torch.float64)
    datas = [mjtorch.put_data(mj_model, d, model=m) for d in random_places(mj_model, "inside", 5)]
    found = mjtorch.jit(mjtorch.forward, in_dims=(None, 0), strict=True)(m, tree.stack(datas))
    wanted = tree.stack([mjtorch.forward(m, d) for d in datas])
    assert_fields_close(found, wanted, ["ten_length", "ten_J", "ten_velocity", "qacc"], 1e-10)


@pytest.mark.parametrize("name", ["tendon_spatial", "tendon_wrap"])
def test_step_has_finite_gradients(name: str) -> None:
    mj_model = load(f"feature/{name}")
    m = put_model(mj_model, dtype=torch.float64)
    d = mjtorch.make_data(m)
    numbers = ("site_pos", "geom_size", "wrap_prm", "tendon_stiffness", "tendon_armature")
    inputs = [getattr(m, n).clone().requires_grad_() for n in numbers] + [d.qpos.clone().requires_grad_()]
    stepped = mjtorch.step(m.replace(**dict(zip(numbers, inputs[:-1], strict=True))), d.replace(qpos=inputs[-1]))
    (stepped.qvel.sum() + stepped.qpos.sum()).backward()
    assert all(x.grad is None or x.grad.isfinite().all() for x in inputs)
