"""MJX and MuJoCo Warp for `throughput.py`: a process that simulates what it is told to, one line of JSON at a time.

It may run under another interpreter, with another version of MuJoCo, and imports neither torch nor mjtorch.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np

Run = Callable[[int], np.ndarray]


class MJX:
    """MJX-JAX: one compiled loop over steps, so that nothing returns to Python in between."""

    def __init__(self, mj_model: mujoco.MjModel) -> None:
        import jax
        import jax.numpy as jnp
        from mujoco import mjx

        if os.environ.get("MJTORCH_BENCHMARK_CACHE"):
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        self.jax, self.jnp, self.mjx, self.mj_model = jax, jnp, mjx, mj_model
        start = time.perf_counter()
        self.m = mjx.put_model(mj_model)
        self.info = {"jax": jax.__version__, "device": str(jax.devices()[0]), "put_model": time.perf_counter() - start}

        @jax.jit
        def run(m: Any, d: Any, controls: Any, steps: Any) -> Any:
            step = jax.vmap(mjx.step, in_axes=(None, 0))
            return jax.lax.fori_loop(0, steps, lambda k, d: step(m, d.replace(ctrl=controls[k])), d)

        self.loop = run

    def prepare(self, qpos: np.ndarray, qvel: np.ndarray, act: np.ndarray, controls: np.ndarray) -> None:
        """Make the worlds, and compile."""
        jax, jnp = self.jax, self.jnp
        one = self.mjx.make_data(self.mj_model)
        d = jax.tree_util.tree_map(lambda x: jnp.broadcast_to(x, (len(qpos), *jnp.shape(x))), one)
        given = {"qpos": qpos, "qvel": qvel, "act": act}
        self.d = d.replace(**{k: jnp.asarray(v, getattr(one, k).dtype) for k, v in given.items()})
        self.controls = jnp.asarray(controls, one.ctrl.dtype).swapaxes(0, 1)
        self.run(1)

    def run(self, steps: int) -> np.ndarray:
        """qpos after some steps."""
        return np.asarray(self.loop(self.m, self.d, self.controls, steps).qpos)


class Warp:
    """MuJoCo Warp: a step captured in a CUDA graph."""

    # Contacts and constraint rows of a world that there is memory for.
    CONTACTS, ROWS = 64, 300

    def __init__(self, mj_model: mujoco.MjModel) -> None:
        import mujoco_warp
        import warp

        if not warp.is_cuda_available():
            raise RuntimeError("MuJoCo Warp needs a CUDA device")
        self.warp, self.mjw, self.mj_model = warp, mujoco_warp, mj_model
        start = time.perf_counter()
        self.m = mujoco_warp.put_model(mj_model)
        self.m.opt.warn_overflow = 0  # each world that stops at the most iterations would print a line
        self.info = {"warp": warp.__version__, "put_model": time.perf_counter() - start}

    def prepare(self, qpos: np.ndarray, qvel: np.ndarray, act: np.ndarray, controls: np.ndarray) -> None:
        """Make the worlds, compile, and capture the graph."""
        data = mujoco.MjData(self.mj_model)
        mujoco.mj_forward(self.mj_model, data)
        self.d = self.mjw.put_data(self.mj_model, data, nworld=len(qpos), nconmax=self.CONTACTS, njmax=self.ROWS)
        self.start = {"qpos": qpos, "qvel": qvel, "act": act, "qacc_warmstart": np.zeros_like(qvel)}
        self.controls = [
            self.warp.array(np.ascontiguousarray(controls[:, k]), dtype=float) for k in range(controls.shape[1])
        ]
        self.mjw.step(self.m, self.d)
        with self.warp.ScopedCapture() as capture:
            self.mjw.step(self.m, self.d)
        self.graph = capture.graph

    def reset(self) -> None:
        """Back to the starts."""
        for name, x in self.start.items():
            if x.size:
                getattr(self.d, name).assign(x.astype(np.float32))
        self.warp.synchronize()

    def run(self, steps: int) -> np.ndarray:
        """qpos after some steps."""
        for k in range(steps):
            self.warp.copy(self.d.ctrl, self.controls[k])
            self.warp.capture_launch(self.graph)
        self.warp.synchronize()
        return self.d.qpos.numpy()


def main(kind: str, model_file: str) -> None:
    """Answer questions until there are no more."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is not an answer

    def answer(**what: Any) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        side = {"mjx": MJX, "warp": Warp}[kind](mujoco.MjModel.from_xml_path(model_file))
    except Exception as e:  # whatever a library raises: the other side prints it and goes on
        answer(error=f"{type(e).__name__}: {e}")
        return
    answer(mujoco=mujoco.__version__, **side.info)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if question["do"] == "prepare":
                with np.load(question["file"]) as given:
                    side.prepare(**given)
                answer(done=True)
                continue
            if isinstance(side, Warp):
                side.reset()
            start = time.perf_counter()
            qpos = side.run(question["steps"])
            seconds = time.perf_counter() - start
            np.save(question["file"], qpos.astype(np.float64))
            answer(seconds=seconds)
        except Exception as e:
            answer(error=f"{type(e).__name__}: {e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
