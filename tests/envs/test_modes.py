"""An environment with everything around it means the same eager, under vmap, compiled and differentiated."""

from collections.abc import Callable, Iterator

import pytest
import torch
from envs.slider import DOUBLE, slider
from torch import Tensor

from mjtorch import envs, jit, random, tree
from mjtorch.compiler.targets.emulated.target import EmulatedWarp

WORLDS, STEPS = 5, 9


def wrapped(mode: envs.wrappers.episode.Mode, frame_skip: int) -> envs.Env:
    """The task with one wrapper of each kind."""
    env: envs.Env = envs.RandomizeModel(env=slider(frame_skip), draw=envs.Scaled({"body_mass": (0.5, 2.0)}))
    env = envs.ActionNoise(env=envs.ClipAction(env=env), scale=0.3)
    env = envs.ActionDelay(env=envs.RescaleAction(env=env), least=0, most=2)
    env = envs.AutoReset(env=envs.EpisodeStatistics(env=envs.TimeLimit(env=env, limit=4)), mode=mode)
    moments = envs.Moments(torch.ones(2, dtype=DOUBLE), torch.full((2,), 4.0, dtype=DOUBLE), torch.tensor(9.0))
    env = envs.NormalizeObservation(env=env, moments=moments, limit=5.0)
    return envs.NormalizeReward(env=env, moments=envs.Moments.like(torch.zeros((), dtype=DOUBLE)))


def actions() -> Tensor:
    return torch.linspace(-1, 1, WORLDS * STEPS, dtype=DOUBLE).sin().reshape(STEPS, WORLDS, 1)


def run(reset: Callable, step: Callable, env: envs.Env) -> Iterator[envs.State]:
    """All states on the way."""
    state = reset(env, random.split(random.key(0), WORLDS))
    yield state
    for action in actions():
        state = step(env, state, action)
        yield state


def alone(f: Callable) -> Callable:
    """`f`, one world after the other."""

    def each(env: envs.Env, *args: object) -> envs.State:
        worlds = [f(env, *(tree.map(lambda x, i=i: x[i], a) for a in args)) for i in range(WORLDS)]
        return tree.stack(worlds)

    return each


MODES: dict[str, Callable[[Callable, tuple], Callable]] = {
    "vmap": torch.vmap,
    "jit": lambda f, dims: jit(f, in_dims=dims, strict=True),
    "warp": lambda f, dims: jit(f, in_dims=dims, backend=EmulatedWarp(4)),
    "compile": lambda f, dims: torch.compile(torch.vmap(f, dims), fullgraph=True, backend="aot_eager"),
}


CASES = [
    *(("vmap", mode) for mode in ("next_step", "same_step", "disabled")),
    ("jit", "same_step"),
    ("warp", "next_step"),
    pytest.param("compile", "next_step", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("how, mode", CASES)
def test_the_same_in_every_mode(how: str, mode: envs.wrappers.episode.Mode) -> None:
    # Stock torch.compile (2.13) does not take a step within a loop.
    env = wrapped(mode, frame_skip=1 if how == "compile" else 2)
    make = MODES[how]
    found = run(make(envs.reset, (None, 0)), make(envs.step, (None, 0, 0)), env)
    wanted = run(alone(envs.reset), alone(envs.step), env)
    for k, (state, wants) in enumerate(zip(found, wanted, strict=True)):
        pairs = zip(tree.leaves_with_path(state), tree.leaves(wants), strict=True)
        for (path, x), y in pairs:
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9, msg=lambda text, p=path, k=k: f"{p}, {k}: {text}")


@pytest.mark.parametrize("limit", [1, 9])
def test_gradients_flow_through_steps_and_resets(limit: int) -> None:
    """Of the return, with respect to a gain and a parameter of the task, as compiled and as finite differences."""
    env = envs.AutoReset(env=envs.TimeLimit(env=slider(), limit=limit), mode="same_step")
    start = torch.vmap(envs.reset, in_dims=(None, 0))(env, random.split(random.key(0), 2))

    def loss(gain: Tensor, state: envs.State) -> Tensor:
        total = torch.zeros((), dtype=DOUBLE)
        for _ in range(2):
            state = env.step(state, gain * state.obs[:1])
            total = total + state.reward
        return total

    gain = torch.tensor(-2.0, dtype=DOUBLE)
    eager = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(gain, start)
    compiled = jit(torch.func.grad(loss), in_dims=(None, 0), strict=True)(gain, start)
    small = 1e-6
    up, down = (torch.vmap(loss, in_dims=(None, 0))(gain + s, start) for s in (small, -small))
    torch.testing.assert_close(compiled, eager, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(eager, (up - down) / (2 * small), rtol=1e-5, atol=1e-8)


def test_a_reset_is_computed_where_a_world_needs_it() -> None:
    """In the program all random numbers are drawn within the branch, and what is at rest is handed on."""
    env = envs.AutoReset(env=envs.TimeLimit(env=slider(), limit=3), mode="same_step")
    state = torch.vmap(envs.reset, in_dims=(None, 0))(env, random.split(random.key(0), 2))
    lowered = jit(envs.step, in_dims=(None, 0, 0), strict=True).lower(env, state, torch.zeros(2, 1, dtype=DOUBLE))
    lines = lowered.as_text().splitlines()
    drawing = [k for k, line in enumerate(lines) if "xor(" in line]
    loops = [k for k, line in enumerate(lines) if line.strip().startswith("while ")]
    assert drawing and loops and all(k > loops[0] for k in drawing)
    ends = next(k for k in range(loops[0] + 1, len(lines)) if not lines[k].startswith("    "))
    assert all(k < ends for k in drawing)
    paths = [path for path, _ in tree.leaves_with_path(state)]
    written = {path for path, o in zip(paths, lowered.outputs, strict=True) if o.source < 0 and o.constant is None}
    fields = {path for path in written if path.startswith("data.")}
    assert fields <= {f"data.{name}" for name in env.task.fields}
