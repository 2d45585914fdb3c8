"""What an environment is: `reset(key) -> State`, `step(state, action) -> State`, for one world."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from mjtorch import random, tree
from mjtorch.compiler import stage
from mjtorch.constraint import rne_postconstraint
from mjtorch.control_flow import cond, scan
from mjtorch.forward import MAX_VALUE, forward, step as physics_step
from mjtorch.model import Data, Model
from mjtorch.model.make_data import make_data
from mjtorch.model.slim import STATE, checked_names, keep
from mjtorch.overflow import resized

# What `rne_postconstraint` sets.
REACTIONS = {"cacc", "cfrc_ext", "cfrc_int"}


@tree.dataclass(kw_only=True)
class State(tree.Tree):
    """An environment between two steps.

    data: the physics; see `Task.fields` for what of it is up to date
    obs: (n,) what the agent sees
    reward: () of the last step; 0 after a reset
    terminated: () bool: the task is over, nothing is to be expected from here
    truncated: () bool: the episode ends here for another reason, such as time
    key: (2,) the random numbers to come
    info: what the task reports of the last step; zeros after a reset
    memory: what wrappers remember from step to step
    """

    data: Data
    obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    key: Tensor
    info: dict[str, Any]
    memory: dict[str, Any]

    @property
    def done(self) -> Tensor:
        """() bool: the episode is over."""
        return self.terminated | self.truncated


E = TypeVar("E", bound="Env")


def check_count(caller: str, name: str, x: Any, least: int = 1) -> None:
    """Raise unless `x` is an int, not below `least`, or an integer tensor () with an unknown number."""
    if isinstance(x, Tensor) and x.shape == () and x.dtype == torch.int64:
        return
    if isinstance(x, bool) or not isinstance(x, int) or x < least:
        raise ValueError(f"{caller}: {name} must be an int >= {least}, got {x!r}")


class Env(tree.Tree):
    """What tasks and wrappers have in common: trees of tensors with these two methods, for one world."""

    def reset(self, key: Tensor) -> State:
        """The beginning of an episode, drawn with `key` (2,)."""
        raise NotImplementedError

    def step(self, state: State, action: Tensor) -> State:
        """One step of the agent further."""
        raise NotImplementedError

    @property
    def task(self) -> "Task":
        """The task under all wrappers."""
        raise NotImplementedError

    @property
    def action_range(self) -> tuple[Tensor, Tensor]:
        """The least and the greatest actions (nu,) that make sense."""
        raise NotImplementedError

    def with_model(self, m: Model) -> Self:
        """The same with another model."""
        raise NotImplementedError


@tree.dataclass(kw_only=True)
class Task(Env):
    """Physics with a purpose. To make one, say how episodes start, what is seen, and what it is worth:

        @tree.dataclass(kw_only=True)
        class Balance(envs.Task):
            def start(self, key):
                return self.rest.replace(qpos=random.uniform(key, (self.m.nq,), -0.01, 0.01, dtype=self.dtype))

            def observe(self, d):
                return torch.cat([d.qpos, d.qvel])

            def outcome(self, before, after, action):
                fell = after.qpos[1].abs() > 0.2
                return 1.0 - fell.to(self.dtype), fell, {}

        env = Balance.of(m, frame_skip=2)

    m: the model
    rest: what `make_data` makes of it
    frame_skip: time steps of the physics in one step of the agent

    Further fields are its parameters: numbers, which may change without compiling anew, or `tree.field(static=True)`.

    A step that leaves numbers that are not finite, or beyond 1e10, ends the episode: it is truncated, shows the
    observation of the step before, has reward 0, and `info["diverged"]` is true.
    """

    m: Model
    rest: Data
    frame_skip: int = tree.field(static=True, default=1)

    # Fields of Data that `observe` and `outcome` read, or `start` sets, besides the state and ctrl.
    reads: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, m: Model, **parameters: Any) -> Self:
        """The task with this model; numbers among the parameters become tensors of its precision."""

        def as_tensor(x: Any) -> Any:
            return m.qpos0.new_tensor(x) if isinstance(x, int | float) and not isinstance(x, bool) else x

        return tree.map(as_tensor, cls(m=m, rest=make_data(m), **parameters))

    # --- to be written for each task ---

    def start(self, key: Tensor) -> Data:
        """The state and the inputs that an episode begins with."""
        raise NotImplementedError

    def observe(self, d: Data) -> Tensor:
        """What the agent sees (n,)."""
        raise NotImplementedError

    def outcome(self, before: Data, after: Data, action: Tensor) -> tuple[Any, Any, Mapping[str, Any]]:
        """The reward of a step, whether the task is over, and what else there is to report by name."""
        raise NotImplementedError

    def complete(self, d: Data) -> Data:
        """`d` at the beginning of an episode, with what `observe` and `outcome` read of it."""
        return forward(self.m, d) if self.reads else d

    # --- what follows ---

    @property
    def task(self) -> "Task":
        """Itself."""
        return self

    @property
    def dtype(self) -> torch.dtype:
        """Of all numbers."""
        return self.m.qpos0.dtype

    @property
    def dt(self) -> Tensor:
        """Seconds () of one step of the agent."""
        return self.m.opt.timestep * self.frame_skip

    @property
    def action_range(self) -> tuple[Tensor, Tensor]:
        """The ranges (nu,) of the controls."""
        low, high = self.m.actuator_ctrlrange.unbind(-1)
        return low, high

    @property
    def fields(self) -> tuple[str, ...]:
        """Which fields of `State.data` are up to date: the state, ctrl and what the task reads. Others are at rest.

        As in C, what is computed belongs to the beginning of the last time step.
        """
        return (*STATE, "ctrl", *checked_names(self.reads, type(self).__name__))

    @property
    def carried(self) -> tuple[str, ...]:
        """Fields of `Data` that go from one time step to the next."""
        return tuple(name for name in self.fields if name != "ctrl")

    def with_model(self, m: Model) -> Self:
        """The same with another model, which may have other contact slots."""
        return self.replace(m=m, rest=resized(m, self.rest))

    def reset(self, key: Tensor) -> State:
        """The beginning of an episode, drawn with `key` (2,)."""
        own, key = random.split(key).unbind()
        return self.begin(self.start(own), key)

    def begin(self, d: Data, key: Tensor) -> State:
        """An episode that begins with `d`; `key` (2,) is for what comes then."""
        d = keep(self.complete(d), self.rest, self.fields)
        _, _, info = self.outcome(d, d, torch.zeros_like(d.ctrl))
        no = torch.zeros((), dtype=torch.bool, device=d.qpos.device)
        return State(
            data=d,
            obs=self.observe(d),
            reward=torch.zeros_like(d.time),
            terminated=no,
            truncated=no.clone(),
            key=key,
            info={**{name: torch.zeros_like(self._number(x)) for name, x in info.items()}, "diverged": no.clone()},
            memory={},
        )

    def step(self, state: State, action: Tensor) -> State:
        """One step of the agent, `frame_skip` time steps under the controls `action` (nu,), any floating-point type.

        Raises:
            TypeError, ValueError: of another shape or type.
        """
        self._check_state(state)
        before = keep(state.data, self.rest, self.fields)
        after = self.simulate(before, self._checked(action))
        reward, terminated, info = self.outcome(before, after, action)
        obs, reward = self.observe(after), self._number(reward)
        bad = ~_is_finite(after, obs, reward)
        return state.replace(
            data=after,
            obs=torch.where(bad, state.obs, obs),
            reward=torch.where(bad, torch.zeros_like(reward), reward),
            terminated=self._number(terminated, torch.bool) & ~bad,
            truncated=bad,
            info={**{name: torch.where(bad, 0, self._number(x)) for name, x in info.items()}, "diverged": bad},
        )

    def simulate(self, d: Data, ctrl: Tensor) -> Data:
        """`frame_skip` time steps under the same controls (nu,)."""

        wanted = sorted(REACTIONS.intersection(self.fields))

        def trip(carry: dict[str, Any], k: Tensor) -> tuple[dict[str, Any], None]:
            new = physics_step(self.m, d.replace(**carry))
            if wanted:
                # what follows from the forces is looked at after the last step only
                forces = cond(k == self.frame_skip - 1, lambda: reactions(new), lambda: reactions(carry))
                new = new.replace(**forces)
            return {name: getattr(new, name) for name in carry}, None

        def reactions(of: Data | dict[str, Any]) -> dict[str, Tensor]:
            known = of if isinstance(of, dict) else vars(rne_postconstraint(self.m, of))
            return {name: known[name] for name in wanted}

        d = d.replace(ctrl=ctrl)
        changed = {name: getattr(d, name) for name in self.carried}
        trips = torch.arange(self.frame_skip, device=d.qpos.device)
        changed, _ = scan(trip, changed, trips, unroll=False)
        return d.replace(**changed)

    def _check_state(self, state: Any) -> None:
        if not isinstance(state, State):
            got = type(state).__name__
            raise TypeError(f"{type(self).__name__}: state must be a mjtorch.envs.State, got {got}; reset gives one")

    def _checked(self, action: Tensor) -> Tensor:
        name, shape = type(self).__name__, tuple(self.rest.ctrl.shape)
        if not isinstance(action, Tensor) or not action.is_floating_point():
            got = action.dtype if isinstance(action, Tensor) else type(action).__name__
            raise TypeError(f"{name}: an action is a tensor of floats, got {got}")
        if tuple(action.shape) != shape:
            raise ValueError(
                f"{name}: an action has shape {shape}, got {tuple(action.shape)}; a step is of one world: "
                "jit or torch.vmap take many"
            )
        return action.to(self.dtype)

    def _number(self, x: Any, dtype: torch.dtype | None = None) -> Tensor:
        dtype = dtype or self.dtype
        return x.to(dtype) if isinstance(x, Tensor) else torch.full((), x, dtype=dtype, device=self.rest.qpos.device)


def _is_finite(d: Data, *more: Tensor) -> Tensor:
    """Whether what goes on from here, or is shown, is finite, and no more than MuJoCo takes for a number: () bool."""
    parts = (d.qpos, d.qvel, d.act, d.qacc_warmstart, *more)
    return torch.stack([(x.abs() <= MAX_VALUE).all() for x in parts]).all()


@tree.dataclass(kw_only=True)
class Wrapper(Env):
    """An environment around another; a subclass changes what it wants to."""

    env: Env

    @property
    def task(self) -> Task:
        """The task under all wrappers."""
        return self.env.task

    @property
    def action_range(self) -> tuple[Tensor, Tensor]:
        """That of what is inside."""
        return self.env.action_range

    def with_model(self, m: Model) -> Self:
        """The same with another model."""
        return self.replace(env=self.env.with_model(m))

    def reset(self, key: Tensor) -> State:
        """That of what is inside."""
        return self.env.reset(key)

    def step(self, state: State, action: Tensor) -> State:
        """That of what is inside."""
        return self.env.step(state, action)


def with_tensors(env: E) -> E:
    """`env` with tensors for the numbers among its parameters, which compiled functions are quicker called with."""
    rest = env.task.rest.qpos

    def as_tensor(x: Any) -> Any:
        if isinstance(x, bool) or not isinstance(x, int | float):
            return x
        return torch.tensor(x, dtype=torch.int64 if isinstance(x, int) else rest.dtype, device=rest.device)

    return tree.map(as_tensor, env)


@stage
def reset(env: Env, key: Tensor) -> State:
    """`env.reset(key)` as a function, to be mapped over worlds: `jit(envs.reset, in_dims=(None, 0))(env, keys)`."""
    return env.reset(key)


@stage
def step(env: Env, state: State, action: Tensor) -> State:
    """`env.step(state, action)` as a function: `jit(envs.step, in_dims=(None, 0, 0))(env, state, actions)`."""
    return env.step(state, action)
