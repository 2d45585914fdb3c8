"""Objects by name: which they are, and where their numbers lie in `Model` and `Data`."""

import dataclasses
import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mujoco
import torch
from torch import Tensor

Which = str | int | Sequence[str | int]


class Kind(NamedTuple):
    """A kind of objects.

    objtype: its mjtObj. size: the field of `Model` that counts them
    rows: what they have rows of, their own first; see `FIELDS`
    prefixes: which may be left out in the names of fields
    """

    objtype: int
    size: str
    rows: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()


KINDS = {
    "body": Kind(mujoco.mjtObj.mjOBJ_BODY, "nbody", ("body", "mocap"), ("body_",)),
    "joint": Kind(mujoco.mjtObj.mjOBJ_JOINT, "njnt", ("jnt", "qpos", "dof"), ("jnt_", "dof_")),
    "geom": Kind(mujoco.mjtObj.mjOBJ_GEOM, "ngeom", ("geom",), ("geom_",)),
    "site": Kind(mujoco.mjtObj.mjOBJ_SITE, "nsite", ("site",), ("site_",)),
    "camera": Kind(mujoco.mjtObj.mjOBJ_CAMERA, "ncam", ("cam",), ("cam_",)),
    "light": Kind(mujoco.mjtObj.mjOBJ_LIGHT, "nlight", ("light",), ("light_",)),
    "mesh": Kind(mujoco.mjtObj.mjOBJ_MESH, "nmesh", ("mesh", "vert"), ("mesh_",)),
    "hfield": Kind(mujoco.mjtObj.mjOBJ_HFIELD, "nhfield", ("hfield",), ("hfield_",)),
    "flex": Kind(mujoco.mjtObj.mjOBJ_FLEX, "nflex", ("flex", "flexvert", "flexedge"), ("flex_",)),
    "pair": Kind(mujoco.mjtObj.mjOBJ_PAIR, "npair", ("pair",), ("pair_",)),
    "exclude": Kind(mujoco.mjtObj.mjOBJ_EXCLUDE, "nexclude"),
    "equality": Kind(mujoco.mjtObj.mjOBJ_EQUALITY, "neq", ("eq",), ("eq_",)),
    "tendon": Kind(mujoco.mjtObj.mjOBJ_TENDON, "ntendon", ("tendon",), ("ten_", "tendon_")),
    "actuator": Kind(mujoco.mjtObj.mjOBJ_ACTUATOR, "nactuator", ("actuator", "ctrl", "act", "out"), ("actuator_",)),
    "sensor": Kind(mujoco.mjtObj.mjOBJ_SENSOR, "nsensor", ("sensor", "sensordata"), ("sensor_", "sensor")),
    "key": Kind(mujoco.mjtObj.mjOBJ_KEY, "nkey", ("key",), ("key_",)),
}
ALIASES = {"jnt": "joint", "cam": "camera", "eq": "equality", "ten": "tendon", "keyframe": "key"}

# Fields, by what they have a row of, where their names do not say it by what they begin with.
FIELDS = {
    "body": "xpos xquat xmat xipos ximat subtree_com cinert crb cvel cacc cfrc_int cfrc_ext subtree_linvel "
    "subtree_angmom xfrc_applied",
    "mocap": "mocap_pos mocap_quat",
    "jnt": "xanchor xaxis",
    "qpos": "qpos qpos0 qpos_spring",
    "dof": "qvel qacc qacc_warmstart qacc_smooth qfrc_applied qfrc_bias qfrc_spring qfrc_damper qfrc_gravcomp "
    "qfrc_fluid qfrc_passive qfrc_actuator qfrc_smooth qfrc_constraint qfrc_inverse cdof cdof_dot",
    "tendon": "ten_length ten_velocity ten_J",
    "vert": "mesh_vert mesh_normal",
    "flexvert": "flex_vert flexvert_xpos",
    "number": "flex_node flex_node0 flex_stiffness flex_bending flexedge_J flexedge_J_colind",
    "flexedge": "flexedge_length flexedge_velocity flexedge_length0 flexedge_invweight0",
    "ctrl": "ctrl actuator_ctrlrange actuator_ctrllimited",
    "act": "act act_dot",
    "out": "actuator_length actuator_velocity actuator_force actuator_moment actuator_gear actuator_acc0 "
    "actuator_length0 actuator_lengthrange",
    "sensordata": "sensordata",
}
ROW_OF = {field: rows for rows, fields in FIELDS.items() for field in fields.split()}
# Where the rows of an object lie that may have several or none: two fields of `Model`.
RANGES = {
    "vert": ("mesh_vertadr", "mesh_vertnum"),
    "flexvert": ("flex_vertadr", "flex_vertnum"),
    "flexedge": ("flex_edgeadr", "flex_edgenum"),
    "ctrl": ("actuator_ctrladr", "actuator_ctrlnum"),
    "act": ("actuator_actadr", "actuator_actnum"),
    "out": ("actuator_outadr", "actuator_outnum"),
    "sensordata": ("sensor_adr", "sensor_dim"),
}
# mjtJoint: how many numbers in qpos, and how many dofs
JOINT_SIZES = {"qpos": (7, 4, 1, 1), "dof": (6, 3, 1, 1)}


