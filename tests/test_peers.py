"""What users of MuJoCo's other ports call: it is there, and says what C says; and the guide that lists it."""

import enum
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from reference import VERSION, Case, case, load

import mjtorch
from mjtorch.model import enums

GUIDE = Path(__file__).parents[1] / "docs" / "from_mjx.md"


def jacobians(c: Case, body: int) -> list[np.ndarray]:
    jacp, jacr = np.zeros((2, c.mj_model.nv, 3)).reshape(2, 3, -1)
    mujoco.mj_jac(c.mj_model, c.mj_datas[0], jacp, jacr, c.mj_datas[0].xpos[body], body)
    return [jacp, jacr]


def applied(c: Case) -> np.ndarray:
    result, point = np.zeros(c.mj_model.nv), c.mj_datas[0].xpos[2]
    mujoco.mj_applyFT(c.mj_model, c.mj_datas[0], np.array([1.0, 2, 3]), np.array([4.0, 5, 6]), point, 2, result)
    return result


def rne(c: Case) -> np.ndarray:
    result = np.zeros(c.mj_model.nv)
    mujoco.mj_rne(c.mj_model, c.mj_datas[0], 1, result)
    return result


def ray(c: Case, down: list[float], exclude: int = -1) -> list[float]:
    geom = np.zeros(1, dtype=np.int32)
    start = c.mj_datas[0].xpos[1] + np.array([0, 0, 2.0])
    return [mujoco.mj_ray(c.mj_model, c.mj_datas[0], start, np.array(down), None, 1, exclude, geom), geom[0]]


def contact_forces(c: Case) -> np.ndarray:
    """In world axes."""
    found = []
    for k, contact in enumerate(c.mj_datas[0].contact):
        force = np.zeros(6)
        mujoco.mj_contactForce(c.mj_model, c.mj_datas[0], k, force)
        found.append((force.reshape(2, 3) @ contact.frame.reshape(3, 3)).ravel())
    return np.array(found)


F, T = torch.tensor([1.0, 2, 3]).double(), torch.tensor([4.0, 5, 6]).double()
DOWN = torch.tensor([0.0, 0, -1]).double()
UP = torch.tensor([0.0, 0, 2]).double()

# What is called, and what C says, of a model m, the data d and the case c they come from.
CALLS: dict[str, tuple[Callable[..., Any], Callable[[Case], Any]]] = {
    "jac of a point": (lambda m, d: mjtorch.jac(m, d, d.xpos[2], 2), lambda c: jacobians(c, 2)),
    "jac of a body": (lambda m, d: mjtorch.jac_body(m, d, body_id=2), lambda c: jacobians(c, 2)),
    "jac of points of one body": (
        lambda m, d: [j[0] for j in mjtorch.jac(m, d, body_id=2, point=d.xpos[2:4])],
        lambda c: jacobians(c, 2),
    ),
    "apply_ft at a point": (lambda m, d: mjtorch.apply_ft(m, d, F, T, d.xpos[2], 2), applied),
    "rne with acceleration": (lambda m, d: mjtorch.rne(m, d, flg_acc=True).qfrc_bias, rne),
    "a ray": (lambda m, d: mjtorch.ray(m, d, d.xpos[1] + UP, DOWN), lambda c: ray(c, [0, 0, -1])),
    "a ray, positions of groups empty": (
        lambda m, d: mjtorch.ray(m, d, d.xpos[1] + UP, DOWN, geomgroup=(), bodyexclude=1),
        lambda c: ray(c, [0, 0, -1], 1),
    ),
    "forces of contacts in the world": (
        lambda m, d: mjtorch.contact_force(m, d, to_world_frame=True)[d.contact.detected],
        contact_forces,
    ),
    "force of a contact": (
        lambda m, d: mjtorch.contact_force(m, d, int(d.contact.detected.int().argmax()), to_world_frame=True),
        lambda c: contact_forces(c)[0],
    ),
    "geoms of contacts": (
        lambda m, d: torch.stack([d.contact.geom1, d.contact.geom2])[:, d.contact.detected],
        lambda c: [c.mj_datas[0].contact.geom1, c.mj_datas[0].contact.geom2],
    ),
    "normal force by its row": (
        lambda m, d: d.efc_pos[mjtorch.contact_efc_address(m, d)[d.contact.active]],
        lambda c: c.mj_datas[0].contact.dist[c.mj_datas[0].contact.efc_address >= 0],
    ),
    "qLDiagInv": (lambda m, d: d.qLDiagInv, lambda c: c.mj_datas[0].qLDiagInv),
    "sizes": (
        lambda m, d: torch.tensor([m.nmesh, m.nexclude, m.nhfield, m.nM]),
        lambda c: [c.mj_model.nmesh, c.mj_model.nexclude, c.mj_model.nhfield, c.mj_model.nM],
    ),
}


