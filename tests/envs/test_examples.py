"""The environment of the examples is Gymnasium's, and what their page says runs."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from mjtorch import envs, random, tree

FOLDER = Path(__file__).parents[2] / "examples" / "environments"


def test_half_cheetah_in_25_lines() -> None:
    file = FOLDER / "half_cheetah.py"
    spec = importlib.util.spec_from_file_location("half_cheetah", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith(('"""', "import", "from"))]
    assert len(lines) <= 25
    ready = envs.make("HalfCheetah-v5", dtype=torch.float64).task
    own = module.HalfCheetah.of(ready.m, frame_skip=5)
    found, wanted = (torch.vmap(envs.reset, in_dims=(None, 0))(e, random.split(random.key(0), 2)) for e in (own, ready))
    for _ in range(2):
        actions = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(2, 6)
        found, wanted = (
            torch.vmap(envs.step, in_dims=(None, 0, 0))(e, s, actions) for e, s in ((own, found), (ready, wanted))
        )
        assert torch.equal(found.obs, wanted.obs)
        torch.testing.assert_close(found.reward, wanted.reward)


def test_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    example = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), flags=re.DOTALL)[0]
    small = example.replace("range(100)", "range(1)").replace("mjtorch.jit", "torch.vmap")
    assert small != example
    found: dict = {}
    exec(compile(small, "README.md", "exec"), found)
    assert found["state"].obs.shape == (64, 17) and tree.leaves(found["state"].info)


def test_the_page_names_what_there_is() -> None:
    text = (FOLDER / "README.md").read_text()
    named = set(re.findall(r"`([A-Z]\w+)`", text)) - {"State", "Data", "Task"}
    assert named <= set(envs.__all__)
    wrappers = {name for name in envs.__all__ if isinstance(getattr(envs, name), type)} - {"Env", "State", "Task"}
    assert wrappers - {"Wrapper"} <= named
