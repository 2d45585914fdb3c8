"""A warm start: what jit found out about a function, kept on disk so that no later process traces it again.

What a program returns and how it is called is an entry of the cache beside the libraries. Its key is made of all that
the program follows from: the function and all that it reaches, the code of mjtorch as it is in memory, versions,
compiler and CPU, the structure of the arguments with all static values, shapes, dtypes, and the values of constants. In
doubt there is no key, and the function is traced anew.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optree
import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.compiler import targets
from mjtorch.compiler.cache import plain, store as cache
from mjtorch.compiler.cache.fingerprint import VERSIONED, UnfamiliarError, fingerprint
from mjtorch.compiler.cache.reach import Reach
from mjtorch.compiler.lowered import Lowered
from mjtorch.compiler.targets.cpu.build import BuildError, compiler, flags, open_library, vector_bytes
from mjtorch.compiler.targets.cpu.native import Build, Native
from mjtorch.compiler.targets.cpu.target import CpuTarget
from mjtorch.compiler.trace import captured

Made = tuple[Lowered, Any]

LOG = logging.getLogger(__name__)
DISTRIBUTIONS = VERSIONED - set(sys.stdlib_module_names)


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a program is kept.

    key: None where the program cannot be known without tracing, and `why` not
    tensors: those that the function may capture, in the order in which they are met
    classes: those of the user that it may return instances of, likewise
    """

    key: str | None = None
    why: str = ""
    tensors: tuple[Tensor, ...] = ()
    classes: tuple[type, ...] = ()


@dataclasses.dataclass(frozen=True)
class Record:
    """What a later process needs: how to call the library, and a result whose leaves are numbered from 0.

    captured: the numbers of those tensors of the address that are baked in
    digest: of the library, as it was compiled
    """

    build: Build
    result: Any
    captured: tuple[int, ...]
    digest: str


@dataclasses.dataclass(frozen=True)
class Known:
    """A build, the structure of its result, and the tensors from around the function that are baked in."""

    native: Native
    out_spec: Any
    captured: tuple[Tensor, ...]


def address(
    f: Callable[..., Any],
    spec: Any,
    leaves: Sequence[Tensor],
    shapes: Any,
    shared: Sequence[bool],
    constants: Mapping[int, Tensor],
    static: Any,
) -> Address:
    """Where the program is kept.

    Args:
        f: the function of one world, and `static` the values of its static arguments.
        spec, leaves: the arguments.
        shapes: for each leaf the shape and dtype in one world.
        shared: for each leaf whether all worlds share it.
        constants: the leaves that are baked in.
    """
    try:
        if any(x.device.type != "cpu" for x in leaves):
            raise UnfamiliarError("is for a GPU")
        if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
            raise UnfamiliarError("runs under a mode of torch")
        reach = Reach()
        what = reach.digest(f, optree.tree_unflatten(spec, range(len(leaves))), static)
        values = hashlib.sha256(plain.dumps((shapes, tuple(shared))).encode())
        for k, x in constants.items():
            values.update(f"{k} {x.dtype} {tuple(x.shape)} ".encode() + plain.content(x))
        key = cache.key(what, fingerprint(), values.digest(), *_surroundings())
    except (plain.NotPlainError, UnfamiliarError, BuildError, RecursionError) as e:
        LOG.debug("jit(%s): no key: %s", getattr(f, "__name__", f), e)
        return Address(why=str(e))
    return Address(key, "", tuple(reach.tensors), tuple(reach.classes))


def _surroundings() -> list[str]:
    """All else that a program may depend on."""
    versions = [sys.version, torch.version.git_version]
    versions += [getattr(sys.modules[name], "__version__", "") for name in sorted(DISTRIBUTIONS & sys.modules.keys())]
    settings = (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
    )
    folder = pathlib.Path(targets.__file__).parent
    sources = sorted([*folder.rglob("*.h"), *folder.rglob("*.cpp")])
    target = (*flags(), str(vector_bytes()), compiler().identity)
    return [*map(str, (*versions, *settings)), *target, *(s.read_text() for s in sources)]


def native(where: Address, few: bool, make: Callable[[], Made]) -> Known:
    """The build of a program for a few worlds or for many.

    From disk, if it is at `where`; else from `make()`, and kept. Of several processes one makes it, the others wait.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    compiler()  # before anything is traced in vain
    if where.key is None:
        return _built(few, *make())
    name = cache.key(where.key, str(few)) + ".program"
    found = _recall(name, where)
    if found is not None:
        return found
    with cache.alone(name):
        found = _recall(name, where, mend=True)
        if found is not None:
            return found
        built = _built(few, *make())
        _remember(name, built, where)
    return built


def _built(few: bool, lowered: Lowered, out_spec: Any) -> Known:
    return Known(CpuTarget(few).compile(lowered), out_spec, tuple(captured(lowered.graph)))


def _remember(name: str, known: Known, where: Address) -> None:
    """Keep a record, if it can be read back as it is."""
    spec, numbers = known.out_spec, {id(x): k for k, x in enumerate(where.tensors)}
    if any(id(x) not in numbers for x in known.captured):
        LOG.debug("no record: a tensor is captured that was not found in the function")
        return
    inside = tuple(sorted({numbers[id(x)] for x in known.captured}))
    build = known.native.build
    try:
        digest = cache.digest(cache.directory() / build.name)
        record = Record(build, optree.tree_unflatten(spec, range(spec.num_leaves)), inside, digest)
        text = plain.dumps(record, where.classes)
        if _read(text, where)[1] == spec:
            cache.save(name, text.encode())
    except (plain.NotPlainError, OSError, ValueError, KeyError, TypeError) as e:
        LOG.debug("no record: %s", e)


def _recall(name: str, where: Address, mend: bool = False) -> Known | None:
    found = cache.load(name, lambda path: _read(path.read_text(), where), mend)
    if found is None:
        return None
    record, out_spec = found

    def open_same(path: pathlib.Path) -> Any:
        if cache.digest(path) != record.digest:
            raise OSError("it is not what was compiled")
        return open_library(path)

    code = cache.load(record.build.name, open_same, mend)
    if code is None:
        return None
    return Known(Native(record.build, code), out_spec, tuple(where.tensors[k] for k in record.captured))


def _read(text: str, where: Address) -> tuple[Record, Any]:
    record = plain.loads(text, where.classes)
    if not isinstance(record, Record):
        raise ValueError("not a record")
    numbers, out_spec = optree.tree_flatten(record.result, namespace=tree.NAMESPACE)
    if numbers != list(range(len(record.build.outputs))) or any(k >= len(where.tensors) for k in record.captured):
        raise ValueError("the leaves of the result are not the outputs")
    return record, out_spec