@pytest.fixture(scope="module")
def standing() -> Case:
    return case("gym/hopper", converge=True)


@pytest.mark.parametrize("name", CALLS)
def test_calls(standing: Case, name: str) -> None:
    c = standing
    assert c.mj_datas[0].ncon
    ours, theirs = CALLS[name]
    found, wanted = ours(c.m, mjtorch.forward(c.m, c.datas[0])), theirs(c)
    found = torch.stack([*found]) if isinstance(found, tuple | list) else found
    np.testing.assert_allclose(found.numpy(), np.array(wanted), rtol=1e-5, atol=1e-6)


def test_derivative_of_smooth_forces() -> None:
    c = case("feature/joints")
    m, d = c.m, c.datas[0]

    def smooth(qvel: torch.Tensor) -> torch.Tensor:
        moved = mjtorch.forward(m, d.replace(qvel=qvel))
        return moved.qfrc_actuator + moved.qfrc_passive

    found = mjtorch.deriv_smooth_vel(m, mjtorch.forward(m, d))
    torch.testing.assert_close(found, torch.func.jacfwd(smooth)(d.qvel), rtol=1e-6, atol=1e-8)


def test_data_of_an_mjmodel() -> None:
    mj_model = load("gym/hopper")
    assert mjtorch.make_data(mj_model).qpos.tolist() == mjtorch.make_data(mjtorch.put_model(mj_model)).qpos.tolist()
    with pytest.raises(TypeError, match=r"make_data: m must be a mjtorch Model or a mujoco.MjModel, got str"):
        mjtorch.make_data("hopper.xml")  # type: ignore[arg-type]


def test_get_data_into(standing: Case) -> None:
    c = standing
    worlds = mjtorch.tree.stack(c.datas[:2])
    results = [mujoco.MjData(c.mj_model), mujoco.MjData(c.mj_model)]
    results[0].ctrl[:] = np.nan  # what was there is gone
    mjtorch.get_data_into(results, c.mj_model, worlds)
    for result, wanted in zip(results, c.mj_datas, strict=False):
        np.testing.assert_allclose(result.xpos, wanted.xpos)
        assert (result.ncon, result.nefc) == (wanted.ncon, wanted.nefc)
        np.testing.assert_array_equal(result.ctrl, wanted.ctrl)
    for wrong, d in ((results[0], worlds), (results[:1], worlds), (results, c.datas[0])):
        with pytest.raises(ValueError, match=r"get_data_into: result must be (a list of 2 MjData|one MjData)"):
            mjtorch.get_data_into(wrong, c.mj_model, d)
    with pytest.raises(ValueError, match="result belongs to another model"):
        mjtorch.get_data_into(mujoco.MjData(load("gym/ant")), c.mj_model, c.datas[0])


def test_replace_reaches_into_parts(standing: Case) -> None:
    m = standing.m
    new = m.tree_replace(
        {"opt.timestep": 2 * m.opt.timestep, "opt.density": m.opt.density + 1, "body_mass": m.body_mass}
    )
    assert new.opt.timestep == 2 * m.opt.timestep and new.opt.fluid and not m.opt.fluid
    assert m.replace(**{"opt.iterations": 7}).opt.iterations == 7
    with pytest.raises(TypeError, match="Option has no field 'timestp'; did you mean timestep"):
        m.tree_replace({"opt.timestp": 1})
    assert next(f.name for f in mjtorch.Model.fields()) == "nq" and "qpos" in {f.name for f in mjtorch.Data.fields()}


def test_enums_are_mujocos() -> None:
    ours = [x for x in vars(enums).values() if isinstance(x, enum.EnumType) and x is not enum.IntEnum]
    assert len(ours) == 13
    for one in [*ours, mjtorch.SensorType]:
        name = one.__name__.removesuffix("Type")
        theirs: Any = getattr(mujoco, f"mjt{name}")
        known = {re.sub(r"^mj[A-Z0-9]+_", "", key): int(value) for key, value in theirs.__members__.items()}
        missing = [member for member in one if known.get(member.name) != member]
        assert not missing or VERSION < 4, f"{name}: {missing}"
        assert one.__doc__ and f"mjt{name}" in one.__doc__


def test_the_guide_names_what_there_is() -> None:
    names = set(re.findall(r"mjtorch\.([\w.]*\w)", GUIDE.read_text()))
    assert len(names) > 40
    for name in names:
        found: Any = mjtorch
        for part in name.split("."):
            found = getattr(found, part)
