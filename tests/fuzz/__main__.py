"""`python -m tests.fuzz`: random models against C MuJoCo, for as long as one likes."""

import argparse
from collections import Counter
from pathlib import Path

import torch
from tqdm import tqdm

from .judge import Modes
from .run import Case, cases, smallest, table, with_states


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Random models of all that is supported, in states away from rest: C MuJoCo in float64 against "
        "ours, float32 against float64, and one mode against another. Prints how often what was found, and exits with "
        "1 if there is anything that C's own sensitivity, or the oracle of contacts, does not explain.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    made.add_argument("--models", type=int, default=200, metavar="N", help="how many")
    made.add_argument("--seconds", type=float, metavar="S", help="or as many as so much time allows")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="of all models")
    made.add_argument("--first", type=int, default=0, metavar="K", help="number of the first: models are numbered")
    made.add_argument("--jit", action="store_true", help="compiled, too: some seconds a model")
    made.add_argument("--warp", action="store_true", help="on the emulated warp of a GPU, too")
    made.add_argument("--gradient", action="store_true", help="derivatives, too: reverse against forward mode")
    made.add_argument("--double", action="store_true", help="double precision only")
    made.add_argument("--output", type=Path, metavar="DIR", help="where to put the smallest model of each finding")
    made.add_argument("--tries", type=int, default=300, metavar="N", help="to make such a model smaller")
    made.add_argument("--verbose", action="store_true", help="print each finding as it comes")
    return made


def main() -> int:
    args = parser().parse_args()
    torch.set_num_threads(1)
    modes = Modes(float32=not args.double, jit=args.jit, warp=args.warp, gradient=args.gradient)
    counts: Counter[str] = Counter()
    firsts: dict[str, Case] = {}
    found = cases(args.seed, args.first, args.models, modes, args.seconds)
    for case in tqdm(found, total=args.models, unit="model"):
        counts.update(v.kind for v in case.verdicts)
        for verdict in case.findings:
            firsts.setdefault(verdict.kind, case)
            if args.verbose:
                tqdm.write(f"{case.seed}  {verdict.kind}  {verdict.detail}")
    print(table(counts))
    for kind, case in firsts.items():
        print(f"\n{kind}: first in --seed {case.seed[0]} --first {case.seed[1]} --models 1")
        if args.output is not None:
            args.output.mkdir(parents=True, exist_ok=True)
            path = args.output / ("".join(c if c.isalnum() else "_" for c in kind) + ".xml")
            path.write_text(with_states(smallest(case, kind, modes, args.tries)))
            print(f"  {path}")
    return int(bool(firsts))


raise SystemExit(main())
