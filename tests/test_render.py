"""Pictures of worlds: which are drawn, where, and what is said where none can be."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from hypothesis import given, strategies

import mjtorch
from mjtorch.render import picture, tile, worker

# A ball on a rail, red before white, seen from the side; 0.5 m are an eighth of the height.
XML = """
<mujoco>
  <visual><headlight ambient="1 1 1" diffuse="0 0 0" specular="0 0 0"/></visual>
  <worldbody>
    <camera name="side" pos="0 -5 0" xyaxes="1 0 0 0 0 1" projection="orthographic" fovy="4"/>
    <camera name="top" pos="0 0 5" projection="orthographic" fovy="4"/>
    <geom type="box" size="9 0.1 9" pos="0 3 0" rgba="1 1 1 1" contype="0" conaffinity="0"/>
    <body><joint type="slide" axis="1 0 0"/><geom size="0.3" rgba="1 0 0 1"/></body>
  </worldbody>
</mujoco>
"""
# Draws frames whose every number is the position, times ten for the second camera.
GREY = """
import json, struct, sys
size = 3 * int(sys.argv[2]) * int(sys.argv[3])
print("ready", flush=True)
while line := sys.stdin.buffer.readline():
    (x,) = struct.unpack("d", sys.stdin.buffer.read(8))
    if x < 0:
        sys.exit("error: negative")
    sys.stdout.buffer.write(bytes([int(10 * x if json.loads(line) == 1 else x)]) * size)
    sys.stdout.buffer.flush()
"""


@pytest.fixture(scope="module")
def rail() -> tuple[mujoco.MjModel, mjtorch.Data]:
    """The model, and four worlds at 0, 1, 2 and 3 m."""
    mj_model = mujoco.MjModel.from_xml_string(XML)
    d = mjtorch.batch(mjtorch.make_data(mjtorch.put_model(mj_model)), 4)
    return mj_model, d.replace(qpos=torch.arange(4.0)[:, None])


@pytest.fixture
def grey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that needs no OpenGL."""
    script = tmp_path / "grey.py"
    script.write_text(GREY)
    monkeypatch.setattr(picture, "WORKER", script)


