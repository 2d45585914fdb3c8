"""Which elements of a model use a feature, by name: what the table of what is supported is made of."""

from collections.abc import Callable, Iterable

import mujoco
import numpy as np
from mujoco import mjtObj

Names = list[str]

KINDS = {
    "body": mjtObj.mjOBJ_BODY,
    "jnt": mjtObj.mjOBJ_JOINT,
    "geom": mjtObj.mjOBJ_GEOM,
    "pair": mjtObj.mjOBJ_PAIR,
    "eq": mjtObj.mjOBJ_EQUALITY,
    "tendon": mjtObj.mjOBJ_TENDON,
    "actuator": mjtObj.mjOBJ_ACTUATOR,
    "sensor": mjtObj.mjOBJ_SENSOR,
    "flex": mjtObj.mjOBJ_FLEX,
    "cam": mjtObj.mjOBJ_CAMERA,
    "light": mjtObj.mjOBJ_LIGHT,
    "plugin": mjtObj.mjOBJ_PLUGIN,
}
WORDS = {"jnt": "joint", "eq": "equality", "cam": "camera"}


def named(mj_model: mujoco.MjModel, kind: str, ids: Iterable[int]) -> Names:
    """`joint "knee"`, or `joint 3` for one without a name."""
    word = WORDS.get(kind, kind)
    names = [(int(i), mujoco.mj_id2name(mj_model, int(KINDS[kind]), int(i))) for i in ids]
    return [f'{word} "{name}"' if name else f"{word} {i}" for i, name in names]


def being(field: str, *values: int) -> Callable[[mujoco.MjModel], Names]:
    """Elements whose `field`, such as `jnt_type`, has one of `values`; none if this MuJoCo has no such field."""

    def uses(m: mujoco.MjModel) -> Names:
        column = getattr(m, field, None)
        if column is None:
            return []
        return named(m, field.split("_")[0], np.flatnonzero(np.isin(column, [int(v) for v in values])))

    return uses


def given(*fields: str) -> Callable[[mujoco.MjModel], Names]:
    """Elements at which one of `fields` is not zero; fields that this MuJoCo lacks are skipped."""

    def uses(m: mujoco.MjModel) -> Names:
        columns = [np.asarray(getattr(m, field)) for field in fields if hasattr(m, field)]
        used = [(column.reshape(len(column), -1) != 0).any(axis=1) for column in columns if column.size]
        return named(m, fields[0].split("_")[0], np.flatnonzero(np.any(used, axis=0))) if used else []

    return uses


def where(kind: str, test: Callable[[mujoco.MjModel], np.ndarray]) -> Callable[[mujoco.MjModel], Names]:
    """Elements of a kind for which `test(m)` is true."""
    return lambda m: named(m, kind, np.flatnonzero(test(m)))


def option(test: Callable[[mujoco.MjModel], object], text: str) -> Callable[[mujoco.MjModel], Names]:
    """The option `text`, if `test(m)`."""
    return lambda m: [f"option {text}"] if test(m) else []


def choice(name: str, value: int) -> Callable[[mujoco.MjModel], Names]:
    """An option that has the given value."""
    return option(lambda m: int(getattr(m.opt, name)) == int(value), name)


def enabled(flag: int, text: str) -> Callable[[mujoco.MjModel], Names]:
    """An enable flag."""
    return option(lambda m: m.opt.enableflags & int(flag), f'flag {text}="enable"')


def count(size: str, kind: str) -> Callable[[mujoco.MjModel], Names]:
    """All elements of a kind."""
    return lambda m: named(m, kind, range(getattr(m, size, 0)))


def dofs(m: mujoco.MjModel, values: np.ndarray) -> Names:
    """The joints of dofs with values that are not zero."""
    return named(m, "jnt", np.unique(m.dof_jntid[np.flatnonzero(values)]))


def wrapping(kind: int) -> Callable[[mujoco.MjModel], Names]:
    """Tendons with an element of type `kind` in their path."""
    return lambda m: named(m, "tendon", np.unique(np.repeat(np.arange(m.ntendon), m.tendon_num)[m.wrap_type == kind]))
