"""Functions of the user's that a step calls where C calls its callbacks (programming/simulation.rst, "Callbacks")."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

import mujoco
import numpy as np
import optree
import torch
from mujoco import mjtBias, mjtDyn, mjtGain, mjtSensor
from torch import Tensor

from mjtorch import tree

Function = Callable[..., Any]

# By name: what in a model is computed by it.
COMPUTES = {
    "act_dyn": ("actuator has dyntype", lambda m: m.actuator_dyntype == mjtDyn.mjDYN_USER),
    "act_gain": ("actuator has gaintype", lambda m: m.actuator_gaintype == mjtGain.mjGAIN_USER),
    "act_bias": ("actuator has biastype", lambda m: m.actuator_biastype == mjtBias.mjBIAS_USER),
    "sensor": ("sensor has type", lambda m: m.sensor_type == mjtSensor.mjSENS_USER),
}
# What `control` may set.
CONTROLLED = ("ctrl", "qfrc_applied", "xfrc_applied")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Callbacks:
    """What a step computes by your functions: `put_model(mj_model, callbacks=Callbacks(control=f))`.

    A callback is a pure function of the tensors of one world, called where MuJoCo calls its own of that name; it is
    mapped over worlds, compiled into the step, differentiated and exported with it. It may be

    - a function: tensors from around it are constants;
    - a `torch.nn.Module`, called by its `forward`: `m.callbacks.control` is then a dict of its parameters and buffers,
      by name. They are the tensors of the module, not copies: what an optimizer does to them, the model sees. The
      module itself is copied; `train` and `eval` afterwards change nothing;
    - an object of a class made by `mjtorch.tree.dataclass`, with a method `__call__`: `m.callbacks.control` is it.

    Parameters are numbers of the model like all others: `m.replace(**{"callbacks.control": trained})` is a model that
    has others, and `model_axes(m, "callbacks.control")` those of each world. Nothing may be written to `m` and `d`:
    what is to change is returned. `d` has what is known at that place of the step; all else is what the step was given.

    control: `(m, d)` -> ctrl (nu,), or a dict with any of ctrl, qfrc_applied (nv,) and xfrc_applied (nbody, 6), after
        velocities and before actuators; RK4 calls it four times a step. Not called if actuation is disabled.
    act_dyn: `(m, d, actuators)` -> rates (n,) of the activations of actuators whose dyntype is "user", in the order of
        `actuators.act`, which says where they lie in `d.act`; see `Actuators`. Without it they are zero.
    act_gain: `(m, d, actuators)` -> gains (k,) of actuators whose gaintype is "user". Without it they are 1.
    act_bias: `(m, d, actuators)` -> bias forces (k,) of actuators whose biastype is "user". Without it they are zero.
    passive: `(m, d)` -> forces (nv,) [N or N m] that are added to `d.qfrc_passive`. Not called if springs and dampers
        are both disabled. Implicit integrators, as in C, do not know its derivative.
    sensor: `(m, d, stage)` -> readings (n,) of the user sensors whose needstage is `stage`, a `mjtorch.Stage`, in the
        order in which they lie in sensordata; called for each stage that has some. Without it they are zero.
    contact_filter: `(m, d, geom)` -> (n,) bool, True for pairs of geoms (n, 2), the lower id first, that shall not
        collide. As in C it takes the place of contype and conaffinity of geoms, for all pairs of bodies some geoms of
        which these let collide; explicit pairs are not asked about. A pair may be asked about more than once.

    Raises:
        TypeError: a callback is not callable.
    """

    control: Function | None = None
    act_dyn: Function | None = None
    act_gain: Function | None = None
    act_bias: Function | None = None
    passive: Function | None = None
    sensor: Function | None = None
    contact_filter: Function | None = None

    def __post_init__(self) -> None:
        for name in NAMES:
            f = getattr(self, name)
            if f is not None and not callable(f):
                raise TypeError(f"Callbacks: {name} must be callable, got {type(f).__name__}")


NAMES = tuple(field.name for field in dataclasses.fields(Callbacks))


@tree.dataclass(kw_only=True)
class CallbackTree(tree.Tree):
    """The callbacks of a model: of each its parameters, a tree of tensors; `()` if it has none, or is not there.

    functions: static, in the order of the fields; None: not there
    """

    functions: tuple[Function | None, ...] = tree.field(static=True, default=(None,) * len(NAMES))
    control: Any = ()
    act_dyn: Any = ()
    act_gain: Any = ()
    act_bias: Any = ()
    passive: Any = ()
    sensor: Any = ()
    contact_filter: Any = ()

    def has(self, name: str) -> bool:
        """Whether the callback `name` is there."""
        return self.functions[NAMES.index(name)] is not None

    def call(self, name: str, *args: Any) -> Any:
        """What the callback `name` returns."""
        f, parameters = self.functions[NAMES.index(name)], getattr(self, name)
        assert f is not None
        if isinstance(f, torch.nn.Module):
            return torch.func.functional_call(f, parameters, args)
        return f(*args) if type(parameters) is tuple else f(parameters, *args)

    def tensor(self, name: str, shape: tuple[int, ...], like: Tensor, *args: Any) -> Tensor:
        """What the callback `name` returns, if it has that shape, and dtype and device of `like`.

        Raises:
            TypeError, ValueError: it has not.
        """
        return checked(name, "", self.call(name, *args), shape, like)


def checked(name: str, part: str, x: Any, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """`x`, if it is a tensor of that shape, and of the dtype and on the device of `like`; part: such as `["ctrl"]`.

    Raises:
        TypeError, ValueError: it is not.
    """
    what = f"callbacks.{name} must return {f'{part} as ' if part else ''}a tensor"
    if not isinstance(x, Tensor):
        raise TypeError(f"{what}, got {type(x).__name__}; return what is to change, and write nothing to m or d")
    if x.shape != shape:
        raise ValueError(f"{what} of shape {tuple(shape)}, for one world, got {tuple(x.shape)}")
    if x.dtype != like.dtype:
        raise TypeError(f"{what} of {like.dtype}, got {x.dtype}; use .to({like.dtype})")
    if x.device != like.device:
        raise ValueError(f"{what} on {like.device}, where the model is, got one on {x.device}")
    return x


def build(mj_model: mujoco.MjModel, callbacks: Callbacks | None, like: Tensor) -> CallbackTree:
    """The callbacks of a model whose numbers have dtype and device of `like`.

    Raises:
        TypeError, ValueError: a callback would never be called, or a parameter does not fit the model.
    """
    if callbacks is None:
        return CallbackTree()
    functions: list[Function | None] = []
    parameters: dict[str, Any] = {}
    for name in NAMES:
        f = getattr(callbacks, name)
        if f is not None and name in COMPUTES:
            what, uses = COMPUTES[name]
            if not np.any(uses(mj_model)):
                raise ValueError(f'put_model: callbacks.{name} would never be called: no {what} "user"')
        if isinstance(f, torch.nn.Module):
            # Numbers are no part of the program.
            functions.append(_without_numbers(f))
            parameters[name] = {**dict(f.named_parameters()), **dict(f.named_buffers())}
        elif f is not None and not optree.tree_is_leaf(f, namespace=tree.NAMESPACE):
            functions.append(type(f).__call__)
            parameters[name] = f
        else:
            functions.append(f)
        for path, x in tree.leaves_with_path(parameters.get(name, ())):
            _check_parameter(f"put_model: callbacks.{name}.{path}", x, like)
    return CallbackTree(functions=tuple(functions), **parameters)


def _without_numbers(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a module whose parameters and buffers hold zeros, and next to no memory."""
    named = [*module.named_parameters(), *module.named_buffers()]
    empty = {id(x): x.detach().new_zeros(()).expand(x.shape) for _, x in named}
    for _, x in named:
        if isinstance(x, torch.nn.Parameter):
            empty[id(x)] = torch.nn.Parameter(empty[id(x)], requires_grad=False)
    return copy.deepcopy(module, empty)


def _check_parameter(what: str, x: Any, like: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{what} must be a tensor, got {type(x).__name__}")
    if x.is_floating_point() and x.dtype != like.dtype:
        raise TypeError(f"{what} must be {like.dtype}, as the model is, got {x.dtype}; use .to({like.dtype})")
    if x.device != like.device:
        _refuse_device(what, x, like)


def _refuse_device(what: str, x: Tensor, like: Tensor) -> NoReturn:
    raise ValueError(f"{what} is on {x.device}, but the model is on {like.device}; use .to({like.device.type!r})")


def let_collide(mj_model: mujoco.MjModel) -> mujoco.MjModel:
    """The model that a contact filter is asked about: all geoms of bodies that may collide, may collide."""
    model = copy.copy(mj_model)
    model.geom_contype[:] = model.body_contype[model.geom_bodyid]
    model.geom_conaffinity[:] = model.body_conaffinity[model.geom_bodyid]
    return model
