"""What a process of several does, for `test_team.py`: `run` starts them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from envs.slider import slider

from mjtorch import envs, learn, tree
from mjtorch.learn.experience import Experience, learnable
from mjtorch.learn.team import Team, joined

WORLDS = 16
SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"worlds": WORLDS, "horizon": 8, "minibatches": 2, "hidden": (16,)},
    "shac": {"worlds": WORLDS, "horizon": 8, "hidden": (16,), "actor_rate": 3e-3},
}


def task(limit: int = 40) -> envs.AutoReset:
    return envs.AutoReset(env=envs.EpisodeStatistics(env=envs.TimeLimit(env=slider(), limit=limit)), mode="same_step")


def begun(method: str) -> learn.Run:
    return learn.Run(task(), method, seed=0, threads=1, settings=SMALL[method])


def weights(run: learn.Run) -> dict[str, Any]:
    """Networks, optimizers, and what observations are normalized by."""
    return {str(k): x for k, x in enumerate(tree.leaves(run.learner.state_dict())) if isinstance(x, torch.Tensor)}


def worlds() -> dict[str, Any]:
    """Of all processes, without any learning: the worlds of this one, and what is known of all."""
    experience = Experience(learnable(task(5)), WORLDS, discount=0.9, seed=0, team=Team.here(), threads=1)
    for _ in range(12):
        experience.step(torch.zeros(experience.worlds.count, 1))
    return {"obs": experience.state.obs, "scale": experience.scale, **experience.scalars(), "steps": experience.steps}


def iterate(folder: Path) -> dict[str, Any]:
    """Worlds, and some rounds, with a checkpoint."""
    run = begun("ppo")
    list(learn.train(run, 3 * 8 * WORLDS, folder))
    return {"worlds": worlds(), "weights": weights(run), "rng": run.rng}


def climb(folder: Path) -> dict[str, Any]:
    """Some rounds by gradients through the simulator."""
    run = begun("shac")
    list(learn.train(run, 3 * 8 * WORLDS))
    return {"weights": weights(run)}


def whole(folder: Path) -> dict[str, Any]:
    """A run that learns something."""
    run = begun("ppo")
    list(learn.train(run, 60 * 8 * WORLDS))
    return {"return": float(learn.evaluate(run).returns.mean())}


def lose(folder: Path) -> dict[str, Any]:
    """The second process ends in the middle of it."""
    run = begun("ppo")
    for progress in learn.train(run, 10**9, folder / "lost", every=2):
        if progress.steps == 5 * 8 * WORLDS and run.team.rank == 1:
            os._exit(3)
    return {}


JOBS = {job.__name__: job for job in (iterate, climb, whole, lose)}


def run(job: str, folder: Path, size: int) -> tuple[list[dict[str, Any]], list[subprocess.CompletedProcess[str]]]:
    """What each of `size` processes found, and how they ended."""
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "tests"), os.environ.get("PYTHONPATH", "")])
    processes: list[subprocess.Popen[str]] = []
    for rank in range(size):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, job, str(folder)]
        environment = {**os.environ, **address, **own}
        processes.append(subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE))
    ended = []
    for process in processes:
        _, errors = process.communicate(timeout=540)
        ended.append(subprocess.CompletedProcess(process.args, process.returncode, "", errors))
    files = [folder / f"{job}-{size}-{rank}.pt" for rank in range(size)]
    return [torch.load(file) for file in files if file.exists()], ended


def free_port() -> int:
    import socket

    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return int(listening.getsockname()[1])


if __name__ == "__main__":
    name, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    with joined("cpu") as (team, _):
        result = JOBS[name](folder)
        torch.save(result, folder / f"{name}-{team.size}-{team.rank}.pt")
