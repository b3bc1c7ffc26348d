"""The training scripts of examples/: with any number of ranks they end with the same weights.

What they are compared with is one process that runs the same script with torch's own optimizer in
place of DistributedOptimizer, that is, plain training on the joined batches.

How close the weights must be. One process adds up the gradients of a batch's samples in another
order than several ranks do, which changes a float32 sum by about 1e-7 of it. The scripts compute
with smooth functions, so that a difference in the weights changes the next gradient by about as
much, and after a hundred or two of steps it is of the order of 1e-6 of the weights (measured: 2e-7
to 2e-6). ``TOLERANCE`` is a little above that. Ranks that train on their own samples alone end up
more than 0.1 away (measured: 0.26 at least), which is also tested.

In mixed precision a gradient is rounded to float16 (11 bits) or bfloat16 (8 bits) in every backward
pass, so 1e-5 can hold only if one process and several make the same backward passes. The script
does, and gains even more: a sum of a few numbers of so few bits is nearly always exact in float32,
whatever the order (measured: no difference at all). Backward passes over whole batches are rounded
elsewhere, by up to 5e-4 of a value at a time; 120 steps make 3e-3 of that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch
from rank_programs import training_scripts
from support.jobs.ranks import hvdtune_command, run_ranks, run_under
from support.tiers import EVERY, long_too

EXAMPLES = Path(__file__).parents[2] / "examples"
TOLERANCE = 1e-5
WHOLE_BATCHES = 1e-2
UNRELATED = 0.1  # at least this far away are weights that do not come from the same training

# Few steps, so that the tests are quick; all of them learn something in these.
SCRIPTS = {
    "plain": ("plain.py", ("--epochs", "3")),
    "float16": ("mixed_precision.py", ("--epochs", "4")),
    "bfloat16": ("mixed_precision.py", ("--epochs", "4", "--dtype", "bfloat16")),
    "layers": ("gradient_accumulation.py", ("--epochs", "3")),
    "chunks": ("gradient_accumulation.py", ("--epochs", "3", "--groups", "3")),
    "gan": ("gan.py", ("--epochs", "8")),
    "uneven": ("uneven_data.py", ("--epochs", "3")),
}

Weights = dict[str, torch.Tensor]


def script(name: str) -> training_scripts.Script:
    file, arguments = SCRIPTS[name]
    return EXAMPLES / file, arguments


def load(path: Path) -> Weights:
    """The tensors of a file of weights by name."""
    weights: Weights = {}
    for name, value in torch.load(path, weights_only=True).items():
        if isinstance(value, torch.Tensor):
            weights[name] = value
        else:  # several networks
            weights.update({f"{name}.{inner}": tensor for inner, tensor in value.items()})
    return weights


def train_all(
    np: int,
    program: Callable[..., dict[str, str]],
    scripts: dict[str, training_scripts.Script],
    directory: Path,
) -> tuple[dict[str, Weights], list[dict[str, str]]]:
    """The same for several scripts in one job, and their digests by rank."""
    result = run_ranks(np, program, scripts, directory)
    weights = {name: load(directory / f"{name}.pt") for name in scripts}
    return weights, list(result.values)


def distance(weights: Weights, expected: Weights) -> float:
    """The largest difference of two weights, relative to the largest weight of the tensor."""
    assert weights.keys() == expected.keys()
    distances = [
        (weights[name] - tensor).abs().max() / tensor.abs().max()
        for name, tensor in expected.items()
    ]
    return float(torch.stack(distances).max())  # NaN if one is


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Weights]:
    """A function that gives the weights of plain training by the script's name."""

    @cache  # trains when a test calls it first: only then may a job be started
    def train_once() -> dict[str, Weights]:
        scripts = {name: script(name) for name in SCRIPTS}
        path, arguments = scripts["float16"]
        scripts["whole batches"] = (path, (*arguments, "--piece", "64"))
        directory = tmp_path_factory.mktemp("plain")
        weights, _ = train_all(1, training_scripts.run_plain, scripts, directory)
        return weights

    return lambda name: train_once()[name]


