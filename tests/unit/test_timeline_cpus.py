"""CPUs that computing and communication share: what overlapping and equal work can give then."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.recordings.synthetic_capture import Job, Late, recording, step_seconds, tensors

from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis import cpus
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.evidence.case import Case
from hvdtune.timeline.evidence.finding import Finding
from hvdtune.timeline.record.layout import (
    COUNTER,
    CPUS_FOR_BATCHES,
    CPUS_IN_USE,
    CPUS_WAITED_FOR,
    Mark,
    Recording,
)
from hvdtune.timeline.replay import changes

JOB = Job(ranks=4, steps=20, noise=0.005, overlap=False, tensors=tensors(20, 2 << 20))


def with_cpus(
    job: Job,
    count: int,
    computing: float | None,
    batches: float = 1.0,
    waiting: float | None = None,
) -> Recording:
    """As if each rank used so many CPUs while it computes, and a batch so many while it runs; the
    same CPU time in every step of all ranks. None: as much as the rank computes in that step. Of a
    step it waited that share for a CPU; None: not known."""
    whole = recording(replace(job, cpus=count))
    table = analyse(whole).waterfall.set_index(["rank", "step"])
    for rank, one in whole.ranks.items():
        own = table.loc[rank]
        running = batches * own["communication_s"]
        used = own["compute_s"] if computing is None else computing * table["compute_s"].mean()
        readings = {CPUS_IN_USE: used + running, CPUS_FOR_BATCHES: running}
        if waiting is not None:
            readings[CPUS_WAITED_FOR] = waiting * own["step_s"]
        marks = one.marks[one.marks["kind"] == int(Mark.STEP)]
        parts = []
        for name, seconds in readings.items():
            one.texts.append(name)
            rows = np.zeros(len(own), COUNTER)
            rows["time"] = marks["time"][np.isin(marks["value"], own.index)]
            rows["value"] = (seconds / own["step_s"]).to_numpy()
            rows["counter"] = len(one.texts) - 1
            parts.append(rows)
        rows = np.concatenate(parts)
        one.streams["counters"] = rows[np.argsort(rows["time"], kind="stable")]
    return whole


def told(whole: Recording) -> dict[str, Finding]:
    return {one.kind: one for one in findings(analyse(whole))}


def test_nothing_is_assumed_of_recordings_that_do_not_tell():
    found = cpus.load(analyse(recording(JOB)))
    assert (found.slowdown, found.on_cpu, found.cpus) == (1.0, False, 0)
    assert np.isnan(found.computing).all()


def test_one_reading_of_several_steps_holds_for_each_of_them():
    whole = with_cpus(JOB, 4, 0.5)
    for one in whole.ranks.values():
        rows = one.counters
        times = np.unique(rows["time"])
        one.streams["counters"] = rows[np.isin(rows["time"], times[1::3])]
    found = cpus.load(analyse(whole))
    # The first is of two steps, the others of three; what was read before the first is not known,
    # nor what there was behind the last.
    known = np.isfinite(found.computing)
    last = (known.shape[1] - 2) // 3 * 3 + 2
    assert known[:, 1:last].all()
    assert not known[:, 0].any()
    assert not known[:, last:].any()
    assert found.slowdown == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize(
    ("count", "computing", "slowdown", "on_cpu"),
    [
        (8, 1.0, 1.0, True),  # a CPU for each rank and its batches
        (4, 1.0, 2.0, True),
        (4, 0.5, 1.5, True),
        (4, 0.0, 1.0, False),  # nobody computes, or a GPU does
        (2, 0.5, 3.0, True),  # twice as many ranks as CPUs, which take turns
    ],
)
def test_what_ranks_and_batches_want_of_the_cpus(count, computing, slowdown, on_cpu):
    found = cpus.load(analyse(with_cpus(JOB, count, computing)))
    assert found.slowdown == pytest.approx(slowdown, rel=0.02)
    assert (found.on_cpu, found.cpus) == (on_cpu, count)


@pytest.mark.parametrize(
    ("count", "batches", "slowdown"),
    [
        (16, 3.0, 1.0),  # threads that help have CPUs of their own
        (8, 1.5, 1.25),
        (8, 3.0, 1.5),  # a batch takes no more than there is for each rank
        (2, 1.5, 4.0),  # and no more than its thread where there is less
    ],
)
def test_batches_with_threads_that_help_want_more_than_a_cpu(count, batches, slowdown):
    found = cpus.load(analyse(with_cpus(JOB, count, 1.0, batches)))
    assert found.slowdown == pytest.approx(slowdown, rel=0.02)


@pytest.mark.parametrize(("count", "more"), [(4, 0.5), (8, 0.0)])
def test_what_batches_take_of_a_cpu_beside_their_duration(count, more):
    """Where each rank has CPUs of its own for them, these are threads that help."""
    analysis = analyse(with_cpus(JOB, count, 0.5, 1.5))
    took = 1e9 * analysis.waterfall.groupby("rank")["communication_s"].sum().mean()
    batches = (analysis.found_steps.batch_step >= 0).sum()
    assert cpus.load(analysis).beside == pytest.approx(more * took / batches, rel=0.02)


def test_findings_of_a_job_in_which_a_rank_has_no_part():
    whole = with_cpus(JOB, 4, 1.0, 1.0, 0.1)
    for stream in ("tensors", "batches", "waits"):
        whole.ranks[3].streams[stream] = whole.ranks[3].streams[stream][:0]
    assert findings(analyse(whole))


@pytest.mark.long
def test_overlapping_gives_nothing_where_computing_needs_all_cpus():
    free = told(recording(JOB))["no overlap"].gain
    assert free > 0.1
    assert told(with_cpus(JOB, 8, 1.0))["no overlap"].gain == pytest.approx(free, rel=0.01)
    assert told(with_cpus(JOB, 4, 0.0))["no overlap"].gain == pytest.approx(free, rel=0.01)
    half = told(with_cpus(JOB, 4, 0.5))["no overlap"].gain
    assert 0.3 * free < half < 0.7 * free
    assert "no overlap" not in told(with_cpus(JOB, 4, 1.0))


def test_what_was_recorded_overlapping_is_slowed_down_already():
    job = replace(JOB, overlap=True)
    for count in (2, 4, 8):
        sample = Case.of(analyse(with_cpus(job, count, 1.0))).sample
        assert sample.rules.slowdown == pytest.approx(8 / count, rel=0.02)
        assert sample.base == pytest.approx(sample.measured, rel=0.03)


def test_what_a_usual_step_gains_every_step_gains():
    """Also those in which a rank was late, which are not played."""
    late = replace(JOB, steps=40, late=(Late(1, 0.03, 10, 29),))
    case = Case.of(analyse(recording(late)))
    assert case.usual.sum() == pytest.approx(20, abs=2)
    mean = case.durations.mean()
    assert case.sample.weight == pytest.approx(case.durations[case.usual].mean() / mean)
    gain = Case.of(analyse(recording(replace(JOB, steps=40)))).gain(changes.overlapped())
    saved = gain * case.durations[case.usual].mean()
    assert case.gain(changes.overlapped()) == pytest.approx(saved / mean, rel=0.05)


def test_equal_work_does_not_help_ranks_that_wait_for_cpus():
    uneven = replace(JOB, steps=40, overlap=True, noise=0.3)
    helps = told(recording(uneven))["ranks take turns"].gain
    assert helps > 0.1
    # As much CPU time as they compute: their work is uneven.
    assert told(with_cpus(uneven, 8, None))["ranks take turns"].gain == pytest.approx(
        helps, rel=0.2
    )
    # The same CPU time in every step: they are kept from computing, and equal work is what they do.
    assert "ranks take turns" not in told(with_cpus(uneven, 8, 1.0))
    # Nobody computes on a CPU: what its time says is nothing.
    assert "ranks take turns" in told(with_cpus(uneven, 8, 0.01))


@pytest.mark.parametrize(
    ("count", "computing", "share"),
    [
        (4, 0.5, 1.0),  # a CPU for each rank: it waits for batches only
        (2, 0.0, 1.0),  # nobody computes
        (2, 1.0, None),  # two ranks a CPU: for the other's computing, too
    ],
)
def test_what_is_waited_for(count, computing, share):
    analysis = analyse(with_cpus(JOB, count, computing, waiting=0.1))
    found = cpus.load(analysis)
    steps = analysis.found_steps
    lengths = np.stack([steps.end[rank] - steps.begin[rank] for rank in sorted(steps.end)])
    shares = found.waiting / (0.1 * lengths)
    if share is None:
        busy = sum(analysis.waterfall[name].sum() for name in ("compute_s", "communication_s"))
        batches = analysis.waterfall["communication_s"].sum()
        share = 2 * batches / (batches + busy)
    assert shares == pytest.approx(np.full_like(shares, share), rel=0.02)


def test_waiting_is_not_known_where_it_is_not_counted():
    assert np.isnan(cpus.load(analyse(with_cpus(JOB, 4, 0.5))).waiting).all()


@pytest.mark.parametrize(("count", "taken"), [(4, True), (2, False), (1, False)])
def test_cpus_that_other_programs_have_are_told_with_what_they_cost(count, taken):
    # Each rank computes half of the time that it could: else it waits for a CPU. The four keep 1.2
    # CPUs busy: of four, others have the rest; one or two they keep from each other.
    found = told(with_cpus(replace(JOB, overlap=True), count, 0.3, 0.3, waiting=0.5)).get(
        "CPUs taken"
    )
    if not taken:
        assert found is None
        return
    assert found is not None
    assert "host0 are ready to compute but wait for a CPU during 50 % of the step" in found.sentence
    assert found.gain == pytest.approx(0.5, rel=0.2)
    assert found.evidence["cpus"] == count


def test_equal_parts_of_work_that_sleeps_leave_out_what_a_rank_was_kept_from_its_cpu():
    job = replace(JOB, steps=60, noise=0.3, overlap=True)
    found = told(with_cpus(job, 2, 0.3, 0.3, waiting=0.0))["ranks take turns"]
    true = 1 - step_seconds(replace(job, noise=0)) / step_seconds(job)
    assert found.gain == pytest.approx(true, rel=0.25)
