"""A digest of mjtorch's code as it is in memory: where two digests are equal, a function is traced to the same program.

Files on disk would not do: a notebook may run code that was edited since, or have replaced a function by hand.
"""

from __future__ import annotations

import contextvars
import dataclasses
import enum
import functools
import hashlib
import re
import sys
import types
from _collections import _tuplegetter  # type: ignore[import-not-found]
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch._library.custom_ops import CustomOpDef

PACKAGE = __name__.partition(".")[0]
# Modules that no traced function and no part of the compiler uses, and that are imported only on demand.
ASIDE = tuple(f"{PACKAGE}.{name}" for name in ("cli", "models", "export", "envs.adapters", "compiler.report"))
# Their versions are part of every key that a digest is used in.
VERSIONED = {"torch", "numpy", "mujoco", "optree", "filelock", "platformdirs", *sys.stdlib_module_names} - {"unittest"}
ATOMS = {type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented)}
NAMED = (
    types.BuiltinFunctionType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
)
# Of a class: what says nothing about what it does, or is filled in as it is used.
SILENT = {"__dict__", "__weakref__", "__doc__", "__annotations__", "__annotate_func__", "__annotations_cache__"}
SILENT |= {
    "_value2member_map_",
    "__firstlineno__",
    "__static_attributes__",
    "__slotnames__",
    "_abc_impl",
    "__parameters__",
    "__orig_bases__",
}


class UnfamiliarError(Exception):
    """Something in the package is neither its own nor of a library whose version is known."""


def fingerprint() -> str:
    """The digest of all modules of mjtorch that are loaded; the last one, while nothing in them was exchanged.

    Raises:
        UnfamiliarError: something in there was put in by somebody else, and may do anything.
    """
    last = _last()
    if not last or not last[0].holds():
        last[:] = [Digest()]
    return last[0].text


@functools.cache
def _last() -> list[Digest]:
    """The last digest; in a cache, for what that holds is not described."""
    return []


class Digest:
    """A digest of the modules of mjtorch, and what it was made of.

    text: the digest
    """

    def __init__(self) -> None:
        modules = _modules()
        walk = Walk()
        walk.modules(modules.values())
        self.text = walk.summary()
        described = [x for _, x in walk.seen.values()]
        self._held = [(x, contents(x)) for x in (modules, *modules.values(), *described) if contents(x)]

    def holds(self) -> bool:
        """Whether all objects that were described hold the same objects still."""
        return _modules() == self._held[0][0] and all(_are_same(contents(x), held) for x, held in self._held)


def of(*modules: types.ModuleType) -> str:
    """The digest of some modules of mjtorch, with what they import.

    Raises:
        UnfamiliarError: something in there was put in by somebody else, and may do anything.
    """
    walk = Walk()
    walk.modules(modules)
    return walk.summary()


def _modules() -> dict[str, types.ModuleType]:
    """The modules of mjtorch that say what a program does."""
    return {
        name: module
        for name, module in sorted(sys.modules.items())
        if isinstance(module, types.ModuleType) and root_of(name) == PACKAGE and not name.startswith(ASIDE)
    }


def contents(x: Any) -> tuple[Any, ...]:
    """All objects that `x` holds and could come to hold others for, of what `Walk` describes of it."""
    match x:
        case enum.Enum():
            return ()
        case list() | set():
            return tuple(x)
        case dict() | types.MappingProxyType():
            return (*x.keys(), *x.values())
        case types.FunctionType() if root_of(x.__globals__.get("__name__", "")) == PACKAGE:
            cells = (cell.cell_contents for cell in x.__closure__ or () if cell != types.CellType())
            return (x.__code__, x.__defaults__, x.__kwdefaults__, *contents(vars(x)), *cells)
        case type() if root_of(x.__module__) == PACKAGE:
            return (*x.__bases__, *contents(vars(x)))
        case types.ModuleType() if root_of(x.__name__) == PACKAGE:
            return contents(vars(x))
        case torch.Tensor() | np.ndarray():
            return (str((x.dtype, tuple(x.shape), x.tolist())),)
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return tuple(getattr(x, f.name) for f in dataclasses.fields(x))
    return tuple(Walk.parts(x) or ())


def _are_same(xs: tuple[Any, ...], ys: tuple[Any, ...]) -> bool:
    """Whether they are the same objects, or equal texts."""
    return len(xs) == len(ys) and all(
        x is y or (type(x) is type(y) is str and x == y) for x, y in zip(xs, ys, strict=True)
    )


