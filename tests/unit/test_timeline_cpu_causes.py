"""Which CPUs ranks do not get, and why: played on jobs whose cure is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.recordings.cpu_readings import add, crowded
from support.recordings.synthetic_capture import (
    Call,
    Job,
    Late,
    Tensor,
    recording,
    step_seconds,
    tensors,
)

from hvdtune.timeline.advice import cpus
from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.evidence.case import Case
from hvdtune.timeline.evidence.finding import Finding
from hvdtune.timeline.record import host_counters
from hvdtune.timeline.record.host_counters import COUNTERS, listed, unlisted
from hvdtune.timeline.record.layout import Recording
from hvdtune.timeline.report.document import numbers_of
from hvdtune.timeline.report.page import page
from hvdtune.timeline.report.sentences import lateness
from hvdtune.timeline.report.text import text

#: Of each step 30 ms are work, and nobody waits for a CPU.
CURED = Job(ranks=2, steps=30, noise=0.01, tensors=tensors(12))
WORK = 0.031


def slowed(job: Job, factor: float) -> tuple[Job, float]:
    """The job where computing takes so many times as long, and how much longer a step is then."""
    slow = replace(job, forward=factor * job.forward, backward=factor * job.backward)
    return slow, (factor - 1) * (job.forward + job.backward)


def told(whole: Recording) -> list[Finding]:
    return findings(analyse(whole))


OURS = {
    "CPUs taken", "CPU limit", "CPUs stolen", "bound to the same CPU", "too many threads",
    "memory short",
}  # fmt: skip


def kinds(whole: Recording) -> set[str]:
    return OURS & {one.kind for one in told(whole)}


@pytest.mark.parametrize(
    ("ranks", "count", "factor", "others"),
    [(2, 2, 3.0, 1.2), (2, 2, 1.5, 0.6), (4, 4, 2.0, 1.8), (1, 1, 2.0, 0.4)],
)
def test_other_programs_that_have_the_cpus(ranks, count, factor, others):
    cured = replace(CURED, ranks=ranks)
    job, kept = slowed(cured, factor)
    whole = crowded(
        job, cpus=count, work=WORK, kept=[kept] * ranks, others=others, program=("make", 77)
    )
    first = told(whole)[0]
    assert first.kind == "CPUs taken"
    assert f"other processes use {others:.2g} of the {count} CPU" in first.sentence
    assert "(mostly make, process 77" in first.sentence
    true = 1 - step_seconds(cured) / step_seconds(job)
    assert first.gain == pytest.approx(true, rel=0.1)
    assert first.interval[0] < true < first.interval[1]


def test_programs_that_hardly_compute_and_whose_batches_have_no_cpu():
    cured = replace(CURED, batch=0.002)
    job = replace(cured, batch=0.006)
    longer = step_seconds(job) - step_seconds(cured)
    own = {"cpus": 2, "work": 0.001, "kept": [0.0] * 2, "wait": longer / step_seconds(job)}
    analysis = analyse(crowded(job, others=1.9, **own))
    found = findings(analysis)
    assert found[0].kind == "CPUs taken"
    assert "ready to communicate" in found[0].sentence
    true = longer / step_seconds(job)
    assert found[0].interval[0] < true < found[0].interval[1]
    parts = numbers_of(analysis, found)["accounting"]["shares"]
    seconds = {one["kind"]: one["seconds"] for one in parts}
    assert seconds["CPUs taken"] > 0.5 * longer
    assert seconds["computing"] == pytest.approx(WORK, rel=0.1)
    # Where nobody else has the CPUs it is not told.
    assert not kinds(crowded(job, others=0.0, **own))


@pytest.mark.parametrize(("wait", "named"), [(0.0, True), (0.1, True), (0.2, False)])
def test_a_rank_that_is_late_by_no_more_than_it_waits_for_a_cpu_is_not_named(wait, named):
    job = replace(CURED, batch=0.001, late=(Late(rank=1, seconds=0.005, phase="backward"),))
    assert 0.1 < 0.005 / step_seconds(job) < 0.2
    crowd = crowded(job, cpus=2, work=0.001, kept=[0.0] * 2, others=1.9, wait=wait)
    analysis = analyse(crowd)
    found = findings(analysis)
    assert ("persistent straggler" in {one.kind for one in found}) == named
    said = lateness(numbers_of(analysis, found))
    assert said.startswith(
        "Rank 1 (host0) is late" if named else "Which rank is last depends on the CPUs"
    )


def test_threads_of_programs_that_compute_are_not_said_to_communicate():
    own = {"cpus": 2, "work": 0.02, "kept": [0.0] * 2, "others": 1.0, "wait": 0.4}
    assert "CPUs taken" not in kinds(crowded(CURED, **own))


def test_a_call_whose_threads_have_no_cpu_is_not_to_blame():
    loss = Call(Tensor("allreduce.loss", 4))
    job = replace(CURED, batch=0.006, calls=(loss,))
    share = 1 - step_seconds(CURED) / step_seconds(job)
    own = {"cpus": 2, "work": 0.001, "kept": [0.0] * 2}
    calm, crowd = (told(crowded(job, others=1.9, wait=wait, **own)) for wait in (0.0, share))
    named = "blocking allreduce in every step"
    assert named in {one.kind for one in calm}
    assert crowd[0].kind == "CPUs taken"
    assert named not in {one.kind for one in crowd}


def test_who_has_the_cpus_is_told_by_the_steps_where_nobody_counts_them():
    job, kept = slowed(CURED, 3.0)
    [one] = [
        one
        for one in told(crowded(job, cpus=2, work=WORK, kept=[kept] * 2, busy=float("nan")))
        if one.kind in OURS
    ]
    assert one.kind == "CPUs taken"
    assert "other programs run there" in one.sentence
    assert "cpus_of_others" not in one.evidence


def test_ranks_that_only_keep_each_other_waiting_do_not_hear_of_other_programs():
    job, kept = slowed(replace(CURED, ranks=4), 2.0)
    assert not kinds(crowded(job, cpus=2, work=WORK, kept=[kept] * 4))


def test_other_programs_on_cpus_that_are_not_waited_for_are_no_cause():
    assert not kinds(crowded(CURED, cpus=4, work=WORK, kept=[0.0005] * 2, others=2.0))


def test_a_rank_on_a_busy_cpu_is_late_because_of_that():
    job = replace(CURED, ranks=4, late=(Late(2, 0.030),))
    whole = crowded(
        job,
        cpus=4,
        work=WORK,
        kept=[0, 0, 0.030, 0],
        allowed=[{0}, {1}, {2}, {3}],
        others=0.4,
    )
    found = {one.kind: one for one in told(whole)}
    assert "because it waits for a CPU during" in found["persistent straggler"].sentence
    taken = found["CPUs taken"]
    assert taken.sentence.startswith("Rank 2 on host host0 is ready to")
    assert "but waits for a CPU during" in taken.sentence
    assert taken.evidence["rank"] == 2
    true = 1 - step_seconds(replace(job, late=())) / step_seconds(job)
    assert taken.gain == pytest.approx(true, rel=0.1)


def test_a_rank_that_is_late_for_another_reason_waits_for_no_cpu():
    job = replace(CURED, ranks=4, late=(Late(2, 0.030),))
    whole = crowded(job, cpus=4, work=WORK, kept=[0.001] * 4)
    assert "CPU" not in told(whole)[0].sentence
    assert cpus.why_late(Case.of(analyse(whole)), 2) == ""


@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0])
def test_a_limit_of_cpus_holds_the_ranks_back(factor):
    job, kept = slowed(CURED, factor)
    whole = crowded(
        job, cpus=1, work=WORK, kept=[kept] * 2, throttled=0.8 * kept / step_seconds(job), online=4
    )
    first = told(whole)[0]
    assert first.kind == "CPU limit"
    assert first.gain == pytest.approx(1 - step_seconds(CURED) / step_seconds(job), rel=0.15)
    assert "Raise the limit to 2 CPUs" in first.action


@pytest.mark.parametrize("share", [0.2, 0.3, 0.5])
def test_cpus_that_the_hypervisor_takes(share):
    job, _ = slowed(CURED, 1 / (1 - share))
    use = 1.4
    whole = crowded(job, cpus=2, work=WORK, kept=[0, 0], busy=use, stolen=share / (1 - share) * use)
    first = told(whole)[0]
    assert first.kind == "CPUs stolen"
    assert first.gain == pytest.approx(1 - step_seconds(CURED) / step_seconds(job), rel=0.2)


@pytest.mark.parametrize(
    ("ranks", "online", "allowed"),
    [
        (2, 2, [{0}, {0}]),
        (3, 4, [{1}, {1}, {2}]),
        (4, 8, [{0, 1}] * 4),
    ],
)
def test_ranks_bound_to_the_same_cpu(ranks, online, allowed):
    cured = replace(CURED, ranks=ranks)
    alone = [0.03 if allowed.count(mask) > 1 else 0.0 for mask in allowed]
    job = replace(cured, late=tuple(Late(r, time) for r, time in enumerate(alone) if time))
    union = len(set().union(*allowed))
    whole = crowded(job, cpus=union, work=WORK, kept=alone, allowed=allowed, online=online)
    found = told(whole)
    first = next(one for one in found if one.kind in OURS)
    assert first.kind == "bound to the same CPU"
    assert first.sentence.startswith("Ranks 0")
    assert "may use CPU" in first.sentence
    true = 1 - step_seconds(cured) / step_seconds(job)
    assert first.gain == pytest.approx(true, rel=0.15)
    # Two ranks of three are late together besides.
    assert found[0] == first or not all(alone)


@pytest.mark.parametrize(("ranks", "count", "threads"), [(2, 2, 8), (4, 2, 8), (4, 8, 8)])
def test_too_many_threads_are_told_with_the_number_that_fits(ranks, count, threads):
    # A fifth of the CPU time is switching between threads, and CPUs are idle for some of the time.
    cured = replace(CURED, ranks=ranks, overlap=False)
    job, _ = slowed(cured, 1.45)
    fit = max(1, count // ranks)
    work = 0.03 * 1.25 * fit * min(1.0, count / ranks)
    whole = crowded(
        job, cpus=count, work=work, kept=[0.010] * ranks, computing=threads * 0.9, set=threads,
        wait=0.5 * threads, main=work / fit / threads / step_seconds(job),
    )  # fmt: skip
    found = next(one for one in told(whole) if one.kind == "too many threads")
    assert f"{ranks} ranks × {threads} threads compute on the {count} CPUs" in found.sentence
    assert f"OMP_NUM_THREADS={fit} " in found.action
    true = 1 - step_seconds(cured) / step_seconds(job)
    least, most = found.interval
    assert least <= true <= most


def test_threads_that_fit_or_do_nothing_are_not_too_many():
    busy = {"wait": 4.0, "computing": 4.0, "set": 4.0}
    job, kept = slowed(CURED, 2.0)
    # 2 ranks × 4 threads on 8 CPUs; a rank that was told to use 8 and does not; few that wait.
    assert not kinds(crowded(job, cpus=8, work=4 * WORK, kept=[kept] * 2, **busy))
    idle = {"set": 8.0, "computing": 1.0, "wait": 1.0}
    assert not kinds(crowded(CURED, cpus=2, work=WORK, kept=[0.0] * 2, **idle))
    calm = {"set": 8.0, "computing": 8.0, "wait": 0.4}
    assert not kinds(crowded(CURED, cpus=2, work=WORK, kept=[0.0] * 2, **calm))


@pytest.mark.parametrize(("pressure", "faults"), [(0.1, 20.0), (0.4, 300.0), (0.9, 2000.0)])
def test_memory_that_is_used_up(pressure, faults):
    means = {"memory_pressure": pressure, "major": faults, "swapped": 2.0**30}
    first = told(crowded(CURED, cpus=2, work=WORK, kept=[0, 0], **means))[0]
    assert first.kind == "memory short"
    assert "2048 MiB of the ranks' memory is swapped out" in first.sentence
    assert 0 < first.interval[0] < first.gain < first.interval[1] <= pressure


@pytest.mark.parametrize(
    "means",
    [{"memory_pressure": 0.3, "major": 0.0}, {"memory_pressure": 0.01, "major": 20.0}],
)
def test_memory_that_others_wait_for_or_a_file_that_is_read_is_no_short_memory(means):
    assert not kinds(crowded(CURED, cpus=2, work=WORK, kept=[0, 0], **means))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3])
def test_healthy_ranks_on_their_own_cpus_have_no_cause_here(ranks, noise):
    job = replace(CURED, ranks=ranks, noise=noise)
    assert not kinds(crowded(job, cpus=ranks, work=WORK, kept=[0.001] * ranks, others=0.05))


@pytest.mark.parametrize("cpus_", [{0}, {0, 1, 2}, {0, 2, 3, 7}])
def test_lists_of_cpus(cpus_):
    assert unlisted(listed(cpus_)) == cpus_


def test_a_report_has_the_cpus_of_each_rank():
    whole = crowded(
        CURED, cpus=2, work=0.01, kept=[0.01, 0], others=0.5, allowed=[{0}, {1}], throttled=0.25
    )
    analysis = analyse(whole)
    numbers = numbers_of(analysis, findings(analysis))
    first, second = numbers["cpus"]
    assert (first["rank"], first["host"], first["allowed_cpus"]) == (0, "host0", "0")
    assert first["threads_waiting"] > second["threads_waiting"] == 0
    assert first["cpus_of_others"] == pytest.approx(first["cpus_busy"] - first["cpus_used"])
    assert (first["held_back_share"], first["clock_hz"]) == (0.25, None)
    for shown in (text(numbers), page(numbers)):
        assert "rank 1 on host0" in shown
        assert "CPUs: the rank's threads" in shown.replace("&#x27;", "'")


def test_a_report_of_a_recording_without_such_readings_has_no_such_table():
    analysis = analyse(recording(CURED))
    numbers = numbers_of(analysis, findings(analysis))
    assert numbers["cpus"] == []
    assert "CPUs: the rank's" not in text(numbers)


@pytest.mark.parametrize(
    ("begin", "end", "known"), [(0.9, 2.6, True), (1.1, 1.9, True), (1.3, 1.7, False)]
)
def test_a_reading_that_is_mostly_of_the_steps_tells_of_them(
    begin: float, end: float, known: bool
) -> None:
    whole = recording(Job(ranks=1, steps=3))
    add(
        whole.ranks[0],
        np.array([1_000_000_000, 2_000_000_000]),
        {COUNTERS["run"]: np.array([7.0, 0.5])},
    )
    found = host_counters.threads(whole, int(begin * 1e9), int(end * 1e9))
    assert [one["run"] for one in found.values()] == ([0.5] if known else [])
