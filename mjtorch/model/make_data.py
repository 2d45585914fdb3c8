"""`make_data`: a `Data` at the model's reference pose."""

import dataclasses
from typing import Any

import mujoco
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.model.contact import Contact
from mjtorch.model.data import Data
from mjtorch.model.model import Model
from mjtorch.model.put_model import put_model
from mjtorch.model.sleeping import with_sleep

# number of mjtWarning values
N_WARNING = 7


def make_data(m: Model | mujoco.MjModel) -> Data:
    """One world at `qpos0`, at rest, with `eq_active` as the model says; controls and everything computed are zero.
    Trees sleep that have the policy `init`, and sensors on these read what they measure there.

    Large fields of zeros (the Jacobian of a hundred robots) take no memory until a step fills them, nor do their copies
    of `batch`; they are not to be written to.

    Call `forward` to fill what follows from the state; `step` needs no such call. Of an `MjModel`, what fits the model
    that `put_model` makes of it with its defaults.
    """
    if isinstance(m, mujoco.MjModel):
        m = put_model(m)
    if not isinstance(m, Model):
        raise TypeError(f"make_data: m must be a mjtorch Model or a mujoco.MjModel, got {type(m).__name__}")
    zeros = {name: tree.zeros(m.qpos0, shape) for name, shape in shapes(m).items()}
    integers = {
        name: torch.zeros(shape, dtype=torch.int64, device=m.qpos0.device) for name, shape in integer_shapes(m).items()
    }
    d = Data(**zeros, **integers, contact=empty_contact(m), eq_active=m.plan.constraint.eq_active0.clone())
    for p in m.plan.sleep:
        d = with_sleep(m, d, p.tree_asleep0.clone())
        d = d.replace(qpos_asleep=m.qpos0.clone(), sensordata=p.sensordata0.clone())
    mocap = m.plan.kinematics.mocap_body
    return dataclasses.replace(
        d,
        qpos=m.qpos0.clone(),
        ctrl=no_control(m),
        history=no_history(m),
        plastic=torch.cat([m.qpos_spring, m.tendon_lengthspring.flatten(), m.qpos0.new_zeros(1)])[
            m.plan.plastic.initial
        ],
        mocap_pos=m.body_pos[mocap],
        mocap_quat=m.body_quat[mocap],
    )


def no_control(m: Model) -> Tensor:
    """Controls (nu,) that are all zero, save for quaternions, which are the identity."""
    ctrl, quaternion = m.qpos0.new_zeros(m.nu), m.plan.servo.quaternion
    return ctrl.index_fill(0, quaternion[:, 0], 1.0) if quaternion.shape[0] else ctrl


def no_history(m: Model) -> Tensor:
    """`history` (nhistory,) of zeros at time steps, or intervals, before the beginning."""
    p, h = m.plan.history, m.opt.timestep
    history = p.initial + h * p.initial_time
    if not p.ticked.shape[0]:
        return history
    period, phase = m.sensor_interval[p.of_sensor].unbind(-1)
    last = torch.where(phase == 0, -period, phase)
    time = last - p.before * period
    number = torch.ceil(time / h - p.slack)
    if p.distinct:
        number = torch.minimum(number, torch.ceil((last + period) / h - p.slack) - 1 - p.before)
    return history.index_copy(0, p.ticked, torch.where(p.rounded.mask, number * h, time))


def integer_shapes(m: Model) -> dict[str, tuple[int, ...]]:
    """Shapes of the integer fields of `Data`."""
    counts = ("solver_niter", "ncon", "ne", "nf", "nl", "nefc")
    sleeping = bool(m.plan.sleep)
    return {
        "warning": (N_WARNING,),
        **dict.fromkeys(counts, ()),
        **dict.fromkeys(("tree_asleep", "tree_awake"), (sleeping * m.ntree,)),
        "body_awake": (sleeping * m.nbody,),
        "flexvert_conage": (bool(m.plan.ipc) * m.nflexvert,),
        "efc_state": (m.plan.constraint.nefc,),
    }


