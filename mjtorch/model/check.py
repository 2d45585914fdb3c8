"""Whether a `Model` is whole, and a `Data` fits it: the check at the door of `step` and `forward`.

All of it is known when a function is traced: compiled, it costs nothing.
"""

from operator import attrgetter
from typing import Any, NoReturn

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.model.data import Data
from mjtorch.model.make_data import integer_shapes, shapes
from mjtorch.model.model import Model
from mjtorch.model.option import Cone, DisableBit, EnableBit, Integrator, Option, Solver, Statistic
from mjtorch.model.plan.option import FIXED, ONLY_OFF

# What a step takes from a `Data`, all else being computed anew.
INPUTS = (
    "time qpos qvel act plastic history qacc_warmstart ctrl qfrc_applied xfrc_applied mocap_pos mocap_quat userdata "
    "qpos_asleep flexvert_lambda"
).split()
PARTS = {"opt": Option, "stat": Statistic}
COUNTS = ("iterations", "ls_iterations", "noslip_iterations", "ccd_iterations", "sdf_iterations")
FLAGS = ("disableflags", "enableflags", "disableactuator")
CHOICES = {"integrator": Integrator, "cone": Cone, "solver": Solver}
# What the flags may consist of.
BITS = {"disableflags": sum(map(int, DisableBit)), "enableflags": sum(map(int, EnableBit))}
# mjtEnableBit that plans were made with or without, by the name of that in `OptionPlan`.
PLANNED = {EnableBit.SLEEP: "sleep", EnableBit.SPECULATIVE: "speculative", EnableBit.IPC: "ipc"}


def check_data(m: Model, d: Data, caller: str) -> None:
    """Raise `ValueError` or `TypeError` naming the field of `m` or `d` that does not fit.

    Checked are shapes, dtypes and devices of all numbers of `m`, and of state and inputs in `d`; and whether the plans
    of `m` can do what `m.opt` now says.
    """
    if not isinstance(m, Model):
        raise TypeError(f"{caller}: the first argument must be a mjtorch Model, got {type(m).__name__}; use put_model")
    if not isinstance(d, Data):
        raise TypeError(f"{caller}: the second argument must be a mjtorch Data, got {type(d).__name__}; use make_data")
    for name, kind in PARTS.items():
        if not isinstance(getattr(m, name), kind):
            got = type(getattr(m, name)).__name__
            raise TypeError(f"{caller}: m.{name} must be a mjtorch {kind.__name__}, got {got}; use m.{name}.replace")
    _check_model(m, caller)
    check_options(m, caller)
    like, wanted = _like(m), shapes(m)
    wants = [(name, wanted[name], like.dtype) for name in INPUTS]
    wants += [("eq_active", (m.neq,), torch.bool)]
    wants += [(name, integer_shapes(m)[name], torch.int64) for name in ("warning", "tree_asleep", "flexvert_conage")]
    for name, shape, dtype in wants:
        x = getattr(d, name)
        if not _fits(x, shape, dtype, like.device):
            _refuse_tensor(f"{caller}: d.{name}", x, shape, like.to(dtype), f"{caller}, in_dims=(None, 0)")


def _check_model(m: Model, caller: str) -> None:
    like = _like(m)
    dtype, device = like.dtype, like.device
    parameters = {f"callbacks.{path}": x for path, x in tree.leaves_with_path(m.callbacks)}
    for name, shape in m.shapes:
        if name.startswith("callbacks."):
            _check_parameter(
                m,
                f"{caller}: m.{name}",
                parameters.get(name),
                shape,
                f"{caller}, in_dims=(mjtorch.model_axes(m, {name!r}), 0)",
            )
            continue
        x = attrgetter(name)(m)
        if not (_fits(x, shape, dtype, device) or _is_full_inertia(m, name, x)):
            axes = f"mjtorch.model_axes(m, {name!r})"
            _refuse_tensor(f"{caller}: m.{name}", x, shape, like, f"{caller}, in_dims=({axes}, 0)")


def _check_parameter(m: Model, what: str, x: Any, shape: tuple[int, ...], mapped: str) -> None:
    """Refuse a parameter of a callback that is not what it was, but for its numbers."""
    like = _like(m)
    dtype = x.dtype if isinstance(x, Tensor) and not x.is_floating_point() else like.dtype
    if not _fits(x, shape, dtype, like.device):
        _refuse_tensor(what, x, shape, like.to(dtype), mapped)


def _like(m: Model) -> Tensor:
    """A tensor with the dtype and the device of the model: one that nobody replaces."""
    return m.plan.kinematics.body_dof


