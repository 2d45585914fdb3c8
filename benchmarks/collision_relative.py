"""MJX for `collision.py`: a process that prints one line of JSON. It imports neither torch nor mjtorch."""

import json
import os
import sys
import time
from typing import Any

import mujoco
import numpy as np


def measure(mj_model: mujoco.MjModel, xpos: np.ndarray, xmat: np.ndarray, repeats: int) -> dict[str, Any]:
    """Seconds of the processor: of the first call, and of a world in the fastest of the next ones."""
    import jax
    from jax import numpy as jnp
    from mujoco import mjx

    m, one = mjx.put_model(mj_model), mjx.make_data(mj_model)
    given = {"geom_xpos": jnp.asarray(xpos), "geom_xmat": jnp.asarray(xmat)}
    d = jax.tree_util.tree_map(lambda x: jnp.broadcast_to(x, (len(xpos), *jnp.shape(x))), one).replace(**given)

    def contacts(m: Any, d: Any) -> tuple[Any, ...]:
        contact = mjx.collision(m, d).contact
        return contact.dist, contact.pos, contact.frame, contact.includemargin

    run = jax.jit(jax.vmap(contacts, in_axes=(None, 0)))
    seconds = []
    for _ in range(1 + repeats):
        start = time.process_time()
        found = jax.block_until_ready(run(m, d))
        seconds.append(time.process_time() - start)
    count = int((found[0] < found[3]).sum()) / len(xpos)
    measured = {"compiling": seconds[0], "seconds": min(seconds[1:]) / len(xpos), "contacts": count}
    return measured | {"jax": jax.__version__}


def main(file: str, poses: str, repeats: str) -> None:
    """Measure, and print what was found or why nothing was."""
    if hasattr(os, "sched_setaffinity"):  # threads that wait for others' work take time, too
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    try:
        with np.load(poses) as given:
            found = measure(mujoco.MjModel.from_xml_path(file), given["xpos"], given["xmat"], int(repeats))
    except Exception as e:  # whatever a library raises is the result
        found = {"error": f"{type(e).__name__}: {str(e).splitlines()[0]}"}
    print(json.dumps({"mujoco": mujoco.__version__} | found))


if __name__ == "__main__":
    main(*sys.argv[1:])
