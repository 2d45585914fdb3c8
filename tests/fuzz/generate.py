"""Random models, in MJCF, of everything that is supported; which of it is a model at all, MuJoCo's compiler says."""

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any

import numpy as np

PRIMITIVES = ("sphere", "capsule", "ellipsoid", "cylinder", "box")
MESHES = {
    "brick": "-.1 -.15 -.2 .1 -.15 -.2 -.1 .15 -.2 .1 .15 -.2 -.1 -.15 .2 .1 -.15 .2 -.1 .15 .2 .1 .15 .2",
    "wedge": "-.1 -.1 -.1 .1 -.1 -.1 0 .12 -.1 -.1 -.1 .1 .1 -.1 .1 0 .12 .1",
    "spike": "0 0 .3  .1 0 -.1  -.05 .09 -.1  -.05 -.09 -.1",
}
OPTION_FLAGS = (
    "limit frictionloss equality contact spring damper gravity clampctrl warmstart filterparent actuation refsafe "
    "eulerdamp midphase constraint multiccd"
).split()
ENABLE_FLAGS = ("energy", "override", "fwdinv", "diagexact")
OBJECT_SENSORS = (
    "framepos framequat framexaxis frameyaxis framezaxis framelinvel frameangvel framelinacc frameangacc"
).split()
SITE_SENSORS = "accelerometer velocimeter gyro magnetometer force torque touch rangefinder".split()


