"""Distance fields of MuJoCo's plugins: distances, contacts and rays against C, derivatives, compiled."""

import ctypes

import mujoco
import numpy as np
import pytest
import torch
from collision.contacts import double
from collision.convex_pairs import IS_RECENT
from collision.distance_fields import listed, poses, stacked, with_plugin
from collision.fields import Found, of_c, turned_geoms

import mjtorch
from mjtorch import multi_ray
from mjtorch.collision import collision
from mjtorch.math.jet import Jet
from mjtorch.model.plan import plugins
from mjtorch.smooth.formula import FORMULAS

FEW, REACH = 20, 1.2
SLOW = pytest.mark.slow
# Each plugin with some shapes, and which of C's contacts we find with gradients that C has by finite differences.
PAIRS = [
    ("torus", "plane", 1.0),
    ("torus", "sphere", 1.0),
    ("bowl", "sphere", 0.99),
    ("bolt", "nut", 0.99),
    ("gear", "sphere", 0.99),
    *(
        pytest.param(*pair, marks=SLOW)
        for pair in [
            *(("torus", "mesh", 1.0), ("torus", "sdf", 0.98), ("torus", "torus", 1.0), ("bowl", "mesh", 1.0)),
            *(("bowl", "torus", 0.99), ("bolt", "sphere", 0.99), ("bolt", "box", 0.95), ("nut", "mesh", 1.0)),
            *(("gear", "box", 0.9), ("gear", "gear", 0.95)),
        ]
    ),
]
# Attributes besides those that are usual.
ATTRIBUTES = {"bolt": [0.3], "nut": [0.2], "bowl": [0.1, 0.6, 0.05], "gear": [0.3, 2.0, 17, 0.4, 0.5]}
ATTRIBUTES["torus"] = [0.5, 0.1]


def distance_of_c(name: str, attributes: list[float], points: np.ndarray) -> np.ndarray:
    """What the plugin itself says, `sdf_staticdistance` of mjpPlugin."""
    names = [*"nstate nsensordata init destroy copy reset compute advance visualize actuator_act_dot".split()]
    names += ["sdf_distance", "sdf_gradient", "sdf_staticdistance"]

    class Plugin(ctypes.Structure):
        _fields_ = (
            ("name", ctypes.c_char_p),
            ("nattribute", ctypes.c_int),
            ("attributes", ctypes.c_void_p),
            ("flags", ctypes.c_int * 2),
            *((function, ctypes.c_void_p) for function in names),
        )

    library = plugins._library()
    library.mjp_getPlugin.restype = ctypes.POINTER(Plugin)
    plugin = library.mjp_getPlugin(f"mujoco.sdf.{name}".encode(), None).contents
    signature = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p)
    function, given = signature(plugin.sdf_staticdistance), np.array(attributes, dtype=float)
    return np.array([function(point.ctypes.data, given.ctypes.data) for point in points])


@pytest.mark.parametrize("usual", [True, False])
@pytest.mark.parametrize("name", plugins.ATTRIBUTES)
def test_distance_is_that_of_the_plugin(name, usual):
    attributes = list(plugins.ATTRIBUTES[name]) if usual else ATTRIBUTES[name]
    rng = np.random.default_rng(0)
    points = np.concatenate([scale * rng.uniform(-1, 1, (2000, 3)) for scale in (2.0, 0.6, 0.2)])
    mine: Jet = FORMULAS[name](
        torch.tensor(points)[None], *torch.tensor(attributes, dtype=torch.float64)[:, None, None]
    )
    np.testing.assert_allclose(mine.value[0], distance_of_c(name, attributes, points), rtol=0, atol=1e-14)
    step, differences = 1e-6, []
    for axis in step * np.eye(3):
        ahead, behind = (distance_of_c(name, attributes, points + sign * axis) for sign in (1, -1))
        differences.append((ahead - behind) / (2 * step))
    error = np.abs(mine.slope[0].numpy() - np.stack(differences, axis=1)).max(axis=1)
    assert (error < 1e-6).mean() > 0.999  # but at edges


