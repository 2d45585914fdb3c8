"""Parts of `Data` by name: what a function updates, and what it leaves as it was."""

import difflib
from collections.abc import Sequence
from typing import Any

from mjtorch import tree
from mjtorch.model.contact import Contact
from mjtorch.model.data import Data

# What a step reads that the step before it wrote, and the counts of warnings. Inputs such as ctrl are not changed.
STATE = (
    *("time", "qpos", "qvel", "act", "plastic", "history", "qacc_warmstart", "warning"),
    *("tree_asleep", "qpos_asleep", "flexvert_lambda", "flexvert_conage"),
)


def checked_names(names: str | Sequence[str], caller: str) -> tuple[str, ...]:
    """`names` as a tuple without repetition, "state" spelled out.

    Raises:
        TypeError: `names` is neither a name nor a sequence.
        ValueError: a name is none of a field of `Data`, of a part of one such as "contact.dist", or "state".
    """
    if not isinstance(names, str | Sequence):
        raise TypeError(f"{caller}: outputs must be names of fields, got {type(names).__name__}")
    names = (names,) if isinstance(names, str) else tuple(names)
    known = [*tree.tensor_fields(Data), *(f"contact.{name}" for name in tree.tensor_fields(Contact)), "state"]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=3)
            close += [path for path in known if path.endswith(f".{name}")]
            advice = f"did you mean {' or '.join(map(repr, close))}?" if close else "the docstring of Data lists them"
            raise ValueError(f"{caller}: Data has no field {name!r}; {advice}")
    spelled = [n for name in names for n in (STATE if name == "state" else (name,))]
    return tuple(dict.fromkeys(spelled))


def part(d: Data, name: str) -> Any:
    """The field `name` of `d`, or a part of it such as "contact.dist"."""
    for step in name.split("."):
        d = getattr(d, step)
    return d


def keep(new: Data, old: Data, names: Sequence[str]) -> Data:
    """`old` with the fields `names` of `new`; all others are the very tensors of `old`."""
    changes: dict[str, Any] = {name: getattr(new, name) for name in names if "." not in name}
    for name in names:
        head, _, inner = name.partition(".")
        if inner and head not in names:
            changes[head] = tree.replace(changes.get(head, getattr(old, head)), **{inner: part(new, name)})
    return old.replace(**changes)
