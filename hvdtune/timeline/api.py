"""Answers from recordings: for notebooks and programs, and for `hvdtune report`.

`read` opens a job's recording, whose answers are DataFrames:

    from hvdtune.timeline import api

    job = api.read("t.json")
    job.findings()
    job.waterfall().groupby("rank").mean()

`document` returns all of a report's numbers as one JSON document; `text` and `page` show them.
Formulas and columns are in docs/metrics.md. No other module of the report reads files.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hvdtune.timeline.record.capture_file import is_capture
from hvdtune.timeline.record.events import TimelineError
from hvdtune.timeline.record.layout import Recording
from hvdtune.timeline.record.load import read_files, read_recording
from hvdtune.timeline.report import page as report_html
from hvdtune.timeline.report import text as report_text

if TYPE_CHECKING:
    import pandas as pd

    from hvdtune.timeline import schema
    from hvdtune.timeline.analysis.answers import Analysis


class Job:
    """What one job's recording says; each answer is a DataFrame, made when it is first asked for.

    Times are seconds (`…_s`), sizes bytes; `rank` and `step` are numbers from 0. Frames are the
    caller's: changing one changes no other answer.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    @functools.cached_property
    def analysis(self) -> Analysis:
        """All answers (`analysis.answers.Analysis`)."""
        from hvdtune.timeline.analysis.analyse import analyse

        return analyse(self.recording)

    def steps(self) -> pd.DataFrame:
        """A row for each rank and step: begin_s, end_s, duration_s."""
        return self.analysis.steps.copy()

    def waterfall(self) -> pd.DataFrame:
        """A row for each rank and step: step_s, and the parts that sum to it."""
        return self.analysis.waterfall.copy()

    def stragglers(self) -> pd.DataFrame:
        """A row for each rank that holds the others up: from which step on, and what it costs."""
        return self.analysis.stragglers.copy()

    def batches(self) -> pd.DataFrame:
        """A row for each batch: what was sent together, why it was closed, how long it took."""
        return self.analysis.batches.copy()

    def sizes(self) -> pd.DataFrame:
        """A row for each operation and size: latencies, algbw_gbps, busbw_gbps."""
        return self.analysis.sizes.copy()

    def tensors(self) -> pd.DataFrame:
        """A row for each tensor: how often it was reduced, and what waiting for it costs."""
        return self.analysis.tensors.copy()

    def phases(self) -> pd.DataFrame:
        """A row for each rank and step: the seconds in each phase of the rank's own time."""
        return self.analysis.phases.copy()

    def findings(self) -> pd.DataFrame:
        """A row for each finding, in the order of the report: kind, sentence, action, and the
        shares of the steps' time that acting on it may save: gain, at_least, at_most."""
        import pandas as pd

        from hvdtune.timeline.advice.verdict import findings

        rows = [
            (one.kind, one.sentence, one.action, one.gain, *one.interval)
            for one in findings(self.analysis)
        ]
        columns = ["kind", "sentence", "action", "gain", "at_least", "at_most"]
        return pd.DataFrame(rows, columns=columns)


def read(*paths: str | Path) -> Job:
    """The job recorded in these files. If one file is given, the other ranks' files beside it are
    read too.

    Raises TimelineError (a ValueError) for files that are not a recording made by hvdtune or do
    not belong together, and OSError for a file that cannot be read.
    """
    return Job(open_recording(paths))


def document(paths: Sequence[str | Path]) -> schema.Report | schema.HorovodReport:
    """The report about the job recorded in these files, as a JSON document.

    If one file made by hvdtune is given, the other ranks' files beside it are read too. Horovod's
    own timeline gives a limited report (`kind` "horovod"). Raises TimelineError (a ValueError) for
    files that are not timelines or do not belong together, and OSError for a file that cannot be
    read.
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
    if not paths:
        raise TimelineError("no file was given: name a recording")
    for path in paths:
        if not is_capture(path):
            raise TimelineError(
                f"{path} is not a recording made by hvdtune: only such recordings can be combined "
                "or compared, not timelines in Horovod's layout or files made for trace viewers"
            )
    recording = read_files(paths) if len(paths) > 1 else read_recording(paths[0])
    recording.source = ", ".join(map(str, paths))
    return recording


def text(numbers: schema.Report | schema.HorovodReport) -> str:
    """For a terminal."""
    if numbers["kind"] == "horovod":
        from hvdtune.timeline.horovod import report

        return report.text(numbers)
    return report_text.text(numbers)


def page(numbers: schema.Report | schema.HorovodReport) -> str:
    """One self-contained HTML file."""
    if numbers["kind"] == "horovod":
        from hvdtune.timeline.horovod import report

        return report.page(numbers)
    return report_html.page(numbers)
