"""MuJoCo's enumerations of types, as the static fields of `Model` and the plans hold them."""

import enum


class JointType(enum.IntEnum):
    """mjtJoint, of `jnt_type`."""

    FREE = 0
    BALL = 1
    SLIDE = 2
    HINGE = 3


class GeomType(enum.IntEnum):
    """mjtGeom, of `geom_type`; without those that are for drawing only."""

    PLANE = 0
    HFIELD = 1
    SPHERE = 2
    CAPSULE = 3
    ELLIPSOID = 4
    CYLINDER = 5
    BOX = 6
    MESH = 7
    SDF = 8


class Stage(enum.IntEnum):
    """mjtStage, of `sensor_needstage`: what must be known before something is computed."""

    NONE = 0
    POS = 1
    VEL = 2
    ACC = 3


class TrnType(enum.IntEnum):
    """mjtTrn, of `actuator_trntype`."""

    JOINT = 0
    JOINTINPARENT = 1
    SLIDERCRANK = 2
    TENDON = 3
    SITE = 4
    BODY = 5
    SO3 = 6
    UNDEFINED = 1000


class DynType(enum.IntEnum):
    """mjtDyn, of `actuator_dyntype`."""

    NONE = 0
    INTEGRATOR = 1
    FILTER = 2
    FILTEREXACT = 3
    MUSCLE = 4
    DCMOTOR = 5
    PID = 6
    USER = 7


class GainType(enum.IntEnum):
    """mjtGain, of `actuator_gaintype`."""

    FIXED = 0
    AFFINE = 1
    MUSCLE = 2
    DCMOTOR = 3
    SO3 = 4
    PID = 5
    USER = 6


class BiasType(enum.IntEnum):
    """mjtBias, of `actuator_biastype`."""

    NONE = 0
    AFFINE = 1
    MUSCLE = 2
    DCMOTOR = 3
    SO3 = 4
    USER = 5


class EqType(enum.IntEnum):
    """mjtEq, of `eq_type`."""

    CONNECT = 0
    WELD = 1
    JOINT = 2
    TENDON = 3
    FLEX = 4
    FLEXVERT = 5
    FLEXSTRAIN = 6
    DISTANCE = 7


class WrapType(enum.IntEnum):
    """mjtWrap, of `wrap_type`."""

    NONE = 0
    JOINT = 1
    PULLEY = 2
    SITE = 3
    SPHERE = 4
    CYLINDER = 5


class CamLightType(enum.IntEnum):
    """mjtCamLight, of `cam_mode` and `light_mode`."""

    FIXED = 0
    TRACK = 1
    TRACKCOM = 2
    TARGETBODY = 3
    TARGETBODYCOM = 4


class ConstraintType(enum.IntEnum):
    """mjtConstraint, of `m.plan.constraint.efc_type`."""

    EQUALITY = 0
    FRICTION_DOF = 1
    FRICTION_TENDON = 2
    LIMIT_JOINT = 3
    LIMIT_TENDON = 4
    CONTACT_FRICTIONLESS = 5
    CONTACT_PYRAMIDAL = 6
    CONTACT_ELLIPTIC = 7


class ConstraintState(enum.IntEnum):
    """mjtConstraintState, of `efc_state`."""

    SATISFIED = 0
    QUADRATIC = 1
    LINEARNEG = 2
    LINEARPOS = 3
    CONE = 4


class ObjType(enum.IntEnum):
    """mjtObj, the ones that `Model` has."""

    BODY = 1
    XBODY = 2
    JOINT = 3
    DOF = 4
    GEOM = 5
    SITE = 6
    CAMERA = 7
    LIGHT = 8
    MESH = 10
    HFIELD = 12
    PAIR = 15
    EXCLUDE = 16
    EQUALITY = 17
    TENDON = 18
    ACTUATOR = 19
    SENSOR = 20
    KEY = 24
