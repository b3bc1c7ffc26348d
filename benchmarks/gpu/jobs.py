"""Jobs of a part: ranks under `hvdtune run` on this machine's GPUs, each with a time limit."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdtune.bootstrap import python_command

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class JobFailed(RuntimeError):
    """A job that failed; the text has its last lines."""


@dataclass(frozen=True)
class Machine:
    """The machine that runs the jobs. `gpus`: the number of its GPUs; more ranks share them.
    `device`: cuda, or cpu to try the parts without a GPU. `cuda`, `nvrtc`: the libraries' paths, ""
    for none."""

    gpus: int
    device: str = "cuda"
    cuda: str = ""
    nvrtc: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def sharing(self, count: int) -> list[str]:
        """The flag that `count` ranks need if there are fewer GPUs."""
        return ["--share-gpu"] if self.device == "cuda" and count > self.gpus else []

    def launcher(self, count: int, *flags: str, share: bool | None = None) -> list[str]:
        """The command that starts the command appended to it on `count` ranks.

        `share`: whether with --share-gpu; None: if that many ranks need it.
        """
        sharing = self.sharing(count)
        if share is not None:
            sharing = ["--share-gpu"] if share and self.device == "cuda" else []
        words = ["run", "-np", str(count), *sharing, *flags]
        return python_command("hvdtune.cli.main", *words)

    def variables(self, changes: Mapping[str, str] = {}) -> dict[str, str]:
        """The environment of a job."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return {**os.environ, **master, **self.environment, **changes}

    def result_of(
        self,
        script: str,
        count: int,
        arguments: Sequence[str] = (),
        *,
        flags: Sequence[str] = (),
        changes: Mapping[str, str] = {},
        share: bool | None = None,
        seconds: float = 240,
        may_fail: bool = False,
        unsaid: str = "",
    ) -> Any:
        """Run one of this folder's rank programs; the JSON that its rank 0 has written.

        Raises `JobFailed`; with `may_fail` only if nothing was written, or if `unsaid` was printed.
        """
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder, "result.json")
            words = [*arguments, "--device", self.device, "--result", str(result)]
            launcher = self.launcher(count, *flags, share=share)
            command = [*launcher, sys.executable, str(HERE / script), *words]
            ended = output_of(command, self.variables(changes), seconds, check=not may_fail)
            if not result.exists():
                raise JobFailed(f"{script} wrote no result: {last_lines(ended)}")
            said = [line for line in ended.splitlines() if unsaid and unsaid in line]
            if said:
                raise JobFailed(said[0])
            return json.loads(result.read_text())


def output_of(
    command: Sequence[str], environment: Mapping[str, str], seconds: float, *, check: bool = True,
    given: str | None = None,
) -> str:  # fmt: skip
    """A program's output on both streams. Raises `JobFailed` if it fails or takes longer."""
    try:
        ended = subprocess.run(
            list(command),
            env=dict(environment),
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise JobFailed(f"it was not over after {seconds:g} s") from None
    except OSError as error:
        raise JobFailed(f"{command[0]}: {error.strerror}") from None
    if check and ended.returncode != 0:
        raise JobFailed(last_lines(ended.stdout) or f"exit status {ended.returncode}")
    return ended.stdout


def last_lines(text: str, count: int = 4) -> str:
    """The end of the output, as one line."""
    return " / ".join([line for line in text.splitlines() if line.strip()][-count:])
