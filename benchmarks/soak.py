"""Long runs under random controls: does anything diverge, fall through the floor, gain energy, leak or slow down?

    python benchmarks/soak.py --output soak                    # all models, 1e8 world-steps in float32
    python benchmarks/soak.py --output soak --models ant cheetah --steps 1e6
    python benchmarks/soak.py --output soak --steps 1e7 --dtype float64

All models of the collection, of dm_control's suite and of Gymnasium take turns. What is known of each is kept in a file
of the folder after every turn: a run that was killed goes on where it was, and one that is asked for more steps goes on
from there. At the end a table is printed; the exit status is 1 if a world diverged where C MuJoCo, from the same state
under the same controls, does not, or if a contact was deeper than both of its geoms are wide where C, in the same
positions, finds none that is.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from sides import random_controls
from torch import Tensor
from tqdm import tqdm

import mjtorch
from mjtorch import envs, models, tree

# Steps between two looks at all worlds: what diverges is simulated by C from the look before.
CHUNK = 50
# Chunks in a turn of a model.
TURN = 20
MAX_VALUE = 1e10  # mjMAXVAL: a state beyond is bad
# Part of the control ranges that controls lie in.
PART = 0.8
GROUNDS = (int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_HFIELD))
PAGE = os.sysconf("SC_PAGE_SIZE") / 2**20 if hasattr(os, "sysconf") else 0.0


@dataclasses.dataclass
class Record:
    """What is known of a model.

    steps: of all worlds together; diverged: worlds that began anew, where C did, too, or did not
    deep: contacts deeper than both geoms are wide, which C finds in the same positions, too, or does not
    deepest: the deepest contact [m]
    energy: mean of a world [J] at the beginning and in the last turn; memory: of the process [MiB], likewise
    speed: world-steps per second in the first turn after compiling, and in the last; turns: how many
    """

    steps: int = 0
    diverged_with_c: int = 0
    diverged_alone: int = 0
    deep_with_c: int = 0
    deep_alone: int = 0
    deepest: float = 0.0
    energy: tuple[float, float] = (0.0, 0.0)
    memory: tuple[float, float] = (0.0, 0.0)
    speed: tuple[float, float] = (0.0, 0.0)
    turns: int = 0
    refused: str = ""


def names() -> list[str]:
    """All models: a task is one of several with the same model, of which the first stands for all."""
    first: dict[str, str] = {}
    for name in envs.names():
        first.setdefault(name.partition("-")[0], name)
    return [*models.names(), *first.values()]


def load(name: str) -> mujoco.MjModel:
    """A model, which reports its energy."""
    mj_model = models.load(name) if name in models.names() else envs.mj_model(name)
    mj_model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_ENERGY
    return mj_model


class Soak:
    """One model under test: its worlds, and what is known of it, in a file.

    name: of the model; worlds: how many; dtype: of the simulation; folder: where the file is
    """

    def __init__(self, name: str, worlds: int, dtype: torch.dtype, threads: int, folder: Path) -> None:
        self.name, self.worlds, self.dtype = name, worlds, dtype
        self.file = folder / f"{name}-{str(dtype).removeprefix('torch.')}-{worlds}.pt"
        self.mj_model = load(name)
        self.m = mjtorch.put_model(self.mj_model, dtype=dtype)
        self.rollout = mjtorch.jit(mjtorch.rollout, in_dims=(None, 0, 0), strict=True, threads=threads)
        self.record, self.d = Record(), starts(self.m, self.mj_model, worlds)
        if self.file.exists():
            saved = torch.load(self.file, weights_only=True)
            self.record, state = Record(**json.loads(saved["record"])), saved["state"]
            self.d = self.d.replace(**state)
        self.widths = widths(self.mj_model)

    def save(self) -> None:
        """Keep what is known; whoever is killed leaves the old file or the new one."""
        state = {name: getattr(self.d, name) for name in ("time", "qpos", "qvel", "act", "qacc_warmstart", "energy")}
        half = self.file.with_suffix(".half")
        torch.save({"record": json.dumps(dataclasses.asdict(self.record)), "state": state}, half)
        half.replace(self.file)

    def turn(self) -> None:
        """Simulate for a while, and look at all worlds after each chunk."""
        record, seconds, energy = self.record, 0.0, []
        if record.turns == 0:
            self.chunk(seed=-1)  # which compiles
        for k in range(TURN):
            before, begun = self.d, time.perf_counter()
            ctrl, after, trajectory = self.chunk(seed=record.turns * TURN + k)
            seconds += time.perf_counter() - begun
            self.contacts(before, trajectory)
            bad = ~torch.stack([(x.abs() < MAX_VALUE).all(-1) for x in (after.qpos, after.qvel)]).all(0)
            energy.append(after.energy.sum(-1)[~bad].double().mean().item())
            for world in bad.nonzero()[:, 0].tolist():
                if self.does_c_diverge(before, ctrl, world):
                    record.diverged_with_c += 1
                else:
                    record.diverged_alone += 1
            fresh = starts(self.m, self.mj_model, self.worlds)
            self.d = tree.where(bad, fresh, after)
        record.steps += TURN * CHUNK * self.worlds
        record.turns += 1
        found = {"energy": float(np.mean(energy)), "memory": resident(), "speed": TURN * CHUNK * self.worlds / seconds}
        for name, x in found.items():
            setattr(record, name, (x if record.turns == 1 else getattr(record, name)[0], x))
        self.save()

    def chunk(self, seed: int) -> tuple[np.ndarray, mjtorch.Data, dict[str, Tensor]]:
        """Some steps: the controls, the worlds afterwards, and positions and contacts of all steps."""
        ctrl = random_controls(self.mj_model, self.worlds, CHUNK, PART, seed + 1)
        outputs = ("qpos", "contact.dist", "contact.geom", "energy")
        given = torch.from_numpy(ctrl).to(self.dtype)
        after, trajectory = self.rollout(self.m, self.d, CHUNK, None, given, outputs=outputs)
        return ctrl, after, trajectory

    def contacts(self, before: mjtorch.Data, trajectory: dict[str, Tensor]) -> None:
        """Count contacts deeper than both of their geoms, from the positions in which the step before ended."""
        dist, geom = trajectory["contact.dist"].double(), trajectory["contact.geom"]
        qpos = torch.cat([before.qpos[:, None], trajectory["qpos"][:, :-1]], 1)
        depth = torch.where((geom >= 0).all(-1) & torch.isfinite(dist), -dist, 0.0)
        self.record.deepest = max(self.record.deepest, depth.max().item() if depth.numel() else 0.0)
        deep = (depth > self.widths[geom].amax(-1)).nonzero().tolist()
        worlds = tree.unstack(before) if deep else []
        for world, step, k in deep:
            if self.is_deep_in_c(worlds[world].replace(qpos=qpos[world, step]), geom[world, step, k]):
                self.record.deep_with_c += 1
            else:
                self.record.deep_alone += 1

    def is_deep_in_c(self, positions: mjtorch.Data, geom: Tensor) -> bool:
        """Whether a contact of two geoms is deeper than both in C, too, give or take a hundredth."""
        d = mjtorch.get_data(self.mj_model, positions)
        mujoco.mj_fwdPosition(self.mj_model, d)
        pair, width = sorted(geom.tolist()), self.widths[geom].max().item()
        return any(sorted(c.geom) == pair and -c.dist > 0.99 * width for c in d.contact)

    def does_c_diverge(self, before: mjtorch.Data, ctrl: np.ndarray, world: int) -> bool:
        """Whether C does so in double precision, from the state at the last look, under the same controls."""
        d = mjtorch.get_data(self.mj_model, tree.unstack(before)[world])
        for u in ctrl[world]:
            d.ctrl[:] = u
            mujoco.mj_step(self.mj_model, d)
            bad = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)
            if any(d.warning[int(w)].number for w in bad) or not (np.abs(d.qvel) < MAX_VALUE).all():
                return True
        return False


def starts(m: mjtorch.Model, mj_model: mujoco.MjModel, worlds: int) -> mjtorch.Data:
    """Worlds at the first keyframe, or at rest, each a little to the side."""
    d = mjtorch.batch(mjtorch.make_data(m), worlds)
    rest = mj_model.key_qpos[0] if mj_model.nkey else mj_model.qpos0
    qpos, rng = np.tile(rest, (worlds, 1)), np.random.default_rng(0)
    for row in qpos:
        mujoco.mj_integratePos(mj_model, row, 0.02 * rng.standard_normal(mj_model.nv), 1.0)
    return d.replace(qpos=torch.from_numpy(qpos).to(d.qpos))


def widths(mj_model: mujoco.MjModel) -> Tensor:
    """How wide (ngeom,) [m] a geom is at most; 0 for grounds, in which the other geom alone can be too deep."""
    wide = 2 * mj_model.geom_rbound
    wide[np.isin(mj_model.geom_type, GROUNDS)] = 0.0
    return torch.from_numpy(wide)


def resident() -> float:
    """Memory of this process [MiB]; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0.0


