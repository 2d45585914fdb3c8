"""Steps of many worlds that PyTorch's autograd goes through."""

from typing import Any

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.compiler import jit
from mjtorch.envs import Env, State
from mjtorch.envs.adapters.worlds import Worlds

# What of a state is differentiated besides the fields of its data.
SHOWN = ("obs", "reward", "final_obs")


def pull(env: Env, state: State, action: Tensor, cotangents: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """From derivatives with respect to what a step leaves to those with respect to what it began with, of one world.

    Args:
        env: the environment, which begins again in the same step.
        state: before the step.
        action: of the step (nu,).
        cotangents: by the names of `SHOWN` and of fields of `Data`.

    Returns:
        Those of the fields of `Data` before the step, and of the action.
    """

    def along(flow: dict[str, Tensor], action: Tensor) -> Tensor:
        new = env.step(state.replace(data=state.data.replace(**flow)), action)
        return torch.stack([(cotangents[name] * x).sum() for name, x in outcomes(new, flow).items()]).sum()

    flow = {name: getattr(state.data, name) for name in cotangents if name not in SHOWN}
    return torch.func.grad(along, argnums=(0, 1))(flow, action)


def outcomes(state: State, fields: Any) -> dict[str, Tensor]:
    """What of a state is differentiated, by name."""
    shown = {"obs": state.obs, "reward": state.reward, "final_obs": state.info["final_obs"]}
    return {**shown, **{name: getattr(state.data, name) for name in fields}}


class Through:
    """Worlds whose steps are differentiable: what `step` returns hangs together with what it was given.

    A step keeps no more than the state before it; a derivative computes it again. Derivatives that come back to the
    beginning of a step are cut to the norm `limit`, for each world, and are zero where they are not finite.

    Args:
        worlds: of an environment that begins again in the same step.
        limit: of the norm.
        **options: for `jit`.
    """

    def __init__(self, worlds: Worlds, limit: float, **options: Any) -> None:
        task, self.worlds, self.limit = worlds.env.task, worlds, limit
        # what physics reads of the step before; counts, times and what the solver began with carry no derivative
        constant = ("time", "qacc_warmstart", "ctrl")
        fields = [name for name in task.fields if name not in constant]
        self.fields = tuple(name for name in fields if getattr(task.rest, name).is_floating_point())
        self.pull = jit(pull, in_dims=(None, 0, 0, 0), **options)

    def step(self, state: State, action: Tensor) -> State:
        """`state` of all worlds one step further, as a differentiable function of its data and of `action`."""
        flow = [getattr(state.data, name) for name in self.fields]
        made: list[State] = []
        found = _Step.apply(self, tree.map(Tensor.detach, state), made, action, *flow)
        named = dict(zip((*SHOWN, *self.fields), found, strict=True))
        new = made[0].replace(obs=named["obs"], reward=named["reward"])
        info = {**new.info, "final_obs": named["final_obs"]}
        return new.replace(info=info, data=new.data.replace(**{name: named[name] for name in self.fields}))


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, through: Through, state: State, made: list[State], action: Tensor, *flow: Tensor
    ) -> tuple[Tensor, ...]:
        worlds = through.worlds
        worlds.state = state
        made.append(worlds.step(action))
        ctx.through, ctx.state = through, state
        ctx.save_for_backward(action)
        return tuple(x.clone() for x in outcomes(made[0], through.fields).values())

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        through = ctx.through
        (action,) = ctx.saved_tensors
        named = dict(zip((*SHOWN, *through.fields), cotangents, strict=True))
        flow, of_action = through.pull(through.worlds.env, ctx.state, action, named)
        back = [of_action, *(flow[name] for name in through.fields)]
        flat = torch.cat([x.flatten(1) for x in back], dim=1)
        norm = torch.linalg.vector_norm(flat, dim=1)
        scale = torch.where(norm.isfinite(), (through.limit / norm.clamp(min=through.limit)), 0.0)
        cut = [torch.where(scale.view(-1, *[1] * (x.dim() - 1)) > 0, x, 0.0) for x in back]
        return None, None, None, *(x * scale.view(-1, *[1] * (x.dim() - 1)) for x in cut)
