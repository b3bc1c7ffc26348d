"""Rank programs: the training scripts of examples/, one after the other in one process."""

from __future__ import annotations

import contextlib
import hashlib
import io
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import hvdtune
import hvdtune.torch as hvd

Script = tuple[Path, Sequence[str]]  # where it is, and its arguments
ALIAS = str(Path(hvdtune.__file__).with_name("_alias"))


def run_distributed(scripts: dict[str, Script], directory: Path) -> dict[str, str]:
    """Run the scripts as they are; rank 0 saves the weights as ``directory/NAME.pt``.

    Returns a digest of each script's weights as this rank has them in the end.
    """
    return run_with(hvd.DistributedOptimizer, scripts, directory)


def run_plain(scripts: dict[str, Script], directory: Path) -> dict[str, str]:
    """As ``run_distributed``, but with torch's own optimizers, which reduce nothing."""
    return run_with(plain_optimizer, scripts, directory)


def plain_optimizer(optimizer: torch.optim.Optimizer, **_: Any) -> torch.optim.Optimizer:
    plain: Any = optimizer
    plain.synchronize = lambda: None
    plain.skip_synchronize = contextlib.nullcontext
    return optimizer


def run_with(
    wrap: Callable[..., Any], scripts: dict[str, Script], directory: Path
) -> dict[str, str]:
    digests = {}
    for name, script in scripts.items():
        optimizers = []

        def remember(
            *args: Any, to: list[torch.optim.Optimizer] = optimizers, **kwargs: Any
        ) -> Any:
            to.append(wrap(*args, **kwargs))
            return to[-1]

        with mock.patch.object(hvd, "DistributedOptimizer", remember):
            run(script, "--save", str(directory / f"{name}.pt"))
        digests[name] = digest(optimizers)
    return digests


def digest(optimizers: list[torch.optim.Optimizer]) -> str:
    """Of the bits of all parameters."""
    sha = hashlib.sha256()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                sha.update(parameter.detach().numpy().tobytes())
    assert sha.digest() != hashlib.sha256().digest()
    return sha.hexdigest()


def refusals(scripts: dict[str, Script]) -> dict[str, str]:
    """What each script says on stderr before it ends with status 2."""
    return {name: refusal(script) for name, script in scripts.items()}


def refusal(script: Script) -> str:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
        run(script)
    assert ended.value.code == 2
    return said.getvalue()


def run(script: Script, *more: str) -> None:
    # The scripts import horovod.torch, which `hvdtune run` would make findable.
    with arguments(script, *more), mock.patch.object(sys, "path", [ALIAS, *sys.path]):
        runpy.run_path(str(script[0]), run_name="__main__")


@contextlib.contextmanager
def arguments(script: Script, *more: str) -> Iterator[None]:
    path, given = script
    with mock.patch.object(sys, "argv", [str(path), *given, *more]):
        yield
