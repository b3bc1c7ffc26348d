"""Runs planted programs with and without their faults, and compares the verdicts with the truth.

    python benchmarks/timeline/planted.py [--rounds 3] [--only NAME] [--json FILE] [--markdown]
    python benchmarks/timeline/planted.py --healthy [--busy-host]

In each round a program runs with its fault and without it, both recorded, in turns. The program's
own clock measures the mean step of rank 0, which gives the gain of the cure: 1 − cured / faulty,
the mean over the rounds, ± its standard error. The report on each faulty run is judged:

- right: its first finding is the cause and blames the ranks at fault;
- inside: the interval of the finding about the cause contains the measured gain, give or take the
  standard error of that gain.

With --healthy the programs have no fault, and a report is right if it names no rank and no problem;
with --busy-host a busy loop for each CPU runs at the same time. All ranks have the same work: if
some ranks needed more CPU time for it than others (UNEVEN), the CPUs were not equally fast, as on a
virtual machine whose neighbours are busy. Without --busy-host such a run does not count and is
repeated, up to TRIES times. Prints a line for each program, the totals and the confusion matrix.
The exit status is 1 if a goal is missed (95 % right, 90 % inside) or a job fails. Programs on two
hosts need root and sshd (tests/support/hosts/hosts_rig.py), and are left out without them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ranks

from planted import judge
from planted.catalogue import FAULTY, HEALTHY, train
from planted.job import busy_loops
from planted.judge import HEAD, Row
from planted.program import Program

if TYPE_CHECKING:
    from hvdtune.timeline.evidence.finding import Finding

SCRIPT = Path(__file__).resolve().parents[1] / "planted.py"
TESTS = Path(__file__).resolve().parents[3] / "tests"
#: First steps that do not count; the report leaves out its first ones as well.
WARM_UP = 2
JOB_SECONDS = 300
#: A part of a run is uneven if the ranks' CPU times in it differ by this share of the step. If
#: ranks mostly sleep, their CPU times differ by 3 % of the step, since rank 0 has more to do.
UNEVEN, PARTS = 0.05, 4
TRIES = 12


class JobFailed(RuntimeError):
    """A job did not finish; the text says why."""


class Runner:
    """Starts jobs, on this machine or on two hosts of a rig that is built when it is first used."""

    def __init__(self, busy_host: bool, rigs: contextlib.ExitStack, kept: bool = False) -> None:
        self.busy_host, self.rigs = busy_host, rigs
        self.kept = kept  # run nothing: all recordings exist
        self.rig: Any = None
        self.failed: list[str] = []
        self.uneven: list[str] = []  # programs, once for each run that did not count

    def why_not(self, program: Program) -> str:
        """Why the program cannot run here; "" if it can."""
        if program.hosts == 1 or self.rig is not None or self.kept:
            return ""
        sys.path.append(str(TESTS))
        import hosts_rig

        reason = hosts_rig.why_not()
        if not reason:
            self.rig = self.rigs.enter_context(hosts_rig.hosts_rig(2))
        return reason

    def run(self, program: Program, fault: bool, timeline: Path) -> float:
        """One recorded job; the mean of its step times on rank 0, in seconds."""
        result = timeline.with_suffix(".times")
        if self.kept:
            if not result.exists():
                raise JobFailed(f"{result} is not there")
            return _mean(result)
        command = ranks.launcher(program.ranks)
        environment = {**os.environ, **program.variables(fault), "HOROVOD_TIMELINE": str(timeline)}
        if program.hosts > 1:
            each = program.ranks // program.hosts
            command += ["-H", ",".join(f"{name}:{each}" for name in self.rig.names)]
            environment |= self.rig.environment(self.rig.folder / "cache")
        command += [sys.executable, str(SCRIPT), "--train", program.name, "--result", str(result)]
        command += [] if fault else ["--cured"]
        if program.hosts > 1:
            command = self.rig.on(self.rig.names[0], command)
        with busy_loops(len(os.sched_getaffinity(0)) if self.busy_host else 0):
            ended = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                text=True, timeout=JOB_SECONDS, check=False,
            )  # fmt: skip
        if ended.returncode != 0:
            said = f"{ended.stdout}{ended.stderr}".strip()
            raise JobFailed(f"a job ended with {ended.returncode}: {said}")
        return _mean(result)

    def round(self, row: Row, number: int, folder: Path) -> None:
        """A run with the fault and one without it, in a different order each round."""
        program = row.program
        stem = "".join(one if one.isalnum() else "-" for one in program.name)
        if program.healthy:
            path = folder / f"{stem}.{number}.json"
            row.faulty_s.append(self._evenly(program, path))
        else:
            path = folder / f"{stem}.faulty.{number}.json"
            for fault in (True, False) if number % 2 == 0 else (False, True):
                if fault:
                    row.faulty_s.append(self.run(program, True, path))
                else:
                    cured = folder / f"{stem}.cured.{number}.json"
                    row.cured_s.append(self.run(program, False, cured))
        row.found.append(verdict(path))

    def _evenly(self, program: Program, path: Path) -> float:
        """A run of a healthy program that counts."""
        for _ in range(TRIES):
            taken = self.run(program, False, path)
            if self.kept or self.busy_host or not is_uneven(path.with_suffix(".times")):
                return taken
            self.uneven.append(program.name)
        raise JobFailed(f"the CPUs were not equally fast in any of {TRIES} runs")


def _mean(result: Path) -> float:
    return statistics.fmean(json.loads(result.read_text())["steps"][WARM_UP:])


def is_uneven(result: Path) -> bool:
    """See UNEVEN."""
    cpu = json.loads(result.read_text())["cpu"]
    steps = range(WARM_UP, min(map(len, cpu)))
    parts = [
        steps[len(steps) * at // PARTS : len(steps) * (at + 1) // PARTS] for at in range(PARTS)
    ]
    means = [[statistics.fmean(own[at] for at in part) for own in cpu] for part in parts if part]
    return any(max(ranks) - min(ranks) > UNEVEN * _mean(result) for ranks in means)


def verdict(path: Path) -> list[Finding]:
    """The report's findings in a recording, best first."""
    from hvdtune.timeline.advice.verdict import findings
    from hvdtune.timeline.analysis.analyse import analyse
    from hvdtune.timeline.record.load import read_recording

    return findings(analyse(read_recording(path)))


