"""Constraint rows equal C's."""

import mujoco
import pytest
import torch
from constraint.rows import ARM, EQUALITIES, LIMITS, PILE, POSITION, VELOCITY, assert_rows, moved, put, run
from reference import oracle

from mjtorch import tree
from mjtorch.constraint import make_constraint, reference_constraint
from mjtorch.model import Data, Model
from mjtorch.model.put_data import put_data
from mjtorch.smooth.com import com_pos, com_vel
from mjtorch.smooth.kinematics import kinematics

PYRAMIDAL, ELLIPTIC = 0, 1


@pytest.mark.parametrize("name", EQUALITIES)
def test_equality(name: str) -> None:
    mj_model = mujoco.MjModel.from_xml_string(ARM.format(equality=EQUALITIES[name]))
    assert_rows(mj_model, [moved(mj_model, seed) for seed in range(4)])


def test_limits_and_friction() -> None:
    mj_model = mujoco.MjModel.from_xml_string(LIMITS)
    assert_rows(mj_model, [moved(mj_model, seed, size) for seed in range(4) for size in (0.02, 0.3, 2)])


@pytest.mark.parametrize("cone", [PYRAMIDAL, ELLIPTIC])
@pytest.mark.parametrize(("one", "two"), [(1, 3), (3, 3), (4, 6), (6, 3), (1, 1)])
@pytest.mark.parametrize("ref", ["0 0", "0.03 0.8", "-200 -9", "0.1 -1"])
def test_contacts(cone: int, one: int, two: int, ref: str) -> None:
    mj_model = mujoco.MjModel.from_xml_string(PILE.format(one=one, two=two, ref=ref))
    mj_model.opt.cone = cone
    states = [moved(mj_model, seed, 0.05, 3 * seed) for seed in range(3)]
    assert all(s.ncon for s in states)
    assert_rows(mj_model, states)


def test_rest_pose() -> None:
    """No error, no turn of the balls: lengths are zero."""
    for text in (ARM.format(equality=EQUALITIES["mixture"]), LIMITS):
        mj_model = mujoco.MjModel.from_xml_string(text)
        assert_rows(mj_model, [moved(mj_model, 0, 0.0)])


@pytest.mark.parametrize(
    "flag", ["CONSTRAINT", "EQUALITY", "FRICTIONLOSS", "LIMIT", "CONTACT", "REFSAFE"], ids=str.lower
)
def test_disable(flag: str) -> None:
    bit = int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}"))
    for text in (ARM.format(equality=EQUALITIES["mixture"]), LIMITS, PILE.format(one=3, two=4, ref="0.001 1")):
        mj_model = mujoco.MjModel.from_xml_string(text)
        mj_model.opt.disableflags |= bit
        states = [moved(mj_model, seed, 0.05) for seed in range(2)]
        assert_rows(mj_model, states)
        # the flag set after the model was put: the rows are there, but off
        mj_model.opt.disableflags &= ~bit
        assert_rows(mj_model, states, disableflags=mj_model.opt.disableflags | bit)


@pytest.mark.parametrize("cone", [PYRAMIDAL, ELLIPTIC])
def test_exact_diagonal(cone: int) -> None:
    for text in (ARM.format(equality=EQUALITIES["mixture"]), LIMITS, PILE.format(one=3, two=6, ref="0 0")):
        mj_model = mujoco.MjModel.from_xml_string(text)
        mj_model.opt.cone = cone
        mj_model.opt.enableflags = exact = int(mujoco.mjtEnableBit.mjENBL_DIAGEXACT)
        states = [moved(mj_model, seed, 0.05) for seed in range(2)]
        mj_model.opt.enableflags = 0
        assert_rows(mj_model, states, enableflags=exact)


def test_constraint_that_moves_nothing_has_no_rows() -> None:
    equality = '<connect body1="fixed" body2="world" anchor="0 0 0.1"/> <weld body1="ghost" body2="fixed"/>'
    mj_model = mujoco.MjModel.from_xml_string(ARM.format(equality=equality))
    assert put(mj_model, [moved(mj_model, 0)]).plan.constraint.nefc == 0


def test_narrow_range_has_two_rows() -> None:
    mj_model = mujoco.MjModel.from_xml_string(LIMITS)
    p = put(mj_model, [moved(mj_model, 0)]).plan.constraint
    assert [p.efc_id.count(j) for j in range(5)] == [1, 1, 2, 1, 1]


