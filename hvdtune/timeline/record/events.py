"""From a file's bytes to its list of events, valid JSON or not."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

GZIP_MAGIC = b"\x1f\x8b"
NO_ARRAY = "The file has events without an array around them, which trace viewers do not read."
#: The most places in one file at which reading resumes after something that is not JSON.
MOST_GAPS = 100

#: The first bytes of other compressions' files, and the commands that unpack them.
_OTHERS_MAGIC = {
    b"\x28\xb5\x2f\xfd": "zstd -d",
    b"\xfd7zXZ\x00": "xz -d",
    b"BZh": "bzip2 -d",
    b"\x04\x22\x4d\x18": "lz4 -d",
    b"PK\x03\x04": "unzip",
}
_SEPARATOR = re.compile(r"[\s,]*")
_BEFORE_ARRAY = re.compile(r'(\{.*"traceEvents"\s*:)?\s*', re.DOTALL)
_NEXT_EVENT = re.compile(r'[,\n]\s*(?=\{\s*")')


class TimelineError(ValueError):
    """The file is not a timeline."""


def load_events(path: str | Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The events of a Chrome trace, in the file's order, and one sentence for each repair.

    Accepts an array of events, an object with `traceEvents`, or events one after the other; plain
    or gzip, UTF-8 or UTF-16, cut off anywhere, and with events that are not JSON (Horovod does not
    escape names). Everything that makes the file invalid JSON gets a sentence. Raises TimelineError
    if no event can be found, OSError if the file cannot be read.
    """
    problems: list[str] = []
    text = _read_text(Path(path), problems)
    numbers: set[str] = set()

    def no_number(name: str) -> float:
        numbers.add(name)
        return float(name)

    try:
        document = json.loads(text, parse_constant=no_number)
    except RecursionError:
        raise TimelineError(f"{path} is not a timeline: it nests too deeply") from None
    except ValueError as error:
        return _salvage(text, path, problems, error), problems
    if numbers:
        problems.append(
            f"The file is not valid JSON: {', '.join(sorted(numbers))} is not a number."
        )
    if isinstance(document, dict) and "traceEvents" not in document and "ph" in document:
        problems.append(NO_ARRAY)
        document = [document]
    elif isinstance(document, dict):
        document = document.get("traceEvents")
    if not isinstance(document, list):
        raise TimelineError(f"{path} is not a timeline: it contains no array of events")
    return _only_events(document, problems), problems


def compressed_otherwise(begin: bytes, path: Path) -> TimelineError | None:
    """The advice for a file with this beginning, if it is compressed, but not with gzip."""
    for magic, command in _OTHERS_MAGIC.items():
        if begin.startswith(magic):
            return TimelineError(
                f"{path} is compressed, but not with gzip: unpack it first (`{command} {path}`)"
            )
    return None


def _read_text(path: Path, problems: list[str]) -> str:
    data = path.read_bytes()
    if data.startswith(GZIP_MAGIC):
        data = _gunzip(data, path, problems)
    elif (otherwise := compressed_otherwise(data[:8], path)) is not None:
        raise otherwise
    if not data.strip(b" \t\r\n\0"):
        raise TimelineError(f"{path} is empty: nothing was recorded")
    encoding = json.detect_encoding(data[:64])
    if not encoding.startswith("utf-8"):
        problems.append(f"The file is {encoding[:6].upper()}; trace viewers read UTF-8 only.")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        problems.append(
            f"The file is not {encoding[:6].upper().rstrip('-')}; the bytes that are not were "
            "replaced."
        )
        return data.decode(encoding, "replace")


def _gunzip(data: bytes, path: Path, problems: list[str]) -> bytes:
    pieces = []
    while data.startswith(GZIP_MAGIC):  # several compressed files may follow each other
        unpacker = zlib.decompressobj(wbits=31)
        try:
            pieces.append(unpacker.decompress(data))
        except zlib.error as error:
            raise TimelineError(f"{path} is damaged: {error}") from None
        if not unpacker.eof:
            problems.append(
                "The compressed file is cut off; the part that could be unpacked was read."
            )
        data = unpacker.unused_data
    if data.strip(b"\0"):
        problems.append(f"{len(data)} bytes after the compressed data were skipped.")
    return b"".join(pieces)


def _salvage(
    text: str, path: str | Path, problems: list[str], error: ValueError
) -> list[dict[str, Any]]:
    """Event by event, from the first `[` to its `]`, skipping what is not JSON."""
    decoder = json.JSONDecoder()
    in_array = not _begins_with_event(text, decoder)
    start = text.find("[") + 1 if in_array else 0
    if in_array and not start:
        raise TimelineError(f"{path} is not a timeline: it contains no array of events")
    known = len(problems)
    if not in_array:
        problems.append(NO_ARRAY)
    elif not _BEFORE_ARRAY.fullmatch(text, 0, start - 1):
        problems.append("Text before the array of events was skipped: it is not JSON.")
    found: list[Any] = []
    gaps = commas = 0
    separator, at = _skip(text, start)
    commas += "," in separator
    while at < len(text) and text[at] != "]":
        whole = True
        try:
            event, at = decoder.raw_decode(text, at)
            found.append(event)
        except (ValueError, RecursionError):
            following = _NEXT_EVENT.search(text, at)
            if following is None or gaps == MOST_GAPS:
                break
            gaps += 1
            at = following.end()
            whole = False
        separator, at = _skip(text, at)
        if in_array and whole and at < len(text):
            commas += separator.count(",") != (text[at] != "]")
    if gaps:
        problems.append(f"{gaps} pieces of the file are not JSON and were skipped.")
    if commas:
        problems.append(
            "The file is not valid JSON: commas between its events are missing, or there are too "
            f"many ({commas})."
        )
    if at < len(text) and text[at] == "]":
        behind = text[at + 1 :].strip()
        if behind and (text.lstrip().startswith("[") or not in_array):
            line = text.count("\n", 0, text.index(behind, at + 1)) + 1
            problems.append(
                f"The array of events ends before line {line}; what follows it was not read."
            )
    elif in_array and at == len(text) and re.search(r",\s*\n", separator):
        problems.append(
            "The file is cut off, or of an older Horovod, which does not end its array; it was "
            "read as far as it goes."
        )
    elif in_array or at < len(text):
        problems.append("The file is cut off; it was read as far as it goes.")
    if len(problems) == known:
        problems.append(f"The file is not valid JSON: {error}.")
    events = _only_events(found, problems)
    if not events:
        raise TimelineError(f"{path} is not a timeline: no event can be read from it")
    return events


def _begins_with_event(text: str, decoder: json.JSONDecoder) -> bool:
    """Whether the file is one event after the other, without an array around them."""
    at = len(text) - len(text.lstrip())
    if not text.startswith("{", at):
        return False
    try:
        first, _ = decoder.raw_decode(text, at)
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and "ph" in first


def _skip(text: str, at: int) -> tuple[str, int]:
    match = _SEPARATOR.match(text, at)
    assert match is not None  # it may be empty
    return match[0], match.end()


def _only_events(items: list[Any], problems: list[str]) -> list[dict[str, Any]]:
    events = [item for item in items if isinstance(item, dict) and isinstance(item.get("ph"), str)]
    if len(events) != len(items):
        problems.append(f"{len(items) - len(events)} elements of the array are no events.")
    return events
