"""Models for the tests of constraint rows, one feature each, and the comparison with C row by row."""

from typing import Any

import mujoco
import numpy as np
import torch
from reference import oracle, poison

from mjtorch.constraint import make_constraint, reference_constraint
from mjtorch.model import Data, Model, put_model
from mjtorch.model.plan import constraint as constraint_plan, solver as solver_plan
from mjtorch.model.plan.geom_pairs import tried_pairs
from mjtorch.model.plan.tensors import Tensors
from mjtorch.model.put_data import put_data

CPU = torch.device("cpu")
COUNTS = ["ne", "nf", "nl", "nefc"]
REGULARIZER = ["efc_diagA", "efc_KBIP", "efc_D", "efc_R"]
POSITION = [*COUNTS, "efc_J", "efc_pos", "efc_margin", "efc_frictionloss", *REGULARIZER]
VELOCITY = ["efc_vel", "efc_aref"]

# an arm with friction, armature and two branches; `{equality}` ties its parts
ARM = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <body name="base" pos="0.1 -0.2 1" quat="0.9 0.1 -0.3 0.2">
      <joint name="j0" axis="0 1 0.2" damping="0.1"/>
      <geom type="capsule" size="0.05 0.2" pos="0.2 0 0" euler="0 80 0"/>
      <site name="s0" pos="0.1 0.2 -0.1" quat="0.8 0.1 0.5 0.3"/>
      <body name="left" pos="0.4 0 0.1" quat="0.7 0.3 0.1 -0.5">
        <joint name="j1" type="ball" pos="0.02 0 0.01"/>
        <geom type="sphere" size="0.1" pos="0.05 0.1 0"/>
        <body name="hand" pos="0.1 0.1 0.3">
          <joint name="j2" type="slide" axis="1 2 0"/>
          <joint name="j3" axis="0.3 0 1" armature="0.1"/>
          <geom type="sphere" size="0.08" pos="0.1 0 0"/>
          <site name="s1" pos="-0.1 0.1 0.1" quat="0.1 0.6 -0.4 0.3"/>
        </body>
      </body>
      <body name="right" pos="0.3 -0.3 -0.1">
        <joint name="j4" axis="1 0 0.4"/>
        <geom type="sphere" size="0.1" pos="0 0.1 0"/>
      </body>
    </body>
    <body name="float" pos="0.5 0.6 0.8">
      <freejoint name="j5"/>
      <geom type="capsule" size="0.1 0.1" euler="30 20 10"/>
      <site name="s2" pos="0.2 0.1 -0.1" quat="0.6 -0.2 0.5 0.1"/>
    </body>
    <body name="ghost" mocap="true" pos="0.2 0 1.2" quat="0.9 0.2 0 0.1"/>
    <body name="fixed" pos="1 1 0"/>
  </worldbody>
  <equality>{equality}</equality>
</mujoco>
"""
EQUALITIES = {
    "connect": '<connect body1="hand" body2="right" anchor="0.1 0.2 0.3"/>',
    "connect_world": '<connect body1="hand" anchor="0.1 0.2 0.3" solref="-300 -20" solimp="0.3 0.9 0.5 0.3 3"/>',
    "connect_sites": '<connect site1="s1" site2="s2"/>',
    "weld": '<weld body1="hand" body2="float" anchor="0.1 0 -0.2" torquescale="0.3" relpose="0 0.1 0 0.8 0.3 0.1 0"/>',
    "weld_mocap": '<weld body1="float" body2="ghost" solref="0.001 1.5"/>',
    "weld_sites": '<weld site1="s0" site2="s2" torquescale="2"/>',
    "joint": '<joint joint1="j3" joint2="j4" polycoef="0.1 0.5 -0.3 0.2 0.7"/>',
    "joint_alone": '<joint joint1="j2" polycoef="0.05 0.5 -0.3 0.2 0.7" solimp="0.9 0.9 0.01 0.5 2"/>',
    "mixture": """
      <joint joint1="j3" joint2="j4" polycoef="0 0.7 0 0.2 0"/>
      <weld body1="right" body2="float"/> <connect body1="hand" body2="base" anchor="0 0 0.1"/>
      <weld site1="s1" site2="s2" solref="-100 0"/> <joint joint1="j0"/>
      <connect site1="s0" site2="s2"/> <weld body1="ghost" body2="left"/>""",
}

LIMITS = """
<mujoco>
  <option timestep="0.004"/>
  <compiler angle="radian"/>
  <default><geom type="capsule" size="0.05 0.1" contype="0" conaffinity="0"/></default>
  <worldbody>
    <body><joint range="-0.1 0.1" limited="true"/><geom/></body>
    <body><joint type="ball" range="0 0.4" limited="true" margin="0.1" solreflimit="-500 -30"/><geom/>
      <body pos="0 0 0.2"><joint type="slide" axis="1 0 1" range="-0.05 0.05" limited="true" margin="0.2"
        solreflimit="0.001 2" solimplimit="0.2 0.8 0.3 0.4 3"/><geom/></body></body>
    <body><joint axis="1 0 0" range="-0.2 0.1" limited="true" margin="0.01" solimplimit="0.95 0.95 0 0.5 2"/><geom/>
      <body pos="0 0 0.2"><joint type="ball" range="0 0.2" limited="true"/><geom/></body></body>
    <body><joint frictionloss="2" solreffriction="0.001 1" range="-9 -8" limited="true"/><joint axis="1 0 0"/><geom/>
      <body><joint type="ball" frictionloss="0.5" solimpfriction="0.7 0.9 0.1 0.5 1"/><geom/></body></body>
    <body><freejoint/><geom/></body>
  </worldbody>
