"""What to do when contacts find no slot: grow and go on, warn, or stop. None of it is part of a step."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import mujoco
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.collision.driver import CONTACTFULL
from mjtorch.model import Data, Model, plan
from mjtorch.model.make_data import make_data

Action = Literal["grow", "warn", "error"]
ACTIONS: tuple[Action, ...] = ("grow", "warn", "error")

T = TypeVar("T")


class ContactOverflowError(RuntimeError):
    """Contacts found no slot, and that is not to be."""


class Guard:
    """Looks after the contact slots of a model.

    contact_capacity: how many slots there are now, if it has grown; else None

    Args:
        action: what to do if contacts find none: "grow", "warn" once, or "error".
        mj_model: what the model was made of, to grow.
    """

    def __init__(self, action: Action, mj_model: mujoco.MjModel | None = None) -> None:
        if action not in ACTIONS:
            raise ValueError(f"on_overflow must be {', '.join(map(repr, ACTIONS))}, got {action!r}")
        if action == "grow" and not isinstance(mj_model, mujoco.MjModel):
            raise TypeError(
                f"on_overflow='grow' needs the mujoco.MjModel that the model was made of, got {type(mj_model).__name__}"
            )
        self.action, self.mj_model = action, mj_model
        self.plan: plan.Plan | None = None
        self.warned = False

    @property
    def contact_capacity(self) -> int | None:
        """How many slots there are now, if it has grown."""
        return None if self.plan is None else room(self.plan)

    def fit(self, m: Model, d: Data) -> tuple[Model, Data]:
        """The model with as many slots as it has grown to, and the same state in a `Data` of that size."""
        if self.plan is not None and room(self.plan) > room(m.plan):
            m = m.replace(plan=self.plan)
        return m, resized(m, d)

    def is_lost(self, m: Model, before: Data, after: Data) -> bool:
        """Whether what led from `before` to `after` lost contacts, and is to be done again with what `fit` returns.

        Raises:
            ContactOverflowError: it did, and that is an error, or there is no way to grow.
        """
        lost = lost_contacts(before, after)
        if not lost.any():
            return False
        slots = room(m.plan)
        what = f"{int(lost.sum())} contacts of {int((lost > 0).sum())} worlds found none of {slots} slots"
        if self.action == "grow":
            self.grow(m, what)
            return True
        advice = "give put_model a larger contact_capacity, or on_overflow='grow'"
        if self.action == "error":
            raise ContactOverflowError(f"{what}; {advice}")
        if not self.warned:
            self.warned = True
            warnings.warn(f"{what} and were left out, the shallowest ones; {advice}", RuntimeWarning, stacklevel=3)
        return False

    def grow(self, m: Model, why: str) -> None:
        """Twice as many slots from now on."""
        assert self.mj_model is not None, "the model is known where it may grow"
        p, like = m.plan.collision, m.qpos0
        every = all(x.capacity >= len(x.point) for x in m.plan.ipc)
        if p.ncon >= p.ncandidate and not p.selects and every:
            raise ContactOverflowError(f"{why}, and there cannot be more")
        capacity = 2 * max(room(m.plan), 1)
        self.plan = plan.build(self.mj_model, device=like.device, dtype=like.dtype, contact_capacity=capacity)
        warnings.warn(
            f"{why}: there are {room(self.plan)} from now on, which means another program; "
            f"contact_capacity={capacity} of put_model gives them at once",
            RuntimeWarning,
            stacklevel=4,
        )


def on_overflow(f: Callable[..., T], action: Action, mj_model: mujoco.MjModel | None = None) -> Callable[..., T]:
    """`f(m, d, ...)` that does what `action` says if contacts find no slot, in one world or many.

        step = mjtorch.on_overflow(mjtorch.jit(mjtorch.step, in_dims=(None, 0)), "grow", mj_model)
        d = step(m, d)                                                       # loses no contact

    "grow" doubles the slots and calls `f` again with the same state, which for `jit` means another compilation; a
    warning says so. From then on `f` is given the larger model, with the tensors of `m`, and a `Data` to match, so that
    the contacts and rows in what it returns are more. "warn" warns once, "error" raises.

    Args:
        f: a function such as `step` or `rollout`, compiled or not, that returns a `Data`, or a tuple that begins with
            one.
        action: "grow", "warn" or "error".
        mj_model: what `m` was made of; needed to grow.

    Raises:
        ValueError, TypeError: there is no such action, or no model to grow.
    """
    guard = Guard(action, mj_model)

    def call(m: Model, d: Data, *args: Any, **kwargs: Any) -> T:
        while True:
            grown, start = guard.fit(m, d)
            result = f(grown, start, *args, **kwargs)
            last: Any = result[0] if isinstance(result, tuple) else result
            if not guard.is_lost(grown, start, last):
                return result

    return call


def room(plan: plan.Plan) -> int:
    """How many slots there are for contacts, or for pairs of membranes that push, whichever is more."""
    return max([plan.collision.ncon, *(p.capacity for p in plan.ipc)])


def lost_contacts(before: Data, after: Data) -> Tensor:
    """How many contacts (...) found no slot in between, in each world."""
    return (after.warning - before.warning)[..., CONTACTFULL]


def resized(m: Model, d: Data) -> Data:
    """The state and the inputs of `d`, of one world or many, in a `Data` for `m`; `d` itself if it is one.

    What follows from them is at rest if its size depends on the contact slots.
    """
    if d.contact.geom.shape[-2] == m.plan.collision.ncon:
        return d
    worlds = d.time.shape
    with torch.no_grad():
        rest = make_data(m)
        new = tree.batch(rest, worlds[0]) if worlds else rest
    kept = [name for name in tree.tensor_fields(Data) if name != "contact"]
    same = {name: getattr(d, name) for name in kept if getattr(d, name).shape == getattr(new, name).shape}
    return new.replace(**same)
