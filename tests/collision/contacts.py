"""What the tests of this room share: running `collision` on C's poses and comparing the contact lists."""

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray

from mjtorch import tree
from mjtorch.collision import collision
from mjtorch.model import Data, Model, make_data, put_model

FIELDS = ("dist", "pos", "frame", "includemargin", "friction", "solref", "solreffriction", "solimp")


def posed(m: Model, mj_data: mujoco.MjData) -> Data:
    """A `Data` with the geom poses of `mj_data`, and NaN in the contact list."""
    d = make_data(m)
    return d.replace(
        geom_xpos=torch.tensor(mj_data.geom_xpos, dtype=m.qpos0.dtype),
        geom_xmat=torch.tensor(mj_data.geom_xmat, dtype=m.qpos0.dtype).reshape(-1, 3, 3),
        contact=tree.map(lambda x: torch.full_like(x, torch.nan) if x.is_floating_point() else x, d.contact),
        ncon=d.ncon - 1,
    )


def area(corners: NDArray[np.float64]) -> float:
    """Of a convex quadrilateral (4, 3) [m]; [m^2]."""
    a, b, c, d = corners
    return 0.5 * float(np.linalg.norm(np.cross(c - a, d - b)))


def double(mj_model: mujoco.MjModel, **kwargs) -> Model:
    return put_model(mj_model, dtype=torch.float64, **kwargs)


def assert_same_contacts(m: Model, mj_data: mujoco.MjData, atol: float = 1e-8) -> Data:
    """The detected contacts are those of C, by condim and then in C's order; nothing is NaN."""
    d = collision(m, posed(m, mj_data))
    order = np.argsort(mj_data.contact.dim, kind="stable")
    detected = d.contact.detected.numpy()
    assert int(d.ncon) == detected.sum()
    assert np.array(d.contact.dim, dtype=int)[detected].tolist() == mj_data.contact.dim[order].tolist()
    assert d.contact.geom.numpy()[detected].tolist() == mj_data.contact.geom[order].tolist()
    assert (d.contact.geom.numpy()[~detected] == -1).all()
    for name in FIELDS:
        actual = getattr(d.contact, name).numpy()
        assert np.isfinite(actual).all(), name
        expected = getattr(mj_data.contact, name)[order].reshape(actual[detected].shape)
        np.testing.assert_allclose(actual[detected], expected, rtol=0, atol=atol, err_msg=name)
    active = mj_data.contact.dist[order] < mj_data.contact.includemargin[order]
    assert d.contact.active.numpy()[detected].tolist() == active.tolist()
    return d
