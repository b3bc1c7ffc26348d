"""The parent's side: start the ranks, read their results, build and print the report."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdtune.bench.memory import MemoryCurve, MemoryPoint
from hvdtune.bench.metrics import Summary
from hvdtune.bench.plan import Plan
from hvdtune.bench.report import advice, results, table
from hvdtune.bench.report.progress import Display
from hvdtune.bench.report.results import Measurement, Report, SweepRow, WorkloadRow
from hvdtune.bootstrap import python_command

WORKER = "hvdtune.bench.worker"

#: How long the launcher may take to end its ranks after a signal, in seconds.
_GRACE = 10.0


class BenchError(RuntimeError):
    """The ranks did not finish; `status` is the exit status of the launcher."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def run(
    plan: Plan,
    report: Report,
    launcher: Sequence[str],
    environ: Mapping[str, str],
    display: Display,
) -> None:
    """Carry out `plan` on `report.ranks` ranks; fill `report` and print as results arrive.

    `launcher` is a command that starts the command appended to it on that many ranks
    (`hvdtune run -np N`), `environ` its environment. Raises BenchError if the ranks fail; their
    output went to the error stream, and `report` keeps the measurements so far.
    """
    started = time.monotonic()
    collector = _Collector(plan, report, display)
    try:
        for record in _records(plan, launcher, environ):
            collector.take(record)
    finally:
        display.clear()
        report.seconds = time.monotonic() - started
    report.advice = advice.advise(report)
    display.lines(["#", *table.footer(report)])


def _records(
    plan: Plan, launcher: Sequence[str], environ: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Start the ranks and yield their records until they have ended.

    The files shared with them have no names: nothing is left of them, however we end.
    """
    with tempfile.TemporaryFile(prefix="hvdtune-bench-") as file, contextlib.ExitStack() as stack:
        plan_path = _path_of(file.fileno())
        plan.save(plan_path)
        # Our write end stays open: otherwise the pipe would end before rank 0 opens its own.
        pipe, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for descriptor in (pipe, write_end):
            stack.callback(os.close, descriptor)
        pipe_path = _path_of(write_end)
        worker = python_command(WORKER, str(plan_path), str(pipe_path))
        command = [*launcher, *worker]
        # Standard output belongs to the table; the ranks' output goes to the error stream.
        # In its own group the launcher gets Ctrl-C once: from here.
        process = subprocess.Popen(
            command, env=dict(environ), stdin=subprocess.DEVNULL, stdout=2,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield from _read(pipe, process)
        finally:
            _end(process)


def _path_of(descriptor: int) -> Path:
    """Where other processes of this user can open a file of ours."""
    return Path(f"/proc/{os.getpid()}/fd/{descriptor}")


def _read(pipe: int, process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records that come through `pipe` until the launcher has ended."""
    try:
        watched, patience = [pipe, os.pidfd_open(process.pid)], None
    except (AttributeError, OSError):  # Linux before 5.3
        watched, patience = [pipe], 0.1
    pending = b""
    ended = False
    try:
        while True:
            alive = process.poll() is None
            readable, _, _ = select.select(watched, [], [], patience if alive else 0.0)
            if pipe in readable:
                pending += os.read(pipe, 1 << 20)
                *complete, pending = pending.split(b"\n")
                for line in complete:
                    record = json.loads(line)
                    ended = ended or record["kind"] == "end"
                    yield record
            elif not alive:
                break
    finally:
        for descriptor in watched[1:]:
            os.close(descriptor)
    if process.returncode != 0 or not ended:
        raise BenchError(
            f"the ranks ended with status {process.returncode} before the benchmark was done",
            process.returncode or 1,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the launcher, which ends its ranks, if it is still running."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class _Collector:
    """Turns the records of rank 0 into rows of the report, and prints them."""

    def __init__(self, plan: Plan, report: Report, display: Display) -> None:
        self.plan = plan
        self.report = report
        self.display = display
        display.total = plan.cases() + bool(plan.memory_sizes)

    def take(self, record: dict[str, Any]) -> None:
        """Handle one record; its kinds are listed in `worker`."""
        getattr(self, "_" + record.pop("kind"))(**record)

    def _begin(self, settings: dict[str, Any], ranks: int) -> None:
        self.report.environment["settings"] = settings
        assert ranks == self.report.ranks

    def _phase(self, text: str) -> None:
        self.display.phase(text)

    def _memory(self, workers: int, points: list[dict[str, Any]]) -> None:
        curve = MemoryCurve(workers, tuple(MemoryPoint(**point) for point in points))
        self.report.memory = curve
        self.display.lines(["#", *table.memory_lines(curve)])

    def _sweep(self, forms: dict[str, Any], **fields: Any) -> None:
        measured = {
            form: self._measurement(fields["operation"], fields["size_bytes"], **values)
            for form, values in forms.items()
        }
        row = SweepRow(
            **fields, out_of_place=measured["out_of_place"], in_place=measured.get("in_place")
        )
        header = table.sweep_header(row.in_place is not None)
        lines = [] if self.report.sweep else ["#", *header]
        self.report.sweep.append(row)
        self.display.lines([*lines, table.sweep_row(row)])

    def _workload(self, step: dict[str, Any], **fields: Any) -> None:
        measured = self._measurement("allreduce", fields["size_bytes"], **step)
        row = WorkloadRow(**fields, step=measured)
        lines = [] if self.report.workloads else ["#", *table.workload_header()]
        self.report.workloads.append(row)
        self.display.lines([*lines, table.workload_row(row)])

    def _end(self) -> None:
        pass

    def _measurement(
        self, operation: str, size: int, time: dict[str, Any], wrong: int | None
    ) -> Measurement:
        summary = Summary(**time)
        return results.measurement(
            operation, size, self.report.ranks, summary, wrong, self.report.memory
        )
