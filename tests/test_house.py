"""The rules of the house, checked by the house itself."""

import ast
import functools
import graphlib
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mjtorch"
# From the ground up: a room may import only the rooms before it.
ROOMS = (
    "memory",
    "tree",
    "control_flow",
    "compiler",
    "math",
    "random",
    "model",
    "flex",
    "smooth",
    "collision",
    "constraint",
    "ipc",
    "sensor",
    "integrate",
    "substep",
    "forward",
    "linearize",
    "rollout",
    "overflow",
    "render",
    "envs",
    "learn",
    "export",
    "models",
    "view",
    "cli",
)
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
MAX_LINES = 500
MUTATORS = {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}
CACHES = {"cache", "lru_cache"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def parse(module: str) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text(), filename=module)


def room_of(module: str) -> str | None:
    """The room of a file; None for the package's own `__init__.py`. `__main__.py` is the door of the command line."""
    first = module.split("/")[0].removesuffix(".py")
    return {"__init__": None, "__main__": "cli"}.get(first, first)


def imports(node: ast.Module) -> Iterator[str]:
    """Dotted names of what a module imports from mjtorch, wherever in the file it does."""
    for statement in ast.walk(node):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, f"line {statement.lineno}: relative import"
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_rooms_below(module: str) -> None:
    room = room_of(module)
    if room is None:
        return
    assert room in ROOMS, f"{room} is a new room; give it a place in ROOMS"
    for name in imports(parse(module)):
        if name.split(".")[0] != "mjtorch":
            continue
        imported = name.split(".")[1] if "." in name else None
        if imported not in ROOMS:
            # The package itself holds everything, so only the top room may use it.
            assert room == ROOMS[-1], f"{module} imports {name}"
        else:
            assert ROOMS.index(imported) <= ROOMS.index(room), f"{module} imports {name}"


def test_imports_go_in_no_circle() -> None:
    """Nor do those that a function, or only a type checker, makes."""
    names = {f"mjtorch/{m}".removesuffix(".py").removesuffix("/__init__").replace("/", "."): m for m in MODULES}
    needs: dict[str, set[str]] = {}
    for name, module in names.items():
        found = (n if n in names else n.rpartition(".")[0] for n in imports(parse(module)))
        needs[name] = {n for n in found if n in names and n != name}
    graphlib.TopologicalSorter(needs).prepare()


@pytest.mark.parametrize("module", [module for module in MODULES if not module.startswith("cli/")])
def test_only_the_command_line_imports_command_line_libraries(module: str) -> None:
    used = {name.split(".")[0] for name in imports(parse(module))}
    assert not used & {"argparse", "imageio", "matplotlib", "tqdm"}


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("compiler/")])
def test_the_compiler_knows_no_physics(module: str) -> None:
    used = {name.split(".")[0] for name in imports(parse(module))} - set(sys.stdlib_module_names)
    assert used <= {"mjtorch", "torch", "optree", "numpy", "filelock", "platformdirs", "cuda"}


@pytest.mark.parametrize("module", MODULES)
def test_public_things_have_docstrings(module: str) -> None:
    tree = parse(module)
    assert ast.get_docstring(tree), f"{module} has no docstring"
    scopes: list[ast.Module | ast.ClassDef] = [tree]
    while scopes:
        for node in scopes.pop().body:
            if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
                continue
            if any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list):
                continue
            assert ast.get_docstring(node), f"{module}:{node.lineno}: {node.name} has no docstring"
            if isinstance(node, ast.ClassDef):
                scopes.append(node)


@pytest.mark.parametrize("module", MODULES)
def test_is_short_enough_to_read(module: str) -> None:
    lines = len((PACKAGE / module).read_text().splitlines())
    assert lines <= MAX_LINES, f"{module} has {lines} lines and wants to be two files"


@pytest.mark.parametrize("module", MODULES)
def test_has_no_state_of_its_own(module: str) -> None:
    """Module-level tables are constants: spelled in capitals, and filled by a `register` if by any function.

    No `global`, and no cache but of what is true of the machine: its function takes no argument.
    """
    tree = parse(module)
    tables = set()
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if is_mutable(getattr(node, "value", None)):
            for name in names:
                assert name == "__all__" or name.lstrip("_").isupper(), f"{module}: {name} is mutable"
            tables.update(names)
    registering = {id(n) for f in functions(tree) if f.name == "register" for n in ast.walk(f)}
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Global), f"{module}:{node.lineno}: global"
        assert changed_name(node) not in tables or id(node) in registering, f"{module}:{node.lineno}: changes a table"
    for function in functions(tree):
        cached = any(CACHES & names_in(decorator) for decorator in function.decorator_list)
        takes = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        assert not (cached and takes), f"{module}:{function.lineno}: a cache of its arguments outlives its caller"


def functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return bool(names_in(value.func) & {"list", "dict", "set", "defaultdict", "deque", "Counter", "OrderedDict"})
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)
    }


def changed_name(node: ast.AST) -> str | None:
    """The name whose contents the node changes: `X[i] = y`, `del X[i]` or `X.append(y)`."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        return node.value.id if isinstance(node.value, ast.Name) else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        return node.func.value.id if isinstance(node.func.value, ast.Name) else None
    return None


@pytest.mark.parametrize("package", ["mjtorch", *(f"mjtorch.{room}" for room in ROOMS if (PACKAGE / room).is_dir())])
def test_all_is_sorted_and_true(package: str) -> None:
    module = importlib.import_module(package)
    body = parse(f"{package.removeprefix('mjtorch').replace('.', '')}/__init__.py".lstrip("/")).body
    if not any(isinstance(s, ast.Import | ast.ImportFrom) for s in body):
        return  # it hands on nothing: its modules are imported by name
    assert list(module.__all__) == sorted(set(module.__all__)), f"{package}.__all__ is not sorted"
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing


UNCHANGED = """
import os
import torch, torch._dynamo, torch._inductor, torch.func
import mujoco, numpy

def snapshot():
    spaces = {"torch": torch, "Tensor": torch.Tensor, "functional": torch.nn.functional, "func": torch.func,
              "dynamo": torch._dynamo.config, "vmap": torch._functorch.vmap, "mujoco": mujoco, "numpy": numpy}
    contents = {(space, name): id(value) for space, owner in spaces.items() for name, value in vars(owner).items()
                if not name.startswith("__")}
    defaults = (torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads(),
                torch.is_grad_enabled(), torch.get_float32_matmul_precision(), torch.initial_seed(), dict(os.environ))
    return contents, defaults

contents, defaults = snapshot()
import mjtorch
new_contents, new_defaults = snapshot()
changed = [key for key, value in contents.items() if new_contents.get(key) != value]
# A submodule imported for the first time becomes an attribute of its parent; anything else would be a patch.
owners = {"torch": torch, "functional": torch.nn.functional, "func": torch.func, "mujoco": mujoco, "numpy": numpy}
added = [(s, n) for s, n in new_contents.keys() - contents.keys()
         if s not in owners or not isinstance(getattr(owners[s], n), type(os))]
assert not changed, changed
assert not added, added
assert defaults == new_defaults, (defaults, new_defaults)
"""


def test_import_leaves_torch_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNCHANGED], cwd=PACKAGE.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_import_needs_no_command_line_library() -> None:
    code = "import sys, mjtorch; print(sorted({'tqdm', 'matplotlib', 'imageio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    # torch brings tqdm where it is installed
    assert done.stdout.strip() in ("[]", "['tqdm']")
