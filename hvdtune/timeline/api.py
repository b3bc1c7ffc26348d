"""`hvdtune report`: from recordings to what they mean. Files are read here, and nowhere else.

`document` gives all the numbers as one JSON document; `text` and `page` show them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvdtune.timeline.record.capture_file import is_capture
from hvdtune.timeline.record.events import TimelineError
from hvdtune.timeline.record.layout import Recording
from hvdtune.timeline.record.load import read_files, read_recording
from hvdtune.timeline.report import page as report_html
from hvdtune.timeline.report import text as report_text

Numbers = dict[str, Any]


def document(paths: Sequence[str | Path]) -> Numbers:
    """The report about one job, whose recording lies in these files, as a JSON document.

    One file of hvdtune's is joined by the other ranks' files beside it. Horovod's own timeline
    gives a limited report (`kind` "horovod"). Raises TimelineError (a ValueError) for files that
    are no timeline or do not belong together, OSError for one that cannot be read.
    """
    if len(paths) == 1 and not is_capture(paths[0]):
        from hvdtune.timeline.horovod import report

        return report.document(paths[0])
    from hvdtune.timeline.advice.verdict import findings
    from hvdtune.timeline.analysis.analyse import analyse
    from hvdtune.timeline.report.document import numbers_of

    analysis = analyse(open_recording(paths))
    return numbers_of(analysis, findings(analysis))


def open_recording(paths: Sequence[str | Path]) -> Recording:
    """The recording of one job. See `document` for what it raises."""
    for path in paths:
        if not is_capture(path):
            raise TimelineError(
                f"{path} is no recording of hvdtune: only these can be taken together or compared, "
                "not timelines in Horovod's layout, nor what was made for trace viewers"
            )
    recording = read_files(paths) if len(paths) > 1 else read_recording(paths[0])
    recording.source = ", ".join(map(str, paths))
    return recording


def text(numbers: Numbers) -> str:
    """For a terminal."""
    if numbers["kind"] == "horovod":
        from hvdtune.timeline.horovod import report

        return report.text(numbers)
    return report_text.text(numbers)


def page(numbers: Numbers) -> str:
    """One self-contained HTML file."""
    if numbers["kind"] == "horovod":
        from hvdtune.timeline.horovod import report

        return report.page(numbers)
    return report_html.page(numbers)
