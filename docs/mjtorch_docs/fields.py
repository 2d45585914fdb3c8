"""Tables of all fields: shapes from the code that makes them, meanings from MuJoCo's own declarations."""

import functools
import re
from collections.abc import Iterable

import mujoco
from mujoco.introspect import structs

from mjtorch import tree
from mjtorch.model import Contact, Data, Model, Option
from mjtorch.model.make_data import integer_shapes, shapes

Shape = tuple[int | str, ...]

# What mjModel, mjData, mjOption and mjContact do not have, or mean otherwise.
OURS = {
    "Model.shapes": "the shape of each number in one world",
    "Model.left_out": "which elements of which numbers were zero when the model was put, and are not in the program",
    "Model.plan": "index tables and masks that follow from the structure; made by `put_model`",
    "Model.settings": "what C does not have: `Gradient`, `Substeps`",
    "Model.callbacks": "functions of yours that a step calls, and their parameters: `Callbacks`",
    "Model.sdf_grid": "values of signed distance fields, at the corners of their octrees' smallest cells [m]",
    "Model.names": "names of the objects of each kind",
    "Model.opt": "the fields of `Option`, below",
    "Model.stat": "`meaninertia` (): the mean diagonal inertia at `qpos0`",
    "Data.contact": "slots of contacts; the fields of `Contact`, below",
    "Data.qpos_asleep": "`qpos` as the last step left it: what differs from it wakes",
    "Data.flexvert_lambda": "what contacts pushed vertices of membranes with, under the flag ipc [N]",
    "Data.flexvert_conage": "for how many rounds they have not; negative if they have before",
    "Data.qLD": "dense, lower, with M = qLD^T qLD",
    "Data.warning": "how often each mjtWarning was raised",
    "Data.solver_niter": "iterations of the last solve",
    "Contact.frame": "rows: normal, from geom[0] to geom[1], and two tangents",
    "Contact.geom": "geom ids; -1 in an empty slot",
    "Contact.detected": "whether the slot holds a contact",
    "Contact.speculative": "whether it will come within the time step; none in models without the flag",
    "Option.fluid": "whether there may be a fluid",
}
UNKNOWN_SHAPES: dict[str, Shape] = {
    "Model.sdf_grid": ("n",),
    "Data.eq_active": ("neq",),
    "Contact.frame": ("n", 3, 3),
    "Contact.geom": ("n", 2),
    "Contact.detected": ("n",),
    "Contact.speculative": ("n",),
}


class Names:
    """Stands for a model whose sizes are their own names."""

    def __getattr__(self, name: str) -> "Names | str":
        return Names() if name in ("plan", "constraint") else name


@functools.cache
def declared(struct: str) -> dict[str, tuple[Shape, str]]:
    """Shape and meaning of the fields of a struct of MuJoCo's."""
    found = {}
    for field in structs.STRUCTS[struct].fields:
        extent = getattr(field, "array_extent", None) or getattr(field.type, "extents", ())
        found[field.name] = tuple(getattr(mujoco, str(x), x) for x in extent), field.doc
    return found


def shape_of(cls: type, name: str) -> Shape:
    """The shape of a tensor field in one world, by the names of sizes."""
    path = f"{cls.__name__}.{name}"
    if path in UNKNOWN_SHAPES:
        return UNKNOWN_SHAPES[path]
    if cls is Data:
        return {**shapes(Names()), **integer_shapes(Names())}[name]
    own = declared({Model: "mjModel", Option: "mjOption", Contact: "mjContact"}[cls])[name][0]
    return ("n", *own) if cls is Contact else own


def meaning_of(cls: type, name: str) -> str:
    """What a field is, in MuJoCo's words where they hold."""
    return OURS.get(f"{cls.__name__}.{name}") or declared(f"mj{cls.__name__}")[name][1]


def table(cls: type, names: Iterable[str]) -> str:
    """A table of fields in Markdown."""
    tensors, rows = tree.tensor_fields(cls), []
    parts = {"opt", "stat", "plan", "settings", "callbacks", "contact"}
    for name in names:
        shape = "" if name not in tensors or name in parts else show(shape_of(cls, name))
        meaning = meaning_of(cls, name).replace("|", r"\|")
        rows.append(f"| `{name}` | {shape} | {meaning} |")
    return "\n".join(["| field | shape | what it is |", "|---|---|---|", *rows])


def show(shape: Shape) -> str:
    """A shape as a tuple."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def model_table() -> str:
    """Numbers and structure of `Model`."""
    tensors, static = tree.tensor_fields(Model), tree.static_fields(Model)
    parts = ("opt", "stat", "plan", "settings", "callbacks")
    sizes = [name for name in static if re.match("n[a-zA-Z]+$", name) and name != "names"]
    return "\n\n".join(
        [
            "### Numbers",
            table(Model, [name for name in tensors if name not in parts]),
            "### Sizes",
            table(Model, sizes),
            "### Structure",
            table(Model, [name for name in static if name not in sizes]),
            "### Parts",
            table(Model, parts),
        ]
    )


def option_table() -> str:
    """All of `Option`."""
    return table(Option, [*tree.tensor_fields(Option), *tree.static_fields(Option)])


def data_table() -> str:
    """All of `Data`."""
    return table(Data, tree.tensor_fields(Data))


def contact_table() -> str:
    """All of `Contact`."""
    return table(Contact, [*tree.tensor_fields(Contact), *tree.static_fields(Contact)])
