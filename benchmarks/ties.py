"""Where a last bit decides which contacts there are: poses with ties, each compared with the same less a few last bits.

Two builds of one program differ in the last bits of what they compute, and so do two steps of one robot: where contacts
then differ by far more, a choice hangs on rounding. Poses are made to have ties: geoms turned by quarter and eighth
turns, flush with each other or centred, two of a kind, together turned at random, so that what is equal is equal up to
rounding only; robots at rest, or with some joints at zero, at limits or at round angles.

A contact *parts* if the perturbed pose has none like it, or the other way round, unless it is at the very distance at
which contacts begin to count.
"""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np
import torch
from graph_size import load
from sides import print_table

import mjtorch

SIZES = {
    "plane": ('type="plane" size="0 0 1"', (0.0, 0.0, 0.0)),
    "sphere": ('type="sphere" size=".1"', (0.1, 0.1, 0.1)),
    "capsule": ('type="capsule" size=".07 .1"', (0.07, 0.07, 0.17)),
    "ellipsoid": ('type="ellipsoid" size=".08 .1 .13"', (0.08, 0.1, 0.13)),
    "cylinder": ('type="cylinder" size=".09 .1"', (0.09, 0.09, 0.1)),
    "box": ('type="box" size=".08 .1 .12"', (0.08, 0.1, 0.12)),
    "cube": ('type="box" size=".1 .1 .1"', (0.1, 0.1, 0.1)),
    "mesh": ('type="mesh" mesh="block"', (0.1, 0.08, 0.1)),
}
BLOCK = '<mesh name="block" vertex="{}"/>'.format(
    " ".join(f"{x} {y} {z}" for x in (-0.1, 0.1) for y in (-0.08, 0.08) for z in (-0.1, 0.1))
)
# How deep [m] geoms are in each other, and how far apart what is called another contact is, or its unit vectors.
DEPTHS = (0.001, 0.01, 0.03)
APART = {torch.float32: 1e-3, torch.float64: 1e-6}
# A contact this near [m] to the distance at which contacts begin to count may be there or not.
EDGE = {torch.float32: 1e-5, torch.float64: 1e-10}


class Differences(NamedTuple):
    """How lists of contacts differ from others, in each world (n,).

    apart: how far what is furthest from all of the other list is from them; of positions [m] and unit vectors
    in_place: the same, the first of one list being compared with the first of the other, and so on
    in_number: bool, they are not equally long
    """

    apart: torch.Tensor
    in_place: torch.Tensor
    in_number: torch.Tensor


def pair_model(one: str, two: str) -> mujoco.MjModel:
    """Two free geoms, or a plane and a free geom."""
    bodies = []
    for kind in (one, two):
        free = "" if kind == "plane" else "<freejoint/>"
        bodies.append(f"<body>{free}<geom {SIZES[kind][0]} mass='1'/></body>")
    asset = f"<asset>{BLOCK}</asset>" if "mesh" in (one, two) else ""
    return mujoco.MjModel.from_xml_string(f"<mujoco>{asset}<worldbody>{''.join(bodies)}</worldbody></mujoco>")


