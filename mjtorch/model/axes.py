"""`model_axes`: which fields of a model have one value per world."""

from typing import Any

from mjtorch import tree
from mjtorch.model.arguments import check_model
from mjtorch.model.model import Model


def model_axes(m: Model, *fields: str) -> Model:
    """The `in_dims` of a model whose named fields have a leading world axis, for `torch.vmap`.

    Args:
        m: the model.
        *fields: names of tensor fields, such as `"body_mass"` or `"opt.gravity"`.

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
        axes = _set(m, axes, name.split("."), name)
    return axes


def _set(m: Any, axes: Any, path: list[str], name: str) -> Any:
    """`axes` with a 0 at `path`."""
    first, *rest = path
    if first in tree.static_fields(type(m)):
        raise ValueError(f"model_axes: {name!r} is static: it shapes the program and cannot differ between worlds")
    fields = [name for name in tree.tensor_fields(type(m)) if name not in ("plan", "settings")]
    if first not in fields or bool(rest) != (first in ("opt", "stat")):
        known = ", ".join(path for path, _ in tree.leaves_with_path(m) if not path.startswith(("plan.", "settings.")))
        raise ValueError(f"model_axes: {name!r} is not a field of the model; the fields are {known}")
    value = _set(getattr(m, first), getattr(axes, first), rest, name) if rest else 0
    return axes.replace(**{first: value})
