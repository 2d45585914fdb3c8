"""`model_axes`: which fields of a model have one value per world."""

from typing import Any

import optree

from mjtorch import tree
from mjtorch.model.arguments import check_model
from mjtorch.model.model import Model

# What is no number of mjModel.
APART = ("plan", "settings", "callbacks")


def model_axes(m: Model, *fields: str) -> Model:
    """The `in_dims` of a model whose named fields have a leading world axis, for `torch.vmap`.

    Args:
        m: the model.
        *fields: names of tensor fields, such as `"body_mass"` or `"opt.gravity"`, or of callbacks with parameters, such
            as `"callbacks.control"`.

    Raises:
        TypeError: `m` is no model, or a field not given by its name.
        ValueError: a name is not a field, or is static, so that it cannot differ between worlds.

    ::

        masses = m.body_mass * torch.empty(64, 1).uniform_(0.8, 1.2)
        step = torch.vmap(mjtorch.step, in_dims=(mjtorch.model_axes(m, "body_mass"), 0))
        d = step(m.replace(body_mass=masses), d)
    """
    check_model(m, "model_axes")
    axes = tree.map(lambda _: None, m)
    for name in fields:
        if not isinstance(name, str):
            raise TypeError(f"model_axes: fields are given by their names, got {type(name).__name__}")
        if name.startswith("callbacks."):
            axes = axes.replace(callbacks=_set_callbacks(m, axes.callbacks, name))
            continue
        axes = _set(m, axes, name.split("."), name)
    return axes


def _set_callbacks(m: Model, axes: Any, name: str) -> Any:
    """`axes`, those of the callbacks, with a 0 at all parameters whose paths begin with `name`."""
    paths = [f"callbacks.{path}" for path, _ in tree.leaves_with_path(m.callbacks)]
    chosen = [path == name or path.startswith(f"{name}.") for path in paths]
    if not any(chosen):
        known = ", ".join(paths) or "none"
        raise ValueError(f"model_axes: {name!r} is no parameter of a callback; these are {known}")
    old = optree.tree_leaves(axes, none_is_leaf=True, namespace=tree.NAMESPACE)
    new = iter([0 if c else before for c, before in zip(chosen, old, strict=True)])
    return tree.map(lambda _: next(new), m.callbacks)


def _set(m: Any, axes: Any, path: list[str], name: str) -> Any:
    """`axes` with a 0 at `path`."""
    first, *rest = path
    if first in tree.static_fields(type(m)):
        raise ValueError(f"model_axes: {name!r} is static: it shapes the program and cannot differ between worlds")
    fields = [name for name in tree.tensor_fields(type(m)) if name not in APART]
    if first not in fields or bool(rest) != (first in ("opt", "stat")):
        known = ", ".join(path for path, _ in tree.leaves_with_path(m) if path.partition(".")[0] not in APART)
        raise ValueError(f"model_axes: {name!r} is not a field of the model; the fields are {known}")
    value = _set(getattr(m, first), getattr(axes, first), rest, name) if rest else 0
    return axes.replace(**{first: value})