def names_of(mj_model: mujoco.MjModel) -> tuple[tuple[str, ...], ...]:
    """For each of `KINDS` the names of all objects, empty ones of those that have none."""
    return tuple(
        tuple(mujoco.mj_id2name(mj_model, int(kind.objtype), i) or "" for i in range(getattr(mj_model, kind.size)))
        for kind in KINDS.values()
    )


def name2id(m: Any, type: int, name: str) -> int:
    """The id of the object of mjtObj `type` called `name`, -1 if there is none (mj_name2id).

    Raises:
        ValueError: a `Model` holds no names of this type.
    """
    names = _names("name2id", m, type)
    return names.index(name) if name and name in names else -1


def id2name(m: Any, type: int, id: int) -> str | None:
    """The name of an object of mjtObj `type`, None if it has none or does not exist (mj_id2name).

    Raises:
        ValueError: a `Model` holds no names of this type.
    """
    names = _names("id2name", m, type)
    if isinstance(id, bool) or not isinstance(id, int):
        raise TypeError(f"id2name: id must be an int, got {id!r}")
    return (names[id] or None) if 0 <= id < len(names) else None


def _names(caller: str, m: Any, kind: Any) -> tuple[str, ...]:
    """Of all objects of an mjtObj."""
    if not isinstance(m, Objects) or not hasattr(m, "names"):
        raise TypeError(f"{caller}: m must be a mjtorch Model, got {type(m).__name__}; use put_model")
    if isinstance(kind, str):
        raise TypeError(f"{caller}: type must be one of mjtorch.ObjType, got {kind!r}")
    return m.names[_place(caller, kind)]


def _place(caller: str, type: int) -> int:
    number = int(type)
    if number == int(mujoco.mjtObj.mjOBJ_XBODY):
        number = int(mujoco.mjtObj.mjOBJ_BODY)
    types = [int(kind.objtype) for kind in KINDS.values()]
    if number not in types:
        raise ValueError(f"{caller}: type must be the mjtObj of one of {', '.join(KINDS)}, got {type}")
    return types.index(number)


