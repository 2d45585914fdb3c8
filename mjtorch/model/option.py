"""`Option` and `Statistic`: mjOption and mjStatistic as trees."""

import enum
from typing import Any, Self

from torch import Tensor

from mjtorch import tree


class Integrator(enum.IntEnum):
    """mjtIntegrator."""

    EULER = 0
    RK4 = 1
    IMPLICIT = 2
    IMPLICITFAST = 3
    DISCRETE = 4


class Cone(enum.IntEnum):
    """mjtCone."""

    PYRAMIDAL = 0
    ELLIPTIC = 1


class Solver(enum.IntEnum):
    """mjtSolver."""

    PGS = 0
    CG = 1
    NEWTON = 2


class DisableBit(enum.IntFlag):
    """mjtDisableBit."""

    CONSTRAINT = 1
    EQUALITY = 2
    FRICTIONLOSS = 4
    LIMIT = 8
    CONTACT = 16
    SPRING = 32
    DAMPER = 64
    GRAVITY = 128
    CLAMPCTRL = 256
    WARMSTART = 512
    FILTERPARENT = 1024
    ACTUATION = 2048
    REFSAFE = 4096
    SENSOR = 8192
    MIDPHASE = 16384
    EULERDAMP = 32768
    AUTORESET = 65536
    NATIVECCD = 131072
    ISLAND = 262144
    MULTICCD = 524288


class EnableBit(enum.IntFlag):
    """mjtEnableBit."""

    OVERRIDE = 1
    ENERGY = 2
    FWDINV = 4
    INVDISCRETE = 8
    SLEEP = 16
    DIAGEXACT = 32
    IPC = 64
    SPECULATIVE = 128


@tree.dataclass(kw_only=True)
class Option(tree.Tree):
    """Physics options (mjOption). Tensors may be batched; the rest shapes the program.

    timestep: () [s]
    impratio: () ratio of friction to normal contact impedance
    tolerance, ls_tolerance, noslip_tolerance: () tolerances of the main solver, the line search, the noslip solver
    ccd_tolerance: () [m] tolerance of distances between convex shapes
    sleep_tolerance: () [m/s] trees that are slower may fall asleep
    gravity: (3,) [m/s^2]
    wind: (3,) [m/s]
    magnetic: (3,)
    density: () [kg/m^3]
    viscosity: () [Pa s]
    o_margin: () [m], o_solref: (2,), o_solimp: (5,), o_friction: (5,) for all contacts under `EnableBit.OVERRIDE`
    fluid: whether there may be one; from where `density` or `viscosity` are replaced, whatever by
    """

    timestep: Tensor
    impratio: Tensor
    tolerance: Tensor
    ls_tolerance: Tensor
    noslip_tolerance: Tensor
    ccd_tolerance: Tensor
    sleep_tolerance: Tensor
    gravity: Tensor
    wind: Tensor
    magnetic: Tensor
    density: Tensor
    viscosity: Tensor
    o_margin: Tensor
    o_solref: Tensor
    o_solimp: Tensor
    o_friction: Tensor
    integrator: Integrator = tree.field(static=True)
    cone: Cone = tree.field(static=True)
    solver: Solver = tree.field(static=True)
    iterations: int = tree.field(static=True)
    ls_iterations: int = tree.field(static=True)
    noslip_iterations: int = tree.field(static=True)
    ccd_iterations: int = tree.field(static=True)
    sdf_iterations: int = tree.field(static=True)
    disableflags: int = tree.field(static=True)
    enableflags: int = tree.field(static=True)
    disableactuator: int = tree.field(static=True)
    fluid: bool = tree.field(static=True)

    def replace(self, /, **changes: Any) -> Self:
        """A copy with some fields changed; those that the plans of a model cannot follow are refused by `step`."""
        if "density" in changes or "viscosity" in changes:
            changes.setdefault("fluid", True)
        return tree.replace(self, **changes)

    def disabled(self, flag: DisableBit) -> bool:
        """Whether a standard feature is switched off."""
        return bool(self.disableflags & flag)

    def enabled(self, flag: EnableBit) -> bool:
        """Whether an optional feature is switched on."""
        return bool(self.enableflags & flag)


@tree.dataclass(kw_only=True)
class Statistic(tree.Tree):
    """Model statistics that the solvers scale by (mjStatistic). meaninertia: () mean diagonal inertia at qpos0."""

    meaninertia: Tensor
