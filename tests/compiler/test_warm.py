"""The warm start: a function is not traced again by a later process, and never mistaken for another."""

import dataclasses
import functools
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import mujoco
import optree
import pytest
import torch

import mjtorch
from mjtorch import tree
from mjtorch.compiler.cache import fingerprint, plain, store as cache, warm
from mjtorch.compiler.lowered import Output
from mjtorch.compiler.targets.cpu.build import BuildError, compiler
from mjtorch.model import Integrator
from mjtorch.smooth import energy

PENDULUM = """
<mujoco><worldbody><body pos="0 0 1"><joint type="hinge" axis="0 1 0" damping="0.1"/><geom size="0.1" pos="0 0 0.3"/>
</body></worldbody></mujoco>
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, mjtorch.Data]:
    """A cache that knows `energy_vel` of five pendulums, and its result."""
    try:
        compiler()
    except BuildError:
        pytest.skip("no C++ compiler")
    path = tmp_path_factory.mktemp("filled") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.DIRECTORY, str(path))
        cold = jitted()
        result = cold(*pendulum())
        assert cold.traces == 1
    return path, result


@pytest.fixture
def expected(filled: tuple[pathlib.Path, mjtorch.Data]) -> mjtorch.Data:
    """What `energy_vel` of five pendulums is."""
    return filled[1]


@pytest.fixture(autouse=True)
def own_cache(
    filled: tuple[pathlib.Path, mjtorch.Data], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    """A copy of that cache for each test."""
    shutil.copytree(filled[0], tmp_path / "cache")
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "cache"))
    return tmp_path / "cache"


@functools.cache
def pendulum(xml: str = PENDULUM) -> tuple[mjtorch.Model, mjtorch.Data]:
    m = mjtorch.put_model(mujoco.MjModel.from_xml_string(xml), dtype=torch.float64)
    d = mjtorch.batch(mjtorch.make_data(m), 5)
    d = d.replace(qvel=torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None], M=torch.full_like(d.M, 2.0))
    return m, d


def jitted(f: Callable[..., Any] = mjtorch.energy_vel) -> Any:
    """As a new process would have it."""
    return mjtorch.jit(f, in_dims=(None, 0), strict=True)


def assert_same(a: Any, b: Any) -> None:
    assert optree.tree_structure(a, namespace=tree.NAMESPACE) == optree.tree_structure(b, namespace=tree.NAMESPACE)
    for (path, x), y in zip(tree.leaves_with_path(a), tree.leaves(b), strict=True):
        assert x.dtype == y.dtype and torch.equal(x, y), path


# --- starting warm ----------------------------------------------------------------------------------------------------

PROCESS = """
import hashlib, json, sys, mujoco, torch, mjtorch
m = mjtorch.put_model(mujoco.MjModel.from_xml_string(sys.argv[1]), dtype=torch.float64)
d = mjtorch.batch(mjtorch.make_data(m), 5)
d = d.replace(qpos=torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None])
step = mjtorch.jit(mjtorch.step, in_dims=(None, 0), strict=True)
d = step(m, step(m, d))
gain = {"kp": torch.tensor(3.0, dtype=torch.float64), "limits": [-1.0, 1.0]}
def control(x):
    return (-gain["kp"] * x).clamp(*gain["limits"])
@mjtorch.tree.dataclass
class State:
    d: mjtorch.Data
    reward: torch.Tensor
    steps: int = mjtorch.tree.field(static=True)
def env_step(state):
    d = mjtorch.kinematics(m, state.d.replace(qfrc_applied=control(state.d.qpos)))
    return State(d, -d.qpos.sum(), state.steps), {"obs": d.xpos}
mine = mjtorch.jit(env_step, strict=True)
state, info = mine(State(d, torch.zeros(5), 3))
assert state.steps == 3 and len(mine.programs) == 1
digest = hashlib.sha256(b"".join(x.contiguous().numpy().tobytes() for x in mjtorch.tree.leaves(d))).hexdigest()
print(json.dumps({"traces": step.traces + mine.traces, "digest": digest, "why": mine.why_cold}))
"""


def test_a_second_process_compiles_and_traces_nothing(own_cache: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Also where libraries lie in several folders, as some of robotics do: sets of these have no order."""
    places = [str(tmp_path / f"{k}-packages") for k in range(4)]
    path = os.pathsep.join([*places, os.environ.get("PYTHONPATH", "")])
    results, libraries = [], []
    for seed in "01":
        done = subprocess.run(
            [sys.executable, "-W", "error::RuntimeWarning", "-c", PROCESS, PENDULUM],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
        )
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
        libraries.append(sorted(own_cache.glob("*.so")))
    cold, again = results
    assert (cold["traces"], again["traces"], again["why"]) == (2, 0, [])
    assert cold["digest"] == again["digest"]
    assert libraries[0] == libraries[1]  # a program is printed alike by every process