class Bound:
    """Objects of one kind: their fields are attributes, under MuJoCo's names, with or without what these begin with.

    id, name: of the object, or tuples of them. What an object has one row of has no axis for it where one object was
    asked for, such as `xpos` (3,), and one where several were, (k, 3). What it may have several rows of (qpos and dofs
    of joints, ctrl, act and outputs of actuators, sensordata, mocap poses) are all rows, one after the other. World
    axes stay in front.
    """

    def __init__(self, kind: str, id: int | tuple[int, ...], m: Any, d: Any = None) -> None:
        self._kind, self._m, self._d, self.id = kind, m, d, id

    @property
    def name(self) -> str | tuple[str, ...]:
        """What they are called; empty where they have no name."""
        names = self._m.names[list(KINDS).index(self._kind)]
        return names[self.id] if isinstance(self.id, int) else tuple(names[i] for i in self.id)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        owner, field, rows = self._find(name)
        x, single = getattr(owner, field), isinstance(self.id, int) and rows == KINDS[self._kind].rows[0]
        index = self._rows(rows)
        if not isinstance(x, Tensor):
            return x[index[0]] if single else tuple(x[i] for i in index)
        axis = self._worlds(owner, field, x)
        if single:
            return x.select(axis, index[0])
        first = index[0] if index else 0
        if index == list(range(first, first + len(index))):
            return x.narrow(axis, first, len(index))
        return x.index_select(axis, torch.tensor(index, device=x.device))

    def set(self, name: str, value: Any) -> Any:
        """The model, or the data, with other numbers in the field `name` of these objects.

        value: what the attribute would be, or what can be expanded to it.
        """
        owner, field, rows = self._find(name)
        x, old, index = getattr(owner, field), getattr(self, name), self._rows(rows)
        if not isinstance(x, Tensor):
            raise ValueError(f"{self._kind}: {field} is static: it shapes the program; change the MJCF instead")
        axis = self._worlds(owner, field, x)
        try:
            new = torch.as_tensor(value, dtype=x.dtype, device=x.device).expand(old.shape)
        except (RuntimeError, TypeError, ValueError):
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            wanted = f"numbers that can be expanded to shape {tuple(old.shape)}"
            raise ValueError(f"{self._kind}: {field} must be {wanted}, got {got}") from None
        new = new.unsqueeze(axis) if new.dim() < x.dim() else new
        return owner.replace(
            **{field: x.index_copy(axis, torch.tensor(index, dtype=torch.int64, device=x.device), new)}
        )

    def __repr__(self) -> str:
        fields = ", ".join(name for name, _, _ in self._fields())
        return f"{self._kind} {self.id}, {self.name!r}: {fields}"

    def __dir__(self) -> list[str]:
        return ["id", "name", "set", *(name for name, _, _ in self._fields())]

    def _owners(self) -> list[Any]:
        return [self._m] if self._d is None else [self._d, self._m]

    def _fields(self) -> list[tuple[str, Any, str]]:
        """Short name, owner and name of all fields of these objects."""
        kind = KINDS[self._kind]
        found: dict[str, tuple[Any, str]] = {}
        for owner in self._owners():
            for field in type(owner).__dataclass_fields__:
                if rows_of(field) in kind.rows:
                    short = next((field.removeprefix(p) for p in kind.prefixes if field.startswith(p)), field)
                    found.setdefault(field if short in found else short, (owner, field))
        return [(short, *rest) for short, rest in found.items()]

    def _find(self, name: str) -> tuple[Any, str, str]:
        """Whose field `name` is, what it is called there, and what it has a row of."""
        kind = KINDS[self._kind]
        for owner in self._owners():
            for field in (name, *(prefix + name for prefix in kind.prefixes)):
                if field in type(owner).__dataclass_fields__ and rows_of(field) in kind.rows:
                    return owner, field, rows_of(field)
        known = [short for short, _, _ in self._fields()]
        close = difflib.get_close_matches(name, known) or known
        where = "" if self._d is not None else "; what a Data holds is in d.bind(m, ...)"
        raise AttributeError(f"{self._kind} has no field {name!r}; did you mean {' or '.join(close)}?{where}")

    def _worlds(self, owner: Any, field: str, x: Tensor) -> int:
        """How many world axes a field has."""
        return owner.time.dim() if owner is self._d else x.dim() - len(dict(owner.shapes)[field])

    def _rows(self, rows: str) -> list[int]:
        ids = [self.id] if isinstance(self.id, int) else self.id
        m = self._m
        if rows in RANGES:
            first, count = (getattr(m, field) for field in RANGES[rows])
            return [row for i in ids for row in range(first[i], first[i] + count[i])]
        if rows in JOINT_SIZES:
            first = m.jnt_qposadr if rows == "qpos" else m.jnt_dofadr
            return [row for i in ids for row in range(first[i], first[i] + JOINT_SIZES[rows][m.jnt_type[i]])]
        return [m.body_mocapid[i] for i in ids if m.body_mocapid[i] >= 0] if rows == "mocap" else list(ids)