@pytest.mark.long
@pytest.mark.parametrize("np", [1, 2, 4] if EVERY else [4])
def test_weights(np: int, expected: Callable[[str], Weights], tmp_path: Path) -> None:
    """A single rank computes what torch alone computes; several do up to rounding, all alike."""
    scripts = {name: script(name) for name in SCRIPTS}
    weights, digests = train_all(np, training_scripts.run_distributed, scripts, tmp_path)
    for name in SCRIPTS:
        assert distance(weights[name], expected(name)) <= (0 if np == 1 else TOLERANCE), name
    assert digests == [digests[0]] * np


@pytest.mark.parametrize("name", long_too("gan", long=["uneven"]))
def test_command(name: str, tmp_path: Path) -> None:
    """`hvdtune run -np 2 python SCRIPT`, as a user starts it."""
    path, arguments = script(name)
    file = tmp_path / "weights.pt"
    run_under(hvdtune_command("run", "-np", "2"), path, *arguments, "--save", file)
    plain, _ = train_all(1, training_scripts.run_plain, {name: script(name)}, tmp_path)
    assert distance(load(file), plain[name]) <= TOLERANCE


@pytest.mark.long
def test_unreduced(expected: Callable[[str], Weights], tmp_path: Path) -> None:
    """Two ranks that do not reduce their gradients end far away: the tests above can fail."""
    scripts = {name: script(name) for name in SCRIPTS}
    weights, digests = train_all(2, training_scripts.run_plain, scripts, tmp_path)
    for name in SCRIPTS:
        assert distance(weights[name], expected(name)) > UNRELATED, name
        # After join() everyone takes over the weights of one rank.
        assert (digests[0][name] == digests[1][name]) == (name == "uneven"), name


@pytest.mark.long
def test_resume(expected: Callable[[str], Weights], tmp_path: Path) -> None:
    """One rank stops after 2 of 3 epochs and two go on: momentum and learning rate included."""
    path, arguments = script("plain")
    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint.pt"))
    half = {"half": (path, ("--epochs", "2", *checkpoint))}
    weights, _ = train_all(1, training_scripts.run_distributed, half, tmp_path)
    assert distance(weights["half"], expected("plain")) > UNRELATED
    whole = {"whole": (path, (*arguments, *checkpoint))}
    weights, _ = train_all(2, training_scripts.run_distributed, whole, tmp_path)
    assert distance(weights["whole"], expected("plain")) <= TOLERANCE


@pytest.mark.long
def test_mixed_precision_of_whole_batches(expected: Callable[[str], Weights]) -> None:
    """The pieces of the script do not change what is learned, beyond float16's rounding."""
    assert distance(expected("float16"), expected("whole batches")) <= WHOLE_BATCHES


@pytest.mark.long
def test_batches_that_cannot_be_divided() -> None:
    scripts = {
        "digits": ("digits.py", "--batch-size=7"),
        "plain": ("plain.py", "--batch-size=7"),
        "mixed": ("mixed_precision.py", "--batch-size=48"),
        "accumulation": ("gradient_accumulation.py", "--batch-size=24"),
        "gan": ("gan.py", "--batch-size=-2"),
        "uneven": ("uneven_data.py", "--lines=0"),
    }
    calls = {name: (EXAMPLES / file, (argument,)) for name, (file, argument) in scripts.items()}
    job = run_ranks(2, training_scripts.refusals, calls)
    for said in job.values:
        for name in ("digits", "plain"):
            assert "--batch-size 7 cannot be divided evenly among 2 ranks" in said[name]
        assert "--batch-size 48 does not give each of 2 ranks the same number" in said["mixed"]
        assert "--batch-size 24 is not a multiple of 2 ranks x" in said["accumulation"]
        assert "--batch-size -2 cannot be divided" in said["gan"]
        assert "--lines 0 must be greater than 0" in said["uneven"]