def test_the_result_is_the_same(expected: mjtorch.Data) -> None:
    m, d = pendulum()
    assert expected.energy[:, 1].unique().numel() == 3
    again = jitted()
    assert_same(again(m, d), expected)
    assert_same(again(m, d), expected)
    assert again.traces == 0


def test_a_warm_function_can_still_be_lowered() -> None:
    m, d = pendulum()
    text = jitted().lower(m, d).as_text()
    again = jitted()
    again(m, d)
    assert again.lower(m, d).as_text() == text
    assert again.traces == 1


def first(n: int, x: Any) -> Any:
    return tree.map(lambda leaf: leaf[:n], x)


def test_few_and_many_worlds_have_records_of_their_own(expected: mjtorch.Data) -> None:
    m, d = pendulum()
    cold, again = jitted(), jitted()
    assert_same(cold(m, first(1, d)), first(1, expected))
    assert cold.traces == 1
    assert_same(again(m, first(1, d)), first(1, expected))
    assert_same(again(m, d), expected)
    assert again.traces == 0


def test_other_numbers_start_warm(expected: mjtorch.Data) -> None:
    _, d = pendulum()
    heavier, _ = pendulum(PENDULUM.replace('damping="0.1"', 'damping="0.3"'))
    again = jitted()
    assert_same(again(heavier, first(4, d)), first(4, expected))
    assert again.traces == 0


def test_functions_of_others_start_warm(expected: mjtorch.Data) -> None:
    m, d = pendulum()

    def with_offset(offset: torch.Tensor) -> Any:
        return jitted(lambda m, d: mjtorch.energy_vel(m, d).replace(energy=d.energy + offset))

    first, again, other = map(with_offset, (torch.ones(2), torch.ones(2), torch.zeros(2)))
    assert_same(first(m, d), again(m, d))
    assert first.traces == 1 and again.traces == 0
    assert not torch.equal(other(m, d).energy, again(m, d).energy)
    assert other.traces == 1


def test_what_is_changed_in_place_is_noticed_after_a_warm_start() -> None:
    offset = torch.ones(3)
    unused = torch.ones(3)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + offset if offset.shape == unused.shape else x

    x = torch.zeros(5, 3)
    mjtorch.jit(f, strict=True)(x)
    again = mjtorch.jit(f, strict=True)
    again(x)
    assert again.traces == 0
    unused.add_(1)
    assert torch.equal(again(x), x + 1) and again.traces == 0
    offset.add_(1)
    with pytest.warns(RuntimeWarning, match="changed in place"):
        assert torch.equal(again(x), x + 2)
    assert again.traces == 1
    offset.requires_grad_()
    with pytest.raises(RuntimeError, match="requires grad"):
        again(x)


def test_what_has_no_key_says_why(caplog: pytest.LogCaptureFixture) -> None:
    lock = threading.Lock()

    def f(x: torch.Tensor) -> torch.Tensor:
        return x if lock.locked() else x + 1

    cold = mjtorch.jit(f, strict=True)
    with caplog.at_level("DEBUG", logger=warm.LOG.name):
        cold(torch.zeros(5))
    assert cold.why_cold == ["captures an instance of _thread.lock (at lock)"]
    assert "jit(f): no key: captures an instance of _thread.lock" in caplog.text
    assert jitted().why_cold == []


class Point(NamedTuple):
    """A result of a class that is not mjtorch's."""

    x: torch.Tensor
    y: torch.Tensor


def test_results_of_other_classes_come_back() -> None:
    def f(x: torch.Tensor) -> Any:
        return Point(x + 1, (x, [Point(x, x)]))  # type: ignore[arg-type]

    x = torch.zeros(5, 3)
    expected = mjtorch.jit(f, strict=True)(x)
    again = mjtorch.jit(f, strict=True)
    assert_same(again(x), expected)
    assert type(again(x)) is Point and again.traces == 0


# --- trouble ----------------------------------------------------------------------------------------------------------


