"""Counts what steps of one rank take: instructions and system calls, as valgrind's callgrind does.

A script calls `count` in the process that the user starts, with a command that runs the same script
as a rank. The rank warms up and then gives its step to `run_counted`. All threads count. A single
rank never waits for another, so chance only decides which of its threads runs first: counts of the
same job differ by half a per cent.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TENSORS = 20
BLOCKING = 5
ELEMENTS = 1000
STEPS = 500
LONGEST_S = 240.0
#: The same in every process, so that it does not depend on chance.
SAME = {"OMP_NUM_THREADS": "1", "HVDTUNE_AUTOTUNE_STORE": "", "PYTHONHASHSEED": "0"}
# callgrind writes its counts so far whenever the program calls this; nothing else calls it while
# steps are counted.
_MARKER = "getppid"
_COSTS = re.compile(r"[+*\d-]")


@dataclass(frozen=True)
class Counted:
    """The cost of a step. `places`: instructions by (function, file of the source line); the file
    is "???" if the program has no line numbers."""

    instructions: float
    system_calls: float
    places: Mapping[tuple[str, str], float]


def why_not() -> str:
    """Why instructions cannot be counted here; "" if they can."""
    if shutil.which("valgrind") is None:
        return "instructions are counted by valgrind, which is not installed"
    return ""


def plain_environment() -> dict[str, str]:
    """This process's variables without hvdtune's, plus those that make counts vary less."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOROVOD_", "HVDTUNE_"))
    }
    return {**kept, **SAME}


def count(command: Sequence[str], variables: Mapping[str, str]) -> Counted:
    """The cost of each of the steps that `command` gives to run_counted()."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "callgrind.out")
        valgrind = ["valgrind", "--quiet", "--tool=callgrind", "--collect-systime=yes"]
        valgrind += [f"--dump-before={_MARKER}", f"--callgrind-out-file={out}"]
        run([*valgrind, *command], variables)
        # Parts end at the markers: before the steps, the steps, the rest of the program.
        text = Path(f"{out}.2").read_text(errors="replace")
    found = total(text)
    places = {place: value / STEPS for place, value in by_place(text).items()}
    return Counted(found["instructions"] / STEPS, found["system calls"] / STEPS, places)


def run(command: Sequence[str], variables: Mapping[str, str]) -> None:
    """Run a job; if it fails, exits with its output."""
    done = subprocess.run(
        command, env=variables, stderr=subprocess.PIPE, text=True, timeout=LONGEST_S, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[:3])} …: exit status {done.returncode}\n{done.stderr}")


def total(text: str) -> dict[str, int]:
    """The instructions and system calls in a file of callgrind's."""
    lines = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    values = dict(zip(lines["events"].split(), map(int, lines["totals"].split()), strict=False))
    return {"instructions": values["Ir"], "system calls": values.get("sysCount", 0)}


def by_place(text: str) -> Counter[tuple[str, str]]:
    """Instructions by (function, file), without those of the functions that it calls."""
    found: Counter[tuple[str, str]] = Counter()
    names: dict[tuple[str, str], str] = {}  # compressed: in full only at the first use

    def name(kind: str, value: str) -> str:
        number, _, rest = value.partition(" ")
        if not number.startswith("("):
            return value
        return names.setdefault((kind, number), rest)

    function = file = ""
    called = False
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key in ("fl", "fi", "fe"):
            file = name("file", value)
        elif equals and key == "fn":
            function = name("function", value)
        elif equals and key in ("cfi", "cfl"):
            name("file", value)
        elif equals and key == "cfn":
            name("function", value)
        elif equals and key == "calls":
            called = True  # the next line is what the called function took
        elif _COSTS.match(line):
            costs = line.split()
            if not called and len(costs) > 1:
                found[function, file] += int(costs[1])
            called = False
    return found


# -- the rank --


def make_step(hvd: Any) -> Callable[[], None]:
    """TENSORS allreduces that are waited for together, which use the coordinator, and BLOCKING
    small ones that are waited for one by one, which bypass it."""
    import numpy as np

    tensors = [np.ones(ELEMENTS, np.float32) for _ in range(TENSORS)]
    small = np.ones(4, np.float32)

    def step() -> None:
        handles = [
            hvd.allreduce_async_(tensor, name=f"tensor.{at}", op=hvd.Max)
            for at, tensor in enumerate(tensors)
        ]
        for handle in handles:
            hvd.synchronize(handle)
        for at in range(BLOCKING):
            hvd.allreduce_(small, name=f"small.{at}", op=hvd.Max)

    return step


def run_counted(step: Callable[[], None]) -> None:
    """STEPS steps, which count() counts."""
    os.getppid()
    for _ in range(STEPS):
        step()
    os.getppid()