def rows_of(field: str) -> str:
    """What a field of `Model` or `Data` has a row of."""
    return ROW_OF.get(field, field.partition("_")[0])


def find(m: Any, kind: str, which: Which) -> int | tuple[int, ...]:
    """The ids of objects, given by name or id.

    Raises:
        KeyError: there is no such name. IndexError: there is no such id.
    """
    if not hasattr(m, "names"):
        raise TypeError(f"{kind}: a Data has no names; give the model first: d.{kind}(m, which), got {m!r}")
    names = m.names[list(KINDS).index(kind)]
    if isinstance(which, bool) or not isinstance(which, str | int | Sequence):
        raise TypeError(f"{kind}: give a name, an id, or several of them, got {type(which).__name__}")
    if not isinstance(which, str | int):
        return tuple(i for one in which if isinstance(i := find(m, kind, one), int))
    if isinstance(which, int):
        if not -len(names) <= which < len(names):
            raise IndexError(f"{kind}: there is no number {which}; there are {len(names)}")
        return which % len(names)
    if not which or which not in names:
        known = difflib.get_close_matches(which, names) or [name for name in names if name]
        raise KeyError(f"{kind}: there is none called {which!r}; did you mean {' or '.join(known[:20])}?")
    return names.index(which)


def bind(m: Any, d: Any, objects: Any) -> Bound:
    """Objects that are a `Bound`, or of `mujoco.MjSpec` or `MjModel`, one or a sequence of one kind."""
    if isinstance(objects, Bound):
        return Bound(objects._kind, objects.id, m, d)
    several = isinstance(objects, Sequence)
    kinds = {_kind_of(one) for one in (objects if several else (objects,))}
    if len(kinds) != 1:
        raise TypeError(f"bind: objects must be of one kind, got {', '.join(sorted(kinds)) or 'none'}")
    kind = kinds.pop()
    if several:
        return Bound(kind, find(m, kind, [one.name or one.id for one in objects]), m, d)
    return Bound(kind, find(m, kind, objects.name or objects.id), m, d)


def _kind_of(x: Any) -> str:
    """Of an object of `mujoco.MjSpec`, such as `MjsBody`, or of `MjModel`, such as `_MjModelBodyViews`."""
    found = re.fullmatch(r"Mjs(\w+)|_Mj(?:Model|Data)(\w+)Views", type(x).__name__)
    word = (found[1] or found[2]).lower() if found else ""
    word = ALIASES.get(word, word)
    if word not in KINDS:
        raise TypeError(
            f"bind: objects must be those of a mujoco.MjSpec or MjModel, or what m.body(name) and its kin return, got "
            f"{type(x).__name__}"
        )
    return word


@dataclasses.dataclass(frozen=True, eq=False)
class Access:
    """A method that looks up objects of a kind: `m.body("torso")`, `d.body(m, "torso")`.

    A dataclass, such that the cache of compiled programs can describe it.
    """

    kind: str

    def __post_init__(self) -> None:
        said = f"The {self.kind} of a name or an id, or several of them; see `mjtorch.model.access.Bound`."
        object.__setattr__(self, "__doc__", said)

    def __get__(self, owner: Any, cls: type) -> Callable[..., Bound]:
        kind = self.kind

        def of_model(which: Which) -> Bound:
            return Bound(kind, find(owner, kind, which), owner)

        def of_data(m: Any, which: Which = ()) -> Bound:
            return Bound(kind, find(m, kind, which), m, owner)

        return of_model if hasattr(owner, "names") else of_data


class Objects:
    """Methods that look up objects."""

    body = Access("body")
    joint = jnt = Access("joint")
    geom = Access("geom")
    site = Access("site")
    camera = cam = Access("camera")
    light = Access("light")
    mesh = Access("mesh")
    hfield = Access("hfield")
    flex = Access("flex")
    pair = Access("pair")
    exclude = Access("exclude")
    equality = eq = Access("equality")
    tendon = ten = Access("tendon")
    actuator = Access("actuator")
    sensor = Access("sensor")
    key = keyframe = Access("key")
