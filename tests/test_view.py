"""The viewer without a browser: what is drawn, what is played, what the page does when it is touched."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

import mjtorch
from mjtorch.cli import main
from mjtorch.view import page, shapes
from mjtorch.view.motion import Live, Recording, looked
from mjtorch.view.open import load_policy
from mjtorch.view.scene import Look, Scene

# All that has a shape, at poses of its own; and a tendon over a pulley.
ALL = """
<mujoco>
  <asset>
    <texture name="half" type="2d" builtin="flat" rgb1=".5 .5 .5" width="4" height="4"/>
    <material name="red" rgba="1 0 0 .5"/>
    <material name="tiles" texture="half" rgba="1 .5 0 1"/>
    <mesh name="wedge" vertex="0 0 0  1 0 0  0 2 0  0 0 3"/>
    <hfield name="hill" nrow="2" ncol="3" size="2 1 .5 .1" elevation="0 0 0 0 1 0"/>
  </asset>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 1" material="tiles"/>
    <geom name="tile" type="plane" size="2 3 1" pos="0 0 -1"/>
    <geom name="hill" type="hfield" hfield="hill" pos="0 0 -3"/>
    <body pos="0 0 1">
      <freejoint/>
      <geom name="ball" size=".3" rgba="0 1 0 1"/>
      <geom name="egg" type="ellipsoid" size=".1 .2 .3" material="red"/>
      <geom name="pill" type="capsule" size=".1 .4" quat="1 1 0 0" group="3"/>
      <geom name="can" type="cylinder" size=".1 .4" euler="30 20 0"/>
      <geom name="brick" type="box" size=".1 .2 .3"/>
      <geom name="wedge" type="mesh" mesh="wedge"/>
      <geom name="ghost" size=".1" rgba="0 0 0 0"/>
      <site name="a" pos="0 0 0"/><site name="b" pos="1 0 0"/><site name="c" pos="2 0 0"/>
    </body>
  </worldbody>
  <tendon><spatial rgba="0 0 1 1">
    <site site="a"/><site site="b"/><pulley divisor="2"/><site site="b"/><site site="c"/>
  </spatial></tendon>
</mujoco>
"""
CART = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <geom type="plane" size="0 0 1" condim="1"/>
    <body name="cart" pos="0 0 .09">
      <joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/>
      <geom size=".1" mass="2" condim="1"/>
    </body>
  </worldbody>
  <actuator><motor name="push" joint="x" ctrlrange="-4 6"/></actuator>
</mujoco>
"""


@pytest.fixture(scope="module")
def everything() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(ALL)


@pytest.fixture(scope="module")
def cart() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(CART)


def resting(mj_model: mujoco.MjModel, worlds: int) -> Look:
    return looked(mjtorch.batch(mjtorch.make_data(mjtorch.put_model(mj_model)), worlds))


VOLUMES = {
    "ball": 4 / 3 * np.pi * 0.3**3,
    "egg": 4 / 3 * np.pi * 0.1 * 0.2 * 0.3,
    "pill": np.pi * 0.1**2 * (0.8 + 4 / 3 * 0.1),
    "can": np.pi * 0.1**2 * 0.8,
    "brick": 8 * 0.1 * 0.2 * 0.3,
    "wedge": 1.0,
}


@pytest.mark.parametrize("name", VOLUMES)
def test_shapes_enclose_their_volume(name: str, everything: mujoco.MjModel) -> None:
    """So all triangles are there, of the right size, and look outwards."""
    key, scale = shapes.key(everything, everything.geom(name).id)
    shape = shapes.shape(everything, key)
    a, b, c = np.moveaxis((shape.vertices * scale)[shape.faces], 1, 0)
    assert np.isclose((a * np.cross(b, c)).sum() / 6, VOLUMES[name], rtol=0.02)


def test_height_fields_and_planes(everything: mujoco.MjModel) -> None:
    hill = shapes.shape(everything, shapes.key(everything, everything.geom("hill").id)[0])
    assert np.allclose(hill.vertices[[0, 1, 5]], [[-2, -1, 0], [0, -1, 0.5], [2, 1, 0]])
    mj_data, down = mujoco.MjData(everything), np.array([0, 0, -1.0])
    mujoco.mj_forward(everything, mj_data)
    for x, y, z in 0.999 * hill.vertices:  # as a ray finds it
        geom = everything.geom("hill").id
        above = np.array([x, y, 3.0])
        found = mujoco.mj_rayHfield(everything, mj_data, geom, mj_data.geom_xpos[geom] + above, down, None)
        assert np.isclose(above[2] - found, z, atol=2e-3)
    a, b, c = np.moveaxis(hill.vertices[hill.faces], 1, 0)
    assert len(hill.faces) == 4 and (np.cross(b - a, c - a)[:, 2] > 0).all(), "seen from above"
    assert np.array_equal(shapes.key(everything, everything.geom("tile").id)[1], [2, 3, 1])
    scale = shapes.key(everything, everything.geom("floor").id)[1]
    assert (scale[:2] == shapes.REACH * everything.stat.extent).all()


