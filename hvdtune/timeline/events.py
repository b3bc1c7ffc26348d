"""From a file's bytes to its list of events, valid JSON or not."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

GZIP_MAGIC = b"\x1f\x8b"
#: Places in one file where reading is taken up again behind something that is no JSON.
MOST_GAPS = 100

_SEPARATOR = re.compile(r"[\s,]*")
_NEXT_EVENT = re.compile(r'[,\n]\s*(?=\{\s*")')


class TimelineError(ValueError):
    """The file is no timeline at all."""


def load_events(path: str | Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The events of a Chrome trace, in the file's order, and one sentence for each repair.

    Accepts an array of events or an object with `traceEvents`, plain or gzip, cut off anywhere, and
    with events that are no JSON (Horovod does not escape names). Raises TimelineError when no
    event can be found, OSError when the file cannot be read.
    """
    problems: list[str] = []
    text = _read_text(Path(path), problems)
    try:
        document = json.loads(text)
    except RecursionError:
        raise TimelineError(f"{path} is no timeline: it nests too deeply") from None
    except ValueError:
        return _salvage(text, path, problems), problems
    if isinstance(document, dict):
        document = document.get("traceEvents")
    if not isinstance(document, list):
        raise TimelineError(f"{path} is no timeline: it holds no array of events")
    return _only_events(document, problems), problems


def _read_text(path: Path, problems: list[str]) -> str:
    data = path.read_bytes()
    if data.startswith(GZIP_MAGIC):
        data = _gunzip(data, path, problems)
    if not data.strip():
        raise TimelineError(f"{path} is empty: nothing was recorded")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        problems.append("The file is not UTF-8; the bytes that are not were replaced.")
        return data.decode("utf-8", "replace")


def _gunzip(data: bytes, path: Path, problems: list[str]) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacker.decompress(data)
    except zlib.error as error:
        raise TimelineError(f"{path} is damaged: {error}") from None
    if not unpacker.eof:
        problems.append("The compressed file is cut off; what could be unpacked was read.")
    return unpacked


def _salvage(text: str, path: str | Path, problems: list[str]) -> list[dict[str, Any]]:
    """Event by event, behind the first `[`, skipping what is no JSON."""
    start = text.find("[")
    if start < 0:
        raise TimelineError(f"{path} is no timeline: it holds no array of events")
    decoder = json.JSONDecoder()
    found: list[Any] = []
    gaps = 0
    at = _skip(text, start + 1)
    while at < len(text) and text[at] != "]":
        try:
            event, at = decoder.raw_decode(text, at)
            found.append(event)
        except (ValueError, RecursionError):
            following = _NEXT_EVENT.search(text, at)
            if following is None or gaps == MOST_GAPS:
                break
            gaps += 1
            at = following.end()
        at = _skip(text, at)
    if gaps:
        problems.append(f"{gaps} pieces of the file are no JSON and were skipped.")
    if at >= len(text) or text[at] != "]":
        problems.append("The file is cut off; it was read as far as it goes.")
    events = _only_events(found, problems)
    if not events:
        raise TimelineError(f"{path} is no timeline: no event can be read from it")
    return events


def _skip(text: str, at: int) -> int:
    match = _SEPARATOR.match(text, at)
    return match.end() if match else at


def _only_events(items: list[Any], problems: list[str]) -> list[dict[str, Any]]:
    events = [item for item in items if isinstance(item, dict) and isinstance(item.get("ph"), str)]
    if len(events) != len(items):
        problems.append(f"{len(items) - len(events)} elements of the array are no events.")
    return events
