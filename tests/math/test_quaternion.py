"""Quaternions against mju_*, and their derivatives where they are hard."""

import math

import mujoco
import numpy as np
import pytest
import torch

from mjtorch.math import quaternion as quat

N = 50


@pytest.fixture
def random():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, N, 4))
    a /= np.linalg.norm(a, axis=1, keepdims=True)
    b /= np.linalg.norm(b, axis=1, keepdims=True)
    return a, b, rng.normal(size=(N, 3))


def each(function, size, *args):
    """`function(result, *row)` of MuJoCo for each row."""
    out = np.full((N, size), np.nan)
    for i in range(N):
        function(out[i], *(x[i] if isinstance(x, np.ndarray) else x for x in args))
    return torch.tensor(out)


def test_mul(random):
    a, b, _ = random
    torch.testing.assert_close(quat.mul(torch.tensor(a), torch.tensor(b)), each(mujoco.mju_mulQuat, 4, a, b))


def test_rotate(random):
    a, _, v = random
    torch.testing.assert_close(quat.rotate(torch.tensor(v), torch.tensor(a)), each(mujoco.mju_rotVecQuat, 3, v, a))


def test_to_mat(random):
    a, _, _ = random
    torch.testing.assert_close(quat.to_mat(torch.tensor(a)).flatten(1), each(mujoco.mju_quat2Mat, 9, a))


def test_integrate(random):
    a, _, v = random
    expected = torch.tensor(a.copy())
    for i in range(N):
        mujoco.mju_quatIntegrate(expected[i].numpy(), v[i], 0.3)
    torch.testing.assert_close(quat.integrate(torch.tensor(a), torch.tensor(v), torch.tensor(0.3)), expected)


def test_sub(random):
    a, b, _ = random
    torch.testing.assert_close(quat.sub(torch.tensor(a), torch.tensor(b)), each(mujoco.mju_subQuat, 3, a, b))


def test_sub_takes_the_short_way():
    turn = quat.from_axis_angle(torch.tensor([0.0, 0.0, 1.0]).double(), torch.tensor(1.5 * math.pi).double())
    rotation = quat.to_rotation_vector(turn)
    torch.testing.assert_close(rotation, torch.tensor([0.0, 0.0, -0.5 * math.pi]).double())


def test_zero_quaternion_becomes_the_identity():
    identity = torch.tensor([1.0, 0.0, 0.0, 0.0])
    torch.testing.assert_close(quat.normalize(torch.zeros(4)), identity)


def test_derivatives_at_no_rotation():
    zero = torch.zeros(3, dtype=torch.float64)
    jacobian = torch.func.jacrev(quat.from_rotation_vector)(zero)
    torch.testing.assert_close(jacobian[1:], 0.5 * torch.eye(3, dtype=torch.float64))
    assert (jacobian[0] == 0).all()
    round_trip = torch.func.jacrev(lambda v: quat.to_rotation_vector(quat.from_rotation_vector(v)))(zero)
    torch.testing.assert_close(round_trip, torch.eye(3, dtype=torch.float64))
