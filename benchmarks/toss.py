"""What the derivative of a toss with bounces is worth: exact ones at several time steps, and with adaptive substeps.

A cube flies, lands on an edge, tumbles and slides; the derivative is that of the way it gets along the floor by its
initial vertical velocity, as in arXiv 2506.14186 ("cube toss", whose cube, floor and throw these are). The reference
is what C MuJoCo's steps converge to when the time step goes to zero: differences of rollouts at 0.1 ms and below, which
agree over four sizes of the difference. A derivative is useful if it is near that, however exactly it is the
derivative of what the simulation computes at its time step.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import mujoco
import torch
from tqdm import tqdm

import mjtorch

MODEL = """
<mujoco>
  <option gravity="0 0 -2" tolerance="0" iterations="50" integrator="{integrator}">
    <flag refsafe="disable" eulerdamp="disable"/>
  </option>
  <default><geom solimp="0 .95 .001 .5 2" solref=".005 1"/></default>
  <worldbody>
    <geom type="plane" size="20 20 .125"/>
    <body pos="0 0 .2"><freejoint/><geom type="box" size=".05 .05 .05" density="100" euler="60 0 0"/></body>
  </worldbody>
</mujoco>
"""
SECONDS, SPEED, DOWN = 1.0, -0.1, -2.0
REFERENCE = ((1e-4, "RK4"), (1e-5, "RK4"), (1e-5, "Euler"))
DIFFERENCES = (1e-2, 1e-3, 1e-4, 1e-5)
STEPS = (0.01, 0.001)
TOLERANCES = (1e-3, 1e-4, 1e-5)


def load(integrator: str, timestep: float) -> mujoco.MjModel:
    """The cube and the floor."""
    mj_model = mujoco.MjModel.from_xml_string(MODEL.format(integrator=integrator))
    mj_model.opt.timestep = timestep
    return mj_model


def thrown_in_c(mj_model: mujoco.MjModel, down: float) -> float:
    """Where C's cube is in the end, along y [m]."""
    data = mujoco.MjData(mj_model)
    data.qvel[1:3] = SPEED, down
    mujoco.mj_step(mj_model, data, nstep=round(SECONDS / mj_model.opt.timestep))
    return float(data.qpos[1])


def references() -> Iterator[tuple[str, float, list[float]]]:
    """What C says at small time steps: the way, and its slope by differences."""
    for timestep, integrator in REFERENCE:
        mj_model = load(integrator, timestep)
        slopes = [
            (thrown_in_c(mj_model, DOWN + eps) - thrown_in_c(mj_model, DOWN - eps)) / (2 * eps) for eps in DIFFERENCES
        ]
        yield f"C, {integrator}, {1e3 * timestep:g} ms", thrown_in_c(mj_model, DOWN), slopes


def thrown(m: mjtorch.Model, down: torch.Tensor, n: int) -> torch.Tensor:
    """Where our cube is after n steps () [m]; down: () [m/s]."""
    d = mjtorch.make_data(m)
    zero = torch.zeros_like(down)
    d = d.replace(qvel=torch.stack([zero, zero + SPEED, down, zero, zero, zero]))
    last, _ = mjtorch.rollout(m, d, n, outputs=())
    return last.qpos[1]


@mjtorch.jit(in_dims=None, static_argnames=("n",), strict=True)
def slope_and_way(m: mjtorch.Model, down: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The derivative () [s] and the way () [m]."""
    return torch.func.grad_and_value(lambda down: thrown(m, down, n))(down)


def derivative(m: mjtorch.Model) -> tuple[float, float, float, float]:
    """The way [m], its derivative [s], and the seconds that the first call and another one took."""
    down, n, seconds = torch.tensor(DOWN, dtype=torch.float64), round(SECONDS / float(m.opt.timestep)), []
    for _ in range(2):
        start = time.perf_counter()
        slope, way = slope_and_way(m, down, n)
        seconds.append(time.perf_counter() - start)
    return float(way), float(slope), *seconds


def cases(steps: Sequence[float], tolerances: Sequence[float], limit: int) -> Iterator[tuple[str, mjtorch.Model]]:
    """The settings that are compared."""
    for timestep in steps:
        for integrator in ("Euler", "RK4"):
            m = mjtorch.put_model(load(integrator, timestep), dtype=torch.float64)
            yield f"{integrator}, {1e3 * timestep:g} ms", m
    softened = mjtorch.Gradient(distance=0.02, rounding=0.005)
    yield "Euler, 10 ms, softened", mjtorch.put_model(load("Euler", 0.01), dtype=torch.float64, gradient=softened)
    for tolerance in tolerances:
        substeps = mjtorch.Substeps(tolerance=tolerance, limit=limit)
        m = mjtorch.put_model(load("Euler", 0.01), dtype=torch.float64, substeps=substeps)
        yield f"substeps of 10 ms, tolerance {tolerance:g}", m


def plot(path: Path, reference: float, found: list[tuple[str, float]]) -> None:
    """A bar for each derivative, on a logarithmic scale of how far off it is."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 0.4 * len(found) + 1.2), layout="constrained")
    labels = [label for label, _ in found]
    axes.barh(labels, [abs(slope - reference) / abs(reference) for _, slope in found], color="tab:blue")
    axes.set_xscale("log")
    axes.axvline(1.0, color="tab:red", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel(f"relative error of the derivative of the toss (reference {reference:.3f} s)")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=float, nargs="*", default=STEPS, metavar="S", help="time steps [s]")
    parser.add_argument("--tolerances", type=float, nargs="*", default=TOLERANCES, metavar="T", help="of substeps")
    parser.add_argument("--limit", type=int, default=64, help="attempts at substeps within a time step")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the errors (needs matplotlib)")
    args = parser.parse_args()
    reference = 0.0
    for label, way, slopes in tqdm(references(), total=len(REFERENCE), leave=False):
        listed = "  ".join(f"{s:.4f}" for s in slopes)
        tqdm.write(f"{label:36}  way {way:8.4f} m  slope by differences {listed} s")
        reference = slopes[0] if "RK4" in label else reference
    found = []
    for label, m in tqdm(list(cases(args.steps, args.tolerances, args.limit)), leave=False):
        way, slope, first, again = derivative(m)
        found.append((label, slope))
        off = abs(slope - reference) / abs(reference)
        tqdm.write(
            f"{label:36}  way {way:8.4f} m  derivative {slope:8.4f} s  off by {off:7.1%}  "
            f"first call {first:6.1f} s, another {again:6.3f} s"
        )
    if args.plot:
        plot(args.plot, reference, found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