@pytest.mark.usefixtures("grey")
def test_worlds_cameras_and_sizes(rail: Any) -> None:
    mj_model, d = rail
    with mjtorch.Renderer(mj_model, size=(2, 5)) as renderer:
        assert renderer(d).shape == (4, 2, 5, 3) and renderer(d).dtype == np.uint8
        assert renderer(d)[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
        assert renderer(d, worlds=(3, 1, -1))[:, 1, 4, 2].tolist() == [3, 1, 3]
        assert renderer(d, worlds=range(2), camera="top")[:, 1, 4, 2].tolist() == [0, 10]
        assert renderer(d, worlds=2).shape == (2, 5, 3) and (renderer(d[2], camera="side") == 2).all()
    assert mjtorch.render(mj_model, d, size=(2, 5), grid=True)[:, [0, 9], 0].tolist() == [[0, 1]] * 2 + [[2, 3]] * 2


@pytest.mark.usefixtures("grey")
def test_a_process_that_ends_is_an_error(rail: Any) -> None:
    mj_model, d = rail
    with mjtorch.Renderer(mj_model, size=(2, 5)) as renderer:
        for _ in range(2):
            with pytest.raises(mjtorch.RenderError, match="make another Renderer"):
                renderer(d[:1].replace(qpos=-torch.ones(1, 1)))


@pytest.mark.parametrize("gl", ["disable", None])
def test_what_is_drawn(gl: str | None, rail: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ball is where it should be, in colour and in light; or one line says why there is no picture."""
    mj_model, d = rail
    if gl:
        monkeypatch.setenv("MUJOCO_GL", gl)
    said = ""
    try:
        frames = mjtorch.render(mj_model, d, worlds=[0, 1], size=(64, 96))
    except mjtorch.RenderError as error:
        said = str(error)
    if said:
        assert said.startswith("render: this machine cannot draw; ") and "\n" not in said
        return
    assert gl is None
    reds = (frames[..., 0] > 200) & (frames[..., 1] < 60)
    for red, x in zip(reds, (0, 1), strict=True):
        row, column = (places.mean() for places in red.nonzero())
        assert abs(row - 31.5) < 1.5 and abs(column - (47.5 + 16 * x)) < 1.5
    assert (frames[:, 0, 0] > 240).all(), "what is white in full light"


def test_a_quick_picture_is_much_the_same(rail: Any) -> None:
    """Where there is no GPU, without what takes long."""
    mj_model, d = rail
    pose = tuple(x[:1] for x in picture._poses(mj_model, d, None))
    frames = []
    for quick in (False, True):
        try:
            with mjtorch.Renderer(mj_model, size=(64, 96), quick=quick) as renderer:
                frames.append(renderer.poses(*pose).astype(float))
        except mjtorch.RenderError as error:
            pytest.skip(str(error))
    assert 0 < np.abs(frames[0] - frames[1]).mean() < 5, "but for the edge of the ball"


@pytest.mark.parametrize(
    "name", ["llvmpipe (LLVM 15.0.6, 256 bits)", "SwiftShader 4.0", "NVIDIA H100/PCIe", "Apple M1"]
)
def test_what_has_no_gpu_is_known_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "OpenGL.GL", SimpleNamespace(GL_RENDERER=1, glGetString=lambda _: name.encode()))
    assert worker.has_no_gpu() == name.startswith(("llvmpipe", "SwiftShader"))


LIGHTS = {
    "none": ("", True),
    "one that is off": ('<light active="false"/>', True),
    "one": ("<light/>", False),
}


@pytest.mark.parametrize("case", LIGHTS)
def test_a_model_without_lights_gets_one(case: str) -> None:
    light, wanted = LIGHTS[case]
    visual = '<visual><headlight active="0"/></visual>'
    mj_model = mujoco.MjModel.from_xml_string(f"<mujoco>{visual}<worldbody>{light}</worldbody></mujoco>")
    worker.prepare(mj_model, 2000, 30)
    head = mj_model.vis.headlight
    assert head.active == wanted and (head.ambient.min() >= 0.4) == wanted and (head.diffuse.min() >= 0.6) == wanted
    assert mj_model.vis.global_.offheight == 2000 and mj_model.vis.global_.offwidth >= 30


@given(strategies.integers(1, 20))
def test_tiles(count: int) -> None:
    frames = np.arange(1, count + 1, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 3, 3), np.uint8)
    whole = tile(frames)
    rows, columns = whole.shape[0] // 2, whole.shape[1] // 3
    assert rows * columns - count < columns and columns - 1 <= rows <= columns
    assert whole[::2, ::3, 0].flatten().tolist() == [*range(1, count + 1), *[0] * (rows * columns - count)]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a Model": ({"mj_model": "m"}, "got a Model; give the one that it was made of"),
    "another model": ({"mj_model": "other"}, "d belongs to another model: it has 1 positions"),
    "size": ({"size": (0, 10)}, "two positive ints, got (0, 10)"),
    "a world too many": ({"worlds": [4]}, "worlds must be within the 4 of d, got [4]"),
    "no world": ({"worlds": []}, "worlds must be an int or some, got []"),
    "worlds of one": ({"d": "one", "worlds": [0]}, "d is one world"),
    "unknown camera": ({"camera": "sid"}, "has no camera 'sid'; did you mean 'side'?"),
    "camera too many": ({"camera": 2}, "the model has 2 cameras, and no number 2"),
}


@pytest.mark.usefixtures("grey")
@pytest.mark.parametrize("case", WRONG)
def test_errors_say_what_to_do(case: str, rail: Any) -> None:
    mj_model, d = rail
    changes, words = WRONG[case]
    others = {"m": mjtorch.put_model(mj_model), "other": mjtorch.models.load("hopper"), "one": d[0]}
    arguments = {"mj_model": mj_model, "d": d, "size": (2, 2)} | changes
    arguments = {name: others[x] if isinstance(x, str) and x in others else x for name, x in arguments.items()}
    with pytest.raises((TypeError, ValueError, IndexError)) as caught:
        mjtorch.render(arguments.pop("mj_model"), arguments.pop("d"), **arguments)
    assert words in str(caught.value)
