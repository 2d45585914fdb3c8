"""The state of a world as one vector, and ways back to a beginning (mj_getState, mj_setState, mj_resetData)."""

import enum

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.model.arguments import check_both
from mjtorch.model.data import Data
from mjtorch.model.make_data import make_data
from mjtorch.model.model import Model


class State(enum.IntFlag):
    """mjtState: parts of the state, in the order in which they lie in the vector, and unions of them."""

    TIME = 1
    QPOS = 2
    QVEL = 4
    ACT = 8
    HISTORY = 16
    WARMSTART = 32
    CTRL = 64
    QFRC_APPLIED = 128
    XFRC_APPLIED = 256
    EQ_ACTIVE = 512
    MOCAP_POS = 1024
    MOCAP_QUAT = 2048
    USERDATA = 4096
    PLUGIN = 8192
    PLASTIC = 16384
    PHYSICS = QPOS | QVEL | ACT | HISTORY | PLASTIC
    FULLPHYSICS = PHYSICS | TIME | PLUGIN
    USER = CTRL | QFRC_APPLIED | XFRC_APPLIED | EQ_ACTIVE | MOCAP_POS | MOCAP_QUAT | USERDATA
    INTEGRATION = FULLPHYSICS | WARMSTART | USER


# The field that holds each part; the other parts are empty.
PARTS = {
    State.TIME: "time",
    State.QPOS: "qpos",
    State.QVEL: "qvel",
    State.ACT: "act",
    State.HISTORY: "history",
    State.WARMSTART: "qacc_warmstart",
    State.CTRL: "ctrl",
    State.QFRC_APPLIED: "qfrc_applied",
    State.XFRC_APPLIED: "xfrc_applied",
    State.EQ_ACTIVE: "eq_active",
    State.MOCAP_POS: "mocap_pos",
    State.MOCAP_QUAT: "mocap_quat",
    State.USERDATA: "userdata",
    State.PLASTIC: "plastic",
}


def state_size(m: Model, sig: int) -> int:
    """Length of the vector of the parts in `sig`, a union of `State` (mj_stateSize).

    Plugin state is empty, as models that have it are refused.

    Raises:
        TypeError: an argument is of another type.
        ValueError: `sig` has bits that mean nothing.
    """
    sizes = {
        "time": 1,
        "qpos": m.nq,
        "qvel": m.nv,
        "act": m.na,
        "qacc_warmstart": m.nv,
        "ctrl": m.nu,
        "qfrc_applied": m.nv,
        "xfrc_applied": 6 * m.nbody,
        "eq_active": m.neq,
        "mocap_pos": 3 * m.nmocap,
        "mocap_quat": 4 * m.nmocap,
        "plastic": m.nplastic,
        "userdata": m.nuserdata,
        "history": m.nhistory,
    }
    return sum(sizes[name] for name in _names(sig, "state_size"))


def get_state(m: Model, d: Data, sig: int) -> Tensor:
    """The parts of the state in `sig`, a union of `State`, one after the other (state_size,) (mj_getState).

    Raises:
        TypeError: an argument is of another type.
        ValueError: `sig` has bits that mean nothing.
    """
    parts = [getattr(d, name).reshape(-1).to(m.qpos0.dtype) for name in _names(sig, "get_state")]
    return torch.cat([*parts, m.qpos0.new_zeros(0)])


def set_state(m: Model, d: Data, state: Tensor, sig: int) -> Data:
    """`d` with the parts of the state in `sig` taken from `state` (state_size,), what `get_state` gives (mj_setState).

    What follows from the state is not computed anew.

    Raises:
        TypeError: an argument is of another type.
        ValueError: `sig` has bits that mean nothing, or `state` is not as long as it says.
    """
    names, size = _names(sig, "set_state"), state_size(m, sig)
    if not isinstance(state, Tensor):
        raise TypeError(f"set_state: state must be a tensor, got {type(state).__name__}; use torch.as_tensor")
    if state.dtype != m.qpos0.dtype:
        wanted = m.qpos0.dtype
        raise TypeError(f"set_state: state must be {wanted}, got {state.dtype}; use .to({wanted})")
    if tuple(state.shape) != (size,):
        raise ValueError(
            f"set_state: state must have shape ({size},), got {tuple(state.shape)}; sig must be that of get_state"
        )
    old = [getattr(d, name) for name in names]
    new = state.split([x.numel() for x in old])
    changes = {
        name: (x != 0 if was.dtype == torch.bool else x).reshape(was.shape)
        for name, x, was in zip(names, new, old, strict=True)
    }
    return d.replace(**changes)


def _names(sig: int, caller: str) -> list[str]:
    """The fields in `sig`, in order."""
    if isinstance(sig, bool) or not isinstance(sig, int):
        raise TypeError(f"{caller}: sig must be a union of mjtorch.State, got {type(sig).__name__}")
    if not 0 <= sig <= State.INTEGRATION:  # which is everything
        raise ValueError(f"{caller}: sig must be a union of State, from 0 to {int(State.INTEGRATION)}, got {sig}")
    return [name for bit, name in PARTS.items() if sig & bit]


def reset_data(m: Model, d: Data) -> Data:
    """`make_data(m)` instead of `d`, whose numbers do not matter, in as many worlds as `d` has (mj_resetData)."""
    check_both(m, d, "reset_data")
    return _as_many(make_data(m), d)


def _as_many(fresh: Data, d: Data) -> Data:
    for size in reversed(d.time.shape):
        fresh = tree.batch(fresh, size)
    return fresh


def reset_data_keyframe(m: Model, d: Data, key: int | Tensor) -> Data:
    """`reset_data`, then time, qpos, qvel, act, plastic, mocap poses and ctrl from a keyframe (mj_resetDataKeyframe).

    Args:
        m: the model.
        d: what is replaced, one world or many.
        key: which keyframe, a number or int64, () or one for each world of `d`.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the model has no such keyframe.
    """
    check_both(m, d, "reset_data_keyframe")
    whole = isinstance(key, int) and not isinstance(key, bool)
    if not whole and not (isinstance(key, Tensor) and key.dtype == torch.int64 and key.shape in ((), d.time.shape)):
        got = f"{key.dtype} of shape {tuple(key.shape)}" if isinstance(key, Tensor) else repr(key)
        raise TypeError(
            f"reset_data_keyframe: key must be an int, or int64 of shape () or {tuple(d.time.shape)}, got {got}; "
            "m.key(name).id is that of a name"
        )
    if not m.nkey or (isinstance(key, int) and not 0 <= key < m.nkey):
        raise ValueError(f"reset_data_keyframe: there is no keyframe {key}; the model has {m.nkey}")

    worlds = d.time.shape

    def row(x: Tensor, *shape: int) -> Tensor:
        shape = shape or tuple(x.shape[1:])
        if isinstance(key, int):
            return x[key].reshape(shape).expand((*worlds, *shape)).clone()
        return x.index_select(0, key.expand(worlds).reshape(-1)).reshape((*worlds, *shape))

    return reset_data(m, d).replace(
        time=row(m.key_time),
        qpos=row(m.key_qpos),
        qvel=row(m.key_qvel),
        act=row(m.key_act),
        plastic=row(m.key_plastic),
        mocap_pos=row(m.key_mpos, m.nmocap, 3),
        mocap_quat=row(m.key_mquat, m.nmocap, 4),
        ctrl=row(m.key_ctrl),
    )
