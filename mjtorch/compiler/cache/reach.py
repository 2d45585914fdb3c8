"""All that a function can reach, described in words: where the words are equal, it is traced to the same program.

The code of the function and of what it calls, the values of its globals, closures, defaults and of what it is bound to,
tensors by their contents; libraries by name and version, and mjtorch by its fingerprint. Of modules, classes and plain
objects only those attributes matter that some code names. What cannot be described, or whose results are not in what
is described (files, clocks, random numbers), raises `UnfamiliarError`: then there is no key, and it is traced anew.

As for any cache of this kind, libraries are taken to be what their versions say, but for attributes that were replaced.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import enum
import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import sys
import sysconfig
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import optree
import torch
from torch import Tensor

from mjtorch.compiler.cache.fingerprint import ASIDE, ATOMS, NAMED, PACKAGE, SILENT, UnfamiliarError, Walk, root_of
from mjtorch.tree.dataclass import NAMESPACE
from mjtorch.tree.static import Name

# In the same order in every process, as it is part of what programs are known by.
INSTALLED = tuple(
    os.path.abspath(p) + os.sep
    for p in sorted(
        {*map(sysconfig.get_path, ("purelib", "platlib")), *(p for p in sys.path if p.endswith("-packages"))}
    )
)
# Their functions and objects know what no key tells.
BLIND = {"random", "_random", "secrets", "uuid", "time", "datetime", "_datetime", "socket", "subprocess", "tempfile"}
BLIND |= {
    "io",
    "_io",
    "glob",
    "shutil",
    "urllib",
    "requests",
    "pickle",
    "shelve",
    "sqlite3",
    "posix",
    "mmap",
    "inspect",
}
READERS = {"load", "loadtxt", "genfromtxt", "fromfile", "memmap", "from_file", "getenv", "from_xml_path", "read_text"}
READERS |= {
    "read_bytes",
    "default_rng",
    "get_rng_state",
    "set_rng_state",
    "seed",
    "manual_seed",
    "initial_seed",
    "RandomState",
}
BUILTINS = {"open", "input", "eval", "exec", "compile", "__import__", "globals", "locals", "breakpoint", "id", "hash"}
# Where code has these, it may use any attribute of anything.
ANY_NAME = {"getattr", "hasattr", "setattr", "delattr", "vars", "dir", "__dict__", "attrgetter", "methodcaller"}
# What makes instances, and code that may do so of classes that it does not name.
MAKING = {"__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__class_getitem__"}
MAKERS = {"type", "__class__", "copy", "deepcopy", "__new__", "__init__", "replace"}
# They ask for classes only to compare or name them; frozen dataclasses have the last two.
ASKING = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__repr__", "__str__"}
ASKING |= {"__setattr__", "__delattr__"}
GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
HEAP = 1 << 9  # of the flags of classes: made by a class statement, or as if
EXACT = (
    types.GenericAlias,
    types.UnionType,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    np.dtype,
    np.ufunc,
    range,
    slice,
)
OPERATORS = {"aten", "prim", "prims", "higher_order", PACKAGE}
# Objects of the package that hold more than what they compute.
JITTED = "mjtorch.compiler.jit.Jitted"


class Reach(Walk):
    """Describes functions and values.

    tensors: those that were met, as far as they are no part of the package
    classes: those of the user that were met
    """

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[Tensor] = []
        self.classes: list[type] = []
        self.versions: dict[str, str] = {}
        self.names: set[str] = set()
        self.any_name = False
        self.makers: set[str] = set()
        self.made: set[int] = set()
        self.trail: list[str] = []
        self.partly: list[tuple[str, Mapping[str, Any], set[str], bool]] = []

    def digest(self, *xs: Any) -> str:
        """Of all that `xs` reach.

        Raises:
            UnfamiliarError: something cannot be described.
        """
        for x in xs:
            self.describe(x)
        self._settle()
        self.say("versions", sorted(self.versions.items()))
        return self.summary()

    def _settle(self) -> None:
        """Describe those attributes that turned out to be named by some code, until there are no more."""
        before = -1
        while len(self.words) != before:
            before = len(self.words)
            for label, attributes, done, ours in list(self.partly):
                names = attributes.keys() if self.any_name and ours else attributes.keys() & self.names
                for name in sorted(names - done):
                    done.add(name)
                    self._named(f"{label}.{name}", attributes[name], ours)
            for cls in [c for c in self.classes if id(c) not in self.made]:
                if self.makers - ({"replace"} if not dataclasses.is_dataclass(cls) else set()):
                    self._making(cls)

    def _named(self, label: str, x: Any, ours: bool = True) -> None:
        self.say(label.rpartition(".")[2])
        self.trail.append(label)
        self.describe(x) if ours else self._of_library(label, x)
        self.trail.pop()

    def fail(self, what: str) -> None:
        """There is no key.

        Raises:
            UnfamiliarError: always.
        """
        raise UnfamiliarError(f"{what} (at {self.trail[-1]})" if self.trail else what)

    # --- code ---

    def function(self, x: types.FunctionType) -> None:
        """A function of anybody: by its code, or by its name where the version of a library says what it is."""
        home = x.__globals__.get("__name__", "")
        whose = self._whose(home)
        if whose != "user":
            self._allow(x.__module__ or home, x.__qualname__)
            if _find(x.__module__, x.__qualname__) is x:
                self.say("function", x.__module__, x.__qualname__)
                return
        self.trail.append(x.__qualname__)
        self.code(x.__code__)
        self.each("function", [x.__defaults__, x.__kwdefaults__, vars(x)])
        for name, cell in zip(x.__code__.co_freevars, x.__closure__ or (), strict=True):
            try:
                self._named(name, cell.cell_contents)
            except ValueError:
                self.say("empty")
        if whose == "user":
            self._globals(x.__code__, x.__globals__)
        self.trail.pop()

    def _globals(self, code: types.CodeType, around: dict[str, Any]) -> None:
        """What the names in the code of a user's function stand for."""
        self.names.update(code.co_names)
        self.makers.update(MAKERS.intersection(() if code.co_name in ASKING else code.co_names))
        for i in dis.get_instructions(code):
            if i.opname in GLOBAL:
                self._global(i.argval, around)
            elif i.opname == "IMPORT_NAME":
                self._import(i.argval, around)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._globals(constant, around)
            elif isinstance(constant, str) and constant.isidentifier():
                self.names.add(constant)
        self.any_name = self.any_name or not self.names.isdisjoint(ANY_NAME)

    def _global(self, name: str, around: dict[str, Any]) -> None:
        if name in around:
            self._named(name, around[name])
        elif name in BUILTINS:
            self.fail(f"uses {name}()")
        elif hasattr(builtins, name):
            self._named(name, getattr(builtins, name))

    def _import(self, name: str, around: dict[str, Any]) -> None:
        module = sys.modules.get(name) or sys.modules.get(f"{around.get('__package__')}.{name}")
        if module is None:
            self.fail(f"imports {name or 'from its package'}")
        self.describe(sys.modules.get(root_of(name), module))
        self.describe(module)

    def module(self, x: types.ModuleType) -> None:
        """A module: of the user's, and of libraries, what is named in code."""
        whose = self._whose(x.__name__)
        self.say("module", x.__name__)
        if (whose == "library" and root_of(x.__name__) in BLIND) or x.__name__ == "numpy.random":
            self.fail(f"uses the module {x.__name__}")
        if whose != "package":
            self.partly.append((x.__name__, vars(x), set(), whose == "user"))
            if whose == "user" and "__getattr__" in vars(x):
                self.describe(vars(x)["__getattr__"])

    def _of_library(self, label: str, x: Any) -> None:
        """What a library has under a name: one of its own, whose version says all, or something put in its place."""
        if type(x) in ATOMS or isinstance(x, (types.ModuleType, types.FunctionType, type, *NAMED)):
            self.describe(x)
        elif isinstance(x, torch._ops._Ops):
            for namespace in sorted((vars(x).keys() & self.names) - OPERATORS):
                if isinstance(vars(x)[namespace], torch._ops._OpNamespace):
                    self.fail(f"uses the operators of {namespace}")
        elif isinstance(x, (list, tuple, dict)) and label != "sys.modules":
            self.say("of", label)
        elif self._whose(type(x).__module__) == "user":
            self.describe(x)
        elif type(x).__module__ in ("os", "random"):
            self.fail(f"uses {label}")
        else:
            self.say("of", label, type(x).__qualname__)

    def builtin(self, x: Any) -> None:
        """A function or method that is not written in Python."""
        owner = getattr(x, "__self__", None)
        home = getattr(x, "__module__", "") or getattr(getattr(x, "__objclass__", None), "__module__", "builtins")
        if self._whose(home) == "user" and not isinstance(x, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            self.fail(f"uses {home}.{x.__qualname__}, which is not Python")
        self._allow(home, x.__qualname__)
        self.say("named", home, x.__qualname__)
        if owner is not None and not isinstance(owner, (types.ModuleType, type)):
            self.describe(owner)

    def _allow(self, home: str, name: str) -> None:
        """Refuse functions of libraries that read what is not described."""
        last = name.rpartition(".")[2]
        if root_of(home) in BLIND or (root_of(home) != PACKAGE and last in READERS) or home == "numpy.random":
            self.fail(f"uses {home}.{name}")

    # --- classes ---

    def one_class(self, x: type) -> None:
        """A class that is reached by itself: it may be called."""
        self._class(x)
        if id(x) in {id(c) for c in self.classes} and id(x) not in self.made:
            self._making(x)

    def _class(self, x: type) -> None:
        if ("type", id(x)) in self.seen:
            self.say("type", self.seen["type", id(x)][0])
            return
        self.seen["type", id(x)] = len(self.seen), x
        self.say("type", x.__module__, x.__qualname__)
        whose = self._whose(x.__module__)
        if whose == "library" or (whose == "package" and _find(x.__module__, x.__qualname__) is x):
            if root_of(x.__module__) in BLIND:
                self.fail(f"uses {x.__module__}.{x.__qualname__}")
            return
        self.classes.append(x)
        for base in x.__bases__:
            self._class(base)
        if type(x) is not type:
            self._class(type(x))
        known = {k: v for k, v in vars(x).items() if k not in SILENT}
        handed_on = any(self._whose(c.__module__) == "library" and c is not object for c in x.__mro__)
        always = {k for k in known if k not in MAKING and (handed_on or (k[:2] == "__" == k[-2:]))}
        for k in sorted(always):
            self._named(f"{x.__qualname__}.{k}", known[k])
        self.partly.append((x.__qualname__, known, always | MAKING, True))
        self._node(x)

    def _making(self, x: type) -> None:
        self.made.add(id(x))
        for k in sorted(vars(x).keys() & MAKING):
            self._named(f"{x.__qualname__}.{k}", vars(x)[k])

    def _node(self, x: type) -> None:
        """How optree takes a class of the user's apart."""
        entry = optree.register_pytree_node.get(x, namespace=NAMESPACE)
        if entry is not None and not optree.is_namedtuple_class(x):
            self.each("node", [entry.flatten_func, entry.unflatten_func])

    # --- values ---

    def describe_new(self, x: Any) -> None:
        """Values, by what they hold; where a class is not one of Python's own, with the class."""
        kind = type(x)
        if kind in (list, tuple, dict, set, frozenset, types.MappingProxyType, types.CodeType) or isinstance(x, type):
            super().describe_new(x)
        elif isinstance(x, types.FunctionType):
            self.function(x)
        elif isinstance(x, types.ModuleType):
            self.module(x)
        elif isinstance(x, NAMED):
            self.builtin(x)
        elif isinstance(x, enum.Enum):
            self._class(kind)
            self.each("member", [x.name, x.value])
        elif isinstance(x, Name):
            self.each("static", x.values)
        elif isinstance(x, (Tensor, np.ndarray, np.generic)):
            self._array(x)
        elif isinstance(x, EXACT):
            self.say(kind.__qualname__, repr(x) if not isinstance(x, np.dtype) else (x.str, x.descr))
        elif isinstance(x, (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)):
            self._operator(x)
        elif isinstance(x, logging.Logger):
            self.say("logger")
        else:
            self._object(x)

    def _operator(self, x: Any) -> None:
        namespace = getattr(x, "namespace", None) or str(x).partition(".")[0]
        if namespace not in OPERATORS:
            self.fail(f"uses the operator {x}")
        self.say("operator", namespace, str(x))

    def _array(self, x: Any) -> None:
        """Tensors and arrays, by their contents."""
        if type(x) in (Tensor, torch.nn.Parameter):
            self.say("tensor", type(x).__name__, x.dtype, tuple(x.shape), x.stride(), x.device, x.requires_grad)
            if x.device.type != "cpu" or x.layout != torch.strided or x.is_quantized:
                self.fail(f"captures a tensor of {x.layout} on {x.device}")
            with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                # By `clone`: what has one element is contiguous whatever its strides.
                plain = x.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
                data = plain.flatten().view(torch.uint8).numpy() if plain.numel() else b""
            self.say(hashlib.sha256(data).hexdigest())
            self.tensors.append(x)
        elif isinstance(x, Tensor) or x.dtype.hasobject or type(x) not in (np.ndarray, x.dtype.type):
            self._unknown(x)
        else:
            self.say("array", x.dtype.str, x.shape, hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest())

    def _object(self, x: Any) -> None:
        """An object of any other class."""
        kind = type(x)
        address = f"{kind.__module__}.{kind.__qualname__}"
        parts = self.parts(x)
        if parts is not None:
            self.each(address, parts)
        elif address == JITTED:
            self.each(address, [x.f, x.settings()])
        elif isinstance(x, (list, tuple, dict, set, frozenset)):
            self._class(kind)
            self._container(x)
        elif not _is_plain(kind):
            if _find(getattr(x, "__module__", None), getattr(x, "__qualname__", "")) is not x:
                self._unknown(x)
            self.builtin(x)
        elif self._whose(kind.__module__) == "package" and dataclasses.is_dataclass(x):
            self._class(kind)
            self.each("fields", [getattr(x, f.name, None) for f in dataclasses.fields(x)])
        else:
            self._class(kind)
            self._state(x)

    def _container(self, x: Any) -> None:
        """An object of a subclass of one of Python's containers."""
        inside = [y for item in x.items() for y in item] if isinstance(x, dict) else list(x)
        self.each("items", sorted(inside, key=repr) if isinstance(x, (set, frozenset)) else inside)
        self.each("state", [getattr(x, "__dict__", None), getattr(x, "default_factory", None)])

    def _state(self, x: Any) -> None:
        """The attributes of an object; those that are named, if all of its class is the user's."""
        kind = type(x)
        self.each("slots", [getattr(x, name, None) for name in _slots(kind)])
        attributes = getattr(x, "__dict__", {})
        own = all(c is object or self._whose(c.__module__) == "user" for c in kind.__mro__)
        if own and not dataclasses.is_dataclass(x):
            self.partly.append((kind.__qualname__, attributes, set(), True))
        else:
            for name, value in attributes.items():
                self._named(f"{kind.__qualname__}.{name}", value)

    def _unknown(self, x: Any) -> None:
        self.fail(f"captures an instance of {type(x).__module__}.{type(x).__qualname__}")

    # --- whose is it ---

    def _whose(self, module: str) -> str:
        """Whether a module is of this package, of a library whose version is known, or the user's."""
        root = root_of(module)
        if root == PACKAGE:
            return "user" if module.startswith(ASIDE) else "package"
        if root in sys.stdlib_module_names or root in sys.builtin_module_names:
            return "user" if root == "__main__" else "library"
        if root in self.versions:
            return "library"
        if module.startswith("namedtuple_") and root not in sys.modules:
            return "library"
        loaded = sys.modules.get(root)
        places = [getattr(loaded, "__file__", None), *getattr(loaded, "__path__", ())]
        if loaded is None or not any(p and os.path.abspath(p).startswith(INSTALLED) for p in places):
            return "user"
        self.versions[root] = _version(root)
        return "library"


def _version(root: str) -> str:
    """Of the library that a module belongs to."""
    try:
        return importlib.metadata.version(root)
    except importlib.metadata.PackageNotFoundError:
        found = getattr(sys.modules[root], "__version__", None)
    if isinstance(found, str):
        return found
    names = importlib.metadata.packages_distributions().get(root, ())
    if not names:
        raise UnfamiliarError(f"uses {root}, whose version is unknown")
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(names))