@pytest.mark.parametrize("name", plugins.ATTRIBUTES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_are_finite_everywhere(name, dtype):
    point = torch.tensor([[[0, 0, 0], [0, 0, 1], [1, 0, 0], [0.35, 0, 0], [0, 0, -0.5]]], dtype=dtype)
    attributes = [torch.tensor([[a]], dtype=dtype) for a in plugins.ATTRIBUTES[name]]

    def total(point, *attributes):
        jet = FORMULAS[name](point, *attributes)
        return jet.value.sum() + jet.slope.sum()

    arguments = tuple(range(1 + len(attributes)))
    for gradient in torch.func.grad(total, argnums=arguments)(point, *attributes):
        assert gradient.isfinite().all()


def same(mine: list[Found], theirs: list[Found]) -> int:
    """How many of C's contacts are among ours, in order, to what finite differences of 1e-8 m allow."""
    count = place = 0
    for theirs_one in theirs:
        for i in range(place, len(mine)):
            a, b = (np.concatenate([[one.dist], one.pos, one.normal]) for one in (mine[i], theirs_one))
            if np.abs(a - b).max() < 1e-4:
                count, place = count + 1, i + 1
                break
    return count


@pytest.mark.skipif(not IS_RECENT, reason="distance fields as MuJoCo 4 has them")
@pytest.mark.parametrize("name, shape, share", PAIRS)
def test_contacts(name, shape, share):
    mj_model = with_plugin(name, shape)
    datas = poses(mj_model, FEW, reach=REACH)
    m = double(mj_model, contact_capacity=64)
    after = torch.vmap(collision, in_dims=(None, 0))(m, stacked(m, datas))
    assert not after.warning.any()
    mine, theirs = listed(after.contact), [of_c(d) for d in datas]
    total = sum(map(len, theirs))
    assert total > FEW
    assert abs(sum(map(len, mine)) - total) <= 0.01 * total
    assert sum(map(same, mine, theirs)) >= share * total


@pytest.mark.skipif(not IS_RECENT, reason="lengths of directions as MuJoCo 4 counts them")
@pytest.mark.parametrize("name", ["bolt", "gear", *(pytest.param(n, marks=SLOW) for n in ("bowl", "nut", "torus"))])
def test_rays(name):
    mj_model = with_plugin(name, "sdf")
    (mj_data,) = poses(mj_model, 1, reach=REACH)
    m = double(mj_model)
    d = mjtorch.put_data(mj_model, mj_data, model=m)
    rng = np.random.default_rng(0)
    start = d.geom_xpos[1].numpy() + 1.5 * rng.standard_normal((200, 3))
    direction = d.geom_xpos[1].numpy() + 0.3 * rng.standard_normal((200, 3)) - start
    dist, geom, normal = multi_ray(m, d, torch.tensor(start), torch.tensor(direction))
    found, facing, agree, met = np.zeros(1, dtype=np.int32), np.zeros(3), 0, 0
    for i in range(len(start)):
        expected = mujoco.mj_ray(mj_model, mj_data, start[i], direction[i], None, True, -1, found, facing)
        assert int(geom[i]) == found[0]
        np.testing.assert_allclose(dist[i], expected, rtol=1e-9, atol=1e-9)
        met += found[0] == 1
        agree += np.abs(normal[i].numpy() - facing).max() < 1e-5
    assert met > 50
    assert agree > 0.98 * len(start)


@pytest.mark.parametrize("name", ["torus", pytest.param("bolt", marks=SLOW), pytest.param("gear", marks=SLOW)])
def test_compiled_is_the_same(name):
    mj_model = with_plugin(name, "sphere")
    m = double(mj_model, contact_capacity=64)
    worlds = stacked(m, poses(mj_model, 8, reach=REACH))
    compiled = mjtorch.jit(collision, in_dims=(None, 0), strict=True)(m, worlds)
    eager = torch.vmap(collision, in_dims=(None, 0))(m, worlds)
    assert eager.ncon.sum() > 8
    assert torch.equal(compiled.contact.detected, eager.contact.detected)
    error = (compiled.contact.dist - eager.contact.dist).abs()[eager.contact.detected]
    assert (error < 1e-6).double().mean() > 0.98


@SLOW
@pytest.mark.parametrize("name", ["torus", "nut"])
def test_compiled_by_torch_is_the_same(name):
    mj_model = with_plugin(name, "sphere")
    m = double(mj_model, contact_capacity=64)
    worlds = mjtorch.tree.stack([mjtorch.put_data(mj_model, d, model=m) for d in poses(mj_model, 3, reach=0.5)])
    batched = torch.vmap(mjtorch.fwd_position, in_dims=(None, 0))
    eager, compiled = batched(m, worlds), torch.compile(batched, fullgraph=True, backend="aot_eager")(m, worlds)
    assert eager.ncon.sum() > 3
    assert torch.equal(compiled.contact.detected, eager.contact.detected)
    torch.testing.assert_close(compiled.contact.dist, eager.contact.dist, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["torus", pytest.param("gear", marks=SLOW)])
def test_derivatives_match_finite_differences(name):
    mj_model = with_plugin(name, "sphere")
    m = double(mj_model, contact_capacity=64)
    worlds = stacked(m, [d for d in poses(mj_model, 2 * FEW, reach=REACH) if d.ncon][: FEW // 2])
    change = torch.tensor(np.random.default_rng(0).normal(size=(len(worlds.time), 6)))

    def value(step):
        def one(d, change):
            contact = collision(m, turned_geoms(d, step * change)).contact
            rows = torch.cat([contact.dist[:, None], contact.pos, contact.frame[:, 0]], dim=-1)
            return torch.where(contact.detected[:, None], rows, torch.nan)

        return torch.vmap(one)(worlds, change)

    step, zero = 1e-8, torch.zeros((), dtype=torch.float64)
    _, derivative = torch.func.jvp(value, (zero,), (torch.ones_like(zero),))
    expected = (value(zero + step) - value(zero - step)) / (2 * step)
    there = expected.isfinite().all(-1)
    assert there.sum() > FEW
    assert derivative[there].isfinite().all()
    error = (derivative - expected)[there].abs().amax(-1) / (1 + expected[there].abs().amax(-1))
    assert (error < 1e-3).double().mean() >= 0.9