def record() -> pathlib.Path:
    (found,) = [e.path for e in cache.entries() if e.path.suffix == ".program"]
    return found


def test_a_truncated_record_is_made_anew(expected: mjtorch.Data) -> None:
    m, d = pendulum()
    record().write_text(record().read_text()[:100])
    again = jitted()
    with pytest.warns(RuntimeWarning, match="damaged.*made anew"):
        assert_same(again(m, d), expected)
    assert again.traces == 1
    third = jitted()
    third(m, d)
    assert third.traces == 0


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"class": "os:system", "fields": []}', b'{"dtype": "load"}', b"\xff"]
)
def test_a_record_of_something_else_is_made_anew(expected: mjtorch.Data, content: bytes) -> None:
    m, d = pendulum()
    cache.save(record().name, content)
    again = jitted()
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert_same(again(m, d), expected)
    assert again.traces == 1


def test_a_record_without_its_library_is_of_no_use(expected: mjtorch.Data) -> None:
    m, d = pendulum()
    for entry in cache.entries():
        if entry.path.suffix == ".so":
            cache.forget(entry.path)
    again = jitted()
    assert_same(again(m, d), expected)
    assert again.traces == 1


def test_a_library_that_is_another_is_not_used(expected: mjtorch.Data) -> None:
    m, d = pendulum()
    name = json.loads(record().read_text())["fields"][0]["fields"][3]
    cache.save(name, (record().parent / name).read_bytes() + b"\0")
    again = jitted()
    with pytest.warns(RuntimeWarning, match="not what was compiled"):
        assert_same(again(m, d), expected)
    third = jitted()
    third(m, d)
    assert (again.traces, third.traces) == (1, 0)


def test_without_a_directory_it_is_traced(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "file"))
    m, d = pendulum()
    f = jitted()
    with pytest.warns(RuntimeWarning, match="each process compiles for itself"):
        f(m, d)
    assert f.traces == 1


# --- what a program follows from --------------------------------------------------------------------------------------


def address(f: Callable[..., Any] = mjtorch.energy_vel, xml: str = PENDULUM, **changes: Any) -> str | None:
    """The key of `f` for a pendulum."""
    m, d = pendulum(xml)
    leaves, spec = optree.tree_flatten((m, tree.map(lambda x: x[0], d)), namespace=tree.NAMESPACE)
    is_constant = tree.constant_leaves((m, d))
    constants = {k: x for k, x in enumerate(leaves) if is_constant[k]}
    given = {
        "spec": spec,
        "leaves": leaves,
        "shapes": tuple((x.shape, x.dtype) for x in leaves),
        "shared": [True] * len(leaves),
        "constants": constants,
        "static": (),
    }
    return warm.address(f, **(given | changes)).key


def test_the_address_is_that_of_the_program() -> None:
    here = address()
    assert here is not None and here == address()
    assert address(xml=PENDULUM.replace("0.1", "0.2")) == here


@pytest.mark.parametrize(
    "other",
    [
        lambda: address(mjtorch.energy_pos),
        lambda: address(shared=[]),
        lambda: address(shapes=()),
        lambda: address(static=("outputs", ("qpos",))),
        lambda: address(static=("outputs", ("qvel",))),
        lambda: address(static=(1,)),
        lambda: address(static=(True,)),
        lambda: address(static=(1.0,)),
        lambda: address(constants={}),
        lambda: address(constants={0: torch.zeros(2)}),
        lambda: address(constants={0: torch.ones(2)}),
        lambda: address(constants={0: torch.zeros(2, dtype=torch.int32)}),
        lambda: address(xml=PENDULUM.replace("</mujoco>", '<option integrator="RK4"/></mujoco>')),
        lambda: address(xml=PENDULUM.replace('"hinge"', '"slide"')),
    ],
)
def test_what_changes_the_program_changes_the_address(other: Callable[[], str | None]) -> None:
    assert other() not in (None, address())


def test_all_addresses_differ() -> None:
    statics = [(1,), (True,), (1.0,), ("1",), (None,), ((1,),), (1, 1), (Integrator.EULER,), (Integrator.RK4,), ()]
    assert len({address(static=s) for s in statics}) == len(statics)


def test_a_function_that_pretends_has_its_own() -> None:
    def pretender(m: Any, d: Any) -> Any:
        return d

    pretender.__module__, pretender.__qualname__ = mjtorch.energy_vel.__module__, mjtorch.energy_vel.__qualname__
    assert address(pretender) not in (None, address())