TEXTS = [ARM.format(equality=EQUALITIES["mixture"]), LIMITS, PILE.format(one=3, two=6, ref="0.02 1")]


@pytest.mark.parametrize("text", TEXTS, ids=["equality", "limit", "contact"])
@pytest.mark.parametrize("cone", [PYRAMIDAL, ELLIPTIC])
@pytest.mark.parametrize("size", [0, 0.05])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_is_finite(text: str, cone: int, size: float, dtype: torch.dtype) -> None:
    mj_model = oracle(mujoco.MjModel.from_xml_string(text))
    mj_model.opt.cone = cone
    state = moved(mj_model, 0, size)
    m = put(mj_model, [state], dtype)
    d = put_data(mj_model, state, model=m)

    def total(m: Model, d: Data) -> torch.Tensor:
        d = reference_constraint(m, make_constraint(m, d))
        rows = [d.efc_J, d.efc_pos, d.efc_diagA, d.efc_KBIP, d.efc_R, d.efc_vel, d.efc_aref, d.efc_D]
        return sum(x.log1p().sum() if (x >= 0).all() else x.tanh().sum() for x in rows)

    m, d = tree.map(lambda x: x.requires_grad_(x.is_floating_point()), (m, d))
    total(m, d).backward()
    for t in (m, d):
        for path, x in tree.leaves_with_path(t):
            assert x.grad is None or torch.isfinite(x.grad).all(), path


@pytest.mark.parametrize("text", TEXTS, ids=["equality", "limit", "contact"])
@pytest.mark.parametrize("cone", [PYRAMIDAL, ELLIPTIC])
def test_vmap(text: str, cone: int) -> None:
    mj_model = oracle(mujoco.MjModel.from_xml_string(text))
    mj_model.opt.cone = cone
    states = [moved(mj_model, seed, 0.05) for seed in range(3)]
    m = put(mj_model, states)
    worlds = [put_data(mj_model, state, model=m) for state in states]
    one_by_one = tree.stack([run(m, d) for d in worlds])
    together = torch.vmap(lambda d: reference_constraint(m, make_constraint(m, d)))(tree.stack(worlds))
    for name in POSITION + VELOCITY:
        torch.testing.assert_close(getattr(together, name), getattr(one_by_one, name), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", TEXTS[:2], ids=["equality", "limit"])
def test_gradient_is_that_of_finite_differences(text: str) -> None:
    mj_model = oracle(mujoco.MjModel.from_xml_string(text))
    state = moved(mj_model, 0, 0.3)
    m = put(mj_model, [state])
    d = put_data(mj_model, state, model=m)

    def rows(qpos: torch.Tensor, qvel: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = com_vel(m, com_pos(m, kinematics(m, d.replace(qpos=qpos, qvel=qvel))))
        x = reference_constraint(m, make_constraint(m, x))
        return x.efc_J, x.efc_pos, x.efc_KBIP, x.efc_aref

    torch.autograd.gradcheck(rows, (d.qpos.requires_grad_(), d.qvel.requires_grad_()), fast_mode=True, rtol=1e-4)


@pytest.mark.parametrize("cone", [PYRAMIDAL, ELLIPTIC])
def test_gradient_of_contacts_is_that_of_finite_differences(cone: int) -> None:
    mj_model = oracle(mujoco.MjModel.from_xml_string(TEXTS[2]))
    mj_model.opt.cone = cone
    state = moved(mj_model, 0, 0.05)
    m = put(mj_model, [state])
    d = put_data(mj_model, state, model=m)
    names = ("dist", "pos", "frame", "friction", "solimp")

    def rows(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = d.replace(contact=d.contact.replace(**dict(zip(names, values, strict=True))))
        x = reference_constraint(m, make_constraint(m, x))
        active = x.contact.active[torch.tensor(m.plan.constraint.contact.slot.tolist())]
        contact = slice(-len(active), None)
        return x.efc_J, x.efc_pos, x.efc_R[contact][active], x.efc_aref[contact][active] / 1e3

    values = [getattr(d.contact, name).requires_grad_() for name in names]
    torch.autograd.gradcheck(rows, values, fast_mode=True, rtol=1e-4)
