"""What all tests share."""

import contextlib
import importlib
import os
from collections.abc import Iterator

import mujoco
import pytest
import torch

from mjtorch.compiler.cache import warm
from mjtorch.compiler.targets.cpu.build import EXTRA
from mjtorch.model.plan import forest, metric

# Builds of PyTorch for CUDA bring Triton. Its LLVM crashes if that of Mesa, which draws for some tests, came first.
with contextlib.suppress(ImportError):
    importlib.import_module("triton")

# What `pytest -m quick` runs: the ground floor, the compiler where little is built, and the stages of a few models.
# Each entry is the beginning of the names of tests. Those of `torch.compile` are slow, and have that in their names.
QUICK = (
    "tests/test_house.py",
    "tests/tree/",
    "tests/math/",
    "tests/control_flow/",
    "tests/test_random.py",
    "tests/compiler/test_jit_errors.py::test_what_cannot_be_traced",
    "tests/compiler/test_jit_errors.py::test_arguments_that_do_not_fit",
    "tests/compiler/test_jit_errors.py::test_options_that_do_not_exist",
    "tests/compiler/test_lanes.py::test_loops_that_write_at_own_places_run_world_by_world",
    "tests/compiler/test_lanes.py::test_dense_loops_stay_side_by_side",
    "tests/compiler/test_once.py::test_what_all_worlds_share_is_computed_once",
    "tests/compiler/test_once.py::test_choices_that_no_world_makes_are_skipped",
    "tests/compiler/test_passes.py",
    "tests/compiler/test_rules.py::test_every_rule_is_exercised",
    "tests/compiler/test_rules.py::test_what_has_no_rule_is_named",
    "tests/compiler/test_verify.py",
    "tests/engine/test_stages.py",
)
# Files that take minutes: begun first, such that no worker is left alone with one.
LONG = ("tests/test_notebooks.py", "tests/engine/test_modes.py", "tests/engine/test_jit.py")
QUICK_MODELS = (
    "feature/joints",
    "feature/tendon_spatial",
    "feature/contacts",
    "feature/sensors",
    "gym/hopper",
    "collection/quadruped",
)


def pytest_configure() -> None:
    # Much of the time goes into building programs, which mean the same however much they are optimised.
    os.environ.setdefault(EXTRA, "-Og")
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)  # as many processes as cores; more threads would wait for each other
    torch.manual_seed(0)  # for what is drawn when test modules are loaded
    # MuJoCo writes its warnings to a file in the working directory otherwise.
    mujoco.set_mju_user_warning(lambda message: None)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Whichever tests run before, a test draws the same numbers."""
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    for item in items:
        if is_quick(item):
            item.add_marker("quick")


def is_quick(item: pytest.Item) -> bool:
    """Whether the table has it, and it is of one of the few models if it is of any."""
    if not item.nodeid.startswith(QUICK) or "compile" in item.name or item.get_closest_marker("slow"):
        return False
    model = item.callspec.params.get("model") if hasattr(item, "callspec") else None
    return model is None or model in QUICK_MODELS


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """torch.compile has seen nothing, and counts from zero; what it saw in this test it forgets."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def band(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models have their effective inertia in a band, and are solved vertex by vertex."""
    monkeypatch.setattr(metric, "LEAST_DOFS", 0)
    monkeypatch.setattr(metric, "LEAST_BLOCKS", 0)
    monkeypatch.setattr(forest, "LEAST_DOFS", 0)


@pytest.fixture
def optimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are built as users build them."""
    monkeypatch.delenv(EXTRA)


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions are traced in this test, also where an earlier one, or an earlier run, has left their programs."""
    monkeypatch.setattr(warm, "address", lambda *_: warm.Address(why="a test counts its traces"))
