"""What is simulated (`Model`), what the simulation knows of one world (`Data`), and the way in and out of both."""

from mjtorch.model.access import Bound, id2name, name2id
from mjtorch.model.axes import model_axes
from mjtorch.model.callbacks import Callbacks
from mjtorch.model.contact import Contact
from mjtorch.model.data import Data
from mjtorch.model.get_data import get_data, get_data_into
from mjtorch.model.make_data import make_data
from mjtorch.model.model import Model
from mjtorch.model.option import Cone, DisableBit, EnableBit, Integrator, Option, Solver, Statistic
from mjtorch.model.put_data import put_data
from mjtorch.model.put_model import put_model
from mjtorch.model.settings import Gradient, Substeps
from mjtorch.model.state import State, get_state, reset_data, reset_data_keyframe, set_state, state_size

__all__ = [
    "Bound",
    "Callbacks",
    "Cone",
    "Contact",
    "Data",
    "DisableBit",
    "EnableBit",
    "Gradient",
    "Integrator",
    "Model",
    "Option",
    "Solver",
    "State",
    "Statistic",
    "Substeps",
    "get_data",
    "get_data_into",
    "get_state",
    "id2name",
    "make_data",
    "model_axes",
    "name2id",
    "put_data",
    "put_model",
    "reset_data",
    "reset_data_keyframe",
    "set_state",
    "state_size",
]
__helper__ = True  # in reports, its operations are those of its callers
