"""A warm start: what jit found out about one of mjtorch's own functions, kept on disk so that nothing is traced again.

What a program returns and how it is called is an entry of the cache beside the libraries. Its key is made of all that
the program follows from: the function, the code of mjtorch as it is in memory, versions, compiler and CPU, the
structure of the arguments with all static values, shapes, dtypes, and the values of constants. In doubt there is no
key, and the function is traced as any other.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mujoco
import numpy as np
import optree
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.compiler import targets
from mjtorch.compiler.cache import plain, store as cache
from mjtorch.compiler.cache.fingerprint import UnfamiliarError, fingerprint
from mjtorch.compiler.lowered import Lowered
from mjtorch.compiler.targets.cpu.build import BuildError, compiler, flags, open_library, vector_bytes
from mjtorch.compiler.targets.cpu.native import Build, Native
from mjtorch.compiler.targets.cpu.target import CpuTarget

Made = tuple[Lowered, Any]


@dataclasses.dataclass(frozen=True)
class Record:
    """What a later process needs: how to call the library, and a result whose leaves are numbered from 0."""

    build: Build
    result: Any


def address(
    f: Callable[..., Any],
    spec: Any,
    leaves: Sequence[Tensor],
    shapes: Any,
    shared: Sequence[bool],
    constants: Mapping[int, Tensor],
    static: Any,
) -> str | None:
    """The key of a program; None where the program cannot be known without tracing.

    Args:
        f: the function of one world, and `static` the values of its static arguments.
        spec, leaves: the arguments.
        shapes: for each leaf the shape and dtype in one world.
        shared: for each leaf whether all worlds share it.
        constants: the leaves that are baked in.
    """
    if not _is_ours(f) or any(x.device.type != "cpu" for x in leaves):
        return None
    try:
        structure = plain.dumps((optree.tree_unflatten(spec, range(len(leaves))), shapes, tuple(shared), static))
        values = hashlib.sha256()
        for k, x in constants.items():
            values.update(f"{k} {x.dtype} {tuple(x.shape)} ".encode() + plain.content(x))
        code, surroundings = fingerprint(), _surroundings()
    except (plain.NotPlainError, UnfamiliarError, BuildError):
        return None
    return cache.key(f"{f.__module__}:{f.__qualname__}", code, structure, values.digest(), *surroundings)


def _is_ours(f: Callable[..., Any]) -> bool:
    """Whether `f` is what stands under its name in a module of mjtorch, and so a function without a closure."""
    module, name = getattr(f, "__module__", None) or "", getattr(f, "__qualname__", "")
    return module.startswith(f"{plain.PACKAGE}.") and getattr(sys.modules.get(module), name, None) is f


def _surroundings() -> list[str]:
    """All else that a program may depend on."""
    versions = (sys.version, torch.__version__, torch.version.git_version, np.__version__, optree.__version__)
    settings = (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu"),
        torch.are_deterministic_algorithms_enabled(),
    )
    folder = pathlib.Path(targets.__file__).parent
    sources = sorted([*folder.rglob("*.h"), *folder.rglob("*.cpp")])
    target = (*flags(), str(vector_bytes()), compiler().identity)
    return [*map(str, (*versions, mujoco.__version__, *settings)), *target, *(s.read_text() for s in sources)]


def native(where: str | None, few: bool, make: Callable[[], Made]) -> tuple[Native, Any]:
    """The build of a program for a few worlds or for many, and the structure of its result.

    From disk, if it is at `where`; else from `make()`, and kept. Of several processes one makes it, the others wait.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    compiler()  # before anything is traced in vain
    if where is None:
        lowered, out_spec = make()
        return CpuTarget(few).compile(lowered), out_spec
    name = cache.key(where, str(few)) + ".program"
    found = _recall(name)
    if found is not None:
        return found
    with cache.alone(name):
        found = _recall(name, mend=True)
        if found is not None:
            return found
        lowered, out_spec = make()
        built = CpuTarget(few).compile(lowered)
        _remember(name, built.build, out_spec)
    return built, out_spec


def _remember(name: str, build: Build, out_spec: Any) -> None:
    """Keep a record, if it can be read back as it is."""
    record = Record(build, optree.tree_unflatten(out_spec, range(out_spec.num_leaves)))
    try:
        text = plain.dumps(record)
        if _read(text)[1] == out_spec:
            cache.save(name, text.encode())
    except (plain.NotPlainError, ValueError, KeyError, TypeError):
        return


def _recall(name: str, mend: bool = False) -> tuple[Native, Any] | None:
    found = cache.load(name, lambda path: _read(path.read_text()), mend)
    if found is None:
        return None
    build, out_spec = found
    code = cache.load(build.name, open_library)
    return None if code is None else (Native(build, code), out_spec)


def _read(text: str) -> tuple[Build, Any]:
    record = plain.loads(text)
    if not isinstance(record, Record):
        raise ValueError("not a record")
    numbers, out_spec = optree.tree_flatten(record.result, namespace=tree.NAMESPACE)
    if numbers != list(range(len(record.build.outputs))):
        raise ValueError("the leaves of the result are not the outputs")
    return record.build, out_spec
