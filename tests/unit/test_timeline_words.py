"""How numbers are said in the report."""

from __future__ import annotations

import math

import pytest

from hvdtune.timeline import words
from hvdtune.timeline.report import tables


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.0, "0 %"),
        (0.0002, "under 0.1 %"),
        (0.0006, "0.1 %"),
        (-0.02, "-2.0 %"),
        (-0.0003, "0 %"),
        (0.0994, "9.9 %"),
        (0.5, "50 %"),
        (math.nan, "-"),
        (None, "-"),
    ],
)
def test_shares(share: float | None, said: str) -> None:
    assert words.percent(share) == said


def test_who_held_the_job_up_is_not_called_punctual() -> None:
    rank = {
        "rank": 0, "host": "a", "kind": "", "steps_last_share": 0.3, "typical_late_s": 0.0,
        "caused_s": 0.2, "from_step": -1, "to_step": -1,
    }  # fmt: skip
    table = tables.stragglers(
        {
            "stragglers": [
                {**rank, "delay_s": 0.1},
                {**rank, "rank": 1, "delay_s": 0.0},
                {**rank, "rank": 2, "delay_s": 0.5, "kind": "persistent"},
            ]
        }
    )
    assert [row[1] for row in table.rows] == ["now and then", "not late", "persistent"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("stalled_s", 1200.0, "20.0 min"), ("pages_from_disk_per_s", 1200.0, "1200")],
)
def test_evidence_is_told_in_its_unit(name: str, value: float, said: str) -> None:
    assert tables.cell(name, value) == said
