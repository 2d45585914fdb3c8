"""The task: as fast, and turning as fast, as is commanded."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from mjtorch import random, tree
from mjtorch.envs.env import State, Task
from mjtorch.envs.velocity.equip import COMMAND
from mjtorch.math import quaternion
from mjtorch.model import Data
from mjtorch.smooth.kinematics import kinematics

Number = float | Tensor
Range = tuple[Any, Any]

# Of tracking, each 1 where what is commanded is done: how far off [m/s, rad/s] half an e-fold is.
SPEED_SCALE, TURN_SCALE, TILT_SCALE = 0.5, 0.7, 0.45
# Slower commands [m/s + rad/s] count as standing; feet are to be lifted so high [m], and touch the ground below [m].
STANDING, LIFT, CONTACT = 0.05, 0.08, 0.005
# How many numbers say where in a stride it is.
PHASE = 2
# Fallen: further tilted [rad], or lower than this share of the height at rest.
TILTED, LOW = math.radians(70), 0.5
# Of each joint's range, the middle part that may be used.
SOFT = 0.9

# What a second is worth, at most for those above zero.
WEIGHTS = {
    "speed": 3.0,
    "turn": 2.0,
    "upright": 1.0,
    "pose": 1.0,
    "bounce": -0.5,
    "sway": -0.05,
    "limits": -1.0,
    "jerk": -0.1,
    "gait": -2.0,
    "slip": -0.1,
}


@tree.dataclass(kw_only=True)
class Velocity(Task):
    """A floating base on legs that does what it is told: forward and left [m/s], and turning left [rad/s].

    The command (3,) is `data.userdata`, as the base sees it. Controls are where servos are to go; they lie around how
    it stands. Pushes are sudden changes of the base's velocity. It is over when it has fallen; at the edge of rough
    ground it is truncated.

    What is seen: linear and angular velocity of the base and where down is, as it sees them; joints, less how it
    stands, and their velocities; the last controls, -1 to 1; the command; sine and cosine of where in a stride it is, 0
    where it is to stand; on rough ground, heights around it, from the base down.

    Strides go by the clock: in the first half of its own, each foot is to be lifted and put down again.

    stand: (nu,) [rad] joints, how it stands
    loose, tight: (nu,) [rad] how far off that is of little account when it walks, and when it stands
    sole: (feet,) [m] heights of the sites at the feet when it stands
    late: (feet,) shares of a stride by which the feet begin theirs
    strides: [1/s]
    feet: their numbers
    scan: (n, 2) [m] places around the base, turned as it is, whose heights it sees
    forward, left, turn: [m/s], [m/s], [rad/s] bounds of commands, which are drawn between them
    standing: how many of the commands are to stand
    command_seconds: on the average between two commands
    push_seconds: on the average between two pushes
    push_speed, push_turn: [m/s], [rad/s] the most that they change, along each axis
    """

    stand: Tensor
    loose: Tensor
    tight: Tensor
    sole: Tensor
    late: Tensor
    strides: Number
    scan: Tensor
    feet: tuple[int, ...] = tree.field(static=True)
    forward: Range = (-1.0, 1.0)
    left: Range = (-0.6, 0.6)
    turn: Range = (-1.0, 1.0)
    standing: Number = 0.1
    command_seconds: Number = 5.0
    push_seconds: Number = 4.0
    push_speed: Number = 0.5
    push_turn: Number = 0.5

    reads: ClassVar[tuple[str, ...]] = ("userdata", "site_xpos")

    # --- episodes ---

    def start(self, key: Tensor) -> Data:
        """Standing anywhere on the ground, turned anyhow."""
        where, turned, told = random.split(key, 3).unbind()
        m, rest = self.m, self.rest
        half = random.uniform(turned, (), 0.0, math.pi, dtype=self.dtype)
        zero = torch.zeros_like(half)
        quat = torch.stack([half.cos(), zero, zero, half.sin()])
        if m.nhfield:
            reach = 0.8 * m.hfield_size[0, :2]
            place = reach * random.uniform(where, (2,), -1.0, 1.0, dtype=self.dtype)
            ground = self.ground(place + self.scan / 2).amax()  # under the feet, however it is turned
        else:
            place, ground = rest.qpos[:2], zero
        base = torch.cat([place, (rest.qpos[2] + ground)[None], quat])
        return rest.replace(qpos=torch.cat([base, rest.qpos[7:]]), userdata=self.command(told))

    def command(self, key: Tensor) -> Tensor:
        """Another command (3,)."""
        which, how = random.split(key).unbind()
        share = random.uniform(how, (COMMAND,), dtype=self.dtype)
        drawn = [a + (b - a) * x for (a, b), x in zip((self.forward, self.left, self.turn), share, strict=True)]
        stands = random.bernoulli(which, self.standing)
        return torch.where(stands, 0.0, torch.stack(drawn))

    def complete(self, d: Data) -> Data:
        """With where the feet are."""
        return kinematics(self.m, d)

    def step(self, state: State, action: Tensor) -> State:
        """One step of the agent, perhaps pushed, perhaps under another command, which it sees after the step."""
        self._check_state(state)
        own, key = random.split(state.key).unbind()
        new = super().step(state.replace(data=self.disturbed(own, state.data), key=key), action)
        if not self.m.nhfield:
            return new
        lost = (new.data.qpos[:2].abs() > 0.95 * self.m.hfield_size[0, :2]).any()
        return new.replace(truncated=new.truncated | (lost & ~new.terminated))

    def disturbed(self, key: Tensor, d: Data) -> Data:
        """With another command, or pushed, where it is time."""
        turn, told, push, how = random.split(key, 4).unbind()
        command = torch.where(random.bernoulli(turn, self.dt / self.command_seconds), self.command(told), d.userdata)
        size = torch.cat([self.push_speed * torch.ones_like(d.qvel[:3]), self.push_turn * torch.ones_like(d.qvel[:3])])
        pushed = random.bernoulli(push, self.dt / self.push_seconds)
        change = torch.where(pushed, size * random.uniform(how, (6,), -1.0, 1.0, dtype=self.dtype), 0.0)
        return d.replace(userdata=command, qvel=torch.cat([d.qvel[:6] + change, d.qvel[6:]]))

    # --- what it sees ---

    def motion(self, d: Data) -> tuple[Tensor, Tensor, Tensor]:
        """Linear and angular velocity of the base and where down is (3,) each, as the base sees them."""
        back = quaternion.conjugate(d.qpos[3:7])
        down = quaternion.rotate(d.qpos.new_tensor([0.0, 0.0, -1.0]), back)
        return quaternion.rotate(d.qvel[:3], back), d.qvel[3:6], down

    def used(self, d: Data) -> Tensor:
        """The last controls (nu,), -1 to 1."""
        low, high = self.action_range
        return (2 * d.ctrl - low - high) / (high - low)

    def observe(self, d: Data) -> Tensor:
        """All of it, one after the other."""
        joints = (d.qpos[7:] - self.stand, d.qvel[6:], self.used(d))
        return torch.cat([*self.motion(d), *joints, d.userdata, self.phase(d), *self.relief(d)])

    def moves(self, d: Data) -> Tensor:
        """Whether it is to do anything but stand () bool."""
        return torch.linalg.vector_norm(d.userdata[:2]) + d.userdata[2].abs() > STANDING

    def phase(self, d: Data) -> Tensor:
        """Where in a stride it is (2,)."""
        angle = 2 * math.pi * self.strides * d.time
        return self.moves(d) * torch.stack([angle.sin(), angle.cos()])

    def lifted(self, d: Data) -> Tensor:
        """How high (feet,) [m] feet are to be."""
        angle = 2 * math.pi * (self.strides * d.time - self.late)
        return self.moves(d) * angle.sin().clamp(min=0).square() * LIFT

    def relief(self, d: Data) -> tuple[Tensor, ...]:
        """How far the ground lies below the base, around it, less how far it does when it stands: within 1 m."""
        if not self.m.nhfield:
            return ()
        w, x, y, z = d.qpos[3:7].unbind()
        yaw = torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        along, across = self.scan.unbind(-1)
        turned = [yaw.cos() * along - yaw.sin() * across, yaw.sin() * along + yaw.cos() * across]
        ground = self.ground(d.qpos[:2] + torch.stack(turned, -1))
        return (torch.clamp(d.qpos[2] - self.rest.qpos[2] - ground, -1.0, 1.0),)

    def ground(self, place: Tensor) -> Tensor:
        """Its height (...) [m] at `place` (..., 2) [m], between the heights of the four corners around."""
        m = self.m
        if not m.nhfield:
            return torch.zeros_like(place[..., 0])
        side, top = m.hfield_size[0, 0], m.hfield_size[0, 2]
        n = math.isqrt(m.hfield_data.shape[0])
        at = ((place / side + 1) * ((n - 1) / 2)).clamp(0, n - 1.001)
        corner = at.floor()
        x, y = (at - corner).unbind(-1)
        column, row = corner.long().unbind(-1)
        first = row * n + column
        a, b, c, e = (m.hfield_data[first + k] for k in (0, 1, n, n + 1))
        return m.geom("ground").pos[2] + top * ((a * (1 - x) + b * x) * (1 - y) + (c * (1 - x) + e * x) * y)

    # --- what it is worth ---

    def outcome(self, before: Data, after: Data, action: Tensor) -> tuple[Tensor, Any, Mapping[str, Any]]:
        """What a step is worth, whether it fell, and how far off it is: `error_speed` [m/s], `error_turn` [rad/s]."""
        linear, angular, down = self.motion(after)
        command = after.userdata
        off = torch.linalg.vector_norm(linear[:2] - command[:2])
        off_turn = (angular[2] - command[2]).abs()
        joints = after.qpos[7:]
        allowed = torch.where(self.moves(after), self.loose, self.tight)
        low, high = self.m.jnt_range[1:].unbind(-1)
        middle, half = (low + high) / 2, SOFT * (high - low) / 2
        height, speed = self.steps(before, after)
        worth = {
            "speed": near(off, SPEED_SCALE),
            "turn": near(off_turn, TURN_SCALE),
            "upright": near(torch.linalg.vector_norm(down[:2]), TILT_SCALE),
            "pose": (-((joints - self.stand) / allowed).square().mean()).exp(),
            "bounce": linear[2].square(),
            "sway": angular[:2].square().sum(),
            "limits": ((joints - middle).abs() - half).clamp(min=0).sum(),
            "jerk": (self.used(after) - self.used(before)).square().sum(),
            "gait": ((height - self.lifted(after)) / LIFT).clamp(-1.0, 1.0).square().sum(),
            "slip": (speed.square() * (height < CONTACT)).sum(),
        }
        rewards = {name: WEIGHTS[name] * self.dt * x for name, x in worth.items()}
        above = after.qpos[2] - self.ground(after.qpos[:2])
        fell = (-down[2] < math.cos(TILTED)) | (above < LOW * self.rest.qpos[2])
        info = {**{f"reward_{name}": x for name, x in rewards.items()}, "error_speed": off, "error_turn": off_turn}
        return torch.stack([*rewards.values()]).sum(), fell, info

    def steps(self, before: Data, after: Data) -> tuple[Tensor, Tensor]:
        """How high (feet,) [m] feet are above the ground, and how fast (feet,) [m/s] they go over it."""
        feet = list(self.feet)
        now, then = after.site_xpos[feet], before.site_xpos[feet]
        height = now[:, 2] - self.ground(now[:, :2]) - self.sole
        return height, torch.linalg.vector_norm((now - then)[:, :2], dim=-1) / self.dt


def near(off: Tensor, scale: float) -> Tensor:
    """1 where nothing is off, 1 / e where `scale` is."""
    return (-((off / scale) ** 2)).exp()
