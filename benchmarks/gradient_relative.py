"""MJX for `gradient.py`: a process that prints what it has found so far as a line of JSON, whenever it finds more.

It imports neither torch nor mjtorch.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import mujoco
import numpy as np


def timed(f: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Seconds of the processor of the first call, and of the fastest of the next ones."""
    import jax

    seconds = []
    for _ in range(1 + repeats):
        start = time.process_time()
        jax.block_until_ready(f())
        seconds.append(time.process_time() - start)
    return seconds[0], min(seconds[1:])


def measure(
    mj_model: mujoco.MjModel, states: dict[str, np.ndarray], checked: int, repeats: int
) -> Iterator[dict[str, Any]]:
    """Times in float32 and gradients in float64, one after the other."""
    import jax
    from jax import numpy as jnp
    from mujoco import mjx

    yield {"jax": jax.__version__}
    wq, wv = states.pop("wq"), states.pop("wv")

    def step(m: Any, d: Any, qpos: Any, qvel: Any, ctrl: Any) -> Any:
        d = mjx.step(m, d.replace(qpos=qpos, qvel=qvel, ctrl=ctrl))
        return d.qpos, d.qvel

    def gradient(m: Any, d: Any, *inputs: Any) -> Any:
        def loss(*inputs: Any) -> Any:
            qpos, qvel = step(m, d, *inputs)
            return (wq.astype(qpos.dtype) * qpos).sum() + (wv.astype(qpos.dtype) * qvel).sum()

        return jax.grad(loss, argnums=(0, 1, 2))(*inputs)

    def prepared(count: int) -> tuple[Any, ...]:
        m, one = mjx.put_model(mj_model), mjx.make_data(mj_model)
        given = {name: jnp.asarray(x[:count], one.qpos.dtype) for name, x in states.items()}
        d = jax.tree_util.tree_map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), one).replace(**given)
        return m, d, d.qpos, d.qvel, d.ctrl

    arguments = prepared(len(states["qpos"]))
    for name, f in (("step", step), ("gradient", gradient)):
        jitted = jax.jit(jax.vmap(f, in_axes=(None, 0, 0, 0, 0)))
        compiling, seconds = timed(lambda jitted=jitted: jitted(*arguments), repeats)
        yield {f"{name}_compile": compiling, name: seconds}
    jax.config.update("jax_enable_x64", True)
    found = jax.jit(jax.vmap(gradient, in_axes=(None, 0, 0, 0, 0)))(*prepared(checked))
    yield {"found": np.concatenate(found, axis=1).tolist()}


def main(file: str, states: str, iterations: str, checked: str, repeats: str) -> None:
    """Measure, and print what was found or why nothing was."""
    if hasattr(os, "sched_setaffinity"):  # threads that wait for others' work take time, too
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    mj_model = mujoco.MjModel.from_xml_path(file)
    if iterations:
        mj_model.opt.iterations = int(iterations)
    known = {"iterations": int(mj_model.opt.iterations), "mujoco": mujoco.__version__}
    print(json.dumps(known), flush=True)
    try:
        with np.load(states) as given:
            for found in measure(mj_model, dict(given), int(checked), int(repeats)):
                known |= found
                print(json.dumps(known), flush=True)
    except Exception as e:  # whatever a library raises is the result
        print(json.dumps(known | {"error": f"{type(e).__name__}: {str(e).splitlines()[0]}"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
