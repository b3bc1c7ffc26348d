"""Checks line by line whether a file of any length is one valid JSON array."""

from __future__ import annotations

import json
from pathlib import Path

from hvdtune.timeline.record.capture_file import Lines

NO_JSON = "a piece is not JSON"
_BLANK = " \t\r\n"


def fault_of_array(path: str | Path) -> str:
    """Why a recording, with one or more events per line, is not one valid JSON array; "" if it is
    one. A file that is cut off is judged by the part that is there; the reader of its records
    reports what is missing. OSError if it cannot be read."""
    form = _Form()
    for number, line in enumerate(Lines(Path(path)), 1):
        fault = form.fault_in(line.decode("utf-8", "replace"))
        if fault == NO_JSON and not line.endswith(b"\n"):
            break  # cut off here
        if fault:
            return f"the file is not valid JSON: {fault} in line {number}"
    return ""


class _Form:
    """The reader's position in the array."""

    def __init__(self) -> None:
        self.begun = self.ended = False
        self.after_event = self.after_comma = False
        self.decoder = json.JSONDecoder()

    def fault_in(self, text: str) -> str:
        """Reads one line; returns what is wrong with it, or ""."""
        at = 0
        while at < len(text):
            sign = text[at]
            if sign in _BLANK:
                at += 1
            elif self.ended:
                return "something follows the array's end"
            elif not self.begun:
                if sign != "[":
                    return "something is before the array"
                self.begun = True
                at += 1
            elif sign == ",":
                if not self.after_event:
                    return "a comma is where an event should be"
                self.after_event, self.after_comma = False, True
                at += 1
            elif sign == "]":
                if self.after_comma:
                    return "a comma is before the array's end"
                self.ended = True
                at += 1
            else:
                if self.after_event:
                    return "a comma between two events is missing"
                try:
                    _, at = self.decoder.raw_decode(text, at)
                except (ValueError, RecursionError):
                    return NO_JSON
                self.after_event, self.after_comma = True, False
        return ""
