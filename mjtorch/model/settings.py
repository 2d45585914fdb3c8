"""What `put_model` can be asked for that C does not have: useful gradients, adaptive substeps. All off by default."""

import copy
import dataclasses
import math

import mujoco
from torch import Tensor

from mjtorch import tree
from mjtorch.model.option import DisableBit
from mjtorch.model.plan import Plan, collision, constraint
from mjtorch.model.plan.collision import CollisionPlan
from mjtorch.model.plan.constraint import ContactPlan
from mjtorch.model.plan.geom_pairs import tried_pairs
from mjtorch.model.plan.tensors import Tensors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gradient:
    """What derivatives see that the simulation does not: `put_model(mj_model, gradient=Gradient(distance=0.05))`.

    The simulation stays what it is, to the last bit: only derivatives of `forward`, `step` and `rollout`, in reverse
    and in forward mode, are those of something softer ("straight-through"). They are no longer what finite differences
    of the simulation give; use them to search, and switch them off to measure. Each part is off at zero.

    distance: [m] contacts from a distance. A derivative of a contact that does not exist yet is zero, so no gradient
        tells a finger to reach for a box. With this, two geoms that are nearer than `distance`, beyond their margin,
        repel each other in the derivative, without friction, as a spring that gets stiffer the nearer they are:
        `f = (distance - gap)^2 / (2 distance timeconst^2 w)`, `gap` the distance beyond the margin and `w` the inverse
        weight of the two bodies. Where geoms touch, derivatives are the exact ones. Choose what the search has to
        bridge, not more. Contacts are found twice, and the second time there may be more.
    timeconst: [s] of that spring where it is stiffest, at touching; as the first number of `solref`.
    rounding: [m] smoothed normals. The normal of a contact of two boxes, or of a sphere or capsule with a box, jumps
        from face to face, and a derivative does not see what is behind the edge. With this, boxes turn in the
        derivative from one normal into the next over this length.

    Raises:
        ValueError: a number is negative or not finite, or `timeconst` is zero.
    """

    distance: float = 0.0
    timeconst: float = 0.02
    rounding: float = 0.0

    def __post_init__(self) -> None:
        _check_number("Gradient: distance", self.distance)
        _check_number("Gradient: timeconst", self.timeconst, positive=True)
        _check_number("Gradient: rounding", self.rounding)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Substeps:
    """Time steps split up where motion is not smooth: `put_model(mj_model, substeps=Substeps(tolerance=1e-4))`.

    Each world takes as many substeps within a time step as it needs for its error to stay small: one in flight, many
    where a contact begins or ends. The derivative of a long step across an impact has little to do with the impact
    (arXiv 2506.14186); across short ones it converges to the true one. Use it where gradients go through impacts and
    a time step that is short enough everywhere costs too much. What a time step computes besides the state belongs
    to its beginning, as ever, and controls are constant within, unless a callback gives them. `m.opt.integrator` is
    not used. Contacts are as stiff as C makes them for the whole time step: disable the flag refsafe for stiffer
    ones.

    tolerance: of the estimated error of a substep, absolute and relative, in qpos, qvel and act.
    limit: the most attempts within a time step. Sizes are such that a time step is always completed: where more would
        be needed, substeps get longer than the tolerance allows. Under `torch.vmap`, without `jit`, all are computed.

    Raises:
        ValueError: the tolerance is not positive and finite, or the limit not a positive int.
    """

    tolerance: float = 1e-4
    limit: int = 32

    def __post_init__(self) -> None:
        _check_number("Substeps: tolerance", self.tolerance, positive=True)
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1:
            raise ValueError(f"Substeps: limit must be a positive int, got {self.limit!r}")


@tree.dataclass(kw_only=True)
class Distance(tree.Tree):
    """Contacts from a distance. width: () [m], timeconst: () [s]; plans of the contacts that may be that near."""

    width: Tensor
    timeconst: Tensor
    collision: CollisionPlan = tree.field(constant=True)
    contact: ContactPlan = tree.field(constant=True)


