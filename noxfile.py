"""The versions that are supported, the quick tests on each: `nox` runs all that there are Pythons for, `nox -l` lists.

nox -s "quick-3.12(mujoco='3.17', torch='2.11')"
"""

import nox

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False

PYTHONS = ("3.11", "3.12", "3.13")
TORCHES = ("2.11", "2.13", "newest")
MUJOCOS = ("3.17", "4.0")


def pinned(package: str, version: str) -> str:
    """What pip is asked for: the last of a version, or the newest there is."""
    return package if version == "newest" else f"{package}=={version}.*"


@nox.session(python=PYTHONS)
@nox.parametrize("torch", TORCHES)
@nox.parametrize("mujoco", MUJOCOS)
def quick(session: nox.Session, torch: str, mujoco: str) -> None:
    """The quick tests."""
    # Neither is to be decided elsewhere.
    session.env["PIP_CONSTRAINT"] = ""
    session.install("--upgrade", pinned("torch", torch), pinned("mujoco", mujoco), ".[test]")
    if session.python == "3.13":  # see pyproject.toml
        session.install("--no-deps", "dm_control>=1.0.50")
    session.run("python", "-c", "import torch, mujoco; print(torch.__version__, mujoco.__version__)")
    session.run("pytest", "-m", "quick", *session.posargs)
