"""Which options the plans were made for: those that a `Model` cannot take up any more once it is put."""

import mujoco
import numpy as np

from mjtorch import tree
from mjtorch.model.option import DisableBit, EnableBit, Integrator, Solver
from mjtorch.model.plan.version import is_since

# What these switch off has no place in plans made without it; it can be switched off later, but not on.
ONLY_OFF = (
    DisableBit.CONSTRAINT,
    DisableBit.EQUALITY,
    DisableBit.FRICTIONLOSS,
    DisableBit.LIMIT,
    DisableBit.CONTACT,
)
# These choose the pairs of geoms, their order, and how many contacts each can have.
FIXED = (DisableBit.FILTERPARENT, DisableBit.MIDPHASE, DisableBit.NATIVECCD, DisableBit.MULTICCD)


@tree.dataclass(kw_only=True)
class OptionPlan(tree.Tree):
    """Options that plans depend on, all static.

    cone: mjtCone
    disableflags: of those, the flags in `ONLY_OFF` and `FIXED`
    sweeps: `iterations` if the solver is PGS, which needs random numbers for them, else 0
    noslip, sdf: whether there are iterations of the noslip solver, and of contacts of signed distance fields
    sleep: whether trees may sleep; speculative: whether contacts may be foreseen; ipc: whether that flag is enabled
    delayed: whether sensors have delays that RK4 does not support
    discrete: whether the integrator is `discrete`, in whose inertia dofs of all trees may be coupled
    """

    cone: int = tree.field(static=True)
    disableflags: int = tree.field(static=True)
    sweeps: int = tree.field(static=True)
    noslip: bool = tree.field(static=True)
    sdf: bool = tree.field(static=True)
    sleep: bool = tree.field(static=True)
    speculative: bool = tree.field(static=True)
    ipc: bool = tree.field(static=True)
    delayed: bool = tree.field(static=True)
    discrete: bool = tree.field(static=True)


def late_sensors(mj_model: mujoco.MjModel) -> np.ndarray:
    """(nsensor,) whether sensors have delays that RK4 does not support.

    Before MuJoCo 4.0, what they measure is of the last of four evaluations, or in part of the first.
    """
    return (mj_model.sensor_delay > 0) & (not is_since(4))


def build(mj_model: mujoco.MjModel) -> OptionPlan:
    """The plan for `mj_model`."""
    opt = mj_model.opt
    planned = sum(int(flag) for flag in (*ONLY_OFF, *FIXED))
    return OptionPlan(
        cone=int(opt.cone),
        disableflags=int(opt.disableflags) & planned,
        sweeps=int(opt.iterations) if int(opt.solver) == Solver.PGS else 0,
        noslip=opt.noslip_iterations > 0,
        sdf=opt.sdf_iterations > 0,
        sleep=bool(opt.enableflags & EnableBit.SLEEP),
        speculative=bool(opt.enableflags & EnableBit.SPECULATIVE),
        ipc=bool(opt.enableflags & EnableBit.IPC),
        delayed=bool(late_sensors(mj_model).any()),
        discrete=int(opt.integrator) == Integrator.DISCRETE,
    )
