"""The factor of the inertia, also where that is singular, as C has it."""

from collections.abc import Callable

import mujoco
import numpy as np
import pytest
import torch
from reference import SINCE_4, load

import mjtorch
from mjtorch.math import linalg
from mjtorch.smooth.inertia import factor_m

SLIDES = """<mujoco><option gravity="1 2 -9.81"/><worldbody><body>
<joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 1 0"/><joint type="slide" axis="1 1 0"/>
<geom size=".1" mass="2"/></body></worldbody></mujoco>"""
INTEGRATORS = [mjtorch.Integrator.EULER, mjtorch.Integrator.RK4, mjtorch.Integrator.IMPLICITFAST]
# M of three dofs in a row, lower triangle; singular, indefinite
MATRICES = [
    [2, 0.5, 2, 0.3, 0.4, 1e-16],
    [2, 0.5, 2, 0.3, 0.4, -5],
    [2, 0.5, 1e-3, 0.3, 0.4, 1],
    [2, 0, 2, 0.5, 0.5, 3],
]


@pytest.fixture(scope="module")
def slides() -> mujoco.MjModel:
    """Three slides along two axes: the force along the third is shared with the first two in any way."""
    return mujoco.MjModel.from_xml_string(SLIDES)


@SINCE_4
@pytest.mark.parametrize("matrix", MATRICES)
def test_factor(slides: mujoco.MjModel, matrix: list[float]) -> None:
    """The factor, and the warning, of C."""
    d = mujoco.MjData(slides)
    d.M[:] = matrix
    mujoco.mj_factorM(slides, d)
    m = mjtorch.put_model(slides, dtype=torch.float64)
    mine = factor_m(m, mjtorch.make_data(m).replace(M=torch.tensor(matrix, dtype=torch.float64)))
    theirs = mjtorch.put_data(slides, d, model=m)
    torch.testing.assert_close(mine.qLD, theirs.qLD, rtol=1e-9, atol=0.0)
    assert mine.warning.tolist() == theirs.warning.tolist()


@SINCE_4
@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_singular(slides: mujoco.MjModel, integrator: int, dtype: torch.dtype) -> None:
    """Steps, and how often C warns; what set_const derives, too, and gradients are finite.

    How much of a motion each slide takes is what rounding makes it in single precision: what they do together is not.
    """
    slides.opt.integrator = int(integrator)
    m, d = mjtorch.put_model(slides, dtype=dtype), mujoco.MjData(slides)
    mine = mjtorch.make_data(m)
    for _ in range(2):
        mujoco.mj_step(slides, d)
        mine = mjtorch.step(m, mine)
    tolerance = {"rtol": 0.0, "atol": 1e-12 if dtype == torch.float64 else 1e-5}
    seen = torch.eye(3, dtype=dtype) if dtype == torch.float64 else torch.tensor(slides.jnt_axis, dtype=dtype)
    torch.testing.assert_close(mine.qacc @ seen, torch.tensor(d.qacc, dtype=dtype) @ seen, **tolerance)
    torch.testing.assert_close(mine.qvel @ seen, torch.tensor(d.qvel, dtype=dtype) @ seen, **tolerance)
    assert mine.warning.tolist() == [w.number for w in d.warning]
    if dtype == torch.float64:
        np.testing.assert_allclose(mjtorch.set_const(m).dof_invweight0, slides.dof_invweight0, rtol=1e-9)
    grad = torch.func.grad(lambda x: mjtorch.step(m, mine.replace(qfrc_applied=x)).qvel.sum())(mine.qvel)
    assert grad.isfinite().all()


def test_tendon_across_branches() -> None:
    """M has no elements between branches, so the armature of a tendon across two makes it indefinite."""
    mj_model = load("""<mujoco><worldbody><body><joint name="a" axis="0 1 0"/><geom size=".1" mass="100"/>
        <body pos=".3 0 0"><joint name="b" axis="0 1 0"/><geom size=".05" mass="100"/></body>
        <body pos="0 0 .3"><joint name="c" axis="0 1 0"/><geom size=".05" mass="100"/></body></body></worldbody>
        <tendon><fixed armature="100"><joint joint="a" coef="1"/><joint joint="b" coef="1"/><joint joint="c" coef="1"/>
        </fixed></tendon></mujoco>""")
    mj_data = mujoco.MjData(mj_model)
    mj_data.qvel[:] = 1, 2, 3
    mujoco.mj_forward(mj_model, mj_data)
    m = mjtorch.put_model(mj_model, dtype=torch.float64)
    wanted = mjtorch.put_data(mj_model, mj_data, model=m)
    found = factor_m(m, wanted.replace(qLD=torch.full_like(wanted.qLD, 9.0), warning=torch.zeros_like(wanted.warning)))
    assert found.qLD.diagonal().min() < 1e-7
    torch.testing.assert_close(found.qLD, wanted.qLD, rtol=1e-9, atol=1e-12)
    assert found.warning[0] == 1


def test_put_data(slides: mujoco.MjModel) -> None:
    """What C has computed is taken as it is."""
    d = mujoco.MjData(slides)
    mujoco.mj_forward(slides, d)
    assert mjtorch.put_data(slides, d).qLD.isfinite().all()


def test_worlds(slides: mujoco.MjModel) -> None:
    """A world that is singular does not change another that is not, compiled and by vmap."""
    m = mjtorch.put_model(slides, dtype=torch.float64)
    armature = torch.tensor([[0.0, 0.0, 0.0], [0.1, 0.2, 0.3]], dtype=torch.float64)

    def acceleration(x: torch.Tensor) -> torch.Tensor:
        return mjtorch.forward(m.replace(dof_armature=x), mjtorch.make_data(m)).qacc

    alone = torch.stack([acceleration(x) for x in armature])
    assert alone.isfinite().all()
    torch.testing.assert_close(torch.vmap(acceleration)(armature), alone)
    torch.testing.assert_close(mjtorch.jit(acceleration, in_dims=(0,))(armature), alone)


@pytest.mark.parametrize("which", [linalg.ltl, lambda a: linalg.clamped_ltl(a)[0]])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_derivatives(which: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
    """Of a factor, in both modes; of worlds side by side."""
    x = torch.randn(2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def factor(x: torch.Tensor) -> torch.Tensor:
        return which(x @ x.mT + torch.eye(4, dtype=x.dtype))

    L = factor(x.detach().to(dtype))
    torch.testing.assert_close(L.mT @ L, (x @ x.mT + torch.eye(4)).detach().to(dtype))
    assert torch.autograd.gradcheck(factor, x, check_forward_ad=True, check_batched_grad=True)
    grad = torch.func.grad(lambda x: factor(x).square().sum())
    torch.testing.assert_close(mjtorch.jit(grad)(x.detach()[None]), grad(x.detach())[None])


# Three hinges, of which two may become parallel.
GIMBAL = """<mujoco><worldbody><body><joint axis="1 0 0"/><joint axis="0 1 0"/><joint axis="0 0 1"/>
<geom type="box" size=".1 .2 .3"/></body></worldbody></mujoco>"""
SOUND = [("gym/humanoid", True), ("gym/ant", True), ("gym/hopper", True), ("collection/humanoid", True)]
SOUND += [(SLIDES, False), (GIMBAL, False)]


@pytest.mark.parametrize("name, sound", SOUND)
def test_sound(name: str, sound: bool) -> None:
    """Models that cannot be singular do without clamping."""
    assert mjtorch.put_model(load(name)).plan.kinematics.is_sound == sound
