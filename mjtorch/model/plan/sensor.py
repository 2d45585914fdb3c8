"""Index plan of the sensor room: which sensors are read off `Data`, which are computed, and where the results go."""

import enum

import mujoco
import numpy as np
from torch import Tensor

from mjtorch import tree
from mjtorch.math.vector import MIN_VALUE
from mjtorch.model.enums import ObjType, Stage
from mjtorch.model.plan import contact_sensor, distance, enclosed, range_finder, tactile, touch_grid, volume
from mjtorch.model.plan.collision import CollisionPlan
from mjtorch.model.plan.constraint import ConstraintPlan
from mjtorch.model.plan.contact_sensor import ContactGroup
from mjtorch.model.plan.distance import DistancePlan
from mjtorch.model.plan.enclosed import EnclosedPlan
from mjtorch.model.plan.range_finder import RangeGroup
from mjtorch.model.plan.tactile import TactilePlan
from mjtorch.model.plan.tensors import Tensors
from mjtorch.model.plan.touch_grid import TouchGrid
from mjtorch.model.plan.transmission import tendon
from mjtorch.model.plan.volume import Volume, VolumeKey, volume_key


class SensorType(enum.IntEnum):
    """mjtSensor, the ones that are supported."""

    TOUCH = 0
    ACCELEROMETER = 1
    VELOCIMETER = 2
    GYRO = 3
    FORCE = 4
    TORQUE = 5
    MAGNETOMETER = 6
    RANGEFINDER = 7
    CAMPROJECTION = 8
    JOINTPOS = 9
    JOINTVEL = 10
    TENDONPOS = 11
    TENDONVEL = 12
    ACTUATORPOS = 13
    ACTUATORVEL = 14
    ACTUATORFRC = 15
    JOINTACTFRC = 16
    TENDONACTFRC = 17
    BALLQUAT = 18
    BALLANGVEL = 19
    JOINTLIMITPOS = 20
    JOINTLIMITVEL = 21
    JOINTLIMITFRC = 22
    TENDONLIMITPOS = 23
    TENDONLIMITVEL = 24
    TENDONLIMITFRC = 25
    FRAMEPOS = 26
    FRAMEQUAT = 27
    FRAMEXAXIS = 28
    FRAMEYAXIS = 29
    FRAMEZAXIS = 30
    FRAMELINVEL = 31
    FRAMEANGVEL = 32
    FRAMELINACC = 33
    FRAMEANGACC = 34
    SUBTREECOM = 35
    SUBTREELINVEL = 36
    SUBTREEANGMOM = 37
    INSIDESITE = 38
    GEOMDIST = 39
    GEOMNORMAL = 40
    GEOMFROMTO = 41
    CONTACT = 42
    E_POTENTIAL = 43
    E_KINETIC = 44
    CLOCK = 45
    TACTILE = 46
    PLUGIN = 47
    USER = 48


# mjtSensor values that `put_model` accepts.
SUPPORTED = frozenset(int(t) for t in SensorType)

# Where the position and the orientation of each kind of frame lie in `Data`.
FRAME_POS = {
    ObjType.BODY: "xipos",
    ObjType.XBODY: "xpos",
    ObjType.GEOM: "geom_xpos",
    ObjType.SITE: "site_xpos",
    ObjType.CAMERA: "cam_xpos",
}
FRAME_MAT = {
    ObjType.BODY: "ximat",
    ObjType.XBODY: "xmat",
    ObjType.GEOM: "geom_xmat",
    ObjType.SITE: "site_xmat",
    ObjType.CAMERA: "cam_xmat",
}

