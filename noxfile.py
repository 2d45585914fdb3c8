"""The versions that are supported, the quick tests on each: `nox` runs all that there are Pythons for, `nox -l` lists.

nox -s "quick-3.12(mujoco='3.17', torch='2.11')"
nox -s stock
"""

import nox

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["quick"]

PYTHONS = ("3.11", "3.12", "3.13")
TORCHES = ("2.11", "2.13", "newest")
MUJOCOS = ("3.17", "4.0")
# But labmaze, which its suite does not import and of which 3.13 has no wheel.
DM_CONTROL_NEEDS = "absl-py dm-env dm-tree glfw lxml protobuf pyopengl pyparsing requests scipy".split()
# What stock PyTorch is promised to do: loops and branches, and steps, in each of its contexts; sizes, export, backends.
STOCK = (
    "tests/control_flow",
    "tests/engine/test_modes.py",
    "tests/engine/test_stock_compile.py",
    "tests/engine/test_aotinductor.py",
    "tests/gradient/test_settings.py",
    "tests/compiler/test_jit_stock.py",
)


def pinned(package: str, version: str) -> str:
    """What pip is asked for: the last of a version, or the newest there is."""
    return package if version == "newest" else f"{package}=={version}.*"


def install(session: nox.Session, torch: str, mujoco: str) -> None:
    """The package, with what its tests need, beside those versions."""
    # Neither is to be decided elsewhere.
    session.env["PIP_CONSTRAINT"] = ""
    session.install("--upgrade", pinned("torch", torch), pinned("mujoco", mujoco), ".[test]")
    if session.python == "3.13":  # see pyproject.toml
        session.install(*DM_CONTROL_NEEDS)
        session.install("--no-deps", "dm_control>=1.0.50")
    session.run("python", "-c", "import torch, mujoco; print(torch.__version__, mujoco.__version__)")


@nox.session(python=PYTHONS)
@nox.parametrize("torch", TORCHES)
@nox.parametrize("mujoco", MUJOCOS)
def quick(session: nox.Session, torch: str, mujoco: str) -> None:
    """The quick tests."""
    install(session, torch, mujoco)
    session.run("pytest", "-m", "quick", *session.posargs)


@nox.session(python="3.12")
@nox.parametrize("torch", TORCHES)
def stock(session: nox.Session, torch: str) -> None:
    """All of what stock PyTorch is promised to do, the slow tests included."""
    install(session, torch, MUJOCOS[-1])
    session.run("pytest", "-m", "slow or not slow", *STOCK, *session.posargs)