class Draw:
    """Random choices."""

    def __init__(self, seed: Sequence[int]) -> None:
        self.rng = np.random.default_rng(seed)

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def among(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def count(self, least: int, most: int) -> int:
        return int(self.rng.integers(least, most + 1))

    def number(self, low: float, high: float) -> str:
        return f"{self.rng.uniform(low, high):.4g}"

    def numbers(self, count: int, low: float, high: float) -> str:
        return " ".join(self.number(low, high) for _ in range(count))

    def scale(self, low: float, high: float) -> str:
        """Of any order of magnitude between two."""
        return f"{np.exp(self.rng.uniform(np.log(low), np.log(high))):.3g}"

    def range(self, low: float, high: float) -> str:
        a, b = sorted(self.rng.uniform(low, high, 2))
        return f"{a:.4g} {b + 0.05 * (high - low):.4g}"


def model(seed: Sequence[int]) -> str:
    """The model of a seed."""
    return ET.tostring(_Builder(Draw(seed)).build(), encoding="unicode")


class _Builder:
    """One model under construction, and the names in it."""

    def __init__(self, draw: Draw) -> None:
        self.draw, self.made = draw, 0
        self.root = ET.Element("mujoco")
        ET.SubElement(self.root, "compiler", angle="radian", autolimits="true")
        self.bodies: list[str] = []
        self.joints: dict[str, list[str]] = {"free": [], "ball": [], "hinge": [], "slide": []}
        self.geoms: dict[str, list[str]] = {kind: [] for kind in (*PRIMITIVES, "mesh", "hfield", "plane")}
        self.owner: dict[str, str] = {}
        self.sites: list[str] = []
        self.cameras: list[str] = []
        self.tendons: list[str] = []
        self.actuators: list[str] = []
        # Few of all features are in a model: what goes wrong is easier to see, and less is refused.
        self.wants = {
            name: draw.chance(p)
            for name, p in {
                "mesh": 0.35,
                "hfield": 0.15,
                "fluid": 0.15,
                "pair": 0.3,
                "exclude": 0.2,
                "tendon": 0.4,
                "actuator": 0.7,
                "equality": 0.35,
                "sensor": 0.7,
                "mocap": 0.2,
                "margin": 0.3,
                "friction": 0.3,
                "rows": 0.4,
                "gravcomp": 0.1,
                "surface": 0.1,
                "adhesion": 0.1,
            }.items()
        }

    def build(self) -> ET.Element:
        draw = self.draw
        self._option()
        asset = ET.SubElement(self.root, "asset")
        if self.wants["mesh"]:
            for name, vertex in MESHES.items():
                ET.SubElement(asset, "mesh", name=name, vertex=vertex)
        if self.wants["hfield"]:
            cells = draw.numbers(30, 0, 1)
            ET.SubElement(asset, "hfield", name="hills", size="1.2 1 .3 .1", nrow="5", ncol="6", elevation=cells)
        self.world = ET.SubElement(self.root, "worldbody")
        if draw.chance(0.85):
            tilt = {"euler": draw.numbers(3, -0.2, 0.2)} if draw.chance(0.2) else {}
            self._geom(self.world, "world", "plane", {"size": "3 3 .1", **tilt})
        if self.wants["hfield"]:
            self._geom(self.world, "world", "hfield", {"hfield": "hills", "pos": "0 0 -.1"})
        if draw.chance(0.3):
            self._geom(self.world, "world", draw.among(PRIMITIVES), {"pos": draw.numbers(3, -0.6, 0.6)})
        self._site(self.world)
        if draw.chance(0.3):
            self._light(self.world)
        for k in range(draw.count(1, 3)):
            self._tree(k)
        if self.wants["mocap"]:
            body = self._body(self.world, mocap=True)
            self._geom(body, body.get("name", ""), draw.among(PRIMITIVES))
        self._contact()
        if self.wants["tendon"]:
            self._tendon()
        if self.wants["equality"]:
            self._equality()
        if self.wants["actuator"]:
            self._actuator()
        if self.wants["sensor"]:
            self._sensor()
        return self.root

    # --- what all share ---

    def _option(self) -> None:
        draw = self.draw
        option = ET.SubElement(self.root, "option", timestep=draw.among(("0.001", "0.002", "0.004")))
        option.set("solver", draw.among(("Newton", "Newton", "Newton", "CG", "PGS")))
        option.set("cone", draw.among(("pyramidal", "elliptic")))
        option.set("integrator", draw.among(("Euler", "Euler", "implicitfast", "implicit", "RK4")))
        if draw.chance(0.15):
            option.set("noslip_iterations", str(draw.count(1, 5)))
        if draw.chance(0.2):
            option.set("impratio", draw.scale(0.5, 10))
        if draw.chance(0.3):
            option.set("gravity", draw.numbers(3, -10, 10))
        if draw.chance(0.2):
            option.set("magnetic", draw.numbers(3, -1, 1))
        if self.wants["fluid"]:
            option.set("density", draw.scale(1, 1000))
            option.set("viscosity", draw.scale(1e-3, 1))
            option.set("wind", draw.numbers(3, -1, 1))
        flags = {name: "disable" for name in OPTION_FLAGS if draw.chance(0.04)}
        flags |= {name: "enable" for name in ENABLE_FLAGS if draw.chance(0.12)}
        if flags:
            ET.SubElement(option, "flag", flags)
        if flags.get("override"):
            option.set("o_margin", draw.number(0, 0.02))
            option.set("o_solref", f"{draw.number(0.01, 0.05)} {draw.number(0.5, 1.5)}")
            option.set("o_friction", f"{draw.numbers(2, 0.2, 1)} .01 .001 .001")

    def _soft(self, element: ET.Element) -> None:
        """Parameters of a constraint, on some."""
        draw = self.draw
        if not self.wants["rows"] or draw.chance(0.5):
            return
        if draw.chance(0.25):
            element.set("solref", f"-{draw.scale(50, 2000)} -{draw.scale(1, 50)}")
        else:
            element.set("solref", f"{draw.number(0.008, 0.05)} {draw.number(0.5, 1.5)}")
        low = draw.rng.uniform(0.5, 0.9)
        element.set(
            "solimp",
            f"{low:.3g} {draw.number(low, 0.98)} {draw.scale(1e-4, 1e-1)} {draw.number(0.2, 0.8)} {draw.count(1, 4)}",
        )

    def _name(self, kind: str) -> str:
        self.made += 1
        return f"{kind}{self.made}"

    # --- trees ---

    def _tree(self, k: int) -> None:
        draw = self.draw
        place = f"{draw.number(-0.4, 0.4)} {draw.number(-0.4, 0.4)} {draw.number(0.1, 0.5 + 0.3 * k)}"
        body = self._body(self.world, pos=place)
        if draw.chance(0.6):
            self.joints["free"].append(name := self._name("free"))
            ET.SubElement(body, "freejoint", name=name)
        else:
            self._joints(body)
        self._fill(body)
        depth = draw.count(0, 3)
        for _ in range(depth):
            child = self._body(body, pos=draw.numbers(3, -0.3, 0.3))
            if draw.chance(0.85):
                self._joints(child)
            self._fill(child)
            body = child if draw.chance(0.7) else body

    def _body(self, parent: ET.Element, **attributes: Any) -> ET.Element:
        draw = self.draw
        name = self._name("body")
        body = ET.SubElement(parent, "body", name=name)
        if attributes.pop("mocap", False):
            body.set("mocap", "true")
            body.set("pos", draw.numbers(3, -0.5, 0.5))
        else:
            self.bodies.append(name)
        for key, value in attributes.items():
            body.set(key, value)
        if draw.chance(0.4):
            body.set("euler", draw.numbers(3, -3, 3))
        if self.wants["gravcomp"] and draw.chance(0.5):
            body.set("gravcomp", draw.number(0, 1.5))
        return body

    def _joints(self, body: ET.Element) -> None:
        draw = self.draw
        if draw.chance(0.2):
            self._joint(body, "ball")
            return
        for _ in range(draw.count(1, 3) if draw.chance(0.3) else 1):
            self._joint(body, draw.among(("hinge", "hinge", "slide")))

    def _joint(self, body: ET.Element, kind: str) -> None:
        draw = self.draw
        name = self._name(kind)
        self.joints[kind].append(name)
        joint = ET.SubElement(body, "joint", name=name, type=kind)
        if kind != "ball":
            joint.set("axis", draw.numbers(3, -1, 1))
        if draw.chance(0.3):
            joint.set("pos", draw.numbers(3, -0.1, 0.1))
        if draw.chance(0.4):
            width = {"ball": "0 " + draw.number(0.3, 2), "hinge": draw.range(-1.5, 1.5), "slide": draw.range(-0.3, 0.3)}
            joint.set("range", width[kind])
            if draw.chance(0.3):
                joint.set("margin", draw.number(0, 0.1))
            self._soft_of(joint, "limit")
        for key, low, high, p in (
            ("damping", 0.01, 2, 0.5),
            ("stiffness", 0.1, 50, 0.3),
            ("armature", 1e-3, 0.2, 0.4),
            ("frictionloss", 0.01, 1, 0.25),
        ):
            if draw.chance(p):
                joint.set(key, draw.scale(low, high))
        if "frictionloss" in joint.attrib:
            self._soft_of(joint, "friction")
        if kind != "ball" and draw.chance(0.15):
            joint.set("springref" if joint.get("stiffness") else "ref", draw.number(-0.2, 0.2))
        if kind != "ball" and draw.chance(0.15):
            joint.set("actuatorfrcrange", f"-{draw.number(0.1, 2)} {draw.number(0.1, 2)}")

    def _soft_of(self, element: ET.Element, what: str) -> None:
        """`solref` and `solimp` of limits or of friction, which have the name behind."""
        stand_in = ET.Element("x")
        self._soft(stand_in)
        for key, value in stand_in.attrib.items():
            element.set(f"{key}{what}", value)

    def _fill(self, body: ET.Element) -> None:
        draw = self.draw
        kinds = [*PRIMITIVES, *(["mesh"] * 3 if self.wants["mesh"] else [])]
        for _ in range(draw.count(1, 2)):
            self._geom(body, body.get("name", ""), draw.among(kinds))
        if draw.chance(0.6):
            self._site(body)
        if draw.chance(0.15):
            self.cameras.append(name := self._name("camera"))
            mode = draw.among(("fixed", "track", "trackcom", "targetbody", "targetbodycom"))
            target = {"target": draw.among(self.bodies)} if mode.startswith("target") else {}
            ET.SubElement(body, "camera", name=name, pos=draw.numbers(3, -0.3, 0.3), mode=mode, **target)
        if draw.chance(0.1):
            self._light(body)

    def _light(self, body: ET.Element) -> None:
        mode = self.draw.among(("fixed", "track", "trackcom"))
        ET.SubElement(body, "light", pos=self.draw.numbers(3, -1, 1), dir=self.draw.numbers(3, -1, 1), mode=mode)

    def _geom(self, parent: ET.Element, body: str, kind: str, given: dict[str, str] | None = None) -> None:
        draw = self.draw
        name = self._name(kind)
        self.geoms[kind].append(name)
        self.owner[name] = body
        geom = ET.SubElement(parent, "geom", {"name": name, "type": kind, **(given or {})})
        sizes = {"sphere": 1, "capsule": 2, "ellipsoid": 3, "cylinder": 2, "box": 3}
        if kind in sizes:
            geom.set("size", draw.numbers(sizes[kind], 0.04, 0.18))
        if kind == "mesh":
            geom.set("mesh", draw.among(list(MESHES)))
        if not given:
            if draw.chance(0.6):
                geom.set("pos", draw.numbers(3, -0.15, 0.15))
            if draw.chance(0.6):
                geom.set("euler", draw.numbers(3, -3, 3))
        if draw.chance(0.4):
            geom.set("condim", draw.among(("1", "3", "4", "6")))
        if self.wants["friction"] and draw.chance(0.5):
            geom.set("friction", f"{draw.number(0.1, 1.5)} {draw.scale(1e-3, 0.1)} {draw.scale(1e-4, 0.01)}")
        if self.wants["margin"] and draw.chance(0.5):
            geom.set("margin", draw.number(0, 0.05))
            if draw.chance(0.4) and not self.wants["adhesion"]:
                geom.set("gap", draw.number(0, 0.02))
        if draw.chance(0.15):
            geom.set("priority", str(draw.count(0, 2)))
        if draw.chance(0.15):
            geom.set("solmix", draw.scale(0.1, 10))
        if draw.chance(0.15):
            geom.set("contype", str(draw.count(0, 3)))
            geom.set("conaffinity", str(draw.count(0, 3)))
        if draw.chance(0.3):
            geom.set("density", draw.scale(100, 5000))
        if self.wants["fluid"] and kind in PRIMITIVES and draw.chance(0.3):
            geom.set("fluidshape", "ellipsoid")
        if self.wants["surface"] and kind != "hfield" and draw.chance(0.3):
            geom.set("surfacevel", draw.numbers(3, -0.5, 0.5))
        if self.wants["adhesion"] and draw.chance(0.3):
            geom.set("adhesion", draw.number(0, 5))
        self._soft(geom)

    def _site(self, body: ET.Element) -> None:
        draw = self.draw
        self.sites.append(name := self._name("site"))
        site = ET.SubElement(body, "site", name=name, pos=draw.numbers(3, -0.2, 0.2), euler=draw.numbers(3, -3, 3))
        if draw.chance(0.5):
            site.set("type", draw.among(("capsule", "ellipsoid", "cylinder", "box")))
            site.set("size", draw.numbers(3, 0.05, 0.3))

    # --- what connects ---

    def _all_geoms(self) -> list[str]:
        return [name for names in self.geoms.values() for name in names]

    def _contact(self) -> None:
        draw = self.draw
        contact = ET.SubElement(self.root, "contact")
        names = [name for kind in (*PRIMITIVES, "mesh", "plane") for name in self.geoms[kind]]
        if self.wants["pair"] and len(names) > 1:
            for _ in range(draw.count(1, 2)):
                one, two = draw.rng.choice(len(names), 2, replace=False)
                pair = ET.SubElement(contact, "pair", geom1=names[one], geom2=names[two])
                if draw.chance(0.6):
                    pair.set("condim", draw.among(("1", "3", "4", "6")))
                if draw.chance(0.5):
                    pair.set("friction", f"{draw.numbers(2, 0.1, 1.5)} {draw.numbers(3, 1e-3, 1e-2)}")
                if draw.chance(0.4):
                    pair.set("margin", draw.number(0, 0.05))
                if draw.chance(0.2):
                    pair.set("solreffriction", f"{draw.number(0.01, 0.05)} 1")
                self._soft(pair)
        if self.wants["exclude"] and len(self.bodies) > 1:
            one, two = draw.rng.choice(len(self.bodies), 2, replace=False)
            ET.SubElement(contact, "exclude", body1=self.bodies[one], body2=self.bodies[two])

    def _tendon(self) -> None:
        draw = self.draw
        section = ET.SubElement(self.root, "tendon")
        scalar = self.joints["hinge"] + self.joints["slide"]
        for _ in range(draw.count(1, 2)):
            name = self._name("tendon")
            if scalar and draw.chance(0.5):
                tendon = ET.SubElement(section, "fixed", name=name)
                for k in draw.rng.permutation(len(scalar))[: draw.count(1, 3)]:
                    ET.SubElement(tendon, "joint", joint=scalar[int(k)], coef=draw.number(-2, 2))
            elif len(self.sites) > 1:
                tendon = ET.SubElement(section, "spatial", name=name)
                self._path(tendon)
            else:
                continue
            self.tendons.append(name)
            for key, low, high, p in (
                ("stiffness", 1, 100, 0.5),
                ("damping", 0.01, 2, 0.4),
                ("frictionloss", 0.01, 1, 0.25),
                ("armature", 1e-3, 0.1, 0.2),
            ):
                if draw.chance(p):
                    tendon.set(key, draw.scale(low, high))
            if draw.chance(0.3):
                tendon.set("range", draw.range(-0.5, 1))
                self._soft_of(tendon, "limit")
            if draw.chance(0.3):
                tendon.set("springlength", draw.range(0, 0.5))
            if draw.chance(0.15):
                tendon.set("actuatorfrcrange", f"-{draw.number(0.1, 2)} {draw.number(0.1, 2)}")

    def _path(self, tendon: ET.Element) -> None:
        draw = self.draw
        order = [self.sites[int(k)] for k in draw.rng.permutation(len(self.sites))]
        round_ones = self.geoms["sphere"] + self.geoms["cylinder"]
        ET.SubElement(tendon, "site", site=order[0])
        for site in order[1:4]:
            if round_ones and draw.chance(0.4):
                side = {"sidesite": draw.among(self.sites)} if draw.chance(0.4) else {}
                ET.SubElement(tendon, "geom", geom=draw.among(round_ones), **side)
            ET.SubElement(tendon, "site", site=site)
        if len(order) > 5 and draw.chance(0.3):
            ET.SubElement(tendon, "pulley", divisor=draw.number(1, 3))
            for site in order[4:6]:
                ET.SubElement(tendon, "site", site=site)

    def _equality(self) -> None:
        draw = self.draw
        section = ET.SubElement(self.root, "equality")
        scalar = self.joints["hinge"] + self.joints["slide"]
        for _ in range(draw.count(1, 2)):
            kind = draw.among(("connect", "weld", "joint", "tendon"))
            if kind in ("connect", "weld"):
                one = draw.among(self.bodies)
                other = draw.among([body for body in self.bodies if body != one] or [None])
                if len(self.sites) > 1 and draw.chance(0.3):
                    i, j = draw.rng.choice(len(self.sites), 2, replace=False)
                    row = ET.SubElement(section, kind, site1=self.sites[i], site2=self.sites[j])
                else:
                    row = ET.SubElement(section, kind, body1=one)
                    if other and draw.chance(0.7):
                        row.set("body2", other)
                    if kind == "connect" or draw.chance(0.3):
                        row.set("anchor", draw.numbers(3, -0.2, 0.2))
                if kind == "weld" and draw.chance(0.4):
                    row.set("torquescale", draw.scale(0.1, 5))
            elif kind == "joint" and scalar:
                row = ET.SubElement(section, "joint", joint1=draw.among(scalar), polycoef=draw.numbers(5, -0.5, 0.5))
                others = [j for j in scalar if j != row.get("joint1")]
                if others and draw.chance(0.7):
                    row.set("joint2", draw.among(others))
            elif kind == "tendon" and self.tendons:
                row = ET.SubElement(section, "tendon", tendon1=draw.among(self.tendons))
                row.set("polycoef", draw.numbers(5, -0.3, 0.3))
                others = [t for t in self.tendons if t != row.get("tendon1")]
                if others and draw.chance(0.6):
                    row.set("tendon2", draw.among(others))
            else:
                continue
            if draw.chance(0.15):
                row.set("active", "false")
            self._soft(row)

    # --- what drives and what feels ---

    def _actuator(self) -> None:
        draw = self.draw
        section = ET.SubElement(self.root, "actuator")
        for _ in range(draw.count(1, 4)):
            kind = draw.among(
                "motor position velocity intvelocity damper muscle general adhesion pid dcmotor orientation".split()
            )
            attributes = self._transmission(kind)
            if attributes is None:
                continue
            name = self._name("actuator")
            self.actuators.append(name)
            actuator = ET.SubElement(section, kind, {"name": name, **attributes})
            self._drive(actuator, kind)

    def _transmission(self, kind: str) -> dict[str, str] | None:
        draw = self.draw
        scalar = self.joints["hinge"] + self.joints["slide"]
        if kind == "adhesion":
            return {"body": draw.among(self.bodies), "gain": draw.number(1, 20), "ctrlrange": "0 1"}
        if kind == "orientation":
            ball = self.joints["ball"]
            return {"joint": draw.among(ball)} if ball else None
        options: list[dict[str, str]] = [{"joint": name} for name in scalar]
        options += [{"tendon": name} for name in self.tendons]
        if kind in ("motor", "general", "position", "velocity"):
            turning = self.joints["ball"] + self.joints["free"]
            options += [{draw.among(("joint", "jointinparent")): j, "gear": draw.numbers(6, -1, 1)} for j in turning]
            if len(self.sites) > 1:
                one, two = draw.rng.choice(len(self.sites), 2, replace=False)
                site = {"site": self.sites[one], "gear": draw.numbers(6, -1, 1)}
                options += [site, {**site, "refsite": self.sites[two]}]
                rod = draw.number(0.5, 1)
                options += [{"cranksite": self.sites[one], "slidersite": self.sites[two], "cranklength": rod}]
        return draw.among(options) if options else None

    def _drive(self, actuator: ET.Element, kind: str) -> None:
        draw = self.draw
        if kind == "position":
            actuator.set("kp", draw.scale(0.5, 50))
            if draw.chance(0.5):
                actuator.set("kv", draw.scale(0.01, 2))
            if draw.chance(0.2):
                actuator.set("timeconst", draw.scale(0.01, 0.5))
        elif kind == "velocity":
            actuator.set("kv", draw.scale(0.05, 5))
        elif kind == "intvelocity":
            actuator.set("kp", draw.scale(0.5, 50))
            actuator.set("actrange", "-1 1")
        elif kind == "damper":
            actuator.set("kv", draw.scale(0.05, 5))
            actuator.set("ctrlrange", "0 1")
        elif kind == "muscle":
            actuator.set("ctrlrange", "0 1")
            actuator.set("lengthrange", draw.range(-0.5, 0.5))
            actuator.set("force", draw.scale(1, 100))
            if draw.chance(0.3):
                actuator.set("tausmooth", draw.number(0, 0.3))
        elif kind == "pid":
            actuator.set("kp", draw.scale(0.5, 20))
            actuator.set("kv", draw.scale(0.01, 1))
            if draw.chance(0.5):
                actuator.set("ki", draw.scale(0.1, 5))
            if draw.chance(0.3):
                actuator.set("slewmax", draw.scale(0.5, 5))
        elif kind == "dcmotor":
            actuator.set("motorconst", draw.scale(0.05, 0.5))
            actuator.set("resistance", draw.scale(0.5, 5))
            if draw.chance(0.4):
                actuator.set("inductance", draw.scale(0.01, 0.1))
            if draw.chance(0.3):
                actuator.set("cogging", f"{draw.number(0, 0.2)} 6 {draw.number(0, 1)}")
        elif kind == "orientation":
            actuator.set("kp", draw.scale(0.5, 10))
            actuator.set("kv", draw.scale(0.01, 1))
        elif kind == "general":
            dynamics = draw.among(("none", "none", "integrator", "filter", "filterexact"))
            actuator.set("dyntype", dynamics)
            if dynamics.startswith("filter"):
                actuator.set("dynprm", draw.scale(0.01, 0.5))
            actuator.set("gaintype", draw.among(("fixed", "affine")))
            actuator.set("gainprm", draw.numbers(3, -2, 2))
            actuator.set("biastype", draw.among(("none", "affine")))
            actuator.set("biasprm", draw.numbers(3, -2, 2))
            if dynamics != "none" and draw.chance(0.3):
                actuator.set("actearly", "true")
            if dynamics != "none" and draw.chance(0.3):
                actuator.set("actrange", "-.5 .5")
        if kind in ("motor", "position", "velocity", "general") and draw.chance(0.4):
            actuator.set("ctrlrange", draw.range(-1, 1))
        if kind not in ("adhesion", "muscle", "orientation", "dcmotor") and draw.chance(0.25):
            actuator.set("forcerange", draw.range(-3, 3))
        if kind in ("motor", "position") and draw.chance(0.1):
            actuator.set("delay", ".006")
            actuator.set("nsample", "8")
            actuator.set("interp", draw.among(("zoh", "linear", "cubic")))
        if draw.chance(0.1):
            actuator.set("group", str(draw.count(0, 3)))

    def _sensor(self) -> None:
        draw = self.draw
        section = ET.SubElement(self.root, "sensor")
        frames = [("site", s) for s in self.sites] + [("body", b) for b in self.bodies]
        frames += [("xbody", b) for b in self.bodies] + [("geom", g) for g in self._all_geoms()]
        frames += [("camera", c) for c in self.cameras]
        scalar = self.joints["hinge"] + self.joints["slide"]
        for _ in range(draw.count(1, 6)):
            kind = draw.among(("frame", "site", "joint", "ball", "tendon", "actuator", "body", "contact", "distance"))
            attributes: dict[str, str] | None = None
            tag = ""
            if kind == "frame":
                tag = draw.among(OBJECT_SENSORS)
                objtype, objname = draw.among(frames)
                attributes = {"objtype": objtype, "objname": objname}
                if "acc" not in tag and draw.chance(0.4):
                    reftype, refname = draw.among(frames)
                    attributes |= {"reftype": reftype, "refname": refname}
            elif kind == "site":
                tag, attributes = draw.among(SITE_SENSORS), {"site": draw.among(self.sites)}
            elif kind == "joint" and scalar:
                tag = draw.among("jointpos jointvel jointactuatorfrc jointlimitpos jointlimitvel jointlimitfrc".split())
                attributes = {"joint": draw.among(scalar)}
            elif kind == "ball" and self.joints["ball"]:
                tag, attributes = draw.among(("ballquat", "ballangvel")), {"joint": draw.among(self.joints["ball"])}
            elif kind == "tendon" and self.tendons:
                tag, attributes = draw.among(("tendonpos", "tendonvel")), {"tendon": draw.among(self.tendons)}
            elif kind == "actuator" and self.actuators:
                tag = draw.among(("actuatorpos", "actuatorvel", "actuatorfrc"))
                attributes = {"actuator": draw.among(self.actuators)}
            elif kind == "body":
                tag = draw.among(("subtreecom", "subtreelinvel", "subtreeangmom"))
                attributes = {"body": draw.among(self.bodies)}
            elif kind == "contact":
                tag = "contact"
                attributes = {"num": str(draw.count(1, 4)), "data": "found force torque dist pos normal tangent"}
                attributes["reduce"] = draw.among(("mindist", "maxforce", "netforce"))
                if draw.chance(0.5):
                    attributes["subtree1"] = draw.among(self.bodies)
            elif kind == "distance":
                names = [name for k in PRIMITIVES for name in self.geoms[k]]
                if len(names) > 1:
                    one, two = draw.rng.choice(len(names), 2, replace=False)
                    tag = draw.among(("distance", "normal", "fromto"))
                    attributes = {"geom1": names[one], "geom2": names[two], "cutoff": draw.number(0.1, 1)}
            if attributes is not None:
                sensor = ET.SubElement(section, tag, attributes)
                if tag not in ("distance", "normal", "fromto", "framequat", "ballquat") and draw.chance(0.15):
                    sensor.set("cutoff", draw.scale(0.1, 10))
