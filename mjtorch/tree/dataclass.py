"""`@tree.dataclass`: a frozen dataclass whose tensor fields are leaves and whose static fields shape the program."""

import dataclasses
import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self, TypeVar, dataclass_transform, overload

import optree
import torch
import torch.utils._pytree as torch_pytree

from mjtorch.tree import show
from mjtorch.tree.static import Name, exact, names

T = TypeVar("T")

# optree keeps third-party registrations apart by namespace; ours must be named in every optree call.
NAMESPACE = "mjtorch"

# Dynamo does not know `x.__dict__.update` of a frozen dataclass; setting one field after the other takes it longer.
SETS_ONE_BY_ONE = torch.__version__ < "2.12"

# Where an object keeps the name of its static part: as a plain string, and as one that holds what it stands for.
STATIC, NAME = "_static", "_name"


def field(*, static: bool = False, constant: bool = False, **kwargs: Any) -> Any:
    """A dataclass field; `static=True` makes it part of the tree's structure instead of a leaf.

    `constant=True` marks leaves, such as index tensors, that never change their values: a compiler may bake them in.

    A static value must be hashable, best a plain Python value (int, float, bool, str, None, enum, tuple), since a
    compiled program is specialised to it: changing it recompiles, changing a leaf never does. Values are the same if
    they are equal and of one type, in tuples, too; objects are what their own `==` says.
    """
    metadata = dict(kwargs.pop("metadata", None) or {})
    metadata |= {"static": static, "constant": constant}
    return dataclasses.field(metadata=metadata, **kwargs)


def tensor_fields(cls: type) -> tuple[str, ...]:
    """Names of the fields of `cls` that are leaves or subtrees."""
    return tuple(f.name for f in dataclasses.fields(cls) if not f.metadata.get("static", False))


def static_fields(cls: Any) -> tuple[str, ...]:
    """Names of the fields of `cls` that are part of the structure."""
    return tuple(f.name for f in dataclasses.fields(cls) if f.metadata.get("static", False))


class Tree:
    """Optional base of a `@dataclass`: gives it `replace` as a method."""

    def replace(self, /, **changes: Any) -> Self:
        """A copy with some fields changed; see `tree.replace`."""
        return replace(self, **changes)

    def tree_replace(self, changes: Mapping[str, Any]) -> Self:
        """`replace`, with names that may lead to parts, such as "opt.gravity"."""
        return self.replace(**changes)

    def to(self, *where: torch.device | str | int | torch.dtype, **named: Any) -> Self:
        """All tensors on another device, those of floating point with another dtype; arguments as of `Tensor.to`."""
        dtypes = [x for x in (*where, *named.values()) if isinstance(x, torch.dtype)]
        where = tuple(x for x in where if x not in dtypes)
        others = {name: x for name, x in named.items() if name != "dtype"}

        def move(x: Any) -> Any:
            return x.to(*where, **others, **({"dtype": dtypes[0]} if dtypes and x.is_floating_point() else {}))

        return optree.tree_map(move, self, namespace=NAMESPACE)  # type: ignore[arg-type, return-value]

    def clone(self) -> Self:
        """A copy that shares no memory."""
        return optree.tree_map(torch.clone, self, namespace=NAMESPACE)  # type: ignore[arg-type, return-value]

    def detach(self) -> Self:
        """The same numbers without a way back for gradients."""
        return optree.tree_map(torch.detach, self, namespace=NAMESPACE)  # type: ignore[arg-type, return-value]


@overload
def dataclass(cls: type[T], *, kw_only: bool = ...) -> type[T]: ...
@overload
def dataclass(*, kw_only: bool = ...) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def dataclass(cls: type[T] | None = None, *, kw_only: bool = False) -> Any:
    """Make `cls` a frozen dataclass that optree and `torch.utils._pytree` both flatten.

    >>> import torch
    >>> @dataclass
    ... class Spring(Tree):
    ...     stiffness: torch.Tensor
    ...     name: str = field(static=True, default="")
    >>> s = Spring(torch.ones(2), "left")
    >>> torch.vmap(lambda s: s.stiffness * 2)(s)
    tensor([2., 2.])
    >>> s.replace(name="right").name
    'right'
    """
    if cls is None:
        return lambda c: dataclass(c, kw_only=kw_only)
    methods = {"__post_init__": _name_static_part, "__getstate__": _without_name, "__setstate__": _with_name}
    methods |= {"__repr__": show.text, "_repr_html_": show.page}
    for name, value in (methods | {STATIC: None, NAME: None}).items():
        setattr(cls, name, value)
    frozen = dataclasses.dataclass(frozen=True, kw_only=kw_only, eq=False, repr=False)(cls)
    frozen.__setattr__ = _refuse_to_set  # type: ignore[method-assign]
    _register(frozen)
    return frozen


def register(*values: Any) -> str:
    """A string that stands for the static values `values`, and is all of them that PyTorch sees of a tree's structure.

    To Dynamo an int is not a constant once it has seen it change, but a string always is: one guard for all of them.
    """
    return names().text(names().of(values))


def _values_of(name: str) -> tuple[Any, ...]:
    return names().find(name).values


