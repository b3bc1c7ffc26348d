"""The CSV log: Horovod's columns first, readable by whoever read Horovod's."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.models.simulated_training import MIB

from hvdtune.autotune.report import log, runs
from hvdtune.autotune.statistics.score import Sample
from hvdtune.cli.main import main

HOROVODS_LOG = Path(__file__).parents[1] / "data" / "horovod-autotune.csv"
VALUES = {
    "hierarchical_allreduce": False,
    "hierarchical_allgather": False,
    "torus_allreduce": False,
    "cache_capacity": 1024,
    "cycle_time": 5.0,
    "fusion_threshold": 4 * MIB,
    "chunk_size": 256 * 1024,
}
SAMPLE = Sample(10, 12.3456789, 0.25, 1e6, 41.48987654, outliers=1)


def row(**changes: object) -> log.Row:
    fields = {
        "values": VALUES, "sample": SAMPLE, "number": 7, "phase": "search", "epoch": 3,
        "seconds": 0.5,
    }  # fmt: skip
    return log.Row(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_row_in_horovods_units_and_digits() -> None:
    assert log.format_row(row()) == (
        "0,0,0,1,5,4,41.4899,7,search,10,0.5,12.3457,0.25,3,1024,256,,,,,,1,,\n"
    )
    odd = {**VALUES, "cache_capacity": 0, "cycle_time": 28.20612, "fusion_threshold": 30190000}
    assert log.format_row(row(values=odd)).startswith("0,0,0,0,28.2061,28.7914,")


def test_the_header_is_there_before_any_row(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    log.LogWriter(str(path), pytest.fail)
    header = path.read_text()
    assert header.startswith(
        "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,"
        "cycle_time_ms,tensor_fusion_threshold,score,"
    )
    assert header.endswith("\n")


def test_every_row_is_on_disk_when_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    writer = log.LogWriter(str(path), pytest.fail)
    note = 'no significant gain (0.3 % ± 0.9 %), "kept"'
    writer.write(row(decision=note))
    writer.write(row(phase="final", accepted=True))
    rows = log.read(path)
    assert [one["phase"] for one in rows] == ["search", "final"]
    assert rows[0]["decision"] == note
    assert [one["accepted"] for one in rows] == ["", "1"]
    writer.close()
    assert log.read(path) == rows


def test_appending_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    for append in (False, True):
        writer = log.LogWriter(str(path), pytest.fail, append)
        writer.write(row())
        writer.close()
    assert len(log.read(path)) == 2
    writer = log.LogWriter(str(path), pytest.fail)
    writer.close()
    assert log.read(path) == []


def test_a_log_that_another_process_began_elsewhere_gets_a_header_here(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    writer = log.LogWriter(str(path), pytest.fail, append=True)
    writer.write(row())
    writer.close()
    assert len(log.read(path)) == 1


def test_a_log_may_be_a_pipe() -> None:
    out, into = os.pipe()
    writer = log.LogWriter(f"/proc/self/fd/{into}", pytest.fail)
    writer.close()
    os.close(into)
    with open(out) as file:
        assert file.read() == ",".join(log.COLUMNS) + "\n"


def test_horovods_own_log_is_read() -> None:
    rows = log.read(HOROVODS_LOG)
    assert len(rows) == 9
    assert rows[0]["cache_enabled"] == "0"
    assert rows[-1] == {
        "hierarchical_allreduce": "0",
        "hierarchical_allgather": "1",
        "torus_allreduce": "0",
        "cache_enabled": "1",
        "cycle_time_ms": "4.40589",
        "tensor_fusion_threshold": "8.71054",
        "score": "60.9306",
    }


def test_a_reader_of_horovods_logs_reads_ours(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    writer = log.LogWriter(str(path), pytest.fail)
    writer.write(row(decision="two, or more"))
    writer.close()
    with open(path, newline="") as file:
        only = next(csv.DictReader(file))
    assert float(only["score"]) == pytest.approx(41.4899)
    assert float(only["tensor_fusion_threshold"]) == 4


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(HOROVODS_LOG.read_text() + "0,0,0, 1,3")
    assert len(log.read(path)) == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: this is not an autotune log"),
        ("a,b,c\n1,2,3\n", "line 1: this is not an autotune log"),
        (",".join(log.HOROVOD_COLUMNS) + "\n0,0,0, 1,3,4\n", "line 2: 6 fields where"),
    ],
)
def test_other_files_are_refused_with_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        log.read(path)


def test_a_log_that_cannot_be_made_is_one_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "log.csv"
    writer = log.LogWriter(str(path), warnings.append)
    writer.write(row())
    writer.write(row())
    writer.close()
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    assert "Not a directory" in warnings[0]


def test_a_full_disk_is_one_warning() -> None:
    warnings: list[str] = []
    writer = log.LogWriter("/dev/full", warnings.append)
    writer.write(row())
    writer.close()
    assert warnings == [
        "the autotune log '/dev/full' cannot be written (No space left on device); "
        "tuning goes on without it"
    ]


def test_messages_have_horovods_form() -> None:
    assert log.message(VALUES, 41.48987) == "[0, 0, 0, 1, 5 ms, 4 mb] 41.4899"
    assert log.tunable_params() == (
        "Tunable params [hierarchical_allreduce,hierarchical_allgather,torus_allreduce,"
        "cache_enabled,cycle_time_ms,tensor_fusion_threshold] score"
    )


# The columns of each version of Horovod, oldest first.
VERSIONS = [
    ("cycle_time_ms", "tensor_fusion_threshold", "score"),
    ("hierarchical_allreduce", "cycle_time_ms", "tensor_fusion_threshold", "score"),
    (*log.HOROVOD_COLUMNS[:2], *log.HOROVOD_COLUMNS[4:]),
    (*log.HOROVOD_COLUMNS[:2], *log.HOROVOD_COLUMNS[3:]),
    log.HOROVOD_COLUMNS,
]


def log_of(columns: Sequence[str], newline: str = "\n") -> str:
    """As that version writes it: three samples, and the best of them again."""
    values = {"cycle_time_ms": "5", "tensor_fusion_threshold": "4"}
    lines = [",".join(columns)]
    for score in ("41.4899", "7.65777", "43.2432", "43.2432"):
        cycle = {"41.4899": "5", "7.65777": "28.2061", "43.2432": "4.40589"}[score]
        row = {**values, "cycle_time_ms": cycle, "score": score}
        fields = [row.get(column, "0") for column in columns]
        if len(columns) == 7:
            fields[3] = " 0"
        lines.append(",".join(fields))
    return newline.join([*lines, ""])


@pytest.mark.parametrize("columns", VERSIONS)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_logs_of_all_versions_of_horovod_are_read(
    tmp_path: Path, columns: Sequence[str], newline: str, encoding: str
) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(log_of(columns, newline).encode(encoding))
    rows = log.read(path)
    assert [row["score"] for row in rows] == ["41.4899", "7.65777", "43.2432", "43.2432"]
    assert [tuple(row) for row in rows] == [columns] * 4
    [run] = runs.read(path)
    assert run.of_horovod
    assert run.final is not None
    assert run.final.settings["cycle_time_ms"] == 4.40589
    assert list(run.start) == list(columns[:-1])


@pytest.mark.parametrize("columns", VERSIONS)
def test_they_get_a_page(
    tmp_path: Path, columns: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "log.csv", tmp_path / "page.html"
    path.write_text(log_of(columns) + ",".join("0" for _ in columns)[:-1])  # one is being written
    assert main(["autotune", "report", str(path), "-o", str(page)]) == 0
    assert "Horovod" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert "43.2" in text or "23.1" in text  # the score, or the cost of it
    assert "4.406" in text or "4.40589" in text


@pytest.mark.parametrize(
    "content",
    [
        b"score,cycle_time_ms,tensor_fusion_threshold\n1,2,3\n",
        b"cycle_time_ms,score\n1,2\n",
        b"sample,cycle_time_ms,tensor_fusion_threshold,score\n1,2,3,4\n",
        b"hierarchical_allgather,hierarchical_allreduce,cycle_time_ms,score\n0,0,1,2\n",
        b"[2020-01-01 00:00:00] Autotuner: [0, 0, 5 ms, 4 mb] 41.4\n",
        b"cycle_time_ms;tensor_fusion_threshold;score\n1;2;3\n",
        b"\x89PNG\r\n\x1a\n\x00\x00\x00",
        b"\xff\xfe\n",
        b"\x00" * 64,
        b'"' + b"x" * 200_000 + b"\n",
    ],
)
def test_what_is_no_autotune_log_is_one_sentence(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.csv"
    path.write_bytes(content)
    assert main(["autotune", "report", str(path), "-o", str(tmp_path / "page.html")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert f"{path}" in said
    assert "this is not an autotune log" in said


def test_a_field_that_is_missing_or_no_number_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    text = log_of(VERSIONS[2])
    path.write_text(text.replace("28.2061,", ""))
    with pytest.raises(ValueError, match="line 3: 4 fields where the header has 5"):
        log.read(path)
    path.write_text(text.replace("28.2061", "soon"))
    with pytest.raises(ValueError, match="row 2: cycle_time_ms is 'soon', which is not a number"):
        runs.read(path)