def test_groups_are_geoms_that_look_alike(everything: mujoco.MjModel) -> None:
    scene = Scene(everything)
    names = [{everything.geom(k).name for k in g.geom_id} for g in scene.groups]
    assert names == [{"floor"}, {"tile"}, {"hill"}, {"ball", "egg"}, {"pill"}, {"can"}, {"brick"}, {"wedge"}]
    assert [g.once for g in scene.groups] == [True] + [False] * 7
    assert [g.extra for g in scene.groups].index(True) == 4 and sum(g.extra for g in scene.groups) == 1
    assert scene.groups[0].color.tolist() == [[127, 64, 0]], "a material times the mean of its texture"
    assert scene.groups[3].color.tolist() == [[0, 255, 0], [255, 0, 0]]
    assert scene.groups[3].opacity.tolist() == [1, 0.5]


def test_everything_is_where_mujoco_puts_it(everything: mujoco.MjModel) -> None:
    look = resting(everything, 3)
    rng = np.random.default_rng(0)
    look.qpos[:2] = rng.standard_normal((2, 7))
    look.qpos[:2, 3:] /= np.linalg.norm(look.qpos[:2, 3:], axis=-1, keepdims=True)
    look.qpos[2] = np.nan
    placed = Scene(everything).place(look)
    mj_data, back = mujoco.MjData(everything), np.zeros(9)
    for world in range(3):
        mj_data.qpos[:] = look.qpos[world] if world < 2 else everything.qpos0
        mujoco.mj_forward(everything, mj_data)
        assert np.allclose(placed.geom_pos[world], mj_data.geom_xpos)
        for k in range(everything.ngeom):
            mujoco.mju_quat2Mat(back, placed.geom_quat[world, k])
            assert np.allclose(back, mj_data.geom_xmat[k])
        pieces = placed.tendon[placed.tendon_world == world]
        assert np.allclose(pieces, mj_data.site_xpos[[[0, 1], [1, 2]]])
    assert not len(placed.contact) and placed.tendon_color.tolist() == [[0, 0, 255]] * 6


def test_contacts_carry_the_weight(cart: mujoco.MjModel) -> None:
    look = resting(cart, 2)
    look.qpos[1, 1] = 1.0  # in the air
    scene = Scene(cart)
    placed = scene.place(look, contacts=True)
    assert placed.contact_world.tolist() == [0] and np.allclose(placed.contact[0, :2], 0)
    assert placed.force[0, 2] > 2 * 9.81 and np.allclose(placed.force[0, :2], 0)
    assert np.isclose(scene.force_scale * 2 * 9.81, cart.stat.extent)
    assert not len(scene.place(look).contact)


def test_recordings(cart: mujoco.MjModel, tmp_path: Path) -> None:
    time_, qpos = np.repeat(np.array([0.5, 1.0, 2.0])[:, None], 3, 1), np.arange(18.0).reshape(3, 3, 2)
    np.savez(tmp_path / "cart.npz", time=time_, qpos=qpos, ctrl=np.zeros((3, 3, 1)), diverged=np.zeros(3))
    motion = Recording.load(cart, tmp_path / "cart.npz", worlds=2)
    assert (motion.worlds, motion.duration) == (2, 1.5)
    seen = []
    for _ in range(4):
        seen.append(motion.look().qpos[0, 0])
        assert np.array_equal(motion.look().qpos[1] - motion.look().qpos[0], [2, 2])
        motion.step()
    assert seen == [0, 6, 12, 12]
    motion.reset()
    motion.advance(0.6, 1.0)
    assert motion.look().time[0] == 1.0 and motion.place == 0.6
    motion.advance(9.0, 1.0)
    assert motion.look().time[0] == 2.0
    motion.advance(0.1, 1.0)
    assert motion.place == 0.0, "from the end to the beginning"
    assert len(Recording.load(cart, tmp_path / "cart.npz").look().qpos) == 3


