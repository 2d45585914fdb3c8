"""Several processes make one run: each has a share of the worlds, all have the same networks, one writes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("rsl_rl")

from learn import together

from mjtorch import learn
from mjtorch.learn.team import Team

# rsl_rl's own
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*lazy_importer.*")


def test_worlds_are_shared_out() -> None:
    assert [Team(rank, 3).share(12) for rank in range(3)] == [slice(0, 4), slice(4, 8), slice(8, 12)]
    with pytest.raises(ValueError, match="10 worlds cannot be shared out evenly to 3 processes; change worlds"):
        Team(0, 3).share(10)


@pytest.mark.slow
def test_two_processes_have_the_worlds_and_the_networks_of_one(tmp_path: Path) -> None:
    """Worlds, and what is normalized by them, to the last bit; one network; actions of their own; one checkpoint."""
    (one, two), ended = together.run("iterate", tmp_path, 2)
    assert [process.returncode for process in ended] == [0, 0], ended
    alone, both = together.worlds(), (one["worlds"], two["worlds"])
    assert torch.equal(torch.cat([x.pop("obs") for x in both]), alone.pop("obs"))
    assert both == (alone, alone)
    for name, x in one["weights"].items():
        assert torch.equal(x, two["weights"][name]), name
    assert not torch.equal(one["rng"], two["rng"])
    # what both have written one process goes on with
    run = learn.Run.load(tmp_path / "checkpoint.pt", task=together.task(), threads=1)
    assert run.steps == 3 * 8 * together.WORLDS and run.experience.state.obs.shape[0] == together.WORLDS
    for name, x in together.weights(run).items():
        assert torch.equal(x, one["weights"][name]), name
    list(learn.train(run, 4 * 8 * together.WORLDS))
    assert len(list(tmp_path.glob("events*"))) == 1


@pytest.mark.slow
def test_gradients_through_the_simulator_are_shared(tmp_path: Path) -> None:
    (one, two), ended = together.run("climb", tmp_path, 2)
    assert [process.returncode for process in ended] == [0, 0], ended
    for name, x in one["weights"].items():
        assert torch.equal(x, two["weights"][name]), name


@pytest.mark.slow
def test_two_processes_learn_as_much_as_one(tmp_path: Path) -> None:
    """After as many steps, with as many worlds in all."""
    one = together.whole(tmp_path)["return"]
    both, _ = together.run("whole", tmp_path, 2)
    before = float(learn.evaluate(together.begun("ppo")).returns.mean())
    assert both[0] == both[1]
    found = both[0]["return"]
    assert min(one, found) > before + 1 and abs(found - one) < 1, (before, one, found)


@pytest.mark.slow
def test_a_lost_process_is_named_and_the_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    _, (first, second) = together.run("lose", tmp_path, 2)
    assert second.returncode == 3 and first.returncode == 1
    message = "ConnectionError: another of the 2 processes ended after 640 steps; its own error says why."
    assert message in first.stderr and "with --resume" in first.stderr
    run = learn.Run.load(tmp_path / "lost" / "checkpoint.pt", task=together.task(), threads=1)
    assert run.steps == 4 * 8 * together.WORLDS


@pytest.mark.slow
def test_torchrun(tmp_path: Path) -> None:
    """The command line: one process tells, and resumes."""
    few = ["--set", "minibatches=2", "--set", "hidden=8", "--worlds", "8", "--threads", "1", "--no-picture"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "mjtorch"]
    command = [*torchrun, "train", "InvertedPendulum-v5", "--output", str(tmp_path)]
    options = {"capture_output": True, "text": True, "env": {**os.environ, "OMP_NUM_THREADS": "1"}, "timeout": 540}
    done = subprocess.run([*command, *few, "--steps", "256"], **options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("8 worlds, seed 0, on cpu, 2 processes") == 1 and done.stdout.count("return:") == 1
    done = subprocess.run([*command, "--resume", "--steps", "512", "--no-picture"], **options)
    assert done.returncode == 0 and done.stdout.count("resumed after 256 steps") == 1, done.stderr
