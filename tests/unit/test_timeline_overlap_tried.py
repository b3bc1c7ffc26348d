"""The verdict on overlapping says what HVDTUNE_OVERLAP=auto has found out by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.recordings.synthetic_capture import Job, recording

from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.evidence.finding import Finding
from hvdtune.timeline.record.layout import Mark

EXPOSED = Job(steps=60, noise=0.01, overlap=False)
KEPT = "overlap: tried from step 15 to 46, 9.1 % faster, kept"


def verdict(job: Job, *told: str) -> list[Finding]:
    """With rank 0's marks, and all gradients of a step handed over in one call."""
    whole = recording(job)
    for one in whole.ranks.values():
        one.identity.settings["HVDTUNE_OVERLAP"] = "auto"
        one.waits["name"] = len(one.names) - 1
    first = whole.ranks[0]
    for text in told:
        mark = first.marks[-1:].copy()
        mark["kind"], mark["value"], mark["text"] = Mark.AUTOTUNE, 0, len(first.texts)
        first.texts.append(text)
        first.streams["marks"] = np.concatenate([first.marks, mark])
    return findings(analyse(whole))


def of_overlap(found: list[Finding]) -> Finding | None:
    return next((one for one in found if one.kind == "no overlap"), None)


@pytest.mark.parametrize(
    ("told", "sentence", "action"),
    [
        (
            ["overlap: being tried since step 15: only 14 % of the CPUs are used", KEPT],
            "hvdtune tried overlapping on its own in steps 15 to 46: 9.1 % faster, "
            "and has kept it.",
            "Nothing to do;",
        ),
        (
            ["overlap: being tried since step 15: only 14 % of the CPUs are used"],
            "hvdtune tries overlapping on its own (being tried since step 15: only 14 %",
            "Train longer:",
        ),
        (
            ["overlap: tried from step 15 to 110, 4.0 % faster, left off"],
            "in steps 15 to 110: 4.0 % faster, too little to be sure, and left it off.",
            "Nothing to do;",
        ),
        (
            ["overlap: not tried: gradients are changed between backward() and step()"],
            "Nothing overlaps",
            "Call optimizer.synchronize() before gradients are changed",
        ),
    ],
)
def test_what_was_done_is_told_and_nobody_is_asked_to_do_it(told, sentence, action):
    one = of_overlap(verdict(EXPOSED, *told))
    assert one is not None
    assert sentence in one.sentence
    assert one.action.startswith(action)
    assert "set HVDTUNE_OVERLAP" not in one.action


def test_what_was_measured_counts_not_what_was_played():
    [tried] = [
        one.gain
        for one in verdict(EXPOSED, "overlap: tried from step 15 to 110, 1.5 % faster, left off")
        if one.kind == "no overlap"
    ] or [0.0]
    assert tried <= 0.015
    slower = verdict(EXPOSED, "overlap: tried from step 15 to 46, 2.1 % slower, left off")
    assert of_overlap(slower) is None


def test_where_nothing_stands_out_it_is_told_too():
    [found] = verdict(replace(EXPOSED, overlap=True, tensors=EXPOSED.tensors[:1]), KEPT)
    assert found.kind == "compute bound"
    assert "9.1 % faster, and has kept it." in found.sentence


@pytest.mark.parametrize("text", ["Autotuner: Warming up", "kept the defaults", ""])
def test_other_marks_are_not_taken_for_it(text):
    for one in verdict(replace(EXPOSED, overlap=True), text):
        assert "on its own" not in one.sentence
        assert "on its own" not in one.action
