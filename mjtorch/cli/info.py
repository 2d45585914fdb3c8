"""`mjtorch info`: what a model is made of, and whether all of it is supported."""

import argparse

import mjtorch
from mjtorch.cli.load import load
from mjtorch.model import support

SIZES = ("nq", "nv", "nu", "na", "nbody", "njnt", "ngeom", "nsite", "neq", "ntendon", "nsensor", "nkey")
HEADER = ("area", "feature", "elements", "support")


def run(args: argparse.Namespace) -> int:
    """Print the sizes, the features in use, and the verdict."""
    mj_model = load(args.model)
    print(f"{args.model}: " + ", ".join(f"{name} {getattr(mj_model, name)}" for name in SIZES))
    print(f"timestep {mj_model.opt.timestep:g} s, mass {mj_model.body_mass.sum():.4g} kg\n")

    used = support.features(mj_model)
    rows = [(use.feature.area, use.feature.name, str(len(use.elements)), use.feature.verdict.value) for use in used]
    print_table([HEADER, *rows])

    refused = [use.feature for use in used if use.feature.refused]
    if refused:
        print("\nThis model cannot be simulated:")
        for feature in refused:
            print(f"  {feature.area}, {feature.name}: {feature.advice}")
        return 0
    m = mjtorch.put_model(mj_model)
    print(f"\nSupported: {m.plan.collision.ncon} contact slots, {m.plan.constraint.nefc} constraint rows a world.")
    return 0


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Print rows of text with the columns aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
