"""What is said of bad input: the exception and its words, of every call, model, command and variable in the tables.

An entry of `calls.txt` is a Python expression, evaluated among the names below, and under it what it raises. One of
`commands.txt` is a command line, in a folder with the files below, perhaps behind an environment variable, and what it
prints. `...` stands for words of other libraries, for paths and for long lists.
"""

import re
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

import mjtorch
from mjtorch import envs, export, random, tree
from mjtorch.cli import main
from mjtorch.compiler.targets.exported.interface import MARK
from mjtorch.compiler.targets.exported.target import Export
from mjtorch.envs.adapters.worlds import Worlds

HERE = Path(__file__).parent
SCENE = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1"/>
    <body name="ball" pos="0 0 .3"><freejoint/><geom name="ball" size=".1"/><site name="s"/></body>
    <body name="arm" pos="1 0 1"><joint name="hinge"/><geom name="arm" type="capsule" size=".05 .2"/></body>
    <body name="target" mocap="true"><geom type="box" size=".1 .1 .1"/></body>
  </worldbody>
  <actuator><motor name="motor" joint="hinge"/></actuator>
  <sensor><jointpos name="angle" joint="hinge"/></sensor>
  <keyframe><key name="up"/></keyframe>
</mujoco>
"""
SLIDER = '<mujoco><worldbody><body><joint name="j" type="slide"/><geom size=".1"/></body></worldbody>{}</mujoco>'
REFUSED = """<asset><mesh name="m" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/></asset>
<worldbody><site name="s" type="mesh" mesh="m"/></worldbody><sensor><touch name="feel" site="s"/></sensor>"""
FILES = {
    "broken.xml": "<mujoco>\n<worldbody>",
    "broken.mjb": "<mujoco>\n<worldbody>",
    "empty.xml": "",
    "nan.xml": SLIDER.replace('".1"', '"nan"'),
    "include.xml": '<mujoco><include file="nowhere.xml"/></mujoco>',
    "mesh.xml": '<mujoco><asset><mesh name="a" file="nowhere.obj"/></asset></mujoco>',
    "refused.xml": SLIDER.format(REFUSED),
    "file": "",
}
ENTRY = re.compile(r"(?P<given>\S.*)\n(?P<says>(?: {4}.*\n)+)")


def entries(name: str) -> list[Any]:
    """What is given and what is said of it."""
    found = ENTRY.findall((HERE / name).read_text() + "\n")
    return [pytest.param(given, re.sub("^ {4}", "", says, flags=re.MULTILINE), id=given[:80]) for given, says in found]


def check(said: str, wanted: str) -> None:
    pattern = ".*".join(re.escape(part) for part in wanted.strip().split("..."))
    assert re.fullmatch(pattern, said.strip()), said


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What an expression may use."""
    mj_model = mujoco.MjModel.from_xml_string(SCENE)
    m = mjtorch.put_model(mj_model)
    d = mjtorch.make_data(m)
    other = mujoco.MjModel.from_xml_string(SLIDER.format(""))
    env = envs.make("Hopper-v5")
    key = random.key(0)
    given = SimpleNamespace(
        mj_model=mj_model,
        mj_data=mujoco.MjData(mj_model),
        m=m,
        d=d,
        known=mjtorch.forward(m, d),
        many=mjtorch.batch(d, 3),
        other_mj_model=other,
        other_m=mjtorch.put_model(other),
        other_d=mjtorch.make_data(other),
        env=env,
        task=env.task,
        state=env.task.reset(key),
        key=key,
        option=lambda **changes: m.replace(opt=m.opt.replace(**changes)),
        slider=slider,
        double=double,
        zeros=torch.zeros,
        ones=torch.ones,
        tensor=torch.tensor,
        torch=torch,
        np=np,
        mujoco=mujoco,
        tree=tree,
        random=random,
        envs=envs,
        cf=mjtorch.control_flow,
        export_step=export.export_step,
        Worlds=Worlds,
        nan=float("nan"),
        inf=float("inf"),
    )
    public = {name: getattr(mjtorch, name) for name in mjtorch.__all__}
    return public | vars(given)


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def slider(more: str, **options: Any) -> mujoco.MjModel:
    """A model with more elements, or other options."""
    mj_model = mujoco.MjModel.from_xml_string(SLIDER.format(more))
    for name, value in options.items():
        setattr(mj_model.opt, name, value)
    return mj_model