def test_simulations_are_those_of_step(cart: mujoco.MjModel) -> None:
    m = mjtorch.put_model(cart, dtype=torch.float64)
    d = mjtorch.batch(mjtorch.make_data(m), 2)
    motion = Live(m, d, backend="eager")
    motion.ctrl[:] = 3.0
    motion.advance(0.035, 10.0)
    wanted, one = d, torch.vmap(mjtorch.step, in_dims=(None, 0))
    for _ in range(3):
        wanted = one(m, wanted.replace(ctrl=torch.full((2, 1), 3.0, dtype=torch.float64)))
    assert np.allclose(motion.look().qpos, wanted.qpos) and np.allclose(motion.look().time, 0.03)
    motion.advance(0.006, 10.0)
    assert np.isclose(motion.look().time[0], 0.04), "what is left of a step is not lost"
    motion.advance(100.0, -1.0)
    assert np.isclose(motion.look().time[0], 0.05), "no patience: one step"
    motion.reset()
    assert not motion.look().time.any()
    steered = Live(m, d, lambda m, d: 2 + d.time[:, None], backend="eager")
    steered.step()
    assert (steered.look().ctrl == 2).all()
    with pytest.raises(ValueError, match=r"controls of shape \(2, 1\), got \(2,\)"):
        Live(m, d, lambda m, d: d.time, backend="eager").step()


def test_policies_in_files(cart: mujoco.MjModel, tmp_path: Path) -> None:
    m = mjtorch.put_model(cart)
    d = mjtorch.batch(mjtorch.make_data(m), 2).replace(qpos=torch.ones(2, 2))
    (tmp_path / "p.py").write_text("def policy(m, d):\n    return -2 * d.qpos[:, :1]\n")
    assert (load_policy(tmp_path / "p.py")(m, d) == -2).all()
    network = torch.nn.Linear(4, 1)
    batch = {0: torch.export.Dim("worlds", min=1, max=9)}
    torch.export.save(torch.export.export(network, (torch.ones(2, 4),), dynamic_shapes=(batch,)), tmp_path / "p.pt2")
    seen = torch.cat([d.qpos, d.qvel], -1)
    assert torch.allclose(load_policy(tmp_path / "p.pt2")(m, d), network(seen))


@pytest.fixture
def pages() -> Iterator[list[page.Viewer]]:
    """Those that are to be closed."""
    pytest.importorskip("viser", reason='pip install "mjtorch[view]"')
    made: list[page.Viewer] = []
    yield made
    for viewer in made:
        viewer.close()


def handles(viewer: page.Viewer) -> dict[str, Any]:
    return {group.name: handle for group, handle in viewer._handles}


