"""Whether what a command was asked for fits into memory, found out before it begins."""

import mjtorch
from mjtorch.cli.errors import UsageError
from mjtorch.memory import available


def check_room(m: mjtorch.Model, worlds: int, steps: int) -> None:
    """Raise `UsageError` if the data of `worlds`, or the states of that many `steps`, cannot be had at a time."""
    one = mjtorch.tree.nbytes(mjtorch.make_data(m))
    row = (1 + m.nq + m.nv + m.nu + m.nsensordata) * m.qpos0.element_size()
    need, free = worlds * (one + steps * row), available()
    if m.qpos0.device.type == "cpu" and free is not None and need > free:
        asked = f"--batch {worlds}" + (f" and --steps {steps}" if steps else "")
        raise UsageError(f"{asked} need {need:,} bytes, but {free:,} are available; take fewer")
