"""`view`: a model, a recording or a simulation in a page of the browser."""

import importlib.util
from pathlib import Path
from typing import Any

import mujoco
import torch

from mjtorch import models
from mjtorch.model import Data, Model
from mjtorch.model.make_data import make_data
from mjtorch.model.put_model import put_model
from mjtorch.tree import batch
from mjtorch.view.motion import Live, Motion, Policy, Recording
from mjtorch.view.page import Viewer


def view(
    model: mujoco.MjModel | str | Path,
    d: Data | None = None,
    *,
    trajectory: str | Path | None = None,
    policy: Policy | str | Path | None = None,
    worlds: int | None = None,
    play: bool = False,
    port: int | None = None,
    host: str = "127.0.0.1",
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Viewer:
    """A page in the browser, where a model is simulated, or a recording played: `mjtorch view` in Python.

        viewer = mjtorch.view("humanoid")                                      # in a notebook: shown below the cell
        viewer = mjtorch.view("humanoid", trajectory="rollouts/humanoid.npz")
        print(viewer.url)

    Args:
        model: a model, or the name or path of one.
        d: the worlds at the beginning, of `put_model(model, dtype=dtype)`; at rest, or in its first keyframe, if not
            given.
        trajectory: a file of `mjtorch rollout`, to be played instead.
        policy: what controls the worlds: a function of model and data that returns controls (worlds, nu); or a file:
            FILE.py, in which it is called `policy`, or FILE.pt2 of `torch.export.save`, a module from positions and
            velocities (worlds, nq + nv) to controls. Without, sliders do.
        worlds: how many; 1, or, of a trajectory, the first 16, if not given.
        play: begin at once.
        port, host: as for `Viewer`.
        dtype: of the simulation.
        **options: for `jit`, such as `backend` or `threads`.

    Raises:
        ViewError: the port is taken, or the model has too much to draw.
        ModuleNotFoundError: viser is not installed.
        NotImplementedError: the model uses what is not supported; it can be looked at by `Viewer(mj_model)`.
        ValueError, OSError: a file that is none of these.
    """
    mj_model = model if isinstance(model, mujoco.MjModel) else models.load(model)
    if trajectory is not None and (policy is not None or d is not None):
        raise ValueError("view: a trajectory is played as it is; give no policy and no d beside it")
    motion: Motion
    if trajectory is not None:
        motion = Recording.load(mj_model, trajectory, worlds or MOST_RECORDED)
    else:
        m = put_model(mj_model, dtype=dtype)
        begin = batch(at_first_key(mj_model, make_data(m)), worlds or 1) if d is None else _many(d)
        acts = load_policy(policy) if isinstance(policy, str | Path) else policy
        motion = Live(m, begin, acts, **options)
    viewer = Viewer(mj_model, motion, port=port, host=host)
    viewer.play(play)
    return viewer.start()


# Worlds of a recording that are shown unless more are asked for.
MOST_RECORDED = 16


def at_first_key(mj_model: mujoco.MjModel, d: Data) -> Data:
    """`d` in the first keyframe, if there is one."""
    if not mj_model.nkey:
        return d
    return d.replace(qpos=d.qpos.new_tensor(mj_model.key_qpos[0]), qvel=d.qvel.new_tensor(mj_model.key_qvel[0]))


def load_policy(file: str | Path) -> Policy:
    """The policy in a file; see `view`.

    Raises:
        OSError, ValueError: there is none.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"no policy {str(path)!r}")
    if path.suffix == ".py":
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if not callable(getattr(module, "policy", None)):
            raise ValueError(f"{path} defines no function policy(m, d)")
        return module.policy
    if path.suffix == ".pt2":
        network = torch.export.load(path).module()

        def acts(m: Model, d: Data) -> torch.Tensor:
            return network(torch.cat([d.qpos, d.qvel], -1))

        return acts
    raise ValueError(f"a policy is FILE.py or FILE.pt2, got {path.name!r}")


def _many(d: Data) -> Data:
    return d if d.qpos.dim() == 2 else batch(d, 1)
