"""A run of learning: what is learned, how, and what is written of it."""

import dataclasses
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from mjtorch.envs import AutoReset, Env
from mjtorch.learn.experience import Experience, learnable
from mjtorch.learn.settings import PPOSettings, Settings, ShortHorizonSettings, settings as settings_of
from mjtorch.learn.team import Team

# Between the seeds of actions of two processes.
OTHERS = 1_000_003

# The file of a checkpoint in the folder of a run.
CHECKPOINT = "checkpoint.pt"


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a run is.

    steps: of all worlds together
    seconds: since `train` was called
    scalars: what is known of it by name, as in TensorBoard
    """

    steps: int
    seconds: float
    scalars: dict[str, float]


class Run:
    """A task, a method, and all that has been learned so far.

    Where `torch.distributed` is initialized, all its processes make the same run together, each with its share of the
    worlds: gradients, and what observations and rewards are normalized by, are those of all.

    steps: how many all worlds have made together
    policy: the most likely actions (worlds, nu), from -1 to 1, for observations (worlds, n)

    Args:
        task: one of `envs.names()`; or an environment, `AutoReset(mode="same_step")` around `EpisodeStatistics` around
            a `TimeLimit` around a task.
        method: "ppo", or "shac" for policy gradients through the simulator.
        seed: of everything: worlds, networks, actions.
        threads: of the processor, for the worlds.
        settings: changes to what `learn.settings(method, task)` returns, such as `{"worlds": 256}`.
        **parameters: of the task, as `envs.make` takes them, such as `device="cuda"`.

    Raises:
        ValueError, TypeError: there is no such task, method, setting or parameter.
        ModuleNotFoundError: a library is missing.
    """

    def __init__(
        self,
        task: str | AutoReset,
        method: str = "ppo",
        *,
        seed: int = 0,
        threads: int | None = None,
        settings: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> None:
        self.task = task if isinstance(task, str) else type(task.task).__name__
        self.settings: Settings = settings_of(method, self.task, settings)
        self.method, self.seed, self.parameters = method, seed, parameters
        env = learnable(task, **parameters)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.team = Team.here()
            self.experience = Experience(
                env,
                self.settings.worlds,
                discount=self.settings.discount,
                seed=seed,
                team=self.team,
                threads=threads,
            )
            self.learner = _learner(self.experience, self.settings)
            if not self.team.leads:  # the same networks, other actions
                torch.manual_seed(seed + OTHERS * self.team.rank)
            self.rng = torch.get_rng_state()

    @property
    def env(self) -> Env:
        """What is learned in, for one world."""
        return self.experience.worlds.env

    @property
    def steps(self) -> int:
        """How many all worlds have made together."""
        return self.experience.steps

    @torch.no_grad()
    def policy(self, obs: Tensor) -> Tensor:
        """The most likely actions (worlds, nu) for observations (worlds, n)."""
        return self.learner.policy(obs)

    def iterate(self) -> dict[str, float]:
        """One round of acting and learning: what is known of it by name."""
        with torch.random.fork_rng():
            torch.set_rng_state(self.rng)
            learned = self.learner.iterate()
            self.rng = torch.get_rng_state()
        return {**self.experience.scalars(), **learned}

    def save(self, path: Path | str) -> None:
        """Write all of it to a file; a run loaded from there goes on as if nothing had happened.

        All processes call it, and the first one writes.
        """
        path, experience, rng = Path(path), self.experience.state_dict(), self.team.collect(self.rng)
        if not self.team.leads:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "task": self.task,
            "method": self.method,
            "seed": self.seed,
            "settings": dataclasses.asdict(self.settings),
            "parameters": {name: _plain(value) for name, value in self.parameters.items()},
            "learner": self.learner.state_dict(),
            "experience": experience,
            "rng": rng,
        }
        half = path.with_suffix(".half")
        torch.save(content, half)
        half.replace(path)  # a run that is killed leaves the old one or the new one

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        task: AutoReset | None = None,
        threads: int | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """The run that was saved, on the device where it was, or on another; `task` if that had no name.

        Other processes than those that saved it, fewer or more, share out the worlds anew and draw other actions.
        """
        saved = torch.load(path, map_location=device, weights_only=True)
        parameters = {**saved["parameters"], **({} if device is None else {"device": device})}
        if "dtype" in parameters:
            parameters["dtype"] = getattr(torch, parameters["dtype"])
        run = cls(
            saved["task"] if task is None else task,
            saved["method"],
            seed=saved["seed"],
            threads=threads,
            settings=saved["settings"],
            **parameters,
        )
        run.learner.load_state_dict(saved["learner"])
        run.experience.load_state_dict(saved["experience"])
        if len(saved["rng"]) == run.team.size:
            run.rng = saved["rng"][run.team.rank].cpu()
        return run


def train(
    run: Run, steps: int | None = None, folder: Path | str | None = None, *, every: int = 50
) -> Iterator[Progress]:
    """Let a run go on until all its worlds together have made `steps`; tells its progress after each round.

    Args:
        run: what is learned, changed in place.
        steps: those of its settings, if not given.
        folder: where to write a checkpoint, `checkpoint.pt`, and events for TensorBoard; without, nothing is written.
        every: so many rounds lie between two checkpoints; there is one at the end in any case.

    Raises:
        FloatingPointError: a loss is not finite; the checkpoint is from before.
        ConnectionError: another process of the run has ended.
    """
    steps = run.settings.steps if steps is None else steps
    writer = None
    if folder is not None and run.team.leads:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(folder))
    begun, at_first, rounds = time.perf_counter(), run.steps, 0
    while run.steps < steps:
        with run.team.together(f"after {run.steps} steps"):
            scalars = run.iterate()
        wrong = [name for name, value in scalars.items() if not abs(value) < float("inf")]
        if wrong:
            raise FloatingPointError(f"{run.task}: {', '.join(wrong)} is not finite after {run.steps} steps")
        seconds, rounds = time.perf_counter() - begun, rounds + 1
        scalars["speed/steps"] = (run.steps - at_first) / seconds
        if writer is not None:
            for name, value in scalars.items():
                writer.add_scalar(name, value, run.steps)
        if folder is not None and (rounds % every == 0 or run.steps >= steps):
            with run.team.together(f"after {run.steps} steps"):
                run.save(Path(folder) / CHECKPOINT)
        yield Progress(run.steps, seconds, scalars)
    if writer is not None:
        writer.close()


def _learner(experience: Experience, settings: Settings) -> Any:
    if isinstance(settings, PPOSettings):
        from mjtorch.learn.ppo import PPOLearner

        return PPOLearner(experience, settings)
    from mjtorch.learn.short_horizon import ShortHorizonLearner

    assert isinstance(settings, ShortHorizonSettings)
    return ShortHorizonLearner(experience, settings)


def _plain(value: Any) -> Any:
    """A parameter as a checkpoint holds it: nothing but numbers, text and what is made of them."""
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype | torch.device) else value