</mujoco>
"""

# three trees that rest on each other and on the floor, with every condim
PILE = """
<mujoco>
  <option timestep="0.003" impratio="3"/>
  <worldbody>
    <geom type="plane" size="5 5 1" condim="1" friction="0.2 0.01 0.001" margin="0.02"/>
    <body pos="0 0 0.095"><joint type="slide" axis="0 0 1"/><joint axis="1 0 0"/>
      <geom type="sphere" size="0.1" condim="{one}" friction="0.7 0.02 0.003" solimp="0.5 0.9 0.02 0.3 3"/>
      <body pos="0.3 0 0"><joint type="ball"/>
        <geom type="capsule" size="0.1 0.1" euler="0 90 0" condim="{two}" solref="-900 -40" margin="0.01" gap="0.005"/>
      </body></body>
    <body pos="0 0 0.285"><freejoint/><geom type="sphere" size="0.1" condim="{two}" friction="0.9 0.03 0.01"/></body>
    <body pos="0.4 0.1 0.28"><freejoint/><geom type="sphere" size="0.1" condim="{one}" priority="1"/></body>
    <body pos="0.1 0.4 0.1"><freejoint/><geom name="paired" type="sphere" size="0.1"/>
      <body pos="0 0 0.18"><joint axis="1 1 0" frictionloss="1"/><geom name="top" type="sphere" size="0.1"/></body>
    </body>
    <body pos="0.1 0.4 0.45"><freejoint/><geom name="third" type="sphere" size="0.1"/></body>
  </worldbody>
  <contact>
    <pair geom1="third" geom2="top" condim="{two}" friction="0.6 0.4 0.02 0.03 0.01" solreffriction="{ref}"/>
  </contact>
</mujoco>
"""


def moved(mj_model: mujoco.MjModel, seed: int, size: float = 0.3, steps: int = 0) -> mujoco.MjData:
    """A state of random positions, velocities and switches, and all that `mj_forward` makes of it."""
    rng = np.random.default_rng(seed)
    d = mujoco.MjData(mj_model)
    mujoco.mj_integratePos(mj_model, d.qpos, size * rng.standard_normal(mj_model.nv), 1)
    d.qvel[:] = 2 * size * rng.standard_normal(mj_model.nv)
    d.mocap_pos += size * rng.standard_normal(d.mocap_pos.shape)
    d.mocap_quat += size * rng.standard_normal(d.mocap_quat.shape)
    if seed % 2:
        d.eq_active[:] = rng.random(mj_model.neq) < 0.7
    for _ in range(steps):
        mujoco.mj_step(mj_model, d)
    mujoco.mj_forward(mj_model, d)
    return d


def put(mj_model: mujoco.MjModel, states: list[mujoco.MjData], dtype: torch.dtype = torch.float64) -> Model:
    """The model, with slots enough for the contacts of all `states` and one more of each dim."""
    m = put_model(mj_model, dtype=dtype)
    dims = [s.contact.dim.tolist() for s in states]
    most = {k: max(d.count(k) for d in dims) for k in sorted({k for d in dims for k in d})}
    slots = m.plan.collision.replace(contact_dim=tuple(k for k, n in most.items() for _ in range(n + 1)))
    make, tried = Tensors(CPU, dtype), tried_pairs(mj_model)
    rows = constraint_plan.build(mj_model, make, slots, tried)
    solver = solver_plan.build(mj_model, make, rows, slots, tried, m.plan.kinematics.trees)
    return m.replace(plan=m.plan.replace(collision=slots, constraint=rows, solver=solver))


def run(m: Model, d: Data) -> Data:
    """Both stages, on poisoned outputs."""
    return reference_constraint(m, poison(make_constraint(m, poison(d, POSITION + VELOCITY)), VELOCITY))


def assert_rows(mj_model: mujoco.MjModel, states: list[mujoco.MjData], rtol: float = 1e-9, **changed: Any) -> None:
    """The rows of all `states` are C's; those that C does not have are switched off.

    changed: options that are changed after the model was put.
    """
    mj_model = oracle(mj_model)
    m = put(mj_model, states)
    m = m.replace(opt=m.opt.replace(**changed))
    for state in states:
        expected = put_data(mj_model, state, model=m)
        actual = run(m, expected)
        active = expected.efc_D != 0
        assert active.sum() == state.nefc
        for name in POSITION + VELOCITY:
            a, e = getattr(actual, name), getattr(expected, name)
            assert torch.isfinite(a).all(), name
            if name.startswith("efc_"):
                a, e = a[active], e[active]
            torch.testing.assert_close(a, e, rtol=rtol, atol=rtol, msg=lambda s, name=name: f"{name}: {s}")
        assert not actual.efc_J[~active].any()
        assert not actual.efc_D[~active].any()
