"""Convex shapes with the flag `nativeccd` disabled: contacts against C, derivatives, and where shapes degenerate."""

from typing import NamedTuple

import mujoco
import numpy as np
import pytest
import torch
from collision.contacts import double
from collision.convex_pairs import Pose, aligned_poses, grazing, posed, random_poses, two_geoms
from collision.test_convex_families import PAIRS
from reference import slow_but

import mjtorch
from mjtorch import tree
from mjtorch.collision import collision
from mjtorch.math.quaternion import from_rotation_vector, to_mat
from mjtorch.model import Contact, DisableBit, Model

POSES = 80
# Shapes with faces, or ends, whose edges may be parallel to those of others.
FLAT = ("cylinder", "box", "brick", "wedge")


def model(first: str, second: str, margin: float = 0.0, multiccd: str = "disable") -> mujoco.MjModel:
    """Two geoms, the search with the iterations of the default."""
    mj_model = two_geoms(first, second, margin, f'><flag multiccd="{multiccd}" nativeccd="disable"/></option><option')
    mj_model.opt.ccd_iterations = 35
    return mj_model


class Frames(NamedTuple):
    """Where geoms are, with a world axis in front: pos (n, 2, 3) [m], mat (n, 2, 3, 3)."""

    pos: torch.Tensor
    mat: torch.Tensor


def frames(mj_datas: list[mujoco.MjData], dtype: torch.dtype = torch.float64) -> Frames:
    pos = torch.tensor(np.stack([d.geom_xpos for d in mj_datas]), dtype=dtype)
    return Frames(pos, torch.tensor(np.stack([d.geom_xmat for d in mj_datas]), dtype=dtype).unflatten(-1, (3, 3)))


def contacts(m: Model, at: Frames) -> Contact:
    """Our contacts, each pose in a world of its own."""
    d = mjtorch.make_data(m)
    return torch.vmap(lambda pos, mat: collision(m, d.replace(geom_xpos=pos, geom_xmat=mat)).contact)(*at)