def run(chosen: Sequence[str], args: argparse.Namespace) -> Iterator[tuple[str, Record]]:
    """Turn after turn, model after model: each as many steps as the others."""
    share, dtype = args.steps / len(chosen), getattr(torch, args.dtype)
    with tqdm(total=int(args.steps), unit="step", unit_scale=True) as bar:
        for name in chosen:
            bar.set_description(name)
            try:
                soak = Soak(name, args.worlds, dtype, args.threads, args.output)
            except NotImplementedError as error:
                yield name, Record(refused=str(error).splitlines()[-1])
                continue
            bar.update(min(share, soak.record.steps))
            while soak.record.steps < share:
                at = soak.record.steps
                soak.turn()
                bar.update(min(share, soak.record.steps) - at)
            yield name, soak.record


def line(name: str, r: Record) -> str:
    """Of the table."""
    if r.refused:
        return f"{name:24s} {r.refused}"
    pairs = "".join(f"{a:>11,.4g}{b:>11,.4g}" for a, b in (r.energy, r.memory, r.speed))
    counts = f"{r.diverged_with_c:>8}{r.diverged_alone:>8}{r.deep_with_c:>8}{r.deep_alone:>6}"
    return f"{name:24s}{r.steps:>12,}{counts}{r.deepest:>9.3f}{pairs}"


