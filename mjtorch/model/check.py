"""Whether a `Data` fits a `Model`: the check at the door of `step` and `forward`."""

from mjtorch.model.data import Data
from mjtorch.model.model import Model


def check_data(m: Model, d: Data, caller: str) -> None:
    """Raise `ValueError` or `TypeError` naming the field of `d` that does not fit `m`."""
    if not isinstance(m, Model):
        raise TypeError(f"{caller}: the first argument must be a mjtorch Model, got {type(m).__name__}; use put_model")
    if not isinstance(d, Data):
        raise TypeError(f"{caller}: the second argument must be a mjtorch Data, got {type(d).__name__}; use make_data")
    wanted = {"qpos": (m.nq,), "qvel": (m.nv,), "act": (m.na,), "ctrl": (m.nu,), "xfrc_applied": (m.nbody, 6)}
    for name, shape in wanted.items():
        x = getattr(d, name)
        if tuple(x.shape) != shape:
            advice = ""
            if tuple(x.shape[1:]) == shape:
                advice = f"; for many worlds use torch.vmap(mjtorch.{caller}, in_dims=(None, 0))"
            raise ValueError(f"{caller}: d.{name} must have shape {shape}, got {tuple(x.shape)}{advice}")
        if x.dtype != m.qpos0.dtype:
            raise TypeError(f"{caller}: d.{name} is {x.dtype}, but the model is {m.qpos0.dtype}")
        if x.device != m.qpos0.device:
            raise ValueError(f"{caller}: d.{name} is on {x.device}, but the model is on {m.qpos0.device}")