class Walk:
    """Describes objects in words, each object once."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.seen: dict[Any, tuple[int, Any]] = {}  # holds the objects, so that their ids stay theirs

    def summary(self) -> str:
        """A digest of all words."""
        return hashlib.sha256("\n".join(self.words).encode(errors="surrogatepass")).hexdigest()

    def modules(self, modules: Iterable[types.ModuleType]) -> None:
        """Add all that modules define or import."""
        for module in modules:
            self.say("module", module.__name__)
            for attribute, value in sorted(vars(module).items()):
                if not attribute.startswith("__"):
                    self.say(attribute)
                    self.describe(value)

    def say(self, *words: object) -> None:
        """Add words that are no others in any other place."""
        self.words.append(repr(words))

    def describe(self, x: Any) -> None:
        """Add what `x` is."""
        if type(x) in ATOMS:
            self.words.append(repr(x))
        elif id(x) in self.seen:
            self.say("seen", self.seen[id(x)][0])
        else:
            self.seen[id(x)] = len(self.seen), x
            self.describe_new(x)

    def describe_new(self, x: Any) -> None:
        """Add what `x` is, which was not met before."""
        if isinstance(x, enum.Enum):
            self.say("member", type(x).__qualname__, x.name)
        elif isinstance(x, (list, tuple)):
            self.each(type(x).__name__, x)
        elif isinstance(x, (set, frozenset)):
            self.each("set", sorted(x, key=repr))
        elif isinstance(x, (dict, types.MappingProxyType)):
            self.each("dict", [y for item in x.items() for y in item])
        elif isinstance(x, types.ModuleType):
            self.say("module", x.__name__)
        elif isinstance(x, types.CodeType):
            self.code(x)
        elif isinstance(x, types.FunctionType):
            self.function(x)
        elif isinstance(x, type):
            self.one_class(x)
        elif isinstance(x, NAMED):
            self.say("named", getattr(x, "__module__", ""), x.__qualname__)
        else:
            self.instance(x)

    def each(self, what: str, xs: Any) -> None:
        """Add what each of `xs` is."""
        self.say(what, len(xs))
        for x in xs:
            self.describe(x)

    def code(self, x: types.CodeType) -> None:
        """Add what a piece of code does, wherever it stands."""
        counts = (x.co_argcount, x.co_posonlyargcount, x.co_kwonlyargcount, x.co_flags)
        variables = (x.co_names, x.co_varnames, x.co_freevars, x.co_cellvars)
        self.say("code", counts, variables, x.co_code, x.co_exceptiontable)
        self.each("constants", x.co_consts)

    def function(self, x: types.FunctionType) -> None:
        """Add what a function does: of a library, by its name."""
        home = x.__globals__.get("__name__", "")
        if root_of(home) != PACKAGE:
            if root_of(home) not in VERSIONED and not home.startswith("namedtuple_"):
                raise UnfamiliarError(f"{x.__module__}.{x.__qualname__}")
            self.say("function", x.__module__, x.__qualname__)
            return
        self.code(x.__code__)
        self.each("function", [x.__defaults__, x.__kwdefaults__, vars(x)])
        for cell in x.__closure__ or ():
            try:
                self.describe(cell.cell_contents)
            except ValueError:
                self.say("empty")

    def one_class(self, x: type) -> None:
        """Add what a class does: of a library, by its name."""
        self.say("type", x.__module__, x.__qualname__)
        if root_of(x.__module__) == PACKAGE:
            self.each("bases", x.__bases__)
            for name, value in sorted(vars(x).items()):
                if name not in SILENT:
                    self.say(name)
                    self.describe(value)
        elif root_of(x.__module__) not in VERSIONED:
            raise UnfamiliarError(f"{x.__module__}.{x.__qualname__}")

    def instance(self, x: Any) -> None:
        """Instances of the few classes that modules hold instances of."""
        self.say("instance", type(x).__module__, type(x).__qualname__)
        parts = self.parts(x)
        if parts is not None:
            self.each("parts", parts)
        elif isinstance(x, torch.Tensor):
            self.say(x.dtype, tuple(x.shape), x.tolist())
        elif isinstance(x, (np.ndarray, np.generic)):
            self.say(x.dtype, x.shape, x.tolist())
        elif dataclasses.is_dataclass(x):
            self.each("fields", [getattr(x, f.name) for f in dataclasses.fields(x)])
        elif root_of(type(x).__module__) in VERSIONED and _is_named(x):
            self.say("named", x.__module__, x.__qualname__)
        elif root_of(type(x).__module__) in VERSIONED and " at 0x" not in repr(x):
            self.say(repr(x))
        else:
            raise UnfamiliarError(f"an instance of {type(x).__module__}.{type(x).__qualname__}")

    @staticmethod
    def parts(x: Any) -> Sequence[Any] | None:
        """What tells all about an object of one of Python's own classes; None for any other."""
        match x:
            case classmethod() | staticmethod() | functools._lru_cache_wrapper():
                return (x.__wrapped__,)
            case property():
                return x.fget, x.fset, x.fdel
            case functools.cached_property():
                return (x.func,)
            case functools.partial():
                return x.func, x.args, x.keywords
            case types.MethodType():
                return x.__func__, x.__self__
            case re.Pattern():
                return x.pattern, x.flags
            case contextvars.ContextVar():
                return x.name, x.get(None)
            case CustomOpDef():
                return (x._qualname,)
            case _tuplegetter():  # a field of a named tuple
                return x.__reduce__()[1]
            case dataclasses.Field():
                return x.name, str(x.type), x.default, x.default_factory, x.metadata, x.init, x.kw_only
        return () if x is dataclasses.MISSING else None


def _is_named(x: Any) -> bool:
    """Whether a function of a library, of a class of its own, is what the library has under that name."""
    home = sys.modules.get(getattr(x, "__module__", None) or "")
    return home is not None and getattr(home, getattr(x, "__qualname__", ""), None) is x


def root_of(name: str) -> str:
    """The package that a module is in."""
    return name.partition(".")[0]