def off(contact: Contact, mj_data: mujoco.MjData) -> float:
    """How far contacts of a world are from C's: of distances, points and frames; infinite if there are others."""
    there, theirs = contact.detected, mj_data.contact
    if int(there.sum()) != mj_data.ncon:
        return np.inf
    ours = (contact.dist[there, None], contact.pos[there], contact.frame[there].flatten(1))
    wanted = (theirs.dist[:, None], theirs.pos, theirs.frame)
    return max((np.abs(a.numpy() - b).max() for a, b in zip(ours, wanted, strict=True) if len(b)), default=0.0)


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("margin", slow_but([0.0, 0.02], 0.02))
@pytest.mark.parametrize("multiccd", ["disable", "enable"])
def test_contacts(first, second, margin, multiccd):
    mj_model = model(first, second, margin, multiccd)
    poses = random_poses(POSES, 0.45) + aligned_poses(POSES // 2, 0.03)
    mj_datas = posed(mj_model, poses).mj_data
    found = contacts(double(mj_model), frames(mj_datas))
    counts = [d.ncon for d in mj_datas]
    assert POSES // 4 < np.count_nonzero(counts) < len(poses)
    assert max(counts) == 1 or multiccd == "enable"
    error = np.array([off(tree.map(lambda x, k=k: x[k], found), d) for k, d in enumerate(mj_datas)])
    if margin or first not in FLAT or second not in FLAT or (first, second) == ("cylinder", "cylinder"):
        assert error.max() < 1e-9
    else:  # rounding decides which of two corners is further, in C as here
        shift = np.array([0.3, -0.2, 0.5])
        again = posed(mj_model, [(pos1 + shift, quat1, pos2 + shift, quat2) for pos1, quat1, pos2, quat2 in poses])
        itself = np.array([moved(d, e, shift) for d, e in zip(mj_datas, again.mj_data, strict=True)])
        assert (error < 1e-9).mean() > (itself < 1e-9).mean() - 0.05
        assert (error < 1e-9).mean() > 0.75


def moved(one: mujoco.MjData, other: mujoco.MjData, shift: np.ndarray) -> float:
    """How far contacts of C are from those of the same pose elsewhere."""
    if one.ncon != other.ncon:
        return np.inf
    pairs = ((one.contact.dist, other.contact.dist), (one.contact.pos + shift, other.contact.pos))
    return max(np.abs(a - b).max() for a, b in (*pairs, (one.contact.frame, other.contact.frame))) if one.ncon else 0.0


def test_several_contacts_of_flat_shapes():
    """Turned about the first contact, shapes on faces and sides touch in more points, up to five."""
    found = {}
    for first, second in [("capsule", "cylinder"), ("cylinder", "box"), ("box", "brick")]:
        mj_model = model(first, second, 0.002, "enable")
        mj_datas = posed(mj_model, aligned_poses(200, 2e-4)).mj_data
        contact = contacts(double(mj_model), frames(mj_datas))
        counts = np.array([d.ncon for d in mj_datas])
        assert (contact.detected.sum(-1).numpy() == counts).mean() > 0.98
        found[first] = counts.max()
    assert found == {"capsule": 3, "cylinder": 5, "box": 5}


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_degenerate_poses(first, second):
    """Coincident centres, and centres on the axes of both: contacts where C has some, and derivatives are finite."""
    here, upright = np.zeros(3), np.array([1.0, 0, 0, 0])
    poses: list[Pose] = [(here, upright, here, upright), *aligned_poses(15, 0.0)]
    poses += [(here, upright, np.array([0.0, 0, z]), upright) for z in (0.1, 0.25, 0.3)]
    mj_model = model(first, second, 0.01, "enable")
    mj_datas = posed(mj_model, poses).mj_data
    m, at = double(mj_model), frames(mj_datas)
    found = contacts(m, at)
    assert (found.detected.any(-1).numpy() == [d.ncon > 0 for d in mj_datas]).mean() > 0.8

    def value(pos, mat):
        c = contacts(m, Frames(pos, mat))
        return c.dist.sum() + c.pos.sum() + c.frame.sum()

    for gradient in torch.func.grad(value, (0, 1))(*at):
        assert gradient.isfinite().all()


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_derivatives_match_finite_differences(first, second):
    """Of points and normals; of distances those along the normal, which for curved shapes they are nearly.

    With a small tolerance: else which triangle of a round surface the search ends at depends on the pose.
    """
    mj_model = model(first, second, 0.01)
    mj_model.opt.ccd_tolerance, mj_model.opt.ccd_iterations = 1e-10, 100
    touching = grazing(two_geoms(first, second), random_poses(POSES // 4, 0.4, seed=5))
    m, at = double(mj_model), frames(posed(mj_model, touching).mj_data)
    change = torch.tensor(np.random.default_rng(0).normal(size=(2, len(touching), 2, 3)))

    def value(step):
        turn = to_mat(from_rotation_vector(step * change[1]))
        c = contacts(m, Frames(at.pos + step * change[0], turn @ at.mat))
        return c.dist, c.pos[:, 0], c.frame[:, 0, 0]

    step = 3e-5
    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    _, derivative = torch.func.jvp(value, (zero,), (one,))
    curved = not {first, second} <= {"box", "brick", "wedge"}
    for below, above, computed, limit in zip(value(-step), value(step), derivative, (0.15, 5e-3, 5e-3), strict=True):
        expected = (above - below) / (2 * step)
        error = (computed - expected).abs().flatten(1).amax(-1) / (1 + expected.abs().flatten(1).amax(-1))
        assert computed.isfinite().all()
        assert (error < (limit if curved else 5e-3)).float().mean() >= 0.75


@pytest.mark.parametrize(("first", "second"), [("ellipsoid", "cylinder"), ("capsule", "wedge"), ("box", "brick")])
def test_single_precision(first, second):
    mj_model = model(first, second, 0.01)
    mj_datas = posed(mj_model, grazing(two_geoms(first, second), random_poses(POSES, 0.4))).mj_data
    exact = contacts(double(mj_model), frames(mj_datas))
    found = contacts(mjtorch.put_model(mj_model), frames(mj_datas, torch.float32))
    assert found.dist.dtype is torch.float32 and all(x.isfinite().all() for x in (found.dist, found.pos, found.frame))
    assert torch.equal(found.detected, exact.detected)
    # Of round shapes, the less exact the search is the more it looks along the normal, not along the ray.
    assert ((found.dist - exact.dist).abs() < 2e-4).float().mean() > 0.85
    assert (found.dist - exact.dist).abs().max() < 2e-3


def test_compiled_as_eager():
    mj_model = model("cylinder", "wedge", 0.01, "enable")
    m = double(mj_model)
    at = frames(posed(mj_model, random_poses(POSES, 0.3)).mj_data)
    d = mjtorch.batch(mjtorch.make_data(m), POSES).replace(geom_xpos=at.pos, geom_xmat=at.mat)
    compiled = mjtorch.jit(collision, in_dims=(None, 0), strict=True)(m, d).contact
    eager = contacts(m, at)
    assert torch.equal(compiled.detected, eager.detected)
    for name in ("dist", "pos", "frame"):
        torch.testing.assert_close(getattr(compiled, name), getattr(eager, name), rtol=0, atol=1e-9)


def test_other_flags_change_nothing_without_it():
    """The search is another one only where the flag says so."""
    mj_model = model("cylinder", "box")
    at = frames(posed(mj_model, random_poses(POSES, 0.3)).mj_data)
    portals = contacts(double(mj_model), at)
    mj_model.opt.disableflags &= ~DisableBit.NATIVECCD
    assert (contacts(double(mj_model), at).dist - portals.dist).abs().max() > 0.02
