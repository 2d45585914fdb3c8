"""`put_model`: from an `mujoco.MjModel` to a `Model`."""

import enum
import math
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.model import callbacks as functions, plan, settings, support
from mjtorch.model.access import names_of
from mjtorch.model.callbacks import Callbacks, let_collide
from mjtorch.model.left_out import left_out
from mjtorch.model.model import Model
from mjtorch.model.option import Cone, Integrator, Option, Solver, Statistic
from mjtorch.model.plan import sdf
from mjtorch.model.same_frame import local_frames
from mjtorch.model.settings import Gradient, Substeps

# Static fields that mjModel does not have in this form.
MADE = ("names", "shapes", "left_out")
DTYPES = (torch.float32, torch.float64)


def put_model(
    mj_model: mujoco.MjModel,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    contact_capacity: int | None = None,
    gradient: Gradient | None = None,
    substeps: Substeps | None = None,
    callbacks: Callbacks | None = None,
) -> Model:
    """Copy what the engine needs of `mj_model` to `device`.

    Frames of geoms, sites and inertias that MuJoCo takes for those of their bodies, such as 1e-7 m away, are put there.

    Args:
        mj_model: a compiled MuJoCo model.
        device: where the tensors go; torch's default device if not given.
        dtype: `torch.float32` or `torch.float64`; torch's default dtype if not given.
        contact_capacity: the most contacts that are kept at a time, the closest first. Not given: chosen from the
            contacts that short rollouts and random poses of `mj_model` show, with a margin. Contacts that find no slot
            are counted in `Data.warning`; see `on_overflow`. Of many pairs of convex geoms those nearest to each other
            are looked at closely: at least so many, and twice as many as the rollouts show to be near each other; near
            pairs beyond are counted, too.
        gradient: derivatives that say more than the exact ones, of the same simulation; see `Gradient`.
        substeps: time steps split up where motion is not smooth; see `Substeps`.
        callbacks: functions of yours that a step calls, such as an actuator network; see `Callbacks`.

    Raises:
        NotImplementedError: the model uses features that are not supported; all of them are listed.
        TypeError, ValueError: an argument is not what it should be.
    """
    if not isinstance(mj_model, mujoco.MjModel):
        raise TypeError(
            f"put_model: mj_model must be a mujoco.MjModel, got {type(mj_model).__name__}; load a file with "
            "mujoco.MjModel.from_xml_path(path)"
        )
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in DTYPES:
        raise ValueError(f"put_model: dtype must be torch.float32 or torch.float64, got {dtype}")
    is_count = isinstance(contact_capacity, int) and not isinstance(contact_capacity, bool)
    if contact_capacity is not None and (not is_count or contact_capacity < 0):
        raise ValueError(f"put_model: contact_capacity must be an int >= 0, got {contact_capacity!r}")
    if not isinstance(callbacks, Callbacks | None):
        raise TypeError(f"put_model: callbacks must be a mjtorch.Callbacks, got {type(callbacks).__name__}")
    support.check(mj_model, callbacks)
    if not 0 < mj_model.opt.timestep < math.inf:
        raise ValueError(f"put_model: mj_model.opt.timestep must be positive and finite, got {mj_model.opt.timestep}")
    where = _device(device)
    if where.type == "meta":
        raise ValueError("put_model: device must be one that holds numbers, got 'meta'")

    def tensor(x: Any) -> Tensor:
        return torch.tensor(np.array(x, dtype=np.float64), dtype=dtype, device=where)

    option = Option(
        **{name: tensor(getattr(mj_model.opt, name)) for name in tree.tensor_fields(Option)},
        integrator=_choice(mj_model, "integrator", Integrator),
        cone=_choice(mj_model, "cone", Cone),
        solver=_choice(mj_model, "solver", Solver),
        iterations=int(mj_model.opt.iterations),
        ls_iterations=int(mj_model.opt.ls_iterations),
        noslip_iterations=int(mj_model.opt.noslip_iterations),
        ccd_iterations=int(mj_model.opt.ccd_iterations),
        sdf_iterations=int(mj_model.opt.sdf_iterations),
        disableflags=int(mj_model.opt.disableflags),
        enableflags=int(mj_model.opt.enableflags),
        disableactuator=int(mj_model.opt.disableactuator),
        fluid=bool(mj_model.opt.density or mj_model.opt.viscosity),
    )
    colliding = let_collide(mj_model) if callbacks is not None and callbacks.contact_filter is not None else mj_model
    plans = plan.build(colliding, device=where, dtype=dtype, contact_capacity=contact_capacity)
    subtrees: dict[str, Any] = {
        "opt": option,
        "stat": Statistic(meaninertia=tensor(mj_model.stat.meaninertia)),
        "plan": plans,
        "settings": settings.build(colliding, plans, option.timestep, gradient, substeps),
        "callbacks": functions.build(mj_model, callbacks, option.timestep),
    }
    statics = {name: _static(_field(mj_model, name)) for name in tree.static_fields(Model) if name not in MADE}
    numbers = [name for name in tree.tensor_fields(Model) if name not in (*subtrees, "sdf_grid")]
    tensors: dict[str, Any] = {name: tensor(_field(mj_model, name)) for name in numbers}
    tensors |= {name: tensor(x) for name, x in local_frames(mj_model).items()}
    tensors["sdf_grid"] = tensor(sdf.grid(mj_model))
    checked = {name: x for name, x in subtrees.items() if name in ("opt", "stat", "callbacks")} | tensors
    shapes = tuple((path, tuple(x.shape)) for path, x in tree.leaves_with_path(checked))
    # Tracing gets the strides wrong of what is indexed by a tensor that is not row-major.
    made: dict[str, Any] = {"shapes": shapes, "names": names_of(mj_model), "left_out": left_out(mj_model)}
    return tree.map(Tensor.contiguous, Model(**subtrees, **statics, **tensors, **made))


def _choice(mj_model: mujoco.MjModel, name: str, kind: type[enum.IntEnum]) -> Any:
    """An option that is one of several."""
    value = int(getattr(mj_model.opt, name))
    if value not in list(kind):
        known = ", ".join(choice.name for choice in kind)
        raise ValueError(f"put_model: mj_model.opt.{name} must be one of {known}, got {value}")
    return kind(value)


def _device(device: Any) -> torch.device:
    """Where tensors go, if this machine has it."""
    try:
        return torch.empty(0, device=device).device
    except (AssertionError, RuntimeError, TypeError) as e:
        raise ValueError(f"put_model: device {device!r} cannot be used: {' '.join(str(e).split())}") from e


def _field(mj_model: mujoco.MjModel, name: str) -> Any:
    """A field of mjModel; zeros for those that MuJoCo before 4.0 does not have."""
    absent = {
        "nplastic": 0,
        "jnt_springyield": np.zeros(mj_model.njnt),
        "tendon_springyield": np.zeros(mj_model.ntendon),
        "flex_yield": np.zeros((mj_model.nflex, 2)),
        "key_plastic": np.zeros((mj_model.nkey, 0)),
    }
    return getattr(mj_model, name, absent[name]) if name in absent else getattr(mj_model, name)


def _static(x: Any) -> Any:
    """A hashable plain-Python copy of a number or an integer array."""
    if isinstance(x, np.ndarray):
        return tuple(_static(row) for row in x) if x.ndim > 1 else tuple(int(v) for v in x)
    return int(x)