# Sensors that copy numbers of their object: the field they lie in.
_READ_JOINT = {SensorType.JOINTPOS: "qpos"}
_READ_DOF = {
    SensorType.JOINTVEL: "qvel",
    SensorType.BALLANGVEL: "qvel",
    SensorType.JOINTACTFRC: "qfrc_actuator",
}
_READ_TENDON = {SensorType.TENDONPOS: "ten_length", SensorType.TENDONVEL: "ten_velocity"}
_READ_ACTUATOR = {
    SensorType.ACTUATORPOS: "actuator_length",
    SensorType.ACTUATORVEL: "actuator_velocity",
    SensorType.ACTUATORFRC: "actuator_force",
}
_READ_BODY = {
    SensorType.SUBTREECOM: "subtree_com",
    SensorType.SUBTREELINVEL: "subtree_linvel",
    SensorType.SUBTREEANGMOM: "subtree_angmom",
}
_READ_WORLD = {
    SensorType.CLOCK: ("time", 0),
    SensorType.E_POTENTIAL: ("energy", 0),
    SensorType.E_KINETIC: ("energy", 1),
}
# Sensors with plans of their own; those of callbacks and plugins, which have no history.
_DISTANCES = (SensorType.GEOMDIST, SensorType.GEOMNORMAL, SensorType.GEOMFROMTO)
_COMPUTED_BY_OTHERS = (SensorType.USER, SensorType.PLUGIN)
_APART = (SensorType.CONTACT, SensorType.RANGEFINDER, SensorType.TACTILE, *_DISTANCES, *_COMPUTED_BY_OTHERS)
# Their cutoff says what they look for, and does not clip.
UNCLIPPED = (SensorType.CONTACT, SensorType.GEOMFROMTO)
_AXES = (SensorType.FRAMEXAXIS, SensorType.FRAMEYAXIS, SensorType.FRAMEZAXIS)
_VOLUMES = (SensorType.TOUCH, SensorType.INSIDESITE)
# The type of the constraint rows that sensors of limits read.
_LIMITS = {
    **dict.fromkeys(
        (SensorType.JOINTLIMITPOS, SensorType.JOINTLIMITVEL, SensorType.JOINTLIMITFRC),
        int(mujoco.mjtConstraint.mjCNSTR_LIMIT_JOINT),
    ),
    **dict.fromkeys(
        (SensorType.TENDONLIMITPOS, SensorType.TENDONLIMITVEL, SensorType.TENDONLIMITFRC),
        int(mujoco.mjtConstraint.mjCNSTR_LIMIT_TENDON),
    ),
}


@tree.dataclass(kw_only=True)
class FramePlan(tree.Tree):
    """The frames that the computed sensors of one stage are attached to or measured in.

    objtypes: static, kinds of frames; ids: one index tensor for each kind, which together make k frames
    body, root: (k,) body of each frame and root of that body's tree
    """

    objtypes: tuple[ObjType, ...] = tree.field(static=True)
    ids: tuple[Tensor, ...]
    body: Tensor
    root: Tensor


@tree.dataclass(kw_only=True)
class SensorGroup(tree.Tree):
    """Sensors of one type that are computed together; those that have a volume, with one shape of it.

    type: static; referenced: static, whether measured in the frame of another object
    obj: (n,) or (n, w) what is measured: rows of the stage's frames, addresses in qpos, constraint rows, or
        actuators
    ref: (n,) rows of the stage's frames if `referenced`, else (0,)
    volume: one, of the sites that are the sensors' volumes, if they have such
    element: (n,) that site, or the camera of a projection, else (0,)
    com: (n,) bodies whose subtree's centre of mass is measured instead of `obj`, else (0,)
    """

    type: SensorType = tree.field(static=True)
    referenced: bool = tree.field(static=True)
    volume: tuple[Volume, ...]
    obj: Tensor
    ref: Tensor
    element: Tensor
    com: Tensor


@tree.dataclass(kw_only=True)
class SensorStage(tree.Tree):
    """The sensors of one stage: position, velocity or acceleration.

    types: static, every type of sensor in the stage
    fields: static, fields of `Data` that sensors copy numbers from
    groups: sensors that are computed
    contacts: sensors that report contacts; ranges: sensors that cast rays;
    tactile: tactile sensors; distances: those between geoms, if any; grids: touch grids
    enclosed: those of how far shapes jut out of sites, if any
    number: static, which stage it is; users: static, how many numbers user sensors have
    order: (nsensordata,) where each number lies in [fields, groups, contacts, ranges, tactile, distances, grids,
        enclosed, users, sensordata before], all flat
    clipped: static, whether a sensor has a cutoff
    sensor: (nsensordata,) the sensor that each number belongs to
    remembered: if sensors report what they have recorded, (nsensordata,) where each number then lies in [sensordata,
        channels of `HistoryPlan.readings`]
    above, below: (nsensordata,) bool, whether a cutoff applies to large positive and large negative values
    """

    types: tuple[SensorType, ...] = tree.field(static=True)
    fields: tuple[str, ...] = tree.field(static=True)
    groups: tuple[SensorGroup, ...]
    contacts: tuple[ContactGroup, ...]
    ranges: tuple[RangeGroup, ...]
    tactile: tuple[TactilePlan, ...]
    distances: tuple[DistancePlan, ...]
    grids: tuple[TouchGrid, ...]
    enclosed: tuple[EnclosedPlan, ...]
    number: Stage = tree.field(static=True)
    users: int = tree.field(static=True)
    frames: FramePlan
    order: Tensor
    clipped: bool = tree.field(static=True)
    sensor: Tensor
    above: Tensor
    below: Tensor
    remembered: tuple[Tensor, ...]