def quat_mul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of two quaternions."""
    out = np.empty(4)
    mujoco.mju_mulQuat(out, a, b)
    return out


def turned(vec: np.ndarray, quat: np.ndarray) -> np.ndarray:
    """A vector turned by a quaternion."""
    out = np.empty(3)
    mujoco.mju_rotVecQuat(out, vec, quat)
    return out


def round_turn(rng: np.random.Generator, eighths: bool) -> np.ndarray:
    """A unit quaternion: quarter turns about two axes, and sometimes an eighth turn about one."""
    quat = np.array([1.0, 0, 0, 0])
    turns = [(rng.integers(3), rng.integers(4) / 4) for _ in range(2)]
    if eighths:
        turns.append((rng.integers(3), 1 / 8))
    for axis, turn in turns:
        q = np.zeros(4)
        q[0], q[1 + axis] = np.cos(np.pi * turn), np.sin(np.pi * turn)
        quat = quat_mul(quat, q)
    return quat


def pair_poses(one: str, two: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """(count, nq): poses of a pair with ties."""
    poses = []
    half1, half2 = (np.array(SIZES[kind][1]) for kind in (one, two))
    for _ in range(count):
        quat = round_turn(rng, rng.random() < 0.3)
        reach = np.array([np.abs(turned(axis, np.array([1, -1, -1, -1]) * quat)) @ half2 for axis in np.eye(3)])
        axis = 2 if one == "plane" else rng.integers(3)
        sign = 1.0 if one == "plane" else rng.choice([-1.0, 1.0])
        offset = np.zeros(3)
        for k in range(3):
            span = half1[k] + reach[k]
            options = [0.0, half1[k] - reach[k], reach[k] - half1[k], 0.5 * span, rng.uniform(-0.9, 0.9) * span]
            offset[k] = rng.choice(options)
        offset[axis] = sign * (half1[axis] + reach[axis] - rng.choice(DEPTHS))
        if one == "plane":
            spin = np.array([np.cos(a := rng.uniform(0, np.pi)), 0, 0, np.sin(a)])
            poses.append(np.concatenate([turned(offset, spin), quat_mul(spin, quat)]))
            continue
        common = np.array([1.0, 0, 0, 0]) if rng.random() < 0.3 else rng.standard_normal(4)
        common /= np.linalg.norm(common)
        origin = rng.choice([0.0, 1.0]) * rng.uniform(-1, 1, 3)
        first = np.concatenate([origin, common])
        poses.append(np.concatenate([first, origin + turned(offset, common), quat_mul(common, quat)]))
    return np.array(poses)


def robot_poses(mj_model: mujoco.MjModel, count: int, rng: np.random.Generator) -> np.ndarray:
    """(count, nq): a robot on a floor, at rest or with joints at zero, at round angles, at limits or anywhere."""
    data, poses = mujoco.MjData(mj_model), []
    hinges = [j for j in range(mj_model.njnt) if mj_model.jnt_type[j] == mujoco.mjtJoint.mjJNT_HINGE]
    for _ in range(count):
        mujoco.mj_resetData(mj_model, data)
        if mj_model.nkey and rng.random() < 0.3:
            mujoco.mj_resetDataKeyframe(mj_model, data, int(rng.integers(mj_model.nkey)))
        wild = rng.choice([0.0, 0.3, 1.0])
        for j in hinges:
            if rng.random() >= wild:
                continue
            low, high = mj_model.jnt_range[j] if mj_model.jnt_limited[j] else (-np.pi, np.pi)
            options = [0.0, low, high, np.pi / 4, np.pi / 2, -np.pi / 2, rng.uniform(low, high), rng.uniform(low, high)]
            data.qpos[mj_model.jnt_qposadr[j]] = rng.choice(options)
        for j in range(mj_model.njnt):
            if mj_model.jnt_type[j] == mujoco.mjtJoint.mjJNT_FREE and rng.random() < 0.5:
                at = mj_model.jnt_qposadr[j] + 3
                data.qpos[at : at + 4] = round_turn(rng, rng.random() < 0.3)
        lower(mj_model, data, rng.choice(DEPTHS))
        poses.append(data.qpos.copy())
    return np.array(poses)


def lower(mj_model: mujoco.MjModel, data: mujoco.MjData, depth: float) -> None:
    """Move a robot whose first joints let it rise down or up until it is so deep in a floor."""
    heights = [
        j
        for j in range(mj_model.njnt)
        if mj_model.jnt_bodyid[j] and mj_model.body_parentid[mj_model.jnt_bodyid[j]] == 0
    ]
    for _ in range(3):
        mujoco.mj_kinematics(mj_model, data)
        mujoco.mj_comPos(mj_model, data)
        low = min((low_of(mj_model, data, g) for g in range(mj_model.ngeom) if mj_model.geom_bodyid[g]), default=0.0)
        for j in heights:
            if mj_model.jnt_type[j] == mujoco.mjtJoint.mjJNT_FREE:
                data.qpos[mj_model.jnt_qposadr[j] + 2] -= low + depth
            elif mj_model.jnt_type[j] == mujoco.mjtJoint.mjJNT_SLIDE and data.xaxis[j, 2] > 0.9:
                data.qpos[mj_model.jnt_qposadr[j]] -= low + depth


def low_of(mj_model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> float:
    """z [m] of the lowest point of a geom, or of the box around it."""
    up, size, z = data.geom_xmat[geom, 6:], mj_model.geom_size[geom], data.geom_xpos[geom, 2]
    if mj_model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_CAPSULE:
        return float(z - abs(up[2]) * size[1] - size[0])
    if mj_model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_SPHERE:
        return float(z - size[0])
    center, half = mj_model.geom_aabb[geom, :3], mj_model.geom_aabb[geom, 3:]
    return float(z + center @ up - np.abs(up) @ half)


def perturbed(qpos: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The same poses, each number off by a last bit of itself or of 1."""
    eps = torch.finfo(qpos.dtype).eps
    noise = torch.rand(qpos.shape, generator=generator, dtype=qpos.dtype) * 2 - 1
    return qpos + noise * eps * qpos.abs().clamp(min=1.0)