def _find(module: str | None, name: str) -> Any:
    """What stands under a name in a module."""
    found: Any = sys.modules.get(module or "")
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found.__func__ if isinstance(found, (staticmethod, classmethod)) else found


def _slots(kind: type) -> list[str]:
    """The attributes that objects of a class have apart from a dict. (`copyreg` would write to the class.)"""
    names = []
    for c in kind.__mro__:
        given = vars(c).get("__slots__", ())
        for name in (given,) if isinstance(given, str) else given:
            private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{c.__name__.lstrip('_')}{name}" if private else name)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


class _Plain:
    """An object that holds nothing but attributes."""


class _Bare:
    """The same without any."""

    __slots__ = ()


def _is_plain(kind: type) -> bool:
    """Whether all that an object of this class holds are attributes: nothing that only C can see."""
    classes = kind.__mro__[:-1]
    roots = [c for c in classes if c.__base__ is object]
    marks = {"__dict__", "__weakref__", "__slots__"}
    if not all(c.__flags__ & HEAP for c in classes) or any(marks.isdisjoint(vars(c)) for c in roots):
        return False
    least = _Bare.__basicsize__ + len(_slots(kind)) * (8 if sys.maxsize > 2**32 else 4)
    most = least + _Plain.__basicsize__ - _Bare.__basicsize__
    return kind.__itemsize__ == 0 and least <= kind.__basicsize__ <= most
