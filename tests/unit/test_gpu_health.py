"""GPUs that are slowed down or find errors in their memory, told by a recording's counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from support.recordings.synthetic_capture import Job, recording

from hvdtune.timeline.advice import gpus as gpu_health
from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.record import nvml
from hvdtune.timeline.record.layout import COUNTER, Recording

COOL = [0.0] * 20
Readings = Mapping[int, Mapping[str, Sequence[float]]]


def recorded(gpus: Readings, rank: int = 0, job: Job | None = None) -> Recording:
    """A recording in which one rank has read these GPUs; keys are those of `nvml.COUNTERS`."""
    whole = recording(job or Job(ranks=2, steps=10))
    add(whole, gpus, rank)
    return whole


def add(whole: Recording, gpus: Readings, rank: int) -> None:
    one = whole.ranks[rank]
    begin = int(one.batches["begin"].min())
    rows = []
    for number, counters in gpus.items():
        for key, values in counters.items():
            one.texts.append(nvml.COUNTERS[key].format(gpu=number))
            table = np.zeros(len(values), COUNTER)
            table["time"] = begin + 1_000_000 * np.arange(len(values))
            table["counter"], table["value"] = len(one.texts) - 1, values
            rows.append(table)
    one.streams["counters"] = np.sort(np.concatenate(rows), order="time")


def test_healthy_gpus_are_not_mentioned():
    clocks = [1.98e9] * 20
    gpus = {0: {"throttled_by_heat": COOL, "ecc_corrected_errors": [7] * 20,
                "ecc_uncorrected_errors": COOL, "sm_clock_hertz": clocks}}  # fmt: skip
    whole = recorded(gpus)
    assert gpu_health.errors(whole) == gpu_health.warnings(whole) == []
    assert not any("GPU" in one.kind for one in findings(analyse(whole)))


def test_heat_is_named_with_the_clocks_that_it_costs():
    hot = [0.0] * 12 + [1.0] * 8
    clocks = [1.98e9] * 12 + [1.2e9] * 8
    whole = recorded({3: {"throttled_by_heat": hot, "sm_clock_hertz": clocks}})
    (found,) = gpu_health.warnings(whole)
    assert found.kind == "GPU slowed down"
    assert found.sentence == (
        "GPU 3 of host host0 had lowered clocks because of heat: in 40 % of the readings (SM clock "
        "1200 MHz then, 1980 MHz at best)."
    )
    assert found.evidence["throttled_share"] == pytest.approx(0.4)
    assert findings(analyse(whole))[-1] == found
    assert found.gain == 0


def test_gpus_of_a_host_with_the_same_reason_are_one_sentence():
    gpus = {n: {"throttled_by_power": [1.0] * n + [0.0] * (20 - n)} for n in (1, 4, 8)}
    (found,) = gpu_health.warnings(recorded(gpus))
    assert found.sentence == (
        "GPUs 4, 8 of host host0 had lowered clocks because of a power limit, GPU 8 most: in 40 % "
        "of the readings."
    )
    assert "nvidia-smi -pl" in found.action


def test_each_host_and_reason_has_its_own_sentence():
    job = Job(ranks=2, steps=10, local_size=1)
    whole = recorded({0: {"throttled_by_hardware": [1.0] * 5}}, 0, job)
    add(whole, {0: {"throttled_by_heat": [1.0] * 5, "throttled_by_power": [1.0] * 5}}, 1)
    told = [one.sentence for one in gpu_health.warnings(whole)]
    assert len(told) == 3
    assert "host host0" in told[0]
    assert "its power supply or its board" in told[0]
    assert all("host host1" in sentence for sentence in told[1:])


def test_new_corrected_errors_are_a_warning():
    whole = recorded({0: {"ecc_corrected_errors": [3, 3, 4]}, 1: {"ecc_corrected_errors": [9, 9]}})
    (found,) = gpu_health.warnings(whole)
    assert found.sentence == (
        "GPU 0 of host host0 corrected 1 error in its memory during the recording."
    )


@pytest.mark.parametrize(
    ("readings", "when"),
    [([2, 2, 2], "before the recording"), ([0, 2, 2], "2 of them during the recording")],
)
def test_errors_that_were_not_corrected_come_first(readings, when):
    whole = recorded({5: {"ecc_uncorrected_errors": readings}})
    first = findings(analyse(whole))[0]
    assert first.kind == "GPU memory errors"
    assert first.sentence.startswith("GPU 5 of host host0 has had 2 errors in its memory")
    assert first.sentence.endswith(f"{when}.")
    assert len(findings(analyse(whole))) > 1


def test_a_driver_that_is_loaded_anew_does_not_count_backwards():
    whole = recorded({0: {"ecc_corrected_errors": [9, 0]}})
    assert gpu_health.warnings(whole) == []


def test_clocks_of_which_a_reading_was_lost_are_left_out():
    whole = recorded({0: {"throttled_by_heat": [1.0] * 20, "sm_clock_hertz": [1e9] * 19}})
    (found,) = gpu_health.warnings(whole)
    assert "MHz" not in found.sentence
    assert "low_mhz" not in found.evidence
