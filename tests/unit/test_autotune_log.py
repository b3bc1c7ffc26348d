"""The CSV log: Horovod's columns first, readable by whoever read Horovod's."""

import csv
from pathlib import Path

import pytest
from simulated_training import MIB

from hvdtune.autotune import log
from hvdtune.autotune.score import Sample

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
        ("", "line 1: this is no autotune log"),
        ("a,b,c\n1,2,3\n", "line 1: this is no autotune log"),
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
    path = tmp_path / "missing" / "log.csv"
    writer = log.LogWriter(str(path), warnings.append)
    writer.write(row())
    writer.write(row())
    writer.close()
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    assert "No such file or directory" in warnings[0]


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
