"""`linearize`: how the next state and the sensors change with the state and the controls (mjd_transitionFD)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mjtorch import control_flow
from mjtorch.compiler import stage
from mjtorch.control_flow import context
from mjtorch.forward import step
from mjtorch.integrate import differentiate_pos, integrate_pos
from mjtorch.model import Data, Integrator, Model
from mjtorch.model.check import check_data


class Linearization(NamedTuple):
    """One step near a state: `dx' = A dx + B du`, `dy = C dx + D du`, with `n = 2 nv + na`.

    A: (n, n), B: (n, nu) of the next state, C: (nsensordata, n), D: (nsensordata, nu) of the sensors
    """

    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor


def linearize(m: Model, d: Data) -> Linearization:
    """Derivatives of one `step` from the state and the controls of `d` (mjd_transitionFD), exact.

    The state is `(dq, qvel, act)`, with positions in tangent space: `dq (nv,)` [m or rad] moves them as `integrate_pos`
    does in unit time, so that a quaternion has three numbers, a turn about its body's axes. Sensors are those that the
    step writes: they belong to its beginning.

        A, B, C, D = mjtorch.linearize(m, d)
        linearize = mjtorch.jit(mjtorch.linearize, in_dims=(None, 0))    # many worlds: A is (4096, n, n)

    Where C differences steps of a solver that stops early, these are the derivatives of the exact solution, taken with
    the contacts that are there: at a kink, such as a contact that only just begins, they are those of one side.

    Raises:
        TypeError, ValueError: `d` does not fit `m`.
    """
    return Linearization(*matrices(m, d))


@stage
def matrices(m: Model, d: Data) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A, B, C and D, in a tuple that Dynamo can take from a stage."""
    check_data(m, d, "linearize")
    n = 2 * m.nv + m.na
    start = torch.cat([torch.zeros_like(d.qvel), d.qvel, d.act, d.ctrl])

    def next_state_and_sensors(x: Tensor) -> Tensor:
        dq, qvel, act, ctrl = x.split([m.nv, m.nv, m.na, m.nu])
        moved = d.replace(qpos=integrate_pos(m, d.qpos, dq, unit(m)), qvel=qvel, act=act, ctrl=ctrl)
        after = step(m, moved, outputs="sensordata")
        change = differentiate_pos(m, after.qpos.detach(), after.qpos, unit(m))
        return torch.cat([change, after.qvel, after.act, after.sensordata])

    if not start.shape[0]:  # nothing moves
        return blocks(start.new_zeros(m.nsensordata, 0), n)
    return blocks(jacobian(m, next_state_and_sensors, start), n)


def unit(m: Model) -> Tensor:
    """A second ()."""
    return torch.ones_like(m.opt.timestep)


def jacobian(m: Model, f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The derivative of `f` at `x`.

    Eagerly, forward mode takes about two thirds of the time of reverse mode. A program of our own goes backwards row by
    row: what one row needs stays in the cache, where that of all rows together does not fit.
    """
    if not context.is_traced((x,)):
        by = torch.func.jacrev if m.opt.integrator == Integrator.RK4 else torch.func.jacfwd
        return by(f)(x)
    if not context.wants_scans():
        return torch.func.jacrev(f)(x)
    value, pull, *_ = torch.func.vjp(f, x)
    directions = torch.eye(value.shape[0], dtype=value.dtype, device=value.device)
    return control_flow.map(lambda row: pull(row)[0], directions)


def blocks(J: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A, B, C and D, from the derivatives of next state and sensors with respect to state and controls."""
    return J[:n, :n], J[:n, n:], J[n:, :n], J[n:, n:]