def as_json(row: Row) -> dict[str, Any]:
    """All results of a program's runs."""
    program = row.program
    return {
        "program": program.name,
        "framework": program.framework,
        "ranks": program.ranks,
        "hosts": program.hosts,
        "busy_host": row.busy_host,
        "kinds": list(program.kinds),
        "culprits": None if program.culprits is None else sorted(program.culprits),
        "faulty_s": row.faulty_s,
        "cured_s": row.cured_s,
        "gain": row.measured,
        "gain_error": row.error,
        "promised": row.promised,
        "right": row.right,
        "inside": row.inside,
        "found": [
            [
                {
                    "kind": one.kind,
                    "gain": round(one.gain, 4),
                    "interval": [round(edge, 4) for edge in one.interval],
                    "ranks": sorted(judge.named(one)),
                    "sentence": one.sentence,
                }
                for one in findings
            ]
            for findings in row.found
        ],
    }


def chosen(args: argparse.Namespace) -> list[Program]:
    """The programs that were asked for."""
    found = [
        one
        for one in (HEALTHY if args.healthy else FAULTY)
        if (not args.only or any(text in one.name for text in args.only))
        and (not args.np or one.ranks == args.np)
    ]
    if not found:
        kind = "healthy" if args.healthy else "faulty"
        names = ", ".join(one.name for one in (HEALTHY if args.healthy else FAULTY))
        sys.exit(f"No {kind} program matches --only and --np; there are: {names}.")
    return found


def rows(args: argparse.Namespace, runner: Runner) -> Iterator[Row]:
    """Run each program, print its line."""
    for program in chosen(args):
        reason = runner.why_not(program)
        if reason:
            print(f"{program.name}: left out, {reason}", flush=True)
            continue
        row = Row(program, args.busy_host)
        try:
            with tempfile.TemporaryDirectory() as folder:
                for number in range(args.rounds):
                    runner.round(row, number, args.kept or args.keep or Path(folder))
        except JobFailed as failure:
            runner.failed.append(program.name)
            print(f"{program.name}: {failure}", flush=True)
            continue
        print(judge.line(judge.cells(row)), flush=True)
        if args.json:
            with args.json.open("a") as file:
                file.write(json.dumps(as_json(row)) + "\n")
        yield row


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="of each program (3)")
    parser.add_argument(
        "--only", action="append", help="programs whose name contains this; may be repeated"
    )
    parser.add_argument("--np", type=int, help="programs with this number of ranks")
    parser.add_argument("--healthy", action="store_true", help="the programs without a fault")
    parser.add_argument(
        "--busy-host", action="store_true", help="healthy ones beside a busy loop for each CPU"
    )
    parser.add_argument("--markdown", action="store_true", help="also print the table for the docs")
    parser.add_argument("--json", type=Path, help="append each program's results to this file")
    parser.add_argument("--keep", type=Path, help="keep the recordings in this folder")
    parser.add_argument(
        "--kept", type=Path, help="run nothing, judge the recordings that --keep has kept here"
    )
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--cured", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return parser


def main() -> int:
    """The command line; see the module's text."""
    parser = arguments()
    args = parser.parse_args()
    if args.train:
        train(args.train, not args.cured, args.result)
        return 0
    if args.busy_host and not args.healthy:
        parser.error(
            "--busy-host needs --healthy: beside other programs the gain of a cure is not known"
        )
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
    print(judge.line(HEAD))
    with contextlib.ExitStack() as rigs:
        runner = Runner(args.busy_host, rigs, bool(args.kept))
        found = list(rows(args, runner))
    sentences, good = judge.reached(found)
    if runner.failed:
        sentences.append(f"not judged, since a job failed: {', '.join(runner.failed)}")
    if runner.uneven:
        sentences.append(
            f"{len(runner.uneven)} runs did not count, since the CPUs were not equally fast: "
            + ", ".join(
                f"{name} ({runner.uneven.count(name)})" for name in dict.fromkeys(runner.uneven)
            )
        )
    print("", *sentences, sep="\n")
    if found:
        print("", judge.matrix(judge.confusion(found)), sep="\n")
    if args.markdown:
        print("", judge.markdown(found), sep="\n")
    return 0 if good and not runner.failed else 1
