"""What MuJoCo's two other engines for accelerators lack of what the table in `support` lists, read in their sources."""

from typing import NamedTuple


class Relative(NamedTuple):
    """An engine. lacks: by area, the features that it lacks, by name; where it lacks a part only, what that is."""

    name: str
    version: str
    lacks: dict[str, dict[str, str]]


def _all(*names: str, **parts: str) -> dict[str, str]:
    """Features that are lacking altogether, and parts of others, whose names have underscores here."""
    return {name: name for name in names} | {name.replace("_", " "): part for name, part in parts.items()}


_LIMIT_SENSORS = tuple(f"{kind}limit{what}" for kind in ("joint", "tendon") for what in ("pos", "vel", "frc"))
_FLEXES = (
    "vertices on bodies (full, radial, 2d)",
    "vertices on grids (trilinear, quadratic)",
    "springs and dampers of edges",
    "elastic membranes, shells and solids",
    "contacts of flexes with planes",
    "contacts of flexes with convex geoms",
    "contacts of flexes with flexes and themselves",
    "contacts of flexes with height fields",
    "contacts of membranes with signed distance fields",
    "contacts of grids with more than planes",
    "passive contacts of flexes",
    "elastic rods",
    "plastic flexes",
    "Neo-Hookean solids",
)
_SDF = "bolt, bowl, gear, nut, torus"
_POLY = "that are polynomials"
_PORTALS = "convex shapes as libccd finds them (nativeccd disabled)"

MJX = Relative(
    "MJX-JAX",
    "3.12.1",
    {
        "passive forces": _all(
            "fluid on ellipsoids",
            "plastic joint springs",
            springs=f"springs {_POLY}",
            dampers=f"dampers {_POLY}",
            fluid_on_inertia_boxes="fluid with implicitfast",
        ),
        "cameras and lights": _all("lights in all modes"),
        "tendons": _all("plastic springs", springs=f"springs {_POLY}", dampers=f"dampers {_POLY}"),
        "actuators": _all(
            *(f"transmission {kind}" for kind in ("slidercrank", "body", "so3")),
            *(f"dynamics {kind}" for kind in ("user", "dcmotor", "pid")),
            *(f"gain {kind}" for kind in ("user", "dcmotor", "so3", "pid")),
            *(f"bias {kind}" for kind in ("user", "dcmotor", "so3")),
            "dcmotor beside other types",
            "several controls, outputs and activations",
            "delay and history",
            "damping and armature",
        ),
        "collisions": _all(
            *(f"{one}-{two}" for one in ("ellipsoid", "cylinder") for two in ("box", "mesh")),
            *("hfield-ellipsoid", "hfield-cylinder"),
            *(f"{one}-sdf" for one in ("plane", "sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh", "sdf")),
            *("pairs of other geoms", _PORTALS),
        ),
        "contacts": {
            **_all("override", "surface velocity", "speculative"),
            **_all("ipc", "adhesion of geoms", "adhesion of pairs", "adhesion across a gap"),
            "condim 1, 3, 4, 6": "condim 1 with elliptic cones",
            "margin and gap": "gap, margin of meshes",
        },
        "equality": _all("flex", "flexvert", "flexstrain"),
        "solver": _all("PGS", "noslip iterations", "diagexact", "sleep"),
        "integrator": _all("implicit", "discrete"),
        "sensors": _all(
            *_LIMIT_SENSORS,
            *("insidesite", "geomdist", "geomnormal", "geomfromto", "e_potential", "e_kinetic"),
            *("tactile", "user", "plugin", "delay, interval and history"),
            *("enclosed objects", "enclosed objects in sites of meshes"),
            contact="contact of bodies, subtrees or sites, or with netforce",
            rangefinder="rangefinder of cameras",
        ),
        "energy": _all("energy"),
        "inverse dynamics": _all("comparison with forward dynamics (fwdinv)"),
        "deformables": _all(*_FLEXES),
        "extensions": _all("plugin touch_grid", "plugin pid", f"plugins sdf ({_SDF})", "other plugins", "callbacks"),
    },
)

WARP = Relative(
    "MuJoCo Warp",
    "3.12.0",
    {
        "passive forces": _all("plastic joint springs"),
        "tendons": _all("plastic springs"),
        "actuators": _all(
            *("transmission so3", "dynamics pid", "gain so3", "gain pid", "bias so3"),
            "several controls, outputs and activations",
            "damping and armature",
        ),
        "collisions": {
            "several contacts of convex shapes (multiccd)": "multiccd of other than boxes and meshes",
            **_all(_PORTALS),
        },
        "contacts": _all("override", "speculative", "ipc", margin_and_gap="margin of boxes or meshes with multiccd"),
        "equality": _all("flexvert"),
        "solver": _all("PGS", "noslip iterations", "diagexact"),
        "integrator": _all("discrete"),
        "sensors": _all(
            *("plugin", "enclosed objects", "enclosed objects in sites of meshes"),
            rangefinder="rangefinder of cameras",
        ),
        "inverse dynamics": _all("comparison with forward dynamics (fwdinv)"),
        "deformables": _all(
            *("elastic rods", "plastic flexes", "Neo-Hookean solids"),
            "contacts of flexes with height fields",
            "contacts of membranes with signed distance fields",
        )
        | {"vertices on grids (trilinear, quadratic)": "quadratic grids"},
        "extensions": _all("plugin touch_grid", "plugin pid", "other plugins"),
        "derivatives": _all("gradients through contact"),
    },
)

RELATIVES = (MJX, WARP)
