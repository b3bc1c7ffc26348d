"""What a file says of itself: valid JSON or not, whole or not, in which encoding."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.recordings.synthetic_capture import (
    Job,
    capture_lines,
    event,
    simulate,
    write_capture,
    write_lines,
)

from hvdtune.cli.main import main
from hvdtune.timeline import api
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.record.array_form import fault_of_array
from hvdtune.timeline.record.events import TimelineError, load_events
from hvdtune.timeline.record.load import read_recording
from hvdtune.timeline.viewers.finish import finish

NAME = '{"name":"process_name","ph":"M","pid":1,"args":{"name":"t"}}'
BEGIN = '{"ph":"B","name":"ALLREDUCE","ts":10,"pid":1}'
END = '{"ph":"E","ts":20,"pid":1}'
EVENTS = [json.loads(one) for one in (NAME, BEGIN, END)]
ARRAY = f"[{NAME},\n{BEGIN},\n{END}]"

NO_JSON = "The file is not valid JSON"
CUT_OFF = "The file is cut off"
GOES_ON = "what follows it was not read"
NO_ARRAY = "events without an array around them"


def checked(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = main(["timeline", "check", str(path)])
    shown = capsys.readouterr()
    return status, shown.out + shown.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{ARRAY}\n{ARRAY}", GOES_ON),
        (f"{ARRAY}{ARRAY}", GOES_ON),
        (f"{ARRAY} and so on", GOES_ON),
        (f"{ARRAY}]", GOES_ON),
        (f"{ARRAY[:-1]},]", NO_JSON),
        (f"{ARRAY[:-1]},\r\n]", NO_JSON),
        (f"[,{ARRAY[1:]}", NO_JSON),
        (ARRAY.replace(",\n", ",\n,\n"), NO_JSON),
        (ARRAY.replace(",\n", "\n"), NO_JSON),
        (ARRAY.replace("20", "NaN"), f"{NO_JSON}: NaN is not a number"),
        (ARRAY.replace("20", "-Infinity"), NO_JSON),
        (f'{{"a": 1}}{ARRAY}', "Text before the array of events was skipped"),
        (f"GET /t.json {ARRAY}", "Text before the array of events was skipped"),
        (f'{{"traceEvents": {ARRAY}}}{{"traceEvents": {ARRAY}}}', NO_JSON),
        (f'{{"traceEvents": {ARRAY}, }}', NO_JSON),
        (f"[{ARRAY}, {NAME}]", "1 elements of the array are no events"),
        (ARRAY.replace(BEGIN, f"[[{BEGIN}"), "1 pieces of the file are not JSON"),
        (ARRAY[:-1], CUT_OFF),
        (ARRAY[:-2], CUT_OFF),
        (f"{ARRAY[:-1]},\n", "or of an older Horovod"),
        (f"{ARRAY[:-1]},\r\n".replace("\n{", "\r\n{"), "or of an older Horovod"),
        (f'{ARRAY[:-1]},{{"ph": "i", "name": "CYC', CUT_OFF),
        (f'{{"displayTimeUnit": "ms", "traceEvents": {ARRAY[:-1]}', CUT_OFF),
        ("\n".join((NAME, BEGIN, END)), NO_ARRAY),
        (",\n".join((NAME, BEGIN, END)), NO_ARRAY),
        (f"{NAME}\r\n{BEGIN}\r\n{END}\r\n", NO_ARRAY),
    ],
)
def test_what_is_no_valid_json_is_not_sound_and_is_read(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(text.encode())
    status, shown = checked(path, capsys)
    assert status == 1
    assert told in shown
    assert "sound" not in shown
    assert load_events(path)[0]


@pytest.mark.parametrize(
    "text",
    [
        f"{ARRAY}  \n\n",
        ARRAY.replace("\n", "\r\n"),
        ARRAY.replace("\n", ""),
        f'{{"traceEvents": {ARRAY}, "displayTimeUnit": "ms"}}',
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_what_is_valid_json_is_sound(
    text: str, encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(text.encode(encoding))
    status, shown = checked(path, capsys)
    assert (status, "sound. 3 events" in shown) == (0, True), shown
    assert load_events(path) == (EVENTS, [])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_are_read_and_named(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(ARRAY.encode(encoding))
    events, [problem] = load_events(path)
    assert events == EVENTS
    assert problem == f"The file is {encoding[:6].upper()}; trace viewers read UTF-8 only."


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
@pytest.mark.parametrize("at", [0, 30])
def test_gzip_is_known_by_its_content(tmp_path: Path, name: str, at: int) -> None:
    """Also in several pieces, as `cat` makes them; and a name alone compresses nothing."""
    path = tmp_path / name
    path.write_bytes(b"".join(gzip.compress(part.encode()) for part in (ARRAY[:at], ARRAY[at:])))
    assert load_events(path) == (EVENTS, [])
    path.write_text(ARRAY)
    assert load_events(path) == (EVENTS, [])


@pytest.mark.parametrize(
    ("content", "command"),
    [
        (lzma.compress(ARRAY.encode()), "xz -d"),
        (bz2.compress(ARRAY.encode()), "bzip2 -d"),
        (b"\x28\xb5\x2f\xfd\x24\x00\x01\x00\x00", "zstd -d"),
        (b"PK\x03\x04\x14\x00", "unzip"),
    ],
)
def test_other_compressions_are_named(
    content: bytes, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    for words in (["timeline", "check"], ["timeline", "summary"], ["report"]):
        assert main([*words, str(path)]) == 2
        shown = capsys.readouterr().err
        assert shown.count("\n") == 1
        assert f"{path} is compressed, but not with gzip: unpack it first (`{command}" in shown
    with pytest.raises(TimelineError):
        read_recording(path)


# ---- recordings ---------------------------------------------------------------------------------

JOB = Job(ranks=2, steps=20, counters=True)


def lines_of(rank: int = 0) -> list[str]:
    return capture_lines(replace(JOB, ranks=1), rank, simulate(replace(JOB, ranks=1)), records=16)


def blocks_of(lines: list[str], stream: str) -> list[str]:
    return [line for line in lines if f'"stream": "{stream}"' in line]


def count_of(block: str) -> int:
    return int(json.loads(block)["args"]["count"])


def test_a_recording_of_blocks_that_are_all_there_is_sound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_capture(JOB, tmp_path, records=16)
    assert checked(path, capsys)[0] == 0
    assert finish(path)
    status, shown = checked(path, capsys)
    assert (status, "sound. 2 ranks" in shown) == (0, True), shown


@pytest.mark.parametrize("stream", ["tensors", "batches", "waits", "counters"])
@pytest.mark.parametrize("gone", [[0], [1], [-1], [0, 2], [1, 2]])
def test_records_that_are_missing_are_counted(
    tmp_path: Path, stream: str, gone: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """At the beginning, in the middle, at the end; whole lines, so JSON is as valid as ever."""
    lines = lines_of()
    wanted = blocks_of(lines, stream)
    lost = [wanted[number] for number in gone]
    count = sum(map(count_of, lost))
    path = tmp_path / "t.json"
    write_lines(path, [line for line in lines if line not in lost])
    status, shown = checked(path, capsys)
    assert status == 1
    assert f"{count} records of {stream} that were written to the file are missing from it" in shown
    recording = read_recording(path)
    assert recording.ranks[0].dropped == {stream: count}
    quality = analyse(recording).quality
    assert quality.dropped == {stream: count}
    text = api.text(api.document([path]))
    assert "none lost" not in text
    # Joining, which copies records, keeps it.
    assert finish(path)
    assert read_recording(path).ranks[0].dropped == {stream: count}


def test_a_damaged_block_is_missing_too(tmp_path: Path) -> None:
    lines = lines_of()
    block = blocks_of(lines, "tensors")[1]
    lines[lines.index(block)] = block.replace('"data": "', '"data": "no')
    write_lines(tmp_path / "t.json", lines)
    one = read_recording(tmp_path / "t.json").ranks[0]
    assert one.dropped == {"tensors": count_of(block)}
    assert any("damaged blocks of tensors" in problem for problem in one.problems)


def test_a_block_that_is_there_twice_is_read_once(tmp_path: Path) -> None:
    lines = lines_of()
    path = tmp_path / "t.json"
    write_lines(path, lines)
    whole = read_recording(path).ranks[0]
    block = blocks_of(lines, "tensors")[1]
    lines.insert(lines.index(block) + 3, block)
    write_lines(path, lines)
    one = read_recording(path).ranks[0]
    assert np.array_equal(one.tensors, whole.tensors)
    assert one.problems == ["1 blocks of tensors that are in the file twice were left out."]


def test_names_that_are_missing_are_counted(tmp_path: Path) -> None:
    lines = lines_of()
    at = next(number for number, line in enumerate(lines) if "hvdtune_names" in line)
    names = json.loads(lines[at])["args"]["names"]
    del names[0]
    lines[at] = event("hvdtune_names", 0, {"names": names})
    write_lines(tmp_path / "t.json", lines)
    one = read_recording(tmp_path / "t.json").ranks[0]
    assert one.problems == ["1 names that were written to the file are missing from it."]


def test_files_without_numbers_are_read(tmp_path: Path) -> None:
    """As older versions wrote them."""

    def older(line: str) -> str:
        one = json.loads(line)
        for member in ("first", "records"):
            one["args"].pop(member, None)
        return json.dumps(one)

    path = tmp_path / "t.json"
    write_lines(path, [older(line) for line in lines_of()])
    assert read_recording(path).problems == []


FULL = {"errno": 28, "reason": "the disk was full (No space left on device)"}


@pytest.mark.parametrize("kept", [3, 20, None])
def test_a_recording_that_was_cut_off_says_when_and_why(
    tmp_path: Path, kept: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of()[:-1][:kept]
    path = tmp_path / "t.json"
    write_lines(path, [*lines, event("hvdtune_cut_off", 0, FULL)])
    status, shown = checked(path, capsys)
    assert status == 1
    when = "at its beginning" if kept == 3 else "at "
    assert f"the recording was cut off {when}" in shown
    assert ": the disk was full (No space left on device)." in shown
    assert "still" not in shown
    if kept is None:
        assert f", after step {JOB.steps}: the disk was full" in shown
    quality = analyse(read_recording(path)).quality
    assert quality.incomplete_ranks == ()
    assert "the disk was full" in quality.cut_off["0"]
    assert "was cut off (rank 0:" in api.text(api.document([path]))


def test_horovods_layout_that_was_cut_off_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json"
    path.write_text(f"{ARRAY[:-1]},{event('hvdtune_cut_off', 0, FULL)}]")
    status, shown = checked(path, capsys)
    assert status == 1
    assert "cut off after the last event here: the disk was full" in shown


def twice(text: str) -> str:
    return text + text


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda text: text, ""),
        (lambda text: text + "\n \n", ""),
        (lambda text: text.replace(",\n", "\n,"), ""),
        (lambda text: text.replace(",\n", ",\r\n"), ""),
        (twice, "something follows the array's end"),
        (lambda text: text + "]", "something follows the array's end"),
        (lambda text: text.rstrip()[:-1] + ",]", "a comma is before the array's end"),
        (lambda text: text.replace(",\n", "\n", 1), "a comma between two events is missing"),
        (lambda text: text.replace(",\n", ",,\n", 1), "a comma is where an event should be"),
        (lambda text: "{}" + text, "something is before the array"),
        (lambda text: text.replace(",\n", ",\nnonsense,\n", 1), "a piece is not JSON"),
    ],
)
def test_the_form_of_a_recording(
    change: Callable[[str], str], fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json"
    write_lines(path, lines_of())
    text = change(path.read_text())
    path.write_bytes(text.encode())
    assert fault in fault_of_array(path)
    assert bool(fault_of_array(path)) == bool(fault)
    assert checked(path, capsys)[0] == (1 if fault else 0)
    if not fault:
        json.loads(text)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_recordings_in_other_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "t.json"
    write_lines(path, lines_of())
    whole = read_recording(path).ranks[0]
    path.write_bytes(path.read_text().encode(encoding))
    one = read_recording(path).ranks[0]
    assert one.problems == []
    assert np.array_equal(one.tensors, whole.tensors)