def _fits(x: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> bool:
    return isinstance(x, Tensor) and x.shape == shape and x.dtype == dtype and x.device == device


def _is_full_inertia(m: Model, name: str, x: Any) -> bool:
    """Whether `x` has products of inertia, as `inertia_from_geom` gives them."""
    return name == "body_inertia" and _fits(x, (m.nbody, 6), _like(m).dtype, _like(m).device)


def _refuse_tensor(what: str, x: Any, shape: tuple[int, ...], like: Tensor, mapped: str) -> NoReturn:
    """Say why `x` does not fit. mapped: the arguments of `vmap` with which it would, if it is for many worlds."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{what} must be a tensor, got {type(x).__name__}; use torch.as_tensor")
    if x.shape != shape:
        many = f"; for many worlds use torch.vmap(mjtorch.{mapped})" if tuple(x.shape[1:]) == shape else ""
        raise ValueError(f"{what} must have shape {shape}, got {tuple(x.shape)}{many}")
    if x.dtype != like.dtype:
        raise TypeError(f"{what} must be {like.dtype}, got {x.dtype}; use .to({like.dtype})")
    raise ValueError(f"{what} is on {x.device}, but the model is on {like.device}")


def check_options(m: Model, caller: str) -> None:
    """Raise `ValueError` or `TypeError` naming what is not possible in `m.opt`, or no longer since `put_model`."""
    opt, plan = m.opt, m.plan.option
    for name in (*COUNTS, *FLAGS, *CHOICES):
        value = getattr(opt, name)
        if isinstance(value, bool) or not isinstance(value, int):
            kind = f"a mjtorch.{CHOICES[name].__name__}" if name in CHOICES else "an int"
            raise TypeError(f"{caller}: m.opt.{name} must be {kind}, got {_show(value)}")
        if name in COUNTS and value < 0:
            raise ValueError(f"{caller}: m.opt.{name} must not be negative, got {value}")
        if name in CHOICES and value not in list(CHOICES[name]):
            known = ", ".join(choice.name for choice in CHOICES[name])
            raise ValueError(f"{caller}: m.opt.{name} must be one of {known}, got {value}")
    for name, known_bits in BITS.items():
        if getattr(opt, name) & ~known_bits:
            unknown = getattr(opt, name) & ~known_bits
            raise ValueError(f"{caller}: m.opt.{name} has bits that mean nothing: {unknown:#x}; leave them out")
    if opt.enabled(EnableBit.IPC) and opt.enabled(EnableBit.FWDINV):
        raise ValueError(f"{caller}: m.opt.enableflags has both IPC and FWDINV; leave one of them out")
    if opt.integrator == Integrator.RK4 and plan.delayed:
        raise ValueError(f"{caller}: m.opt.integrator is RK4, which supports sensors with delays from MuJoCo 4.0 on")
    if (opt.integrator == Integrator.DISCRETE) != plan.discrete:
        _refuse(
            caller,
            "integrator",
            f"is {Integrator(opt.integrator).name}, but was {'' if plan.discrete else 'not '}DISCRETE",
        )
    if opt.cone != plan.cone:
        _refuse(caller, "cone", f"is {Cone(opt.cone).name}, but the rows of contacts are for {Cone(plan.cone).name}")
    if opt.solver == Solver.PGS and opt.iterations > plan.sweeps:
        _refuse(
            caller, "solver", f"is PGS with {opt.iterations} iterations, but there are random numbers for {plan.sweeps}"
        )
    if opt.noslip_iterations > 0 and not plan.noslip:
        _refuse(caller, "noslip_iterations", f"is {opt.noslip_iterations}, but was 0")
    if (opt.sdf_iterations > 0) != plan.sdf:
        _refuse(caller, "sdf_iterations", f"is {opt.sdf_iterations}, but was {'not ' if plan.sdf else ''}0")
    for enabling, name in PLANNED.items():
        was = getattr(plan, name)
        if opt.enabled(enabling) != was:
            change = "disables {}, which was enabled" if was else "enables {}, which was disabled"
            _refuse(caller, "enableflags", change.format(enabling.name))
    for flag in (*ONLY_OFF, *FIXED):
        was, now = bool(plan.disableflags & flag), opt.disabled(flag)
        if now != was and (was or flag in FIXED):
            change = "enables {}, which was disabled" if was else "disables {}, which was enabled"
            _refuse(caller, "disableflags", change.format(flag.name))


def _refuse(caller: str, option: str, reason: str) -> NoReturn:
    raise ValueError(
        f"{caller}: m.opt.{option} {reason} when the model was put; set it in mj_model.opt before put_model"
    )


def _show(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, Tensor) else repr(value)