@pytest.mark.parametrize("call, says", entries("calls.txt"))
def test_calls(call: str, says: str, names: dict[str, Any]) -> None:
    kind, _, words = says.partition(": ")
    with pytest.raises(Exception) as raised:
        eval(call, names)
    assert type(raised.value).__name__ == kind, raised.value
    # Python shows a KeyError in quotes
    check(str(raised.value.args[0] if kind == "KeyError" else raised.value), words)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with files that are no good."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MJTORCH_CACHE_DIR", str(tmp_path / "cache"))
    for name, text in FILES.items():
        Path(name).write_text(text)
    mujoco.mj_saveModel(mujoco.MjModel.from_xml_string(SCENE), "good.mjb")
    good = Path("good.mjb").read_bytes()
    Path("cut.mjb").write_bytes(good[: len(good) // 2])
    Path("huge.mjb").write_bytes(good[:20] + b"\xff" * 40 + good[60:])
    np.save("shape.npy", np.zeros(3))
    np.save("words.npy", np.array(["a", "b", "c", "d"]))
    np.save("objects.npy", np.array([{}], dtype=object))
    np.save("complex.npy", np.zeros(4, dtype=complex))
    np.save("nan.npy", np.full(4, np.nan))
    np.savez("archive.npz", np.zeros(4))
    Path("empty.npy").touch()
    Path("cut.npy").write_bytes(Path("shape.npy").read_bytes()[:-10])
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117) + b"\n"
    Path("tera.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    Path("open").mkdir()
    Path("open").chmod(0o777)
    return tmp_path


@pytest.mark.parametrize("command, says", entries("commands.txt"))
def test_commands(
    command: str, says: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    variable, _, rest = command.rpartition(" $ ")
    if variable:
        monkeypatch.setenv(*variable.split("=", 1))
    try:
        code = main(rest.split())
    except SystemExit as leaving:  # what argparse refuses
        code = leaving.code
    printed = capfd.readouterr()
    assert code == 2 and not printed.out
    lines = [line for line in printed.err.splitlines() if line and not line.startswith("WARNING")]  # MuJoCo's
    assert len(lines) == 1, printed.err
    check(lines[0], says)


def test_every_entry_is_read() -> None:
    for name in ("calls.txt", "commands.txt"):
        text = (HERE / name).read_text()
        given = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
        assert len(entries(name)) == len(given) == len(set(given))
    assert len(entries("calls.txt")) + len(entries("commands.txt")) >= 200


@pytest.fixture
def exported() -> Export:
    """What says that an export wrote it, and is not worth compiling."""
    return Export("x", f"// {MARK}\n", f"// {MARK}\n")


@pytest.mark.parametrize("name", ["main.cpp", "main.h"])
def test_files_of_others_are_not_overwritten(name: str, exported: Export, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(FileExistsError, match=re.escape("is there and was not exported; choose another name")):
        exported.write(tmp_path / "main.cpp")
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]
    assert (tmp_path / name).read_text() == "mine"
    exported.write(tmp_path / "main.cpp", overwrite=True)
    exported.write(tmp_path / "main.cpp")  # its own, again
    assert (tmp_path / name).read_text() != "mine"


def test_links_are_not_followed(exported: Export, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "main.cpp").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError, match="choose another name"):
        exported.write(tmp_path / "main.cpp")
    assert (tmp_path / "target").read_text() == "mine"