def test_under_a_mode_of_torch_there_is_none() -> None:
    with torch.device("cpu"):
        assert address() is None


def test_settings_of_torch_change_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    before = address()
    monkeypatch.setattr(torch, "__version__", "3.0")
    newer = address()
    assert newer not in (None, before)
    torch.set_default_dtype(torch.float64)
    try:
        assert address() not in (None, newer)
    finally:
        torch.set_default_dtype(torch.float32)


# --- the code in memory -----------------------------------------------------------------------------------------------


def test_changed_code_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint.fingerprint()
    assert before == fingerprint.fingerprint()
    original = energy.energy_vel

    def with_code(old: str, new: str) -> None:
        code = getattr(original, "__wrapped__", original).__code__
        monkeypatch.setattr(
            getattr(original, "__wrapped__", original), "__code__", code.replace(co_consts=(*code.co_consts, new))
        )

    with_code("", "edited by hand")
    assert fingerprint.fingerprint() != before
    monkeypatch.undo()
    assert fingerprint.fingerprint() == before


@pytest.mark.parametrize(
    "name, value",
    [("mjtorch.forward.MAX_VALUE", 1.0), ("mjtorch.forward.euler", mjtorch.rungekutta4), ("mjtorch.forward.new", 1)],
)
def test_changed_names_are_noticed(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    before = fingerprint.fingerprint()
    monkeypatch.setitem(vars(sys.modules[name.rpartition(".")[0]]), name.rpartition(".")[2], value)
    assert fingerprint.fingerprint() != before


MADE = """
import contextvars, dataclasses, functools, numpy, torch
def closed(x):
    def inner(y=1, *, z=2):
        return x + y + z
    return inner
@dataclasses.dataclass
class Instance:
    x: object = 1
class Base: pass
class Class(Base):
    attribute = 1
    @property
    def read(self): return 1
    cached = functools.cached_property(lambda self: 1)
    @staticmethod
    def static(): return 1
function, instance, numbers, tensor = closed(1), Instance(), numpy.arange(3), torch.arange(3)
objects = {"list": [1, [2]], "set": {1}, "dict": {1: 2}, "tuple": ([1],)}
variable = contextvars.ContextVar("variable", default=1)
remembered = functools.lru_cache(closed(2))
part = functools.partial(closed(3), [1])
"""


def test_every_change_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a package of few modules: a digest of all takes a while."""
    loaded, few = fingerprint._modules, ("mjtorch.made", "mjtorch.later", "mjtorch.tree")
    monkeypatch.setattr(fingerprint, "_modules", lambda: {k: x for k, x in loaded().items() if k.startswith(few)})
    module = types.ModuleType("mjtorch.made")
    monkeypatch.setitem(sys.modules, "mjtorch.made", module)
    exec(MADE, vars(module))
    made: Any = module
    changes: dict[str, Callable[[], object]] = {
        "a code": lambda: setattr(made.function, "__code__", made.function.__code__.replace(co_consts=(5,))),
        "a default": lambda: setattr(made.function, "__defaults__", (2,)),
        "a default by name": lambda: made.function.__kwdefaults__.update(z=3),
        "what is closed over": lambda: setattr(made.function.__closure__[0], "cell_contents", 7),
        "nothing is closed over": lambda: delattr(made.function.__closure__[0], "cell_contents"),
        "an attribute of a function": lambda: setattr(made.function, "note", 1),
        "a field": lambda: setattr(made.instance, "x", 2),
        "a number of an array": lambda: made.numbers.__setitem__(0, 5),
        "the shape of an array": lambda: setattr(made.numbers, "shape", (3, 1)),
        "a number of a tensor": lambda: made.tensor.fill_(5),
        "the memory of a tensor": lambda: setattr(made.tensor, "data", made.tensor + 1),
        "an entry of a list": lambda: made.objects["list"].append(1),
        "an entry of an inner list": lambda: made.objects["list"][1].append(1),
        "an entry in a tuple": lambda: made.objects["tuple"][0].append(1),
        "an entry of a set": lambda: made.objects["set"].add(2),
        "a value of a dict": lambda: made.objects["dict"].update({1: 3}),
        "a key of a dict": lambda: made.objects["dict"].update({4: 3}),
        "an attribute of a class": lambda: setattr(made.Class, "attribute", 2),
        "an attribute more": lambda: setattr(made.Class, "more", 2),
        "an attribute of a base": lambda: setattr(made.Base, "more", 2),
        "a method": lambda: setattr(made.Class, "read", property(made.closed(5))),
        "the function of a cached property": lambda: setattr(vars(made.Class)["cached"], "func", made.closed(1)),
        "a context": lambda: made.variable.set(2),
        "what a cache is around": lambda: setattr(made.remembered, "__wrapped__", made.closed(4)),
        "an argument of a partial": lambda: made.part.args[0].append(2),
        "a name": lambda: setattr(made, "part", 1),
        "a name more": lambda: setattr(made, "other", 1),
        "a module more": lambda: monkeypatch.setitem(sys.modules, "mjtorch.later", types.ModuleType("mjtorch.later")),
    }
    seen = {fingerprint.fingerprint()}
    for what, change in changes.items():
        change()
        now = fingerprint.fingerprint()
        assert now not in seen, what
        seen.add(now)


def test_the_digest_is_made_once() -> None:
    fingerprint.fingerprint()
    (digest,) = fingerprint._last()
    fingerprint.fingerprint()
    assert fingerprint._last() == [digest]


@pytest.mark.parametrize("foreign", [lambda m, d: d, pytest.MonkeyPatch, pytest.MonkeyPatch()])
def test_what_somebody_else_put_in_is_not_vouched_for(monkeypatch: pytest.MonkeyPatch, foreign: Any) -> None:
    monkeypatch.setitem(vars(sys.modules["mjtorch.forward"]), "euler", foreign)
    with pytest.raises(fingerprint.UnfamiliarError):
        fingerprint.fingerprint()
    assert address() is None


def test_a_changed_function_is_traced_anew(monkeypatch: pytest.MonkeyPatch, expected: mjtorch.Data) -> None:
    monkeypatch.setattr(energy, "mul_m", mjtorch.solve_m)
    changed = jitted()
    assert not torch.equal(changed(*pendulum()).energy, expected.energy)
    assert changed.traces == 1


# --- plain values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -(2**70),
        'text with "quotes" and \n',
        0.1,
        -0.0,
        math.inf,
        (1, (2.0, [3, "x"]), ()),
        {"a": 1, 2: (None,), (1, 2): {}},
        Integrator.RK4,
        torch.float64,
        torch.Size([2, 3]),
        Output((2, 3), torch.float32, source=4),
    ],
    ids=repr,
)
def test_plain_values_come_back(value: Any) -> None:
    back = plain.loads(plain.dumps(value))
    assert type(back) is type(value)
    assert back == value
    assert repr(back) == repr(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_tensors_come_back(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype)
    output = plain.loads(plain.dumps(Output(shape, dtype, constant=x.t() if x.dim() == 2 else x)))
    assert output.constant.dtype == dtype
    assert torch.equal(output.constant, x.t() if x.dim() == 2 else x)


def test_trees_come_back() -> None:
    m, d = pendulum()
    assert_same(plain.loads(plain.dumps((m, [d, {"x": None}]))), (m, [d, {"x": None}]))


@dataclasses.dataclass
class Foreign:
    """A class that a later process may not have."""

    x: int = 0


@pytest.mark.parametrize("value", [Foreign(), object(), {1}, len, torch.nn.Parameter(torch.ones(1)), b"bytes", 1j])
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(plain.NotPlainError):
        plain.dumps((1, value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"class":"os:system","fields":["true"]}',
        '{"class":"mjtorch.compiler.cache.plain:os","fields":[]}',
        '{"class":"mjtorch.nothing:X","fields":[]}',
        '{"class":"mjtorch.compiler.targets.cpu.native:Output","fields":[1]}',
        '{"class":"mjtorch.compiler.targets.cpu.native:Native","fields":[]}',
        '{"member":"EULER","of":"mjtorch.compiler.targets.cpu.native:Output"}',
        '{"member":"NOTHING","of":"mjtorch.model.option:Integrator"}',
        '{"dtype":"load"}',
        '{"dtype":"nothing"}',
        '{"tensor":"AAAA","dtype":"float32","shape":[7]}',
    ],
)
def test_what_was_not_written_here_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        plain.loads(text)


# --- importing --------------------------------------------------------------------------------------------------------


def test_importing_does_not_import_what_takes_seconds() -> None:
    code = "import sys, mjtorch; print({'torch._dynamo', 'torch._inductor', 'sympy', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
