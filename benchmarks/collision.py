"""Time and size of collision against the number of geoms, by type: ours, compiled, C MuJoCo and, on request, MJX.

A scene is a cloud of free geoms of one type, or of all in turn, in random poses, as dense whatever their number: the
contacts grow as the geoms do, the pairs as their square. Times are of one core, in CPU seconds, which other programs on
the machine disturb less.
"""

import argparse
import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
import torch
from graph_size import operations, trace
from sides import print_table

import mjtorch

SIZES = {
    "sphere": 'type="sphere" size=".1"',
    "capsule": 'type="capsule" size=".07 .1"',
    "ellipsoid": 'type="ellipsoid" size=".08 .1 .13"',
    "cylinder": 'type="cylinder" size=".09 .1"',
    "box": 'type="box" size=".08 .1 .12"',
    "mesh": 'type="mesh" mesh="wedge"',
}
SCENES = {**{kind: (kind,) for kind in SIZES}, "mixed": tuple(SIZES)}
WEDGE = '<mesh name="wedge" vertex="-.1 -.1 -.1 .1 -.1 -.1 0 .12 -.1 -.1 -.1 .1 .1 -.1 .1 0 .12 .1"/>'
# Edge of the part of the cloud that one geom has for itself.
SPACE = 0.34
# How far [m] geoms are moved from world to world.
SHIFT = 0.02
REPEATS = 3


class Row(NamedTuple):
    """What is known of a scene: contacts and times are of a world, in us; compiling is in seconds.

    mjx: what MJX measured, or why it does not run; None: it was not asked
    """

    scene: str
    geoms: int
    pairs: int
    contacts: float
    dropped: float
    nodes: int
    compiling: float
    ours: float
    c: float
    mjx: dict[str, Any] | None


def cloud(kinds: tuple[str, ...], count: int) -> str:
    """MJCF of free geoms of these types in turn."""
    rng = np.random.default_rng(0)
    edge = SPACE * count ** (1 / 3)
    bodies = []
    for k in range(count):
        pos, quat = rng.uniform(-edge / 2, edge / 2, 3), rng.normal(size=4)
        where = f'pos="{pos[0]} {pos[1]} {pos[2]}" quat="{quat[0]} {quat[1]} {quat[2]} {quat[3]}"'
        bodies.append(f"<body {where}><freejoint/><geom {SIZES[kinds[k % len(kinds)]]}/></body>")
    return f"<mujoco><asset>{WEDGE}</asset><worldbody>{''.join(bodies)}</worldbody></mujoco>"


