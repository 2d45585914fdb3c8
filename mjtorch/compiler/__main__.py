"""`python -m mjtorch.compiler`: the passes of each target, in order."""

from mjtorch.compiler.targets.cpu.pipeline import SIDE_BY_SIDE
from mjtorch.compiler.targets.cuda.pipeline import CUDA


def main() -> None:
    """Print them."""
    for name, passes in (("cpu", SIDE_BY_SIDE), ("cuda", CUDA)):
        print(name)
        for k, step in enumerate(passes, start=1):
            print(f"  {k:2}. {step.name}{' (required)' if step.required else ''}: {step.about}")


if __name__ == "__main__":
    main()