def shapes(m: Model) -> dict[str, tuple[int, ...]]:
    """Shapes of the floating-point fields of `Data`, without the contact list."""
    nbody, nv, nu, nefc = m.nbody, m.nv, m.nu, m.plan.constraint.nefc
    per_dof = (
        "qvel qacc_warmstart qfrc_applied qfrc_bias qfrc_spring qfrc_damper qfrc_gravcomp qfrc_fluid qfrc_passive "
        "qfrc_actuator qfrc_smooth qacc_smooth qfrc_constraint qacc qfrc_inverse"
    ).split()
    per_row = "pos margin frictionloss diagA D R vel aref b force".split()
    per_body = "xpos xipos subtree_com subtree_linvel subtree_angmom".split()
    return {
        "time": (),
        "qpos": (m.nq,),
        "act": (m.na,),
        "plastic": (m.nplastic,),
        "history": (m.nhistory,),
        "act_dot": (m.na,),
        "ctrl": (nu,),
        "xfrc_applied": (nbody, 6),
        "mocap_pos": (m.nmocap, 3),
        "mocap_quat": (m.nmocap, 4),
        "userdata": (m.nuserdata,),
        "qpos_asleep": (bool(m.plan.sleep) * m.nq,),
        "flexvert_lambda": (bool(m.plan.ipc) * m.nflexvert,),
        **dict.fromkeys(per_body, (nbody, 3)),
        "xquat": (nbody, 4),
        "xmat": (nbody, 3, 3),
        "ximat": (nbody, 3, 3),
        "xanchor": (m.njnt, 3),
        "xaxis": (m.njnt, 3),
        "geom_xpos": (m.ngeom, 3),
        "geom_xmat": (m.ngeom, 3, 3),
        "site_xpos": (m.nsite, 3),
        "site_xmat": (m.nsite, 3, 3),
        "cam_xpos": (m.ncam, 3),
        "cam_xmat": (m.ncam, 3, 3),
        "light_xpos": (m.nlight, 3),
        "light_xdir": (m.nlight, 3),
        "cdof": (nv, 6),
        "cdof_dot": (nv, 6),
        "cinert": (nbody, 10),
        "crb": (nbody, 10),
        **dict.fromkeys(("cvel", "cacc", "cfrc_int", "cfrc_ext"), (nbody, 6)),
        "ten_length": (m.ntendon,),
        "ten_velocity": (m.ntendon,),
        "ten_J": (m.ntendon, nv),
        "flexvert_xpos": (m.nflexvert, 3),
        **dict.fromkeys(("flexedge_length", "flexedge_velocity"), (m.nflexedge,)),
        "flexedge_J": (m.nJfe,),
        "actuator_length": (m.nout,),
        "actuator_velocity": (m.nout,),
        "actuator_force": (m.nout,),
        "actuator_moment": (m.nout, nv),
        "M": (m.nC,),
        "qLD": (nv, nv),
        **dict.fromkeys(per_dof, (nv,)),
        "solver_fwdinv": (2,),
        "energy": (2,),
        "sensordata": (m.nsensordata,),
        "efc_J": (nefc, nv),
        "efc_KBIP": (nefc, 4),
        **{f"efc_{name}": (nefc,) for name in per_row},
    }


def empty_contact(m: Model) -> Contact:
    """A contact list with no contact in it."""
    dim: tuple[int, ...] = m.plan.collision.contact_dim
    n = len(dim)
    touching = n if m.plan.collision.touching else 0

    def zeros(*shape: int) -> Tensor:
        return m.qpos0.new_zeros(n, *shape)

    ints: dict[str, Any] = {"device": m.qpos0.device, "dtype": torch.int64}
    return Contact(
        dist=zeros(),
        pos=zeros(3),
        frame=zeros(3, 3),
        includemargin=zeros(),
        friction=zeros(5),
        solref=zeros(2),
        solreffriction=zeros(2),
        solimp=zeros(5),
        geom=torch.full((n, 2), -1, **ints),
        flex=torch.full((touching, 2), -1, **ints),
        elem=torch.full((touching, 2), -1, **ints),
        vert=torch.full((touching, 2), -1, **ints),
        detected=torch.zeros(n, dtype=torch.bool, device=m.qpos0.device),
        speculative=torch.zeros(n if m.plan.collision.speculative else 0, dtype=torch.bool, device=m.qpos0.device),
        dim=dim,
    )