def seconds(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """CPU seconds of a call: the least of several, each long enough to be measured."""
    run()
    count, best = 1, math.inf
    for _ in range(repeats):
        while True:
            start = time.process_time()
            for _ in range(count):
                run()
            spent = time.process_time() - start
            if spent > 0.02:
                break
            count *= 2
        best = min(best, spent / count)
    return best


def by_mjx(xml: str, xpos: torch.Tensor, xmat: torch.Tensor, python: str, patience: float) -> dict[str, Any]:
    """The same scene and poses in MJX, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        model, poses = Path(folder, "scene.xml"), Path(folder, "poses.npz")
        model.write_text(xml)
        np.savez(poses, xpos=xpos.numpy(), xmat=xmat.unflatten(-1, (3, 3)).numpy())
        command = [python, str(Path(__file__).with_name("collision_relative.py")), str(model), str(poses), str(REPEATS)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience)
        except subprocess.TimeoutExpired:
            return {"error": f"more than {patience:.0f} s"}
    lines = done.stdout.strip().splitlines()
    return json.loads(lines[-1]) if lines else {"error": (done.stderr.strip().splitlines() or ["no answer"])[-1]}


def measure(scene: str, count: int, worlds: int, mjx_python: str | None, patience: float) -> Row:
    """Compile and run the collisions of a scene."""
    xml = cloud(SCENES[scene], count)
    mj_model = mujoco.MjModel.from_xml_string(xml)
    m = mjtorch.put_model(mj_model, dtype=torch.float32)
    mj_data = mujoco.MjData(mj_model)
    generator = np.random.default_rng(1)
    poses = []
    for _ in range(worlds):
        mj_data.qpos[:] = mj_model.qpos0
        mj_data.qpos.reshape(-1, 7)[:, :3] += SHIFT * generator.normal(size=(count, 3))
        mujoco.mj_kinematics(mj_model, mj_data)
        mujoco.mj_comPos(mj_model, mj_data)
        poses.append(np.concatenate([mj_data.geom_xpos, mj_data.geom_xmat], axis=-1))
    xpos, xmat = torch.tensor(np.array(poses), dtype=torch.float32).split([3, 9], dim=-1)
    d = mjtorch.batch(mjtorch.make_data(m), worlds).replace(geom_xpos=xpos, geom_xmat=xmat.unflatten(-1, (3, 3)))
    run = mjtorch.jit(mjtorch.collision, in_dims=(None, 0), strict=True)
    start = time.perf_counter()
    out = run(m, d)
    compiling = time.perf_counter() - start
    ours = seconds(lambda: run(m, d)) / worlds
    return Row(
        scene=scene,
        geoms=count,
        pairs=count * (count - 1) // 2,
        contacts=out.ncon.double().mean().item(),
        dropped=out.warning.sum().item() / worlds,
        nodes=operations(trace(mjtorch.collision, m, mjtorch.make_data(m))).total(),
        compiling=compiling,
        ours=1e6 * ours,
        c=1e6 * seconds(lambda: mujoco.mj_collision(mj_model, mj_data)),
        mjx=by_mjx(xml, xpos, xmat, mjx_python, patience) if mjx_python else None,
    )


def growth(rows: list[Row], value: Callable[[Row], float | None]) -> str:
    """The exponent of the number of geoms with which a value grows from the first row that has one to the last."""
    known = [(r.geoms, value(r) or 0.0) for r in rows if value(r) is not None]
    if not known or known[0][0] == known[-1][0]:
        return "-"
    (few, first), (many, last) = known[0], known[-1]
    return f"{math.log(last / first) / math.log(many / few):.2f}"


def time_of_mjx(row: Row) -> float | None:
    """us a world, if MJX runs."""
    return 1e6 * row.mjx["seconds"] if row.mjx and "seconds" in row.mjx else None


def columns_of_mjx(row: Row) -> list[str]:
    """Compile time and time of a world, or why there are none."""
    if row.mjx is None:
        return []
    time = time_of_mjx(row)
    return [row.mjx["error"][:60], ""] if time is None else [f"{row.mjx['compiling']:.1f}", f"{time:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", nargs="*", default=list(SCENES), help=f"some of {', '.join(SCENES)}")
    parser.add_argument("--geoms", default="10,25,50,100,200", metavar="N,...", help="numbers of geoms")
    parser.add_argument("--worlds", type=int, default=64, metavar="N", help="worlds that are computed at a time")
    parser.add_argument("--mjx-python", metavar="PYTHON", help="an interpreter that has mujoco-mjx")
    parser.add_argument("--patience", type=float, default=600, metavar="S", help="seconds that MJX gets for a scene")
    args = parser.parse_args()
    if unknown := set(args.scenes) - set(SCENES):
        parser.error(f"there is no scene {', '.join(sorted(unknown))}; choose from {', '.join(SCENES)}")
    header = ["scene", "geoms", "pairs", "contacts", "dropped", "nodes", "compile s", "ours us", "C us"]
    header += ["MJX compile s", "MJX us"] if args.mjx_python else []
    table = []
    for scene in args.scenes:
        rows = [
            measure(scene, int(count), args.worlds, args.mjx_python, args.patience) for count in args.geoms.split(",")
        ]
        for r in rows:
            numbers = [f"{r.contacts:.1f}", f"{r.dropped:.2f}", str(r.nodes), f"{r.compiling:.1f}"]
            table.append(
                [r.scene, str(r.geoms), str(r.pairs), *numbers, f"{r.ours:.1f}", f"{r.c:.1f}", *columns_of_mjx(r)]
            )
            print(" ".join(table[-1]), flush=True)
        exponents = [growth(rows, lambda r: r.nodes), "", growth(rows, lambda r: r.ours), growth(rows, lambda r: r.c)]
        exponents += ["", growth(rows, time_of_mjx)] if args.mjx_python else []
        table.append([f"{scene}: growth", "", "", growth(rows, lambda r: max(r.contacts, 1)), "", *exponents])
    print_table(header, table)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["MJTORCH_CACHE_DIR"] = cache
        main()
