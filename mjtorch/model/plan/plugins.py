"""What `MjModel` says of plugins: their names, which it does not hold, and how their instances are configured."""

import ctypes
from pathlib import Path

import mujoco

TOUCH_GRID = "mujoco.sensor.touch_grid"
PID = "mujoco.pid"
# Signed distance fields: how their names begin, and their attributes, as they are without being given.
FIELD = "mujoco.sdf."
ATTRIBUTES = {
    "bolt": (0.26,),
    "bowl": (0.4, 1.0, 0.02),
    "gear": (0.0, 2.8, 25.0, 0.2, -1.0),
    "nut": (0.26,),
    "torus": (0.35, 0.15),
}
FIELDS = tuple(FIELD + name for name in ATTRIBUTES)
# Those that are computed here.
SUPPORTED = (TOUCH_GRID, PID, *FIELDS)


class _Plugin(ctypes.Structure):
    """The beginning of mjpPlugin."""

    _fields_ = (("name", ctypes.c_char_p),)


def names(mj_model: mujoco.MjModel) -> list[str]:
    """The plugin of each instance.

    Raises:
        NotImplementedError: MuJoCo's library, which knows, cannot be opened.
    """
    if not mj_model.nplugin:
        return []
    library = _library()
    library.mjp_getPluginAtSlot.restype = ctypes.POINTER(_Plugin)
    found = [library.mjp_getPluginAtSlot(int(slot)) for slot in mj_model.plugin]
    return [plugin.contents.name.decode() if plugin else "?" for plugin in found]


def _library() -> ctypes.CDLL:
    """MuJoCo's, which is loaded already."""
    folder = Path(mujoco.__file__).parent
    paths = [p for p in folder.glob("*mujoco*") if p.suffix in (".dll", ".dylib") or ".so." in p.name]
    try:
        return ctypes.CDLL(str(paths[0]))
    except (IndexError, OSError) as e:
        raise NotImplementedError(f"put_model: the model has plugins, whose names are not in {folder}: {e}") from e


def configuration(mj_model: mujoco.MjModel, instance: int) -> list[str]:
    """The values of the attributes of an instance, in the order in which the plugin declares them."""
    start = int(mj_model.plugin_attradr[instance])
    after = int(mj_model.plugin_attradr[instance + 1]) if instance + 1 < mj_model.nplugin else mj_model.npluginattr
    values = bytes(mj_model.plugin_attr[start:after].astype("uint8")).decode()
    return values.split("\0")[:-1]
