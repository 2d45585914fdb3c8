"""Many models, one after the other: what became of them, and the smallest models with each finding."""

import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np

from tests.reference import random_state

from .asked import State, Verdict, prepared, rounded
from .generate import model
from .judge import Modes, verdicts
from .shrink import shrink

CORPUS = Path(__file__).parent / "corpus"
STATES = 2


class Case(NamedTuple):
    """A model and what was said of it."""

    seed: tuple[int, ...]
    xml: str
    verdicts: tuple[Verdict, ...]

    @property
    def findings(self) -> tuple[Verdict, ...]:
        """What somebody must look at."""
        return tuple(v for v in self.verdicts if v.is_finding)


def compiled(xml: str) -> mujoco.MjModel | None:
    """The model, or None where MuJoCo says that it is none."""
    try:
        return prepared(mujoco.MjModel.from_xml_string(xml))
    except ValueError:
        return None


def states(mj_model: mujoco.MjModel, count: int = STATES) -> list[State]:
    """Its keyframes; or without any, states away from rest."""
    found = []
    for k in range(mj_model.nkey):
        d = mujoco.MjData(mj_model)
        mujoco.mj_resetDataKeyframe(mj_model, d, k)
        found.append(rounded(mj_model, d))
    for seed in range(0 if found else count):
        try:
            found.append(rounded(mj_model, random_state(mj_model, seed)))
        except RuntimeError:  # there is none that C can bear
            continue
    return found


def judged(xml: str, modes: Modes) -> tuple[Verdict, ...]:
    """What is said of a model."""
    mj_model = compiled(xml)
    if mj_model is None:
        return (Verdict("(no model)"),)
    starts = states(mj_model)
    return tuple(verdicts(mj_model, starts, modes)) if starts else (Verdict("(no state)"),)


def cases(seed: int, first: int, count: int, modes: Modes, seconds: float | None = None) -> Iterator[Case]:
    """Models number `first` and on, of a seed, until there are so many or the time is over."""
    mujoco.set_mju_user_warning(lambda message: None)
    end = time.monotonic() + seconds if seconds else np.inf
    for k in range(first, first + count):
        if time.monotonic() > end:
            return
        xml = model((seed, k))
        yield Case((seed, k), xml, judged(xml, modes))


def smallest(case: Case, kind: str, modes: Modes, tries: int = 400) -> str:
    """The model of a case with little that the finding `kind` does not need."""

    def fails(xml: str) -> bool:
        return any(v.kind == kind for v in judged(xml, modes))

    return shrink(case.xml, fails, tries=tries)


def with_states(xml: str) -> str:
    """The model, with the states it was judged in as keyframes, so that they do not depend on how states are drawn."""
    mj_model = compiled(xml)
    assert mj_model is not None
    root = ET.fromstring(xml)
    section = ET.SubElement(root, "keyframe")
    for state in states(mj_model):
        d = mujoco.MjData(mj_model)
        mujoco.mj_setState(mj_model, d, state, mujoco.mjtState.mjSTATE_INTEGRATION)
        parts = {
            "qpos": d.qpos,
            "qvel": d.qvel,
            "act": d.act,
            "ctrl": d.ctrl,
            "mpos": d.mocap_pos,
            "mquat": d.mocap_quat,
        }
        numbers = {name: " ".join(f"{v:.9g}" for v in np.ravel(x)) for name, x in parts.items() if np.size(x)}
        ET.SubElement(section, "key", numbers)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def table(counts: Counter[str]) -> str:
    """How often what was said, findings first."""
    rows = sorted(counts.items(), key=lambda row: (row[0] == "same", row[0].startswith("("), -row[1]))
    return "\n".join(f"{count:8d}  {kind}" for kind, count in rows)


def tally(found: Sequence[Case]) -> Counter[str]:
    """How often each was said."""
    return Counter(v.kind for case in found for v in case.verdicts)
