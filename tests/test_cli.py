"""The `mjtorch` command: what it writes, what it says, and what it says when something is wrong."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mjtorch import models
from mjtorch.cli import main, picture
from mjtorch.compiler.lower import RULES
from mjtorch.render import picture as render

FREE_BALL = """
<mujoco model="ball">
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <body pos="0 0 0.3"><joint type="free"/><geom size="0.1"/></body>
  </worldbody>
</mujoco>
"""
UNSUPPORTED = """
<mujoco>
  <asset><mesh name="wedge" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/></asset>
  <worldbody>
    <body><joint name="slide" type="slide"/><geom name="ball" type="sphere" size="0.1"/></body>
    <site name="skin" type="mesh" mesh="wedge"/>
  </worldbody>
  <sensor><touch name="feel" site="skin"/></sensor>
</mujoco>
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rollout(*arguments: str) -> int:
    return main(["rollout", *arguments])


def error_line(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The one line on stderr of a command that ends with exit code 2."""
    try:
        code = main(arguments)
    except SystemExit as leaving:
        code = leaving.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.endswith("\n")
    assert captured.err.count("\n") == 1, captured.err
    assert "error: " in captured.err
    return captured.err


@pytest.mark.parametrize("arguments", [[], ["rollout"], ["info"], ["compile"], ["debug"], ["models"]], ids=" ".join)
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([*arguments, "--help"])
    assert leaving.value.code == 0
    assert "usage: mjtorch" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["--version"])
    assert leaving.value.code == 0
    assert capsys.readouterr().out.startswith("mjtorch ")


def test_models_lists_the_collection(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    assert tuple(capsys.readouterr().out.split()) == models.names()


def test_rollout_writes_the_trajectory(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rollout("hopper", "--batch", "3", "--steps", "4", "--no-picture") == 0
    assert [file.name for file in (elsewhere / "rollouts").iterdir()] == ["hopper.npz"]
    mj_model = models.load("hopper")
    with np.load(elsewhere / "rollouts" / "hopper.npz") as file:
        shapes = {name: file[name].shape for name in file}
        assert shapes == {
            "time": (4, 3),
            "qpos": (4, 3, mj_model.nq),
            "qvel": (4, 3, mj_model.nv),
            "ctrl": (4, 3, mj_model.nu),
            "sensordata": (4, 3, mj_model.nsensordata),
            "diverged": (3,),
        }
        assert all(np.isfinite(file[name]).all() for name in file)
        assert np.allclose(file["time"][:, 0], mj_model.opt.timestep * np.arange(1, 5))
        assert len(np.unique(file["qpos"][0, :, 0])) == 3, "the worlds start alike"
        assert file["ctrl"].any()
    captured = capsys.readouterr()
    assert "3 worlds x 4 steps" in captured.out
    assert "real time" in captured.out
    assert "diverged: 0 of 3 worlds" in captured.out
    assert "overflow: none" in captured.out
    for words in ("compiling:", "simulating:", "4/4"):
        assert words in captured.err, "no progress bar"


def test_rollout_of_a_file_draws_a_picture(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "ball.xml").write_text(FREE_BALL)
    assert rollout("ball.xml", "--batch", "2", "--steps", "3", "--dtype", "float64", "--output", "out") == 0
    pictures = [file for file in (elsewhere / "out").iterdir() if file.suffix != ".npz"]
    assert len(pictures) == 1
    assert pictures[0].stat().st_size > 0
    captured = capsys.readouterr()
    assert f"picture: {Path('out') / pictures[0].name}" in captured.out
    if pictures[0].suffix == ".mp4":  # else this machine cannot render
        assert "(2 worlds, 5.0 s, 0.0008 x real time)" in captured.out
        assert "rendering:" in captured.err
    assert "overflow: none, nothing touched" in captured.out or "slots of a world" in captured.out
    with np.load(elsewhere / "out" / "ball.npz") as file:
        assert file["qpos"].dtype == np.float64


def test_rollout_repeats_with_the_seed(elsewhere: Path) -> None:
    runs = []
    for folder, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        rollout("hopper", "--batch", "2", "--steps", "2", "--no-picture", "--seed", seed, "--output", folder)
        with np.load(elsewhere / folder / "hopper.npz") as file:
            runs.append((file["qpos"], file["ctrl"]))
    for i in range(2):
        assert np.array_equal(runs[0][i], runs[1][i])
        assert not np.array_equal(runs[0][i], runs[2][i])


@pytest.mark.parametrize("shape", [(4,), (3, 4), (3, 2, 4)])
def test_rollout_takes_controls(elsewhere: Path, shape: tuple[int, ...]) -> None:
    controls = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    np.save("controls.npy", controls)
    assert rollout("hopper", "--batch", "2", "--steps", "3", "--ctrl", "controls.npy", "--no-picture") == 0
    with np.load(elsewhere / "rollouts" / "hopper.npz") as file:
        wanted = controls[:, None] if controls.ndim == 2 else controls
        assert np.array_equal(file["ctrl"], np.broadcast_to(wanted, (3, 2, 4)))


def test_zero_controls(elsewhere: Path) -> None:
    assert rollout("hopper", "--batch", "1", "--steps", "2", "--ctrl", "zero", "--no-picture") == 0
    with np.load(elsewhere / "rollouts" / "hopper.npz") as file:
        assert not file["ctrl"].any()


def test_rollout_counts_dropped_contacts(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "ball.xml").write_text(FREE_BALL.replace("0 0 0.3", "0 0 0.05"))
    few = ("ball.xml", "--batch", "2", "--steps", "2", "--no-picture", "--contact-capacity", "0", "--on-overflow")
    with pytest.warns(RuntimeWarning, match="2 contacts of 2 worlds found none of 0 slots and were left out"):
        assert rollout(*few, "warn") == 0
    assert "overflow: 4 contacts of 2 worlds" in capsys.readouterr().out
    assert rollout(*few, "error") == 2
    assert "2 contacts of 2 worlds found none of 0 slots; give" in capsys.readouterr().err
    with pytest.warns(RuntimeWarning, match="there are 1 from now on"):
        assert rollout(*few, "grow") == 0
    assert "overflow: none, all contacts found one of the 1 slots" in capsys.readouterr().out


def test_rollout_counts_diverged_worlds(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    controls = np.zeros((3, 2, 4))
    controls[:, 1] = 9e9  # anything beyond 1e10 is bad and would be set to zero
    np.save("controls.npy", controls)
    unlimited = models.path("hopper").read_text().replace('ctrlrange="-1 1"', "")
    (elsewhere / "wild.xml").write_text(unlimited)
    assert rollout("wild.xml", "--batch", "2", "--steps", "3", "--no-picture", "--ctrl", "controls.npy") == 0
    assert "diverged: 1 of 2 worlds" in capsys.readouterr().out
    np.save("controls.npy", controls[:, 1])
    assert rollout("wild.xml", "--batch", "2", "--steps", "3", "--ctrl", "controls.npy") == 1, "all worlds diverged"


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "humanoid"]) == 0
    text = capsys.readouterr().out
    for words in ("nv 27", "nu 21", "contact slots", "hinge"):
        assert words in text


def test_info_of_what_is_not_supported(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "model.xml").write_text(UNSUPPORTED)
    assert main(["info", "model.xml"]) == 0
    assert "cannot be simulated" in capsys.readouterr().out
    line = error_line(capsys, ["rollout", "model.xml"])
    assert "not supported" in line
    assert "feel" in line


def test_debug(elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "ball.xml").write_text(FREE_BALL.replace("0 0 0.3", "0 0 0.1"))
    command = ["debug", "ball.xml", "--steps", "500", "--batch", "3"]
    assert main(command) == 0
    captured = capsys.readouterr()
    assert "ball: 3 worlds after 500 steps of C MuJoCo, with 1 to 1 contacts, float64" in captured.out
    assert "all steps agree, and all results are finite" in captured.out
    assert re.search(r"cpu: 100%.* (\d+)/\1 ", captured.err), "no progress bar"
    monkeypatch.setitem(RULES, "sqrt", lambda low, node, x: low.elementwise("exp", x))
    assert main([*command, "--target", "warp"]) == 1
    assert "\nlower: " in capsys.readouterr().out


def test_a_rollout_takes_five_seconds_if_not_told(elsewhere: Path) -> None:
    slow = FREE_BALL.replace("<worldbody>", '<option timestep="0.5"/><worldbody>', 1)
    (elsewhere / "slow.xml").write_text(slow)
    assert rollout("slow.xml", "--batch", "1", "--no-picture", "--backend", "eager") == 0
    with np.load(elsewhere / "rollouts" / "slow.npz") as file:
        assert file["time"].shape == (10, 1) and np.allclose(file["time"][-1], 5.0)


def test_a_model_without_contacts_has_no_slots_to_speak_of(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "air.xml").write_text(FREE_BALL.replace('<geom type="plane" size="1 1 1"/>', ""))
    assert rollout("air.xml", "--batch", "1", "--steps", "1", "--no-picture", "--backend", "eager") == 0
    assert "overflow: none, nothing touched\n" in capsys.readouterr().out


@pytest.mark.parametrize("command", [[], ["rollout"], ["info"], ["compile"], ["diagnose"], ["debug"]], ids=" ".join)
def test_bare_commands_print_their_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(command)
    assert leaving.value.code == 2
    captured = capsys.readouterr()
    assert captured.out.startswith(" ".join(["usage: mjtorch", *command])) and "options:" in captured.out
    assert not captured.err


def test_bare_cache_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.startswith("directory ")


def states(steps: int = 5, batch: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Time, qpos and qvel of hoppers that hang in the air."""
    mj_model = models.load("hopper")
    time = np.repeat(0.1 * np.arange(steps)[:, None], batch, axis=1)
    return time, np.zeros((steps, batch, mj_model.nq)), np.ones((steps, batch, mj_model.nv))


@pytest.mark.parametrize("gl", ["disable", "nonsense"])
def test_picture_is_a_plot_without_opengl(gl: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", gl)
    drawn = picture.draw(models.load("hopper"), *states(), [0], tmp_path / "hopper")
    assert drawn.file == tmp_path / "hopper.png"
    assert drawn.file.read_bytes().startswith(b"\x89PNG")
    assert "a plot of world 0; render: this machine cannot draw" in drawn.what


def test_picture_survives_an_abort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "abort.py"
    script.write_text("import os; os.abort()")
    monkeypatch.setattr(render, "WORKER", script)
    assert picture.draw(models.load("hopper"), *states(), [1], tmp_path / "hopper").file.suffix == ".png"


def test_picture_of_a_diverged_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "disable")
    time, qpos, qvel = states()
    qpos[2:], qvel[2:] = np.nan, np.inf
    assert picture.draw(models.load("hopper"), time, qpos, qvel, [0], tmp_path / "hopper").file.is_file()


def test_help_does_not_load_the_engine() -> None:
    code = (
        "import sys\nfrom mjtorch.cli import main\n"
        "try: main(['rollout', '--help'])\nexcept SystemExit: pass\n"
        "sys.exit(bool({'matplotlib', 'imageio', 'mjtorch.cli.rollout'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=True, capture_output=True)