def contacts(m: mjtorch.Model, qpos: torch.Tensor) -> mjtorch.Contact:
    """Those of one world."""
    d = mjtorch.make_data(m).replace(qpos=qpos)
    return mjtorch.collision(m, mjtorch.kinematics(m, d)).contact


def differences(one: mjtorch.Contact, two: mjtorch.Contact, dtype: torch.dtype) -> Differences:
    """How the contacts of worlds differ from those of others."""

    def features(c: mjtorch.Contact) -> torch.Tensor:
        return torch.cat([c.pos, c.frame.flatten(-2), c.dist[..., None]], dim=-1)

    a, b = features(one), features(two)
    same = (one.geom[:, :, None] == two.geom[:, None]).all(-1) & one.detected[:, :, None] & two.detected[:, None]
    away = (a[:, :, None] - b[:, None]).abs().amax(-1).masked_fill(~same, torch.inf)
    sure1, sure2 = (c.detected & ((c.dist - c.includemargin).abs() > EDGE[dtype]) for c in (one, two))
    first, second = away.amin(2).masked_fill(~sure1, 0.0), away.amin(1).masked_fill(~sure2, 0.0)
    in_place = (a - b).abs().amax(-1).masked_fill(~(one.detected & two.detected), 0.0)
    return Differences(
        torch.maximum(first, second).amax(1), in_place.amax(1), one.detected.sum(1) != two.detected.sum(1)
    )


def search(name: str, mj_model: mujoco.MjModel, poses: np.ndarray, dtype: torch.dtype, tries: int) -> list[str]:
    """A row of the table."""
    m = mjtorch.put_model(mj_model, dtype=dtype)
    run = mjtorch.jit(contacts, in_dims=(None, 0))
    qpos, generator = torch.tensor(poses, dtype=dtype), torch.Generator().manual_seed(0)
    base, limit = run(m, qpos), APART[dtype]
    found = [differences(base, run(m, perturbed(qpos, generator)), dtype) for _ in range(tries)]
    apart, in_place, in_number = (torch.stack(x) for x in zip(*found, strict=True))
    parts = (apart > limit).any(0)
    number = (in_number & (apart > limit)).any(0)
    order = (in_place > limit).any(0) & ~parts
    counts = (torch.ones_like(parts), base.detected.any(1), parts, number, order)
    worst = apart.masked_fill(apart.isinf(), 0.0).max()
    such_as = str(int(parts.int().argmax())) if parts.any() else ""
    return [Path(name).stem, *(str(int(x.sum())) for x in counts), f"{float(worst):.1e}", such_as]


def cases(names: Iterable[str], count: int, seed: int) -> Iterator[tuple[str, mujoco.MjModel, np.ndarray]]:
    """Names, models, and poses (count, nq)."""
    for name in names:
        one, _, two = name.partition("-")
        rng = np.random.default_rng(seed)
        if one in SIZES:
            yield name, pair_model(one, two), pair_poses(one, two, count, rng)
        else:
            mj_model = load(name)
            yield name, mj_model, robot_poses(mj_model, count, rng)


def main() -> None:
    kinds = list(SIZES)
    pairs = [f"{a}-{b}" for k, a in enumerate(kinds) for b in kinds[k:] if b != "plane"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", nargs="*", default=pairs, help="pairs of geoms, MJCF files, or names of models that come with mjtorch"
    )
    parser.add_argument("--poses", type=int, default=1000, metavar="N", help="of each")
    parser.add_argument("--tries", type=int, default=6, metavar="N", help="how often each pose is perturbed")
    parser.add_argument("--double", action="store_true", help="in float64")
    parser.add_argument("--seed", type=int, default=0, help="of the poses")
    args = parser.parse_args()
    dtype = torch.float64 if args.double else torch.float32
    rows = [search(*case, dtype, args.tries) for case in cases(args.what, args.poses, args.seed)]
    print_table(["", "poses", "touching", "part", "in number", "in order", "by", "such as"], rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
