"""A number that comes where a zero was when the model was put: it does what it does in C, or it is refused."""

import copy
from operator import attrgetter

import mujoco
import numpy as np
import pytest
import torch
from reference import load, random_state

import mjtorch
from mjtorch.model import Model, put_data, put_model

# What C does not read either where frames coincide, and damping, which only the integrator leaves out.
OTHERWISE = {"body_ipos", "body_iquat", "geom_pos", "geom_quat", "site_pos", "site_quat", "dof_damping"}
SEEN = ("qpos", "qvel", "qacc", "sensordata")


def given(mj_model: mujoco.MjModel, name: str, where: np.ndarray) -> mujoco.MjModel:
    """A copy with small numbers in elements of a field; derived quantities stay as they were."""
    mj_model = copy.copy(mj_model)
    head, _, field = name.rpartition(".")
    owner = getattr(mj_model, head) if head else mj_model
    value = np.array(getattr(owner, field), dtype=float)
    value[where] = 0.02
    if value.ndim:
        getattr(owner, field)[...] = value
    else:
        setattr(owner, field, float(value))
    return mj_model


def put(mj_model: mujoco.MjModel) -> Model | None:
    """A model with room for ten contacts, unless it is refused."""
    try:
        return put_model(mj_model, dtype=torch.float64, contact_capacity=10)
    except (NotImplementedError, ValueError, mujoco.FatalError):
        return None


@pytest.mark.parametrize(
    "model",
    ["feature/actuators"]
    + [pytest.param(m, marks=pytest.mark.slow) for m in ("feature/tendon_spatial", "feature/fluid", "gym/ant")],
)
def test_zeros_are_free_or_refused(model: str) -> None:
    mj_model = load(model)
    mj_data = random_state(mj_model)
    m = put_model(mj_model, dtype=torch.float64, contact_capacity=10)
    left_out, refused = dict(m.left_out), set()
    for name, shape in m.shapes:
        value = attrgetter(name)(m)
        free = value.flatten().eq(0).numpy()
        fixed = np.zeros_like(free)
        fixed[list(left_out.get(name, ()))] = True
        assert (free | ~fixed).all(), name  # only zeros are left out
        if fixed.any():
            refused.add(name)
            with pytest.raises(ValueError, match=rf"replace: m\.{name}\[\d+\] was zero when the model was put"):
                m.replace(**{name: torch.where(torch.tensor(fixed).reshape(shape), 0.02, value)})
        free &= ~fixed
        changed = given(mj_model, name, free.reshape(shape)) if free.any() and name not in OTHERWISE else None
        fresh = put(changed) if changed is not None and hasattr(mj_model, name.split(".")[0]) else None
        if fresh is None:
            continue
        wanted = mjtorch.step(fresh, put_data(mj_model, mj_data, model=fresh))
        found = mjtorch.step(m.replace(**{name: attrgetter(name)(fresh)}), put_data(mj_model, mj_data, model=m))
        for field in SEEN:
            x, y = getattr(found, field), getattr(wanted, field)
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9, equal_nan=True, msg=f"{name}: {field}")
    assert {"body_gravcomp", "dof_frictionloss", "geom_surfacevel"} <= refused


def test_worlds_and_zeros() -> None:
    """Each world's own numbers are looked at; zeros, traced numbers and those of vmap are not refused."""
    m = put_model(load("gym/hopper"))
    loss = torch.zeros(3, m.nv)
    assert m.replace(dof_frictionloss=loss).dof_frictionloss is loss
    loss[2, 4] = 0.1
    with pytest.raises(ValueError, match=r"m\.dof_frictionloss\[4\]"):
        m.replace(dof_frictionloss=loss)
    mapped = torch.vmap(lambda x: m.replace(dof_frictionloss=x).dof_frictionloss)(loss)
    assert torch.equal(mapped, loss)
    traced = torch.compile(lambda x: m.replace(dof_frictionloss=x).dof_frictionloss, backend="eager", fullgraph=True)
    assert torch.equal(traced(loss[2]), loss[2])
