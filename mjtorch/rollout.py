"""`rollout`: many steps as one function, with controls from an array or from a policy."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from mjtorch.compiler import stage, static_arguments
from mjtorch.control_flow import scan
from mjtorch.control_flow.context import is_traced, unrecorded
from mjtorch.forward import step
from mjtorch.model import Data, Model
from mjtorch.model.check import check_data
from mjtorch.model.slim import STATE, checked_names, keep, part
from mjtorch.tree import dataclass, leaves, tensor_fields

Policy = Callable[..., Tensor]


@static_arguments("n", "policy", "outputs", "checkpoint")
@stage
def rollout(
    m: Model,
    d: Data,
    n: int,
    policy: Policy | None = None,
    ctrl: Tensor | None = None,
    params: Any = None,
    *,
    outputs: str | Sequence[str] = ("qpos", "qvel"),
    checkpoint: int | None = None,
) -> tuple[Data, dict[str, Any]]:
    """`n` steps of one world: the last `Data`, and what `outputs` names after each step.

    The same as `for i in range(n): d = step(m, d.replace(ctrl=...))`, in every mode; compiled, the loop is part of the
    program, and nothing is written but what is returned:

        rollout = mjtorch.jit(mjtorch.rollout, in_dims=(None, 0))
        d, trajectory = rollout(m, d, 100)                                   # d: 4096 worlds
        trajectory["qpos"]                                                   # (4096, 100, nq)

        rollout = mjtorch.jit(mjtorch.rollout, in_dims=(None, 0, 0))         # a sequence of controls for each world
        d, trajectory = rollout(m, d, 100, ctrl=controls, outputs=("qpos", "sensordata"))   # controls: (4096, 100, nu)

        def policy(m, d, params):
            return torch.func.functional_call(network, params, (torch.cat([d.qpos, d.qvel]),))

        rollout = mjtorch.jit(mjtorch.rollout, in_dims=(None, 0, None))      # all worlds share the network
        d, trajectory = rollout(m, d, 100, policy, params=dict(network.named_parameters()))

    Args:
        m: the model.
        d: where to start.
        n: how many steps; each number is compiled for itself.
        policy: a function `policy(m, d)`, or `policy(m, d, params)` where those are given, that returns ctrl (nu,) from
            what is known before a step. As between calls of `step`, the state is up to date there, and what follows
            from it belongs to the step before. Pass the same function each time: another one is compiled anew. Stock
            `torch.compile` takes a policy only inside of a function decorated with `control_flow.compilable`.
        ctrl: controls (n, nu), one row a step, or (nu,), the same in all steps; not given: `d.ctrl`.
        params: tensors for the policy, any tree of them.
        outputs: fields of `Data` to record, or parts such as "contact.dist"; "state" stands for several.
        checkpoint: for gradients, keep the state only every that many steps; see `control_flow.scan`.

    Returns:
        The last `Data`, in which the state, `ctrl`, what `outputs` names and what the policy reads are up to date, and
        the rest is as in `d`; and a dict with an array (n, ...) for each of `outputs`, where the state is that after
        the step and what is computed belongs to its beginning, as in what `step` returns.

    Raises:
        TypeError, ValueError: an argument does not fit, or `outputs` names what is no field.
    """
    names = checked_names(outputs, "rollout")
    _check(m, d, n, policy, ctrl, params)
    if ctrl is not None and ctrl.dim() == 1:
        d, ctrl = d.replace(ctrl=ctrl), None
    given = () if params is None else (params,)
    read: set[str] = set()

    def trip(carry: dict[str, Any], u: Tensor | None) -> tuple[dict[str, Any], dict[str, Any]]:
        now = d.replace(**carry)
        if policy is not None:
            u = _controls(m, policy(m, watched(now, read), *given))
        now = step(m, now if u is None else now.replace(ctrl=u))
        return {name: getattr(now, name) for name in carry}, {name: part(now, name) for name in names}

    carried = {*STATE, "ctrl", *(name.partition(".")[0] for name in names)}
    if policy is not None:
        # What a policy reads must be carried along: see what it is, where that costs nothing, else carry everything.
        if is_traced(leaves((m, d))):
            with unrecorded():
                policy(m, watched(d, read), *given)
            carried |= read
        else:
            carried = set(tensor_fields(Data))
    init = {name: getattr(d, name) for name in tensor_fields(Data) if name in carried}
    last, trajectory = scan(trip, init, ctrl, length=n, unroll=False, checkpoint=checkpoint)
    return keep(d.replace(**last), d, (*STATE, "ctrl", *names, *sorted(read))), trajectory


def _check(m: Model, d: Data, n: int, policy: Policy | None, ctrl: Tensor | None, params: Any) -> None:
    check_data(m, d, "rollout")
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise ValueError(f"rollout: n must be an int, the number of steps, got {n!r}; in jit it is a static argument")
    if policy is not None and ctrl is not None:
        raise ValueError("rollout: give either a policy or ctrl, not both")
    if policy is None and params is not None:
        raise ValueError("rollout: params are for a policy, and there is none")
    if policy is not None and not callable(policy):
        raise TypeError(f"rollout: policy must be a function (m, d) -> ctrl, got {type(policy).__name__}")
    if ctrl is not None and not isinstance(ctrl, Tensor):
        raise TypeError(f"rollout: ctrl must be a tensor, got {type(ctrl).__name__}; use torch.as_tensor")
    if ctrl is not None and tuple(ctrl.shape) not in ((m.nu,), (n, m.nu)):
        raise ValueError(
            f"rollout: ctrl must have shape {(m.nu,)}, the same in all steps, or {(n, m.nu)}, one row a step, got "
            f"{tuple(ctrl.shape)}; for many worlds say in in_dims which axis counts them"
        )


def _controls(m: Model, u: Any) -> Tensor:
    if not isinstance(u, Tensor) or tuple(u.shape) != (m.nu,):
        got = f"shape {tuple(u.shape)}" if isinstance(u, Tensor) else type(u).__name__
        raise ValueError(f"rollout: policy must return ctrl, a tensor of shape {(m.nu,)}, got {got}")
    return u


@dataclass(kw_only=True)
class Watched(Data):
    """A `Data` that notes down which of its fields are read, before they are replaced."""

    def __getattribute__(self, name: str) -> Any:
        values = object.__getattribute__(self, "__dict__")
        value = values[name] if name in values else object.__getattribute__(self, name)
        if name in values and value is values.get("_given", {}).get(name):
            values["_read"].add(name)
        return value


def watched(d: Data, read: set[str]) -> Data:
    """`d`, such that the names of the fields that somebody reads are added to `read`."""
    seen = object.__new__(Watched)
    fields = {name: getattr(d, name) for name in tensor_fields(Data)}
    seen.__dict__.update(fields, _given=fields, _read=read)
    return seen
