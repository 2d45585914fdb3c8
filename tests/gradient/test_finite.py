"""Derivatives are finite where directions, lengths and angles vanish, in every number of state and model."""

from collections.abc import Callable

import mujoco
import pytest
import torch
from reference import MODELS, VARIED, load, slow_but
from torch import Tensor

import mjtorch
from mjtorch import tree
from mjtorch.math import quaternion as quat, vector
from mjtorch.model import Data, Model

INPUTS = "qpos qvel act ctrl qfrc_applied xfrc_applied mocap_pos mocap_quat".split()
OUTPUTS = "qpos qvel act qacc sensordata efc_force qfrc_constraint xpos cam_xmat light_xdir".split()
FRICTION = "geom_friction pair_friction dof_frictionloss tendon_frictionloss".split()
RANDOM = 10
SLIDE = int(mujoco.mjtJoint.mjJNT_SLIDE)
ITERATIONS = 4  # of the solver: enough to pass through all of it
Values = tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]

# Centres, end points and axes that coincide, cross, are parallel, or lie in a surface; the last ones just touch.
DEGENERATE = """
<mujoco>
  <default><geom condim="6" size=".1" margin=".01"/></default>
  <worldbody>
    <geom type="plane" size="9 9 .1" condim="6"/>
    <body><freejoint/><geom/></body>
    <body><freejoint/><geom/></body>
    <body pos="1 0 0"><freejoint/><geom type="capsule" size=".1 .2"/></body>
    <body pos="1 0 0"><freejoint/><geom type="capsule" size=".1 .2"/></body>
    <body pos="1 0 .2"><freejoint/><geom/></body>
    <body pos="2 0 0" euler="90 0 0"><freejoint/><geom type="capsule" size=".1 .2"/></body>
    <body pos="2 0 0" euler="0 90 0"><freejoint/><geom type="capsule" size=".1 .2"/></body>
    <body pos="3 0 .1"><freejoint/><geom/></body>
    <body pos="3 .2 .1"><freejoint/><geom/></body>
  </worldbody>
</mujoco>
"""


def rest(d: Data, m: Model) -> Data:
    """Nothing turned, nothing moves."""
    return d


def nothing(d: Data, m: Model) -> Data:
    """Zero quaternions."""
    return d.replace(qpos=torch.zeros_like(d.qpos), mocap_quat=torch.zeros_like(d.mocap_quat))


def at_limits(d: Data, m: Model) -> Data:
    """Every limited slide and hinge exactly at its upper limit."""
    qpos = d.qpos.clone()
    for joint, kind in enumerate(m.jnt_type):
        if m.jnt_limited[joint] and kind >= SLIDE:
            qpos[m.jnt_qposadr[joint]] = m.jnt_range[joint, 1]
    return d.replace(qpos=qpos)


def numbers(m: Model, d: Data) -> Values:
    """All that is differentiated: fields of the model, its options, inputs."""
    fields = [
        name for name in tree.tensor_fields(Model) if name not in ("opt", "stat", "plan", "settings", "callbacks")
    ]
    options = [name for name in tree.tensor_fields(type(m.opt)) if name not in ("tolerance", "ls_tolerance")]
    return (
        {name: getattr(m, name) for name in fields},
        {name: getattr(m.opt, name) for name in options},
        {name: getattr(d, name) for name in INPUTS},
    )


def total(values: Values, m: Model, d: Data) -> Tensor:
    """A sum of what a step results in."""
    fields, options, inputs = values
    d = mjtorch.step(m.replace(**fields, opt=m.opt.replace(**options)), d.replace(**inputs))
    return torch.stack([getattr(d, name).sum() for name in OUTPUTS]).sum()


def infinite(grads: Values) -> list[str]:
    return [name for part in grads for name, x in part.items() if not x.isfinite().all()]


@pytest.mark.parametrize("cone", [0, 1])
@pytest.mark.parametrize("model", slow_but([*MODELS, DEGENERATE], *VARIED, DEGENERATE), ids=[*MODELS, "degenerate"])
def test_degenerate_states(model: str, cone: int) -> None:
    m = mjtorch.put_model(load(model, cone=cone, iterations=ITERATIONS), dtype=torch.float64)
    frictionless = m.replace(**{name: torch.zeros_like(getattr(m, name)) for name in FRICTION})
    for prepare, variant in ((rest, m), (nothing, m), (at_limits, m), (rest, frictionless)):
        d = prepare(mjtorch.make_data(m), m)
        assert not infinite(torch.func.grad(total)(numbers(variant, d), variant, d)), prepare.__name__


def check_random(model: str, count: int, dtype: torch.dtype) -> None:
    """Far from any sensible state: turned anyhow, some of it exactly at rest."""
    m = mjtorch.put_model(load(model, iterations=ITERATIONS), dtype=dtype)
    d = mjtorch.batch(mjtorch.make_data(m), count)
    generator = torch.Generator().manual_seed(0)
    noise = {name: torch.randn(getattr(d, name).shape, generator=generator, dtype=dtype) for name in INPUTS}
    still = torch.rand(count, 1, generator=generator) < 0.3
    noise["qvel"] = torch.where(still, 0.0, noise["qvel"])
    d = d.replace(**{name: getattr(d, name) + 0.3 * x for name, x in noise.items()})

    def grads(d: Data) -> Values:
        return torch.func.grad(total)(numbers(m, d), m, d)

    # A thousand soft bodies at once would take 20 GB.
    assert not infinite(torch.vmap(grads, chunk_size=100)(d))


@pytest.mark.parametrize("model", slow_but(MODELS, *VARIED, *MODELS[::4]))
def test_random_states(model: str) -> None:
    check_random(model, RANDOM, torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_thousand_random_states(model: str) -> None:
    check_random(model, 1000, torch.float64)


PRIMITIVES: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "norm": (vector.norm, (3,)),
    "normalize": (lambda x: torch.cat(vector.normalize(x, torch.ones_like(x))), (3,)),
    "quat.normalize": (quat.normalize, (4,)),
    "quat.from_rotation_vector": (quat.from_rotation_vector, (3,)),
    "quat.to_rotation_vector": (quat.to_rotation_vector, (4,)),
    "quat.sub": (quat.sub, (4, 4)),
    "quat.integrate": (lambda q, v: quat.integrate(q, v, torch.tensor(0.01)), (4, 3)),
}


@pytest.mark.parametrize("name", PRIMITIVES)
def test_primitives(name: str) -> None:
    """At zero, at the identity, and at half a turn."""
    fn, sizes = PRIMITIVES[name]
    for place in range(4):
        axis = tuple((torch.arange(n) == place).double() for n in sizes)
        every = tuple(range(len(sizes)))
        for args in (axis, tuple(torch.zeros_like(x) for x in axis)):
            for jacobian in (torch.func.jacrev, torch.func.jacfwd):
                assert all(x.isfinite().all() for x in jacobian(fn, argnums=every)(*args))
