"""Planted truths: the verdict names the cause first, and says what curing it gives."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from support.recordings.synthetic_capture import (
    Job,
    Late,
    Stall,
    Tensor,
    planted,
    recording,
    step_seconds,
    tensors,
)

from hvdtune.timeline.advice import traffic
from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.evidence.case import Case
from hvdtune.timeline.evidence.finding import Finding
from hvdtune.timeline.record.layout import Recording
from hvdtune.timeline.report.document import numbers_of

KINDS = {
    "late": "persistent straggler",
    "late for a while": "transient straggler",
    "threshold 0": "fusion threshold too small",
    "cycle 50 ms": "cycle time too long",
    "huge tensor last": "huge tensor last",
    "no overlap": "no overlap",
    "stalled": "stalled rank",
}
NAMED = {
    "late": "Rank 2 (host host0, pid 1002)",
    "late for a while": "steps 40 to 60",
    "threshold 0": "fusion is off",
    "cycle 50 ms": "50 ms",
    "huge tensor last": "allreduce.layer19.weight",
    "no overlap": "Nothing overlaps",
    "stalled": "Rank 3 (host host0, pid 1003) stopped for 65.0 s in step 50",
}
DONE = {
    "threshold 0": "HOROVOD_FUSION_THRESHOLD=",
    "cycle 50 ms": "HOROVOD_CYCLE_TIME=",
    "no overlap": "DistributedOptimizer",
}
HEALTHY = Job(steps=60, noise=0.01)


@cache
def verdict(job: Job) -> list[Finding]:
    return findings(analyse(recording(job)))


def true_gain(bad: Job, good: Job) -> float:
    return 1 - step_seconds(good) / step_seconds(bad)


@pytest.mark.parametrize("name", KINDS)
def test_planted_truth_is_found_first_and_its_gain_is_right(name):
    bad, good = planted()[name]
    found = verdict(bad)
    assert found[0].kind == KINDS[name]
    assert NAMED[name] in found[0].sentence
    assert DONE.get(name, "") in found[0].action
    assert found[0].gain == pytest.approx(true_gain(bad, good), rel=0.2)


def test_noise_around_a_slow_stretch_neither_lengthens_it_nor_makes_it_mild():
    early = tuple(Late(1, 0.003, step, step) for step in range(25, 41))
    after = tuple(Late(1, 0.003, step, step) for step in range(61, 70))
    job = Job(ranks=2, steps=100, late=(Late(1, 0.030, 41, 60), *early, *after))
    [found] = [one for one in verdict(job) if one.kind == "transient straggler"]
    assert "in steps 41 to 60, by 30 ms a step" in found.sentence
    assert found.evidence["late_ms"] == pytest.approx(30, rel=0.02)


def test_one_long_step_is_not_told_as_an_interval():
    job = Job(ranks=2, steps=40, late=(Late(1, 0.200, 20, 20),))
    [found] = [one for one in verdict(job) if one.kind == "transient straggler"]
    assert "in step 20, by 200 ms, but " in found.sentence


@pytest.mark.parametrize("name", KINDS)
def test_the_cured_job_does_not_have_the_fault(name):
    _, good = planted()[name]
    assert KINDS[name] not in {one.kind for one in verdict(good)}


def test_nothing_to_gain_is_said():
    found = verdict(HEALTHY)
    assert [one.kind for one in found] == ["compute bound"]
    assert found[0].gain == 0
    assert found[0].sentence.startswith("Nothing to gain")


def test_two_ranks_late_together_are_one_finding():
    late = replace(HEALTHY, noise=0.02, late=(Late(1, 0.02), Late(3, 0.02)))
    found = verdict(late)
    assert found[0].kind == "persistent straggler"
    assert "Ranks 1 and 3" in found[0].sentence
    assert found[0].gain == pytest.approx(true_gain(late, HEALTHY), rel=0.2)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("late", [0.004, 0.012, 0.016])
def test_a_rank_whose_lateness_communication_hides_is_named(ranks, late):
    """It begins its gradients late; the others, which have theirs, wait for operations then."""
    cured = Job(ranks=ranks, steps=30, noise=0.01, batch=0.001, tensors=tensors(12))
    job = replace(cured, late=(Late(1, late),))
    whole = analyse(recording(job))
    first = findings(whole)[0]
    assert first.kind == "persistent straggler"
    assert first.evidence["rank"] == 1
    true = 1 - step_seconds(cured) / step_seconds(job)
    assert first.gain == pytest.approx(true, rel=0.15)
    assert first.interval[0] < true < first.interval[1]
    told = numbers_of(whole, [first])["accounting"]["shares"]
    [waiting] = [one["seconds"] for one in told if one["finding"] == 0]
    assert waiting == pytest.approx(late, rel=0.2)


def test_a_host_late_as_a_whole_is_named():
    late = replace(HEALTHY, noise=0.02, local_size=2, late=(Late(2, 0.02), Late(3, 0.02)))
    found = verdict(late)
    assert found[0].kind == "persistent straggler"
    assert "Ranks 2 and 3, all of host host1, hold the others up" in found[0].sentence


def test_ranks_that_take_turns_are_nobodys_fault():
    uneven = replace(HEALTHY, noise=0.3)
    found = verdict(uneven)
    assert found[0].kind == "ranks take turns"
    assert not {"persistent straggler", "transient straggler"} & {one.kind for one in found}
    assert found[0].gain == pytest.approx(true_gain(uneven, replace(uneven, noise=0)), rel=0.25)


@pytest.mark.long
def test_of_two_faults_the_costlier_is_told_first():
    small = replace(HEALTHY, tensors=tensors(200, 32 << 10), threshold=0)
    both = replace(small, late=(Late(2, 0.03),))
    kinds = [one.kind for one in verdict(both)]
    assert kinds[0] == "persistent straggler"
    slightly = replace(small, late=(Late(2, 0.001),))
    assert verdict(slightly)[0].kind == "fusion threshold too small"


def test_overlap_is_not_promised_where_no_cpu_is_left_for_it():
    whole = recording(replace(HEALTHY, overlap=False))
    assert findings(analyse(whole))[0].kind == "no overlap"
    for one in whole.ranks.values():
        one.identity.settings["HVDTUNE_OVERLAP"] = "auto"  # and the optimizer did not overlap
    assert "no overlap" not in {one.kind for one in findings(analyse(whole))}


@pytest.mark.parametrize(
    ("setting", "in_one_call", "advice"),
    [
        ("off", True, "HVDTUNE_OVERLAP=on (hvdtune run"),
        ("auto", True, None),  # no CPU was left over, and how many there are is not recorded
        ("auto", False, "Use hvd.DistributedOptimizer"),
    ],
)
def test_who_uses_the_optimizer_is_not_told_to_use_it(setting, in_one_call, advice):
    """Its step() waits for the last gradient by name, when it has submitted all at one time."""
    whole = recording(replace(HEALTHY, overlap=False))
    for one in whole.ranks.values():
        one.identity.settings["HVDTUNE_OVERLAP"] = setting
        one.waits["name"] = len(one.names) - 1
        if in_one_call:
            times = one.tensors["submitted"]
            begins = np.r_[0, np.flatnonzero(np.diff(times) > 1_000_000) + 1]
            times[:] = np.repeat(times[begins], np.diff(np.r_[begins, len(times)]))
    told = [one.action for one in findings(analyse(whole)) if one.kind == "no overlap"]
    assert [action.startswith(advice or "nothing") for action in told] == [True] * bool(advice)


#: What PyTorch's face has and NumPy's has not.
OF_TORCH = ("DistributedOptimizer", "HVDTUNE_OVERLAP", "Compression", "sparse_as_dense")


@pytest.mark.parametrize("name", KINDS)
def test_advice_to_a_job_without_pytorch_is_something_it_can_do(name):
    bad, _ = planted()[name]
    whole = recording(replace(bad, framework="numpy 2.1.0"))
    for one in whole.ranks.values():
        one.identity.settings["HVDTUNE_OVERLAP"] = "auto"  # as every rank records it
    found = findings(analyse(whole))
    assert found[0].kind == KINDS[name]
    assert not [one.action for one in found if any(word in one.action for word in OF_TORCH)]
    if name == "no overlap":
        assert "Submit each gradient with hvd.allreduce_async" in found[0].action


@pytest.mark.parametrize("framework", ["", "jax 0.7.1", "keras 3.10.0, torch 2.13.0"])
@pytest.mark.parametrize("job", [{"overlap": False}, {"alone": 20, "tensors": tensors(20, 4096)}])
def test_advice_names_no_calls_that_the_face_does_not_have(framework, job):
    whole = recording(replace(HEALTHY, framework=framework, **job))
    for one in whole.ranks.values() if "overlap" in job else ():
        one.names = [
            replace(name, name=f"grouped_allreduce.jit.step_{number}of{len(one.names)}")
            for number, name in enumerate(one.names, 1)
        ]
    found = findings(analyse(whole))
    others = (*OF_TORCH, "_async", "synchronize")
    assert not [one.action for one in found if any(word in one.action for word in others)]
    if framework:  # every call waits
        assert "no overlap" not in {one.kind for one in found}
    elif "overlap" in job:
        assert found[0].action.startswith("Submit each gradient as soon as it is computed")


def ended_in_a_stall() -> Recording:
    """Step 30 never ended, since rank 1 did not come."""
    cut = recording(replace(HEALTHY, steps=30, stall=Stall(1, 30, 100.0)))
    for one in cut.ranks.values():  # the others' last step never ended
        ends = one.marks["time"] > one.marks["time"][one.marks["value"] == 29].max()
        one.streams["marks"] = one.marks[~ends | (one.marks["kind"] == 4)]
        one.streams["batches"] = one.batches[one.batches["begin"] < one.marks["time"].max()]
        serials = one.batches["serial"].max(initial=0)
        one.streams["tensors"] = one.tensors[one.tensors["batch"] <= serials]
        one.streams["waits"] = one.waits[one.waits["end"] < one.marks["time"].max()]
    return cut


def test_a_stall_that_did_not_end_is_told():
    found = findings(analyse(ended_in_a_stall()))
    assert found[0].kind == "stalled rank"
    assert "missing: rank 1" in found[0].sentence


def test_a_stall_that_ended_is_told_with_its_step():
    """It lasted eight median steps only, but the stall check reported it."""
    job = Job(steps=20, forward=3.0, backward=5.0, stall=Stall(1, 10, 65.0))
    found = verdict(job)
    assert found[0].kind == "stalled rank"
    assert "stopped for 65.0 s in step 10" in found[0].sentence
    assert [one.kind for one in found].count("stalled rank") == 1


def test_of_a_chain_of_missing_ranks_the_last_is_named():
    cut = ended_in_a_stall()
    [at] = [at for at, text in enumerate(cut.ranks[0].texts) if "missing: rank 1" in text]
    cut.ranks[0].texts[at] = (
        "One or more tensors were submitted by only a subset of ranks.\n"
        "Ranks 0,3 wait for tensor a since 61 s; missing: rank 1.\n"
        "Rank 1 waits for tensor b since 62 s; missing: rank 2.\n"
        "Missing ranks:\n1: [a]\n2: [b]\nLook at rank 2 first: it waits for nobody."
    )
    found = findings(analyse(cut))
    assert found[0].evidence["rank"] == 2
    assert "The others waited for rank 2" in found[0].sentence
    assert "Rank 1 waits for tensor b since 62 s; missing: rank 2." in found[0].sentence


def test_advice_does_not_hide_what_is_wrong():
    bad, _ = planted()["huge tensor last"]
    kinds = [one.kind for one in verdict(bad)]
    assert kinds.index("huge tensor last") < kinds.index("communication bound")


def test_bandwidth_is_compared_with_what_is_another():
    bad, _ = planted()["huge tensor last"]

    def sentence(job: Job) -> str:
        return next(one.sentence for one in verdict(job) if one.kind == "communication bound")

    assert "of this machine's peak." in sentence(replace(bad, peak_gbps=1000.0))
    alone = replace(bad, peak_gbps=None, tensors=tensors(1, 64 << 20))
    assert sentence(alone).endswith("bus bandwidth.")  # the only size is the best


def test_what_is_broadcast_in_every_step_is_told_by_name():
    config = Tensor("broadcast.config.t", 64 << 20, kind="broadcast", dtype="uint8")
    job = replace(HEALTHY, tensors=(config, *HEALTHY.tensors))
    found = {one.kind: one for one in verdict(job)}["broadcast in every step"]
    assert "broadcasts config in every step, 64 MiB" in found.sentence
    assert found.gain == pytest.approx(true_gain(job, HEALTHY), rel=0.2)
    assert "broadcast in every step" not in {one.kind for one in verdict(HEALTHY)}


def test_of_equal_tensors_none_is_huge():
    job = replace(HEALTHY, tensors=tensors(4, 32 << 20))
    assert "huge tensor last" not in {one.kind for one in verdict(job)}


def test_gains_are_shares_and_ordered():
    for name, (bad, _) in planted().items():
        found = verdict(bad)
        assert all(0 <= one.gain <= 1 for one in found), name
        cures = [one.gain for one in found if one.kind not in ("copies", "communication bound")]
        assert cures == sorted(cures, reverse=True), name


MANY = replace(HEALTHY, steps=12, tensors=tensors(30, 1 << 10))


def described_anew(whole: Recording, capacity: int = 1024) -> list[Finding]:
    """What is said of names and of a cache with that many entries."""
    analysis = analyse(whole)
    analysis.settings["HOROVOD_CACHE_CAPACITY"] = capacity
    return traffic.automatic_names(Case.of(analysis))


@pytest.mark.parametrize("capacity", [8, 1024])
@pytest.mark.parametrize(
    ("made_up", "said"), [(True, "that the engine made up"), (False, "that the program uses once")]
)
def test_no_cache_is_large_enough_for_names_that_never_repeat(made_up, said, capacity):
    whole = recording(MANY)
    for one in whole.ranks.values():
        described, of = one.names, one.tensors["name"].tolist()
        if made_up:  # the recorder leaves out the numbers of such names
            one.names = [replace(described[0], name="allreduce.noname")]
            one.tensors["name"] = 0
        else:
            one.names = [
                replace(described[at], name=f"allreduce.weight{at}.{number}")
                for number, at in enumerate(of)
            ]
            one.tensors["name"] = np.arange(len(of))
    [found] = described_anew(whole, capacity)
    assert f"100 % of the tensors have names {said}" in found.sentence
    assert found.action.startswith("Give tensors names that are the same in every step")


def test_the_cache_has_to_hold_the_names_of_a_step():
    [found] = described_anew(recording(MANY), capacity=8)
    assert "30 different tensors are used again and again and the cache holds 8" in found.sentence
    assert found.action == "HOROVOD_CACHE_CAPACITY=32."
    whole = recording(MANY)
    for one in whole.ranks.values():  # broadcast before the first step
        one.names += [
            replace(one.names[0], name=f"broadcast.weight{number}", kind="broadcast")
            for number in range(2000)
        ]
    assert not described_anew(whole)


@pytest.mark.parametrize("group", ["grouped_allreduce.all", "HorovodGroupedAllreduce_0"])
def test_a_group_takes_one_place_in_the_cache(group):
    whole = recording(MANY)
    for one in whole.ranks.values():
        one.names = [
            replace(name, name=f"{group}_{at}of30") for at, name in enumerate(one.names, 1)
        ]
    assert not described_anew(whole, capacity=8)


@pytest.mark.parametrize(("every", "advised"), [(2, ["HOROVOD_CACHE_CAPACITY=64."]), (6, [])])
def test_the_cache_has_to_hold_the_names_of_different_steps(every, advised):
    """Two sets of names, each of which it can hold, alternate; or the second is used rarely."""
    whole = recording(MANY)
    for one in whole.ranks.values():
        one.names += [replace(name, name=f"{name.name}.second") for name in one.names]
        step = np.arange(len(one.tensors)) // 30 + 1
        one.tensors["name"] += np.where(step % every == 0, 30, 0).astype(np.uint32)
    found = described_anew(whole, capacity=40)
    assert [one.action for one in found] == advised