def test_a_page_draws_and_answers(
    cart: mujoco.MjModel, pages: list[page.Viewer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "FRAME", 60.0)  # however slow this machine is
    m = mjtorch.put_model(cart)
    motion = Live(m, mjtorch.batch(mjtorch.make_data(m), 4), backend="eager")
    viewer = page.Viewer(cart, motion)
    pages.append(viewer)
    sphere, plane = handles(viewer)["sphere1"], handles(viewer)["plane0"]
    assert sphere.batched_positions.shape == (4, 3) and plane.batched_positions.shape == (1, 3)
    begin = sphere.batched_positions.copy()
    assert len(np.unique(begin.round(3), axis=0)) == 4, "side by side"
    viewer.tick(0.1)
    assert np.array_equal(sphere.batched_positions, begin), "paused"
    viewer._sliders[0].value = 6.0
    viewer.play()
    assert viewer._buttons["play"].label == "Pause"
    viewer.tick(0.0)  # compiles
    viewer.tick(0.1)
    moved = sphere.batched_positions - begin
    assert np.isclose(motion.look().time[0], 0.11) and (moved[:, 0] > 0.01).all() and np.allclose(moved[:, 1], 0)
    assert "playing" in viewer._status.content
    viewer._spacing.value = 0.0
    viewer._touch()
    viewer.tick(0.0)
    assert np.ptp(sphere.batched_positions[:, 0]) < 1e-6, "on top of each other"
    viewer._contacts.value = viewer._forces.value = True
    viewer._touch()
    viewer.tick(0.0)
    scene = viewer._server.scene
    assert scene.get_handle_by_name("/contacts") is not None and scene.get_handle_by_name("/forces") is not None
    viewer._contacts.value = viewer._forces.value = False
    viewer._step()
    before = motion.look().time[0]
    viewer.tick(0.5)
    assert np.isclose(motion.look().time[0], before + 0.01) and not viewer.playing
    assert scene.get_handle_by_name("/contacts") is None
    viewer._zero(), viewer._reset(), viewer.tick(0.0)
    assert viewer._sliders[0].value == 0 and viewer._status.content.startswith("t = 0.00 s, paused")


def test_a_page_of_a_recording_can_be_wound(cart: mujoco.MjModel, pages: list[page.Viewer]) -> None:
    time_ = np.linspace(0, 1, 11)[:, None]
    viewer = page.Viewer(cart, Recording(cart, time_, np.stack([time_, time_], -1)))
    pages.append(viewer)
    viewer.play()
    viewer.tick(0.25)
    assert np.isclose(viewer._timeline.value, 0.25, atol=1e-3)
    viewer.play(False)
    viewer._timeline.value = 0.7
    viewer._seek(), viewer.tick(0.0)
    assert np.allclose(handles(viewer)["sphere1"].batched_positions, [[0.7, 0, 0.79]])


def test_a_viewer_shows_what_it_is_given(cart: mujoco.MjModel, pages: list[page.Viewer]) -> None:
    viewer = mjtorch.Viewer(cart)
    pages.append(viewer)
    d = mjtorch.make_data(cart)
    viewer.show(d.replace(qpos=torch.tensor([0.5, 0.25])))
    assert np.allclose(handles(viewer)["sphere1"].batched_positions, [[0.5, 0, 0.34]])
    viewer.show(mjtorch.batch(d, 3))
    assert handles(viewer)["sphere1"].batched_positions.shape == (3, 3)
    assert viewer.url in viewer._repr_html_() and "iframe" in viewer._repr_html_()
    with pytest.raises(ValueError, match="d belongs to another model: it has 1 positions"):
        viewer.show(SimpleNamespace(**dict.fromkeys(page.looked.__globals__["FIELDS"], torch.zeros(1, 1))))


def test_a_thread_plays_and_says_what_ended_it(cart: mujoco.MjModel, pages: list[page.Viewer]) -> None:
    viewer = mjtorch.view(cart, policy=lambda m, d: d.time, play=True, backend="eager")
    pages.append(viewer)
    end = time.monotonic() + 60
    while not viewer.error and time.monotonic() < end:
        time.sleep(0.02)
    assert viewer.error.startswith("ValueError: a policy returns controls") and not viewer.playing
    assert viewer.error in viewer._status.content


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["view", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


def test_errors_are_one_line(
    cart: mujoco.MjModel, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("viser", reason='pip install "mjtorch[view]"')
    model = tmp_path / "cart.xml"
    model.write_text(CART)
    cart_xml = str(model)
    np.savez(tmp_path / "empty.npz", x=np.zeros(3))
    np.savez(tmp_path / "other.npz", time=np.zeros((3, 2)), qpos=np.zeros((3, 2, 9)))
    (tmp_path / "none.py").write_text("x = 1")
    assert "it lacks qpos, time" in error_of([cart_xml, "--trajectory", str(tmp_path / "empty.npz")], capsys)
    wrong = error_of([cart_xml, "--trajectory", str(tmp_path / "other.npz")], capsys)
    assert "qpos of shape ('steps', 'batch', 2), got (3, 2, 9)" in wrong
    assert "No such file" in error_of([cart_xml, "--trajectory", "missing.npz"], capsys)
    assert "defines no function policy" in error_of([cart_xml, "--policy", str(tmp_path / "none.py")], capsys)
    assert "a policy is FILE.py or FILE.pt2" in error_of([cart_xml, "--policy", cart_xml], capsys)
    assert "no policy 'missing.py'" in error_of([cart_xml, "--policy", "missing.py"], capsys)
    both = [cart_xml, "--trajectory", "x.npz", "--policy", "y.py"]
    assert "give no policy and no d beside it" in error_of(both, capsys)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} is taken; choose another" in error_of([cart_xml, "--port", str(port)], capsys)
    monkeypatch.setattr(page, "MOST_TRIANGLES", 100)
    assert "2 worlds of 962 triangles are more than" in error_of([cart_xml, "--worlds", "2"], capsys)
    monkeypatch.setitem(__import__("sys").modules, "viser", None)
    assert 'pip install "mjtorch[view]"' in error_of([cart_xml], capsys)
