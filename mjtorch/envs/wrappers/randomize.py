"""Episodes with models of their own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from mjtorch import random, tree
from mjtorch.envs.env import State, Wrapper
from mjtorch.model import Model
from mjtorch.smooth.set_const import set_const


@tree.dataclass(kw_only=True)
class RandomizeModel(Wrapper):
    """Each episode has a model of its own, `draw(key, m)`, drawn when it begins.

    draw: a function of a key (2,) and the model, that returns the model with other numbers, such as
        `Scaled({"body_mass": (0.8, 1.2)})`; the same function each time: another one is compiled anew.
    derive: whether to derive with `set_const` what follows from what was drawn; friction, gains and gravity need none.

    What differs from the model that all have is `memory["model"]`, by name.
    """

    draw: Callable[[Tensor, Model], Model] = tree.field(static=True)
    derive: bool = tree.field(static=True, default=True)

    def reset(self, key: Tensor) -> State:
        """With a model of its own."""
        own, key = random.split(key).unbind()
        m = self.env.task.m
        drawn = self.draw(own, m)
        drawn = set_const(drawn) if self.derive else drawn
        own_numbers = {
            path: y
            for (path, x), (_, y) in zip(tree.leaves_with_path(m), tree.leaves_with_path(drawn), strict=True)
            if x is not y
        }
        state = self.env.with_model(drawn).reset(key)
        return state.replace(memory={**state.memory, "model": own_numbers})

    def step(self, state: State, action: Tensor) -> State:
        """With the model of the episode."""
        m = self.env.task.m
        for path, x in state.memory["model"].items():
            m = _replaced(m, path.split("."), x)
        return self.env.with_model(m).step(state, action)


def _replaced(x: Any, path: list[str], value: Tensor) -> Any:
    first, *rest = path
    return tree.replace(x, **{first: _replaced(getattr(x, first), rest, value) if rest else value})


class Scaled:
    """Multiplies fields of a model, each number by a factor of its own between two bounds.

    Args:
        bounds: by the names of fields, such as `{"body_mass": (0.8, 1.2), "opt.gravity": (0.9, 1.1)}`.

    Raises:
        ValueError: bounds are not two numbers in order.
    """

    def __init__(self, bounds: Mapping[str, tuple[float, float]]) -> None:
        for name, pair in bounds.items():
            numbers = isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(x, int | float) for x in pair)
            if not numbers or not pair[0] <= pair[1]:
                raise ValueError(f"Scaled: the bounds of {name!r} must be two numbers, (low, high), got {pair!r}")
        self.bounds = tuple(sorted((name, (float(low), float(high))) for name, (low, high) in bounds.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scaled) and self.bounds == other.bounds

    def __hash__(self) -> int:
        return hash(self.bounds)

    def __repr__(self) -> str:
        return f"Scaled({dict(self.bounds)})"

    def __call__(self, key: Tensor, m: Model) -> Model:
        """The model with other numbers.

        Raises:
            ValueError: a name is none of a tensor in the model.
        """
        known = dict(tree.leaves_with_path(m))
        for k, (name, bounds) in enumerate(self.bounds):
            if name not in known or name.startswith(("plan.", "settings.")):
                raise ValueError(f"Scaled: the model has no numbers {name!r}; model_axes lists those that it has")
            x = known[name]
            factor = random.uniform(random.fold_in(key, k), tuple(x.shape), *bounds, dtype=x.dtype)
            m = _replaced(m, name.split("."), factor * x)
        return m
