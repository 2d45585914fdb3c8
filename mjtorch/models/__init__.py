"""A small collection of MJCF models, and the one way to load a model by name or by path."""

import difflib
from importlib import resources
from pathlib import Path

import mujoco

__all__ = ["load", "names", "path"]


def names() -> tuple[str, ...]:
    """The models of the collection, sorted."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(Path(f.name).stem for f in files if f.name.endswith(".xml")))


def path(name: str) -> Path:
    """The MJCF file of a model of the collection.

    Raises:
        ValueError: there is no such model; close names are listed.
    """
    if name not in names():
        close = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"no model is called {name!r}; {hint}The collection has {', '.join(names())}")
    return Path(str(resources.files(__name__) / f"{name}.xml"))


def load(name_or_path: str | Path) -> mujoco.MjModel:
    """Compile a model of the collection, or an MJCF, URDF or MJB file.

    A bare word such as `"humanoid"` is a name; anything with a suffix or a folder in it is a path.

    Raises:
        ValueError: there is no such name, or the file does not compile.
        FileNotFoundError: there is no such file.
    """
    given = Path(name_or_path)
    if not given.suffix and given.name == str(name_or_path):
        file = path(str(name_or_path))
    elif given.is_file():
        file = given
    else:
        raise FileNotFoundError(f"no file {str(given)!r}; the models by name are {', '.join(names())}")
    try:
        if file.suffix.lower() == ".mjb":
            return mujoco.MjModel.from_binary_path(str(file))
        return mujoco.MjModel.from_xml_path(str(file))
    except (ValueError, mujoco.FatalError) as error:
        raise ValueError(f"{file} is not a model that MuJoCo can load: {error}") from error
