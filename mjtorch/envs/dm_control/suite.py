"""What tasks of dm_control's suite have in common: graded rewards, random joints, and what is up to date."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import mujoco
import torch
from torch import Tensor

from mjtorch import random, tree
from mjtorch.control_flow import while_loop
from mjtorch.envs.env import Task
from mjtorch.forward import forward, fwd_position, positions_and_velocities
from mjtorch.model import Data, DisableBit, Model
from mjtorch.model.access import Bound
from mjtorch.model.enums import JointType
from mjtorch.model.slim import STATE

INF = float("inf")

# Starts are drawn again so often at most, until nothing touches.
ATTEMPTS = 1000

# How much higher a body is put while something touches [m], and how often at most.
RISE, HIGHEST = 0.01, 10_000


@tree.dataclass(kw_only=True)
class SuiteTask(Task):
    """A task of dm_control's: reward in [0, 1], and episodes that end by time only.

    As there, and unlike C, what follows from positions and velocities belongs to the end of a step, sensors of contacts
    and accelerations to the beginning of its last time step; an episode begins with actuators switched off.
    """

    reads: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def measured(cls, mj_model: mujoco.MjModel) -> dict[str, Any]:
        """Parameters that follow from the model."""
        return {}

    def reward(self, d: Data) -> Tensor:
        """What a step is worth that led to `d`."""
        raise NotImplementedError

    def outcome(self, before: Data, after: Data, action: Tensor) -> tuple[Any, Any, dict[str, Any]]:
        """`reward`, and no end."""
        return self.reward(after), False, {}

    def complete(self, d: Data) -> Data:
        """What follows from the start, actuators switched off."""
        if not self.reads:
            return d
        flags = self.m.opt.disableflags | int(DisableBit.ACTUATION)
        return forward(self.m.replace(opt=self.m.opt.replace(disableflags=flags)), d)

    @property
    def carried(self) -> tuple[str, ...]:
        """The state, and sensors, some of which are those of the last time step."""
        return (*STATE, *("sensordata" for name in self.reads if name == "sensordata"))

    def simulate(self, d: Data, ctrl: Tensor) -> Data:
        """`frame_skip` time steps, and what follows from where they lead."""
        d = super().simulate(d, ctrl)
        if not self.reads:
            return d
        new = positions_and_velocities(self.m, d)
        return d.replace(**{name: getattr(new, name) for name in self.reads})


def tolerance(
    x: Tensor,
    low: float | Tensor = 0.0,
    high: float | Tensor = 0.0,
    *,
    margin: float | Tensor = 0.0,
    sigmoid: str = "gaussian",
    value_at_margin: float = 0.1,
) -> Tensor:
    """1 where `low <= x <= high`, and the less the farther away `x` is, `value_at_margin` as far as `margin`.

    sigmoid: one of `SIGMOIDS`; margin: 0 for 0 everywhere outside
    """
    inside = (low <= x) & (x <= high)
    if isinstance(margin, float | int) and margin == 0:
        return inside.to(x.dtype)
    away = torch.where(x < low, low - x, x - high) / margin
    return torch.where(inside, torch.ones_like(x), SIGMOIDS[sigmoid](away, value_at_margin))


def _gaussian(x: Tensor, at_1: float) -> Tensor:
    return (math.log(at_1) * x**2).exp()


def _long_tail(x: Tensor, at_1: float) -> Tensor:
    return 1 / ((1 / at_1 - 1) * x**2 + 1)


def _linear(x: Tensor, at_1: float) -> Tensor:
    return torch.where(((1 - at_1) * x).abs() < 1, 1 - (1 - at_1) * x, 0.0)


def _quadratic(x: Tensor, at_1: float) -> Tensor:
    return torch.where((1 - at_1) * x**2 < 1, 1 - (1 - at_1) * x**2, 0.0)


def _reciprocal(x: Tensor, at_1: float) -> Tensor:
    return 1 / ((1 / at_1 - 1) * x.abs() + 1)


SIGMOIDS = {
    "gaussian": _gaussian,
    "linear": _linear,
    "long_tail": _long_tail,
    "quadratic": _quadratic,
    "reciprocal": _reciprocal,
}


def small_control(ctrl: Tensor) -> Tensor:
    """1 for no controls, 0.8 for large ones: ()."""
    return (4 + tolerance(ctrl, margin=1, value_at_margin=0, sigmoid="quadratic").mean()) / 5


def random_joints(m: Model, key: Tensor, *, turned: bool = True) -> Tensor:
    """Positions (nq,), with joints anywhere in their ranges, hinges without range and free bodies turned anyhow.

    turned: whether such hinges are, static.
    """
    hinge_or_slide = (JointType.HINGE, JointType.SLIDE)
    single = [i for i, kind in enumerate(m.jnt_type) if kind in hinge_or_slide]
    limited = [i for i in single if m.jnt_limited[i]]
    turning = [i for i in single if turned and not m.jnt_limited[i] and m.jnt_type[i] == JointType.HINGE]
    free = [i for i, kind in enumerate(m.jnt_type) if kind == JointType.FREE]
    if any(kind == JointType.BALL for kind in m.jnt_type):
        raise NotImplementedError("random_joints: no model of the suite that it is for has ball joints")
    ours, of_free = random.split(key).unbind()
    share = random.uniform(ours, (m.njnt,), dtype=m.qpos0.dtype)
    qpos = m.qpos0
    low, high = m.jnt_range[limited].unbind(-1)
    qpos = qpos.index_copy(0, _address(m, limited), low + share[limited] * (high - low))
    qpos = qpos.index_copy(0, _address(m, turning), math.pi * (2 * share[turning] - 1))
    for i, joint_id in enumerate(free):
        # all components positive, as in dm_control
        quat = random.uniform(random.fold_in(of_free, i), (4,), dtype=qpos.dtype)
        first = m.jnt_qposadr[joint_id] + 3
        qpos = torch.cat([qpos[:first], quat / torch.linalg.vector_norm(quat), qpos[first + 4 :]])
    return qpos


def random_quat(key: Tensor, dtype: torch.dtype) -> Tensor:
    """A turn (4,), all alike."""
    quat = random.normal(key, (4,), dtype=dtype)
    return quat / torch.linalg.vector_norm(quat)


def _address(m: Model, joints: list[int]) -> Tensor:
    return torch.tensor([m.jnt_qposadr[i] for i in joints], dtype=torch.int64, device=m.qpos0.device)


def until_free(task: SuiteTask, key: Tensor, draw: Callable[[Tensor], Data]) -> Data:
    """A start `draw(key)`, positions and velocities, drawn until nothing touches."""
    Carry = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]

    def again(carry: Carry) -> Carry:
        own, key = random.split(carry[0]).unbind()
        d = draw(own)
        touching = fwd_position(task.m, d).ncon > 0
        return key, d.qpos, d.qvel, touching, carry[4] + 1

    def unfinished(carry: Carry) -> Tensor:
        return carry[3] & (carry[4] < ATTEMPTS)

    count = torch.zeros((), dtype=torch.int64, device=key.device)
    init = (key, task.rest.qpos, task.rest.qvel, torch.ones_like(count, dtype=torch.bool), count)
    _, qpos, qvel, _, _ = while_loop(unfinished, again, init)
    return task.rest.replace(qpos=qpos, qvel=qvel)


def hinges(m: Model) -> list[str | int]:
    """The numbers of all hinges."""
    return [i for i, kind in enumerate(m.jnt_type) if kind == JointType.HINGE]


def number(found: Bound) -> int:
    """The number of an object that was asked for by one name."""
    assert isinstance(found.id, int)
    return found.id


def placed(m: Model, qpos: Tensor, joint: str, values: Tensor, *, skip: int = 0) -> Tensor:
    """`qpos` with `values` for the position of a joint, from its number `skip` on."""
    first = m.jnt_qposadr[number(m.joint(joint))] + skip
    return torch.cat([qpos[:first], values, qpos[first + values.shape[0] :]])


def free_height(task: SuiteTask, d: Data, place: Tensor, quat: Tensor) -> Data:
    """`d` with its root at `place` (2,), turned by `quat` (4,), and as low as nothing touches, in steps of 1 cm."""

    def at(k: Tensor) -> Tensor:
        height = RISE * k.to(place.dtype)
        return placed(task.m, d.qpos, "root", torch.cat([place, height[None], quat]))

    def touching(carry: tuple[Tensor, Tensor]) -> Tensor:
        return (carry[1] > 0) & (carry[0] < HIGHEST)

    def higher(carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        k = carry[0] + 1
        return k, fwd_position(task.m, d.replace(qpos=at(k))).ncon.to(torch.int64)

    # the first is tried by the loop, too
    first = torch.full((), -1, dtype=torch.int64, device=place.device)
    k, _ = while_loop(touching, higher, (first, torch.ones_like(first)))
    return d.replace(qpos=at(k))
