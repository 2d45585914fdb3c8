"""The oracle of derivatives: differences of C's steps, and of ours where C has none."""

import mujoco
import numpy as np
import torch
from reference import VERSION
from torch import Tensor

import mjtorch
from mjtorch.model import Data, Model

STEP = 1e-6
SMALL = 1e-2  # the scale of derivatives that are all smaller

Matrices = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def differences_of_c(mj_model: mujoco.MjModel, mj_data: mujoco.MjData) -> Matrices:
    """A, B, C and D by central differences (mjd_transitionFD).

    Before 4.0 that function has the wrong sign in D, and keeps damping that changes with velocity: steps do without it.
    """
    if VERSION < 4:
        return differences_of_steps(mj_model, mj_data)
    work = mujoco.MjData(mj_model)
    mujoco.mj_copyData(work, mj_model, mj_data)
    n, nu, ns = 2 * mj_model.nv + mj_model.na, mj_model.nu, mj_model.nsensordata
    A, B, C, D = np.zeros((n, n)), np.zeros((n, nu)), np.zeros((ns, n)), np.zeros((ns, nu))
    mujoco.mjd_transitionFD(mj_model, work, STEP, True, A, B, C if ns else None, D if ns else None)
    return A, B, C, D


def differences_of_steps(m: mujoco.MjModel, d: mujoco.MjData) -> Matrices:
    """The same, of whole steps by C."""
    work, sizes = mujoco.MjData(m), np.cumsum([m.nv, m.nv, m.na])
    n, change = sizes[-1], np.zeros(m.nv)

    def stepped(nudge: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mujoco.mj_copyData(work, m, d)
        dq, qvel, act, ctrl = np.split(nudge, sizes)
        mujoco.mj_integratePos(m, work.qpos, dq, 1)
        for x, by in ((work.qvel, qvel), (work.act, act), (work.ctrl, ctrl)):
            x += by
        mujoco.mj_step(m, work)
        return work.qpos.copy(), np.concatenate([work.qvel, work.act, work.sensordata])

    columns = []
    for nudge in STEP * np.eye(n + m.nu):
        (qpos1, rest1), (qpos2, rest2) = stepped(-nudge), stepped(nudge)
        mujoco.mj_differentiatePos(m, change, 2 * STEP, qpos1, qpos2)
        columns.append(np.concatenate([change, (rest2 - rest1) / (2 * STEP)]))
    J = np.array(columns).T
    return J[:n, :n], J[:n, n:], J[n:, :n], J[n:, n:]


def differences_of_ours(m: Model, d: Data, nudge: float = STEP) -> Matrices:
    """The same, of our own steps: for integrators that C's function refuses."""
    n, one, after = 2 * m.nv + m.na, torch.ones((), dtype=torch.float64), mjtorch.step(m, d)

    def response(x: Tensor) -> Tensor:
        dq, qvel, act, ctrl = x.split([m.nv, m.nv, m.na, m.nu])
        qpos = mjtorch.integrate_pos(m, d.qpos, dq, one)
        new = mjtorch.step(m, d.replace(qpos=qpos, qvel=d.qvel + qvel, act=d.act + act, ctrl=d.ctrl + ctrl))
        change = mjtorch.differentiate_pos(m, after.qpos, new.qpos, one)
        return torch.cat([change, new.qvel, new.act, new.sensordata])

    nudges = nudge * torch.eye(n + m.nu, dtype=torch.float64)
    many = torch.vmap(response)
    J = ((many(nudges) - many(-nudges)) / (2 * nudge)).mT.numpy()
    return J[:n, :n], J[:n, n:], J[n:, :n], J[n:, n:]


def error(found: Tensor | np.ndarray, wanted: Tensor | np.ndarray) -> float:
    """Largest difference, relative to the largest magnitude wanted."""
    found, wanted = (np.asarray(x.detach() if torch.is_tensor(x) else x) for x in (found, wanted))
    assert found.shape == wanted.shape
    if not wanted.size:
        return 0.0
    difference = np.abs(found - wanted).max()
    return np.inf if np.isnan(difference) else difference / max(SMALL, np.abs(wanted).max())