@tree.dataclass(kw_only=True)
class SensorPlan(tree.Tree):
    """One part per stage of the computation."""

    pos: SensorStage
    vel: SensorStage
    acc: SensorStage


def build(
    mj_model: mujoco.MjModel,
    make: Tensors,
    collision: CollisionPlan,
    constraint: ConstraintPlan,
) -> SensorPlan:
    """The plan for `mj_model`, whose contacts lie in the slots of `collision`, whose limits in rows of `constraint`."""
    stage = mujoco.mjtStage
    stages = {"pos": stage.mjSTAGE_POS, "vel": stage.mjSTAGE_VEL, "acc": stage.mjSTAGE_ACC}

    def part(number: int) -> SensorStage:
        return _StageBuilder(mj_model, make, collision, constraint, number).build()

    return SensorPlan(**{name: part(int(number)) for name, number in stages.items()})


class _StageBuilder:
    """Sorts the sensors of one stage into those that are copied and those that are computed."""

    def __init__(
        self,
        m: mujoco.MjModel,
        make: Tensors,
        collision: CollisionPlan,
        constraint: ConstraintPlan,
        stage: int,
    ) -> None:
        self.m, self.make, self.collision, self.constraint, self.stage = m, make, collision, constraint, Stage(stage)
        self.sensors = [i for i in range(m.nsensor) if m.sensor_needstage[i] == stage]
        self.sensors = [i for i in self.sensors if m.sensor_type[i] in SUPPORTED]
        self.whole = np.intersect1d(self.sensors, np.flatnonzero(enclosed.is_enclosed(m))).astype(int).tolist()
        self.copied: dict[int, tuple[str, list[int]]] = {}
        self.computed: dict[tuple[SensorType, bool, VolumeKey | None, bool], list[int]] = {}
        self.frames: dict[ObjType, list[int]] = {}

    def build(self) -> SensorStage:
        m = self.m
        for i in self.sensors:
            kind = SensorType(int(m.sensor_type[i]))
            if kind in _APART or i in self.whole:
                continue
            source = self.source(i, kind)
            if source is not None:
                self.copied[i] = source
                continue
            where = volume_key(m, self.element(i, kind)) if kind in _VOLUMES else None
            key = (kind, bool(m.sensor_refid[i] >= 0), where, self.is_hollow(i, kind))
            self.computed.setdefault(key, []).append(i)
            if kind not in (SensorType.BALLQUAT, SensorType.TENDONACTFRC, *_LIMITS):
                self.add_frame(m.sensor_objtype[i], m.sensor_objid[i])
                self.add_frame(m.sensor_reftype[i], m.sensor_refid[i])
        fields = tuple(dict.fromkeys(name for name, _ in self.copied.values()))
        owner = np.repeat(np.arange(m.nsensor), m.sensor_dim)
        cut = [i for i in self.sensors if m.sensor_cutoff[i] > 0 and m.sensor_type[i] not in UNCLIPPED]
        here = np.isin(owner, cut)
        real = m.sensor_datatype[owner] == mujoco.mjtDataType.mjDATATYPE_REAL
        positive = m.sensor_datatype[owner] == mujoco.mjtDataType.mjDATATYPE_POSITIVE
        contacts = contact_sensor.build(m, self.make, self.of_type(SensorType.CONTACT))
        ranges = range_finder.build(m, self.make, self.of_type(SensorType.RANGEFINDER))
        pads = tactile.build(m, self.make, self.of_type(SensorType.TACTILE))
        gaps = distance.build(m, self.make, [i for kind in _DISTANCES for i in self.of_type(kind)])
        grids = touch_grid.build(m, self.make, self.of_type(SensorType.PLUGIN))
        whole = enclosed.build(m, self.make, self.whole)
        further = [group.sensors for groups in (contacts, ranges, pads, gaps, grids, whole) for group in groups]
        users = self.of_type(SensorType.USER)
        return SensorStage(
            types=tuple(dict.fromkeys(SensorType(int(m.sensor_type[i])) for i in self.sensors)),
            fields=fields,
            groups=tuple(self.group(*key, sensors) for key, sensors in self.computed.items()),
            contacts=contacts,
            ranges=ranges,
            tactile=pads,
            distances=gaps,
            grids=grids,
            enclosed=whole,
            number=self.stage,
            users=int(m.sensor_dim[users].sum()),
            frames=self.frame_plan(),
            order=self.make.ints(self.order(fields, [*further, tuple(users)])),
            clipped=bool((here & (real | positive)).any()),
            sensor=self.make.ints(owner),
            above=self.make.bools(here & (real | positive)),
            below=self.make.bools(here & real),
            remembered=self.remembered(),
        )

    def remembered(self) -> tuple[Tensor, ...]:
        """`SensorStage.remembered`."""
        m = self.m
        kept = np.flatnonzero(m.sensor_history[:, 0])
        first = m.nsensordata + np.cumsum(m.sensor_dim[kept]) - m.sensor_dim[kept]
        place = np.arange(m.nsensordata)
        late = ((m.sensor_delay > 0) | (m.sensor_interval[:, 0] > 0)) & ~np.isin(m.sensor_type, _COMPUTED_BY_OTHERS)
        chosen = [k for k, i in enumerate(kept) if late[i] and i in self.sensors]
        for k in chosen:
            adr, dim = m.sensor_adr[kept[k]], m.sensor_dim[kept[k]]
            place[adr : adr + dim] = first[k] + np.arange(dim)
        return (self.make.ints(place),) if chosen else ()

    def of_type(self, kind: SensorType) -> list[int]:
        """The sensors of the stage that are of one type."""
        return [i for i in self.sensors if self.m.sensor_type[i] == kind]

    def source(self, i: int, kind: SensorType) -> tuple[str, list[int]] | None:
        """The field that sensor `i` copies from and the flat elements it copies; None if it must be computed."""
        m = self.m
        obj, dim = int(m.sensor_objid[i]), range(int(m.sensor_dim[i]))
        if kind in _READ_WORLD:
            name, element = _READ_WORLD[kind]
            return name, [element]
        if kind in _READ_JOINT:
            return _READ_JOINT[kind], [m.jnt_qposadr[obj]]
        if kind in _READ_DOF:
            return _READ_DOF[kind], [m.jnt_dofadr[obj] + k for k in dim]
        if kind in _READ_TENDON:
            return _READ_TENDON[kind], [obj]
        if kind in _READ_ACTUATOR:
            return _READ_ACTUATOR[kind], [m.actuator_outadr[obj] + k for k in dim]
        if kind in _READ_BODY:
            return _READ_BODY[kind], [3 * obj + k for k in dim]
        if m.sensor_refid[i] >= 0:
            return None
        if kind is SensorType.FRAMEPOS:
            return FRAME_POS[ObjType(int(m.sensor_objtype[i]))], [3 * obj + k for k in dim]
        if kind in _AXES:
            column = _AXES.index(kind)
            return FRAME_MAT[ObjType(int(m.sensor_objtype[i]))], [9 * obj + 3 * k + column for k in dim]
        if kind is SensorType.FRAMEQUAT and m.sensor_objtype[i] == ObjType.XBODY:
            return "xquat", [4 * obj + k for k in dim]
        if kind is SensorType.FRAMEANGVEL:
            return "cvel", [6 * self.body(int(m.sensor_objtype[i]), obj) + k for k in dim]
        return None

    def element(self, i: int, kind: SensorType) -> int:
        """The site that is the volume of sensor `i`, or its camera."""
        return int(self.m.sensor_objid[i] if kind is SensorType.TOUCH else self.m.sensor_refid[i])

    def is_hollow(self, i: int, kind: SensorType) -> bool:
        """Whether sensor `i` looks for a body without mass, whose inertial frame says nothing about those below it."""
        m, body = self.m, self.m.sensor_objid[i]
        if kind is not SensorType.INSIDESITE or m.sensor_objtype[i] != ObjType.BODY or body == 0:
            return False
        return bool(m.body_mass[body] < MIN_VALUE <= m.body_subtreemass[body])

    def body(self, objtype: int, obj: int) -> int:
        """The body that a frame is fixed to."""
        m = self.m
        bodies = {ObjType.GEOM: m.geom_bodyid, ObjType.SITE: m.site_bodyid, ObjType.CAMERA: m.cam_bodyid}
        return int(bodies[ObjType(objtype)][obj]) if objtype in bodies else obj

    def add_frame(self, objtype: int, obj: int) -> None:
        if obj >= 0:
            ids = self.frames.setdefault(ObjType(int(objtype)), [])
            if obj not in ids:
                ids.append(int(obj))

    def frame_row(self, objtype: int, obj: int) -> int:
        """The row of a frame in the stage's list of frames."""
        row = 0
        for kind, ids in self.frames.items():
            if kind == objtype:
                return row + ids.index(obj)
            row += len(ids)
        raise KeyError(objtype)

    def frame_plan(self) -> FramePlan:
        body = [self.body(kind, obj) for kind, ids in self.frames.items() for obj in ids]
        return FramePlan(
            objtypes=tuple(self.frames),
            ids=tuple(self.make.ints(ids) for ids in self.frames.values()),
            body=self.make.ints(body),
            root=self.make.ints([self.m.body_rootid[b] for b in body]),
        )

    def group(
        self, kind: SensorType, referenced: bool, where: VolumeKey | None, hollow: bool, sensors: list[int]
    ) -> SensorGroup:
        m = self.m
        ref: list[int] = []
        if kind is SensorType.BALLQUAT:
            adr = [m.jnt_qposadr[m.sensor_objid[i]] for i in sensors]
            obj = self.make.ints([range(a, a + 4) for a in adr], -1, 4)
        elif kind in _LIMITS:
            rows = [self.limit_rows(_LIMITS[kind], int(m.sensor_objid[i])) for i in sensors]
            obj = self.padded(rows, self.constraint.nefc)
        elif kind is SensorType.TENDONACTFRC:
            pulling = [tendon(m) == m.sensor_objid[i] for i in sensors]
            obj = self.padded([np.flatnonzero(p).tolist() for p in pulling], m.nout)
        else:
            obj = self.make.ints([self.frame_row(m.sensor_objtype[i], m.sensor_objid[i]) for i in sensors])
            if referenced:
                ref = [self.frame_row(m.sensor_reftype[i], m.sensor_refid[i]) for i in sensors]
        has_element = where is not None or kind is SensorType.CAMPROJECTION
        return SensorGroup(
            type=kind,
            referenced=referenced,
            volume=() if where is None else (volume.build(m, self.make, where),),
            obj=obj,
            ref=self.make.ints(ref),
            element=self.make.ints([self.element(i, kind) for i in sensors] if has_element else []),
            com=self.make.ints(m.sensor_objid[sensors] if hollow else []),
        )

    def padded(self, lists: list[list[int]], filling: int) -> Tensor:
        """Lists of numbers as the rows of a tensor, filled up to the same length, at least 1."""
        width = max(1, *(len(x) for x in lists), 0)
        return self.make.ints([x + [filling] * (width - len(x)) for x in lists], -1, width)

    def limit_rows(self, limit: int, owner: int) -> list[int]:
        """The constraint rows of type `limit` that the limits of a joint or tendon may use, in order."""
        pairs = zip(self.constraint.efc_type, self.constraint.efc_id, strict=True)
        return [row for row, (kind, obj) in enumerate(pairs) if kind == limit and obj == owner]

    def order(self, fields: tuple[str, ...], further: list[tuple[int, ...]]) -> np.ndarray:
        """Where each number of sensordata lies in [fields, groups, groups of `further` sensors, sensordata before]."""
        m = self.m
        start, total = {}, 0
        for name in fields:
            start[name] = total
            total += _size(m, name)
        place = np.zeros(m.nsensordata, dtype=np.int64)
        ours = np.zeros(m.nsensordata, dtype=bool)

        def put(i: int, elements: list[int]) -> None:
            adr = m.sensor_adr[i]
            place[adr : adr + m.sensor_dim[i]] = elements
            ours[adr : adr + m.sensor_dim[i]] = True

        for i, (name, elements) in self.copied.items():
            put(i, [start[name] + e for e in elements])
        for sensors in [*self.computed.values(), *further]:
            for i in sensors:
                put(i, [total + k for k in range(m.sensor_dim[i])])
                total += int(m.sensor_dim[i])
        return np.where(ours, place, total + np.arange(m.nsensordata))


def _size(m: mujoco.MjModel, name: str) -> int:
    """Number of elements of a field of `Data` that sensors copy from."""
    sizes = {"qpos": m.nq, "qvel": m.nv, "qfrc_actuator": m.nv, "time": 1, "energy": 2}
    sizes |= dict.fromkeys(_READ_TENDON.values(), m.ntendon)
    sizes |= dict.fromkeys(_READ_ACTUATOR.values(), m.nout)
    sizes |= dict.fromkeys([*_READ_BODY.values(), "xpos", "xipos"], 3 * m.nbody)
    sizes |= dict.fromkeys(["xmat", "ximat"], 9 * m.nbody) | {"xquat": 4 * m.nbody, "cvel": 6 * m.nbody}
    sizes |= {"geom_xpos": 3 * m.ngeom, "site_xpos": 3 * m.nsite, "cam_xpos": 3 * m.ncam}
    sizes |= {"geom_xmat": 9 * m.ngeom, "site_xmat": 9 * m.nsite, "cam_xmat": 9 * m.ncam}
    return sizes[name]