# What torch.compiler.assume_constant_result does; that would import Dynamo, which takes longer than all of torch.
register._dynamo_marked_constant = True  # type: ignore[attr-defined]
_values_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _name_static_part(x: Any) -> None:
    if not torch.compiler.is_dynamo_compiling():
        name = _name_of(x)
        x.__dict__.update({STATIC: name.text, NAME: name})


def _name_of(x: Any) -> Name:
    fields = static_fields(type(x))
    try:
        return names().of(tuple(getattr(x, field) for field in fields))
    except TypeError:
        for field in fields:
            _check_hashable(type(x).__name__, field, getattr(x, field))
        raise


def _check_hashable(owner: str, field: str, value: Any) -> None:
    try:
        exact(value)
    except TypeError:
        raise TypeError(f"{owner}: static field {field!r} must be hashable, got {value!r}") from None


def _refuse_to_set(x: Any, name: str, value: Any) -> None:
    kind = type(x).__name__
    raise dataclasses.FrozenInstanceError(f"{kind} cannot be changed; make another one with replace({name}=...)")


def _without_name(x: Any) -> dict[str, Any]:
    return {name: value for name, value in x.__dict__.items() if name not in (STATIC, NAME)}


def _with_name(x: Any, state: dict[str, Any]) -> None:
    x.__dict__.update(state)
    _name_static_part(x)


def _register(cls: type) -> None:
    tensors, statics = tensor_fields(cls), static_fields(cls)

    def flatten(x: Any) -> tuple[list[Any], str]:
        """With a plain string for the static part, whether Dynamo looks on or not: for PyTorch."""
        if not torch.compiler.is_dynamo_compiling():
            return [getattr(x, name) for name in tensors], names().text(x._name or _name_of(x))
        return [getattr(x, name) for name in tensors], x._static or register(*[getattr(x, name) for name in statics])

    def flatten_named(x: Any) -> tuple[list[Any], str, tuple[str, ...]]:
        """With a name that holds the static part: for optree."""
        if torch.compiler.is_dynamo_compiling():
            return (*flatten(x), tensors)
        return [getattr(x, name) for name in tensors], x._name or _name_of(x), tensors

    def unflatten(children: Any, name: Any) -> Any:
        x: Any = object.__new__(cls)
        if torch.compiler.is_dynamo_compiling():
            _set(x, (*tensors, *statics, STATIC), (*children, *_values_of(name), name))
            return x
        _set(x, tensors, children)
        held = names().find(name)
        x.__dict__.update(zip(statics, held.values, strict=True))
        x.__dict__.update({STATIC: held.text, NAME: held})
        return x

    def flatten_with_keys(x: Any) -> tuple[list[tuple[Any, Any]], str]:
        children, static = flatten(x)
        return [(torch_pytree.GetAttrKey(n), c) for n, c in zip(tensors, children, strict=True)], static

    torch_pytree.register_pytree_node(
        cls,
        flatten,
        lambda children, static: unflatten(children, static),
        flatten_with_keys_fn=flatten_with_keys,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
    )
    optree.register_pytree_node(
        cls,
        flatten_named,
        lambda static, children: unflatten(children, static),
        namespace=NAMESPACE,
    )


def _set(x: Any, fields: Sequence[str], values: Sequence[Any]) -> None:
    """Give a new object its fields."""
    if SETS_ONE_BY_ONE and torch.compiler.is_dynamo_compiling():
        for name, value in zip(fields, values, strict=True):
            object.__setattr__(x, name, value)
    else:
        x.__dict__.update(zip(fields, values, strict=True))


def replace(tree: T, /, **changes: Any) -> T:
    """A copy of `tree` with some fields changed; an unknown name is an error that says what is close to it.

    A name may lead to a part of a field, and into a dict: `replace(m, **{"opt.gravity": g})`.
    """
    if isinstance(tree, dict):
        _check_known("dict", changes, tree)
        return {**tree, **changes}  # type: ignore[return-value]
    for name in [name for name in changes if "." in name]:
        head, _, rest = name.partition(".")
        part = changes.get(head, getattr(tree, head, None))
        change = {rest: changes.pop(name)}
        changes[head] = part.replace(**change) if isinstance(part, Tree) else replace(part, **change)
    fields = type(tree).__dataclass_fields__  # type: ignore[attr-defined]
    _check_known(type(tree).__name__, changes, fields)
    new = object.__new__(type(tree))
    renamed = any(fields[name].metadata.get("static", False) for name in changes)
    if SETS_ONE_BY_ONE and torch.compiler.is_dynamo_compiling():
        kept = [*fields] if renamed else [*fields, STATIC]
        _set(new, kept, [changes[name] if name in changes else getattr(tree, name) for name in kept])
        return new
    new.__dict__.update(tree.__dict__)
    new.__dict__.update(changes)
    if renamed:
        for name in (STATIC, NAME):
            new.__dict__.pop(name, None)
        _name_static_part(new)
    return new


def _check_known(owner: str, names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known) or list(known)
            raise TypeError(f"{owner} has no field {name!r}; did you mean {' or '.join(close)}?")
