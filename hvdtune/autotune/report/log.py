"""The CSV log: first Horovod's columns, then those that make it readable.

A row is written for every sample and flushed at once; the header is written when tuning starts.
Units: cycle_time_ms in ms, tensor_fusion_threshold in MB (2^20 bytes), score in MB/s (10^6 bytes,
higher is better), seconds and step times as their names say, other sizes in kB (2^10 bytes, 0: the
engine chooses). The last row has the phase "final" and holds the settings in force at the end; its
`accepted` is 1 if that is a change, and its `decision` is the verdict.

`read` also takes the files that Horovod writes. Since 0.15 they have the last three of Horovod's
columns; later versions also have columns before these. Some have a blank after the third comma.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from hvdtune.autotune.statistics.score import Sample
from hvdtune.settings.knobs import KNOBS, Knob

HOROVOD_COLUMNS = (
    "hierarchical_allreduce",
    "hierarchical_allgather",
    "torus_allreduce",
    "cache_enabled",
    "cycle_time_ms",
    "tensor_fusion_threshold",
    "score",
)
# Tunable settings without a column in Horovod's log.
OTHER_KNOBS = tuple(
    knob
    for knob in KNOBS.values()
    if knob.tunable and knob.key not in (*HOROVOD_COLUMNS, "cycle_time", "fusion_threshold")
)


def column(knob: Knob) -> str:
    """The column of one of OTHER_KNOBS: its key with the unit."""
    if knob.kind == "size":
        return f"{knob.key}_kb"
    return knob.key + (f"_{knob.unit}" if knob.unit and not knob.key.endswith(knob.unit) else "")


OWN_COLUMNS = (
    "sample",
    "phase",
    "steps",
    "seconds",
    "step_time_ms",
    "step_time_stderr_ms",
    "epoch",
    *(column(knob) for knob in OTHER_KNOBS),
    "outliers",
    "accepted",
    "decision",
)
COLUMNS = HOROVOD_COLUMNS + OWN_COLUMNS
PHASES = ("warmup", "baseline", "verify", "search", "confirm", "final")
MIB = 2**20


@dataclass(frozen=True)
class Row:
    """One line of the log.

    `values` are all settings in force, by key and in the knobs' units; `seconds` is the time from
    the change of settings to the end of the sample.
    """

    values: Mapping[str, float | int | bool]
    sample: Sample | None
    number: int
    phase: str
    epoch: int
    decision: str = ""
    seconds: float = 0.0
    accepted: bool | None = None


def format_row(row: Row) -> str:
    """The row as a line of CSV, with its newline."""
    sample = row.sample
    fields = [
        *_horovod_fields(row.values),
        number(sample.score) if sample else "",
        str(row.number),
        row.phase,
        str(sample.steps) if sample else "0",
        number(row.seconds),
        number(sample.step_time_ms) if sample else "",
        number(sample.stderr_ms) if sample else "",
        str(row.epoch),
        *(_other_field(knob, row.values) for knob in OTHER_KNOBS),
        str(sample.outliers) if sample else "0",
        "" if row.accepted is None else str(int(row.accepted)),
        row.decision,
    ]
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue()


def number(value: float) -> str:
    """A number as Horovod prints it: six significant digits, no trailing zeros."""
    return f"{value:.6g}"


def message(values: Mapping[str, float | int | bool], score: float) -> str:
    """Horovod's form of settings and score in a log message: `[0, 0, 0, 1, 5 ms, 4 mb] 41.4`."""
    fields = _horovod_fields(values)
    return f"[{', '.join(fields[:4])}, {fields[4]} ms, {fields[5]} mb] {number(score)}"


def tunable_params() -> str:
    """The header of Horovod's log messages, naming the fields of `message`."""
    return f"Tunable params [{','.join(HOROVOD_COLUMNS[:-1])}] score"


class LogWriter:
    """Writes rows to a file; if that fails, calls `warn` once and continues without a file.

    The constructor creates the file with its folder (or empties it, unless `append`) and begins it
    with the header, so that it shows early that tuning is on. Not thread-safe.
    """

    def __init__(self, path: str, warn: Callable[[str], None], append: bool = False) -> None:
        self._path = path
        self._warn = warn
        self._file: TextIO | None = None
        try:
            if not os.path.exists(folder := os.path.dirname(path) or "."):
                os.makedirs(folder, exist_ok=True)
            self._file = open(path, "a" if append else "w", encoding="utf-8")  # noqa: SIM115
            is_empty = not append or os.path.getsize(path) == 0
        except OSError as error:
            self._give_up(error)
            return
        if is_empty:
            self._write(",".join(COLUMNS) + "\n")

    def write(self, row: Row) -> None:
        """Append a row and flush it."""
        self._write(format_row(row))

    def close(self) -> None:
        """Close the file; later rows are dropped."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self._give_up(error)

    def _write(self, line: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        file, self._file = self._file, None
        if file is not None:
            # Data that could not be flushed before cannot be flushed now; close() would fail again.
            with contextlib.suppress(OSError):
                file.close()
        self._warn(
            f"the autotune log {self._path!r} cannot be written ({error.strerror or error}); "
            "tuning goes on without it"
        )


def read(path: str | Path) -> list[dict[str, str]]:
    """The rows of a log of hvdtune's or Horovod's, as text by column name, blanks stripped.

    In UTF-8 or UTF-16, with any line endings. Raises ValueError naming the file and line if it is
    neither kind of log; drops a last line that was cut off while being written.
    """
    text = _text(path)
    complete = text[: text.rfind("\n") + 1]
    try:
        lines = list(csv.reader(io.StringIO(complete), skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(f"{path}: this is not an autotune log: {error}") from None
    header = [name.strip() for name in lines[0]] if lines else []
    if not _is_header(header):
        raise ValueError(
            f"{path}, line 1: this is not an autotune log; its header begins with "
            f"{','.join(HOROVOD_COLUMNS)}, or, from an older Horovod, some of these"
        )
    rows = []
    for at, line in enumerate(lines[1:], start=2):
        if not any(field.strip() for field in line):
            continue
        if len(line) != len(header):
            raise ValueError(
                f"{path}, line {at}: {len(line)} fields where the header has {len(header)}"
            )
        rows.append(dict(zip(header, (field.strip() for field in line), strict=True)))
    return rows


def _text(path: str | Path) -> str:
    """The file's text, with newline characters as line ends."""
    with open(path, "rb") as file:
        data = file.read()
    encoding = json.detect_encoding(data[:64])
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        # Accept a last character that was cut off while being written.
        if error.end < len(data):
            raise ValueError(
                f"{path}: this is not an autotune log: byte {error.start} is not text"
            ) from None
        text = data.decode(encoding, "ignore")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _is_header(names: Sequence[str]) -> bool:
    """Whether these are the columns of a version of Horovod, or of hvdtune."""
    known = [name for name in HOROVOD_COLUMNS if name in names]
    return known[-3:] == list(HOROVOD_COLUMNS[-3:]) and list(names[: len(known)]) == known


def _other_field(knob: Knob, values: Mapping[str, float | int | bool]) -> str:
    if knob.key not in values:
        return ""
    return number(values[knob.key] / 1024 if knob.kind == "size" else values[knob.key])


def _horovod_fields(values: Mapping[str, float | int | bool]) -> list[str]:
    flags = ("hierarchical_allreduce", "hierarchical_allgather", "torus_allreduce")
    return [
        *(str(int(bool(values.get(flag, False)))) for flag in flags),
        str(int(values.get("cache_capacity", 0) > 0)),
        number(values["cycle_time"]),
        number(values["fusion_threshold"] / MIB),
    ]