HEAD = (
    f"{'model':24s}{'steps':>12}{'bad, C':>8}{'bad':>8}{'deep, C':>8}{'deep':>6}{'deepest':>9}"
    f"{'energy':>11}{'at last':>11}{'MiB':>11}{'at last':>11}{'steps/s':>11}{'at last':>11}"
)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--output", type=Path, required=True, metavar="DIR", help="where to keep what is known")
    made.add_argument("--models", nargs="+", metavar="NAME", help="instead of all; --list names them")
    made.add_argument("--list", action="store_true", help="print the names of all models, and end")
    made.add_argument("--steps", type=float, default=1e8, metavar="N", help="of all worlds of all models (1e8)")
    made.add_argument("--worlds", type=int, default=256, metavar="N", help="side by side (256)")
    made.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="precision (float32)")
    made.add_argument("--threads", type=int, default=torch.get_num_threads(), metavar="N", help="of a CPU")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    made = parser()
    args = made.parse_args(argv)
    if args.list:
        print(*names(), sep="\n")
        return 0
    wrong = sorted(set(args.models or ()) - set(names()))
    if wrong:
        made.error(f"--models: there is no {', '.join(wrong)}; --list names all")
    if args.worlds < 1 or args.steps <= 0 or args.threads < 1:
        made.error("--worlds, --steps and --threads must be positive")
    args.output.mkdir(parents=True, exist_ok=True)
    mujoco.set_mju_user_warning(lambda message: None)
    records: dict[str, Any] = dict(run(args.models or names(), args))
    print(HEAD)
    for name, record in records.items():
        print(line(name, record))
    total = sum(r.steps for r in records.values())
    alone, deep = (sum(getattr(r, x) for r in records.values()) for x in ("diverged_alone", "deep_alone"))
    print(f"{total:,} world-steps in {args.dtype}, where C does not: {alone} worlds diverged, {deep} contacts too deep")
    return int(alone + deep > 0)


if __name__ == "__main__":
    raise SystemExit(main())