@tree.dataclass(kw_only=True)
class Substepping(tree.Tree):
    """Adaptive substeps. tolerance: (); limit: static."""

    tolerance: Tensor
    limit: int = tree.field(static=True)


@tree.dataclass(kw_only=True)
class Settings(tree.Tree):
    """What is on; each part is a tuple of one, or empty. rounding: () [m]."""

    distance: tuple[Distance, ...] = ()
    rounding: tuple[Tensor, ...] = ()
    substeps: tuple[Substepping, ...] = ()


def build(
    mj_model: mujoco.MjModel, plan: Plan, like: Tensor, gradient: Gradient | None, substeps: Substeps | None
) -> Settings:
    """The settings of a model with the plan `plan`, with the dtype and device of `like`.

    Raises:
        TypeError: an argument is of another type.
        NotImplementedError: substeps, or forces from a distance, do not support the model.
    """
    for name, value, kind in (("gradient", gradient, Gradient), ("substeps", substeps, Substeps)):
        if not isinstance(value, kind | None):
            raise TypeError(f"put_model: {name} must be a mjtorch.{kind.__name__}, got {type(value).__name__}")
    if plan.collision.speculative and (substeps is not None or (gradient is not None and gradient.distance > 0)):
        what = "substeps do" if substeps is not None else "gradient.distance does"
        raise NotImplementedError(f"put_model: {what} not go with speculative contacts; disable the flag")
    settings = Settings()
    if gradient is not None and gradient.distance > 0 and plan.collision.ncandidate:
        settings = settings.replace(distance=(_distance(mj_model, like, gradient),))
    if gradient is not None and gradient.rounding > 0:
        settings = settings.replace(rounding=(like.new_tensor(gradient.rounding),))
    if substeps is not None:
        _check_substeps(mj_model, plan)
        tolerance = like.new_tensor(substeps.tolerance)
        settings = settings.replace(substeps=(Substepping(tolerance=tolerance, limit=substeps.limit),))
    return settings


def _distance(mj_model: mujoco.MjModel, like: Tensor, gradient: Gradient) -> Distance:
    """Plans as for a model without friction whose contacts are detected `distance` earlier, exerting no force then."""
    model, width = copy.copy(mj_model), gradient.distance
    model.geom_condim[:] = 1
    model.flex_condim[:] = 1
    model.pair_dim[:] = 1
    model.geom_gap += 0.5 * width
    model.flex_gap += 0.5 * width
    model.pair_gap += width
    model.opt.disableflags &= ~int(DisableBit.CONSTRAINT | DisableBit.CONTACT)
    make = Tensors(like.device, like.dtype)
    tried = tried_pairs(model)
    contacts = collision.build(model, make, tried, None)
    return Distance(
        width=like.new_tensor(width),
        timeconst=like.new_tensor(gradient.timeconst),
        collision=contacts,
        contact=constraint.build(model, make, contacts, tried).contact,
    )


def _check_substeps(mj_model: mujoco.MjModel, plan: Plan) -> None:
    p = plan.actuation
    orientation = bool(plan.servo.turner_act.shape[0]) or p.act_wraps.some
    unsupported = {
        "delays (history)": bool(plan.history.initial.shape[0]),
        "plastic springs and elastic rods": bool(plan.plastic.initial.shape[0]),
        "activations of DC motors and PID servos": p.motor_states or bool(plan.motor.integral_act.shape[0]),
        "activations that are angles or orientations": orientation,
        "sleep": bool(plan.sleep),
        "the integrator discrete": plan.option.discrete,
        "the plugin mujoco.pid": bool(plan.pid),
    }
    found = [name for name, there in unsupported.items() if there]
    if found:
        raise NotImplementedError(f"put_model: substeps do not support {', '.join(found)}; leave substeps out")


def _check_number(name: str, value: float, *, positive: bool = False) -> None:
    good = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and (value > 0 if positive else value >= 0)
    )
    if not good:
        raise ValueError(f"{name} must be a {'positive' if positive else 'non-negative'} finite number, got {value!r}")
