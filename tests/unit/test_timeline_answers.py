"""Single answers of the analysis against what the described job says."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from support.recordings.synthetic_capture import Job, Late, Stall, Tensor, recording, tensors

from hvdtune.timeline import api
from hvdtune.timeline.advice.ranks import endless_stalls
from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis import sizes
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.analysis.answers import Analysis
from hvdtune.timeline.analysis.fusion import settings_by_epoch, thresholds
from hvdtune.timeline.analysis.sizes import bus_factor
from hvdtune.timeline.record.layout import MARK, NONE, WAIT, Mark, MemberList, Recording
from hvdtune.timeline.replay.play import Rules, play
from hvdtune.timeline.replay.program import Costs, costs, programs
from hvdtune.timeline.report import document
from hvdtune.timeline.structure.joint import Blocked, join
from hvdtune.timeline.structure.steps import find_steps

MIB = 1 << 20


def analysed(job: Job) -> Analysis:
    return analyse(recording(job))


def mark(whole: Recording, kind: Mark, time: int, text: str, value: int = 0) -> None:
    """Adds a mark of rank 0."""
    one = whole.ranks[0]
    one.texts.append(text)
    row = np.array([(time, value, int(kind), len(one.texts) - 1)], MARK)
    marks = np.concatenate([one.marks, row])
    one.streams["marks"] = marks[np.argsort(marks["time"], kind="stable")]


# ---- waterfall -----------------------------------------------------------------------------------


def test_a_late_rank_is_skew_for_the_others_whatever_runs_meanwhile():
    table = analysed(Job(steps=10, late=(Late(2, 0.030),))).waterfall
    waited = table.groupby("rank")["skew_wait_s"].mean()
    assert waited[[0, 1, 3]].to_numpy() == pytest.approx(0.030, rel=0.02)
    assert waited[2] == 0
    # Operations ran while they waited, but that is not why they did.
    assert (table[table["rank"] == 0]["reduce_s"] < 0.002).all()


def test_compute_is_what_the_job_computes():
    job = Job(steps=10, late=(Late(1, 0.005),))
    compute = analysed(job).waterfall.groupby("rank")["compute_s"].mean()
    expected = job.forward + job.backward + job.optimizer
    assert compute[0] == pytest.approx(expected, rel=0.01)
    assert compute[1] == pytest.approx(expected + 0.005, rel=0.01)


def test_communication_is_hidden_or_exposed():
    hidden = analysed(Job(steps=10)).overlap
    exposed = analysed(Job(steps=10, overlap=False)).overlap
    assert hidden.overlap_share > 0.8
    assert exposed.overlap_share == 0
    assert exposed.ideal_free_communication_s == pytest.approx(0.031, rel=0.01)


def test_without_skew_a_step_takes_as_long_as_that_of_the_others():
    late = analysed(Job(steps=20, late=(Late(3, 0.02),))).overlap
    even = analysed(Job(steps=20)).overlap
    assert late.ideal_no_skew_s == pytest.approx(even.step_s, rel=0.03)


def test_waiting_for_one_tensor_after_another_is_one_waiting():
    """A rank that is late with all of them is late once, not a little with each."""
    whole = recording(Job(ranks=2, steps=10, late=(Late(1, 0.030),)))
    expected = analyse(whole).waterfall.groupby("rank")["skew_wait_s"].mean()[0]
    for one in whole.ranks.values():
        waits = []
        for wait in one.waits:
            ends = one.batches["end"]
            inside = ends[(ends > wait["begin"]) & (ends < wait["end"])]
            edges = np.concatenate([[wait["begin"]], inside, [wait["end"]]])
            part = np.repeat(wait, len(edges) - 1)
            part["begin"], part["end"] = edges[:-1], edges[1:] - 1000
            waits.append(part)
        one.streams["waits"] = np.concatenate(waits)
    assert len(whole.ranks[0].waits) > 100
    skew = analyse(whole).waterfall.groupby("rank")["skew_wait_s"].mean()
    assert skew[0] == pytest.approx(expected, rel=0.02)
    assert skew[1] == 0


def test_what_a_batch_waits_for_other_ranks_is_not_reducing():
    whole = recording(Job(ranks=2, steps=10, overlap=False))
    before = analyse(whole).waterfall
    batches = whole.ranks[1].batches
    batches["waited_ns"] = (batches["end"] - batches["begin"]) // 2
    after = analyse(whole).waterfall
    ran = ["copy_in_s", "reduce_s", "copy_out_s", "peer_wait_s"]
    one = after[after["rank"] == 1]
    assert one[ran].sum().sum() == pytest.approx(before[before["rank"] == 1][ran].sum().sum())
    assert one["peer_wait_s"].sum() == pytest.approx(one[ran].sum().sum() / 2, rel=1e-3)


def test_a_batch_of_another_process_set_makes_one_queue():
    own = Tensor("mine", MIB, process_set=1), Tensor("theirs", 8 * MIB, process_set=2)
    whole = recording(Job(ranks=2, steps=10, tensors=own, overlap=False))
    for one in whole.ranks.values():
        one.waits["name"] = 0  # "mine"
    table = analyse(whole).waterfall
    assert table["queue_s"].mean() > 0.003
    for one in whole.ranks.values():
        one.waits["name"] = NONE
    assert analyse(whole).waterfall["queue_s"].mean() < 0.001


def test_of_several_threads_the_one_that_waits_longest_counts():
    waits = np.array([(0, 10, 0, 7), (5, 8, 1, 9), (20, 40, 2, 7), (50, 49, 3, 7)], WAIT)
    blocked = Blocked.of(waits)
    assert blocked.begin.tolist() == [0, 20]
    assert blocked.until(np.array([-5, 0, 5, 15, 30, 100])).tolist() == [0, 0, 5, 10, 20, 30]
    assert blocked.at(np.array([5, 15, 20])).tolist() == [0, -1, 1]


def test_slices_of_a_wait_in_which_nothing_ended_are_one():
    waits = np.array([(0, 10, 5, 1), (11, 20, 5, 1), (21, 30, 5, 1), (31, 40, 6, 1)], WAIT)
    blocked = Blocked.of(waits, np.array([25]))
    assert blocked.begin.tolist() == [0, 31]  # a batch ended in the third; the name is another
    assert blocked.end.tolist() == [30, 40]
    assert Blocked.of(waits, np.array([5, 15])).begin.tolist() == [0, 11, 21, 31]


def test_a_long_wait_in_slices_is_skew_as_a_whole():
    job = Job(ranks=2, steps=10, late=(Late(1, 0.5, 5, 5),))
    whole, sliced = recording(job), recording(job)
    waits = sliced.ranks[0].waits
    long = int((waits["end"] - waits["begin"]).argmax())
    edges = np.linspace(waits["begin"][long], waits["end"][long], 6).astype(np.int64)
    slices = np.repeat(waits[long : long + 1], 5)
    slices["begin"], slices["end"] = edges[:-1], edges[1:] - 2000
    slices["end"][-1] = edges[-1]
    sliced.ranks[0].streams["waits"] = np.concatenate([waits[:long], slices, waits[long + 1 :]])
    a, b = analyse(whole), analyse(sliced)
    assert b.waterfall["skew_wait_s"].sum() == pytest.approx(a.waterfall["skew_wait_s"].sum())
    assert a.waterfall["skew_wait_s"].sum() > 0.49


# ---- skew ----------------------------------------------------------------------------------------


def test_lateness_and_what_it_costs():
    analysis = analysed(Job(steps=20, late=(Late(1, 0.010),)))
    top = analysis.stragglers.iloc[0]
    assert (top["rank"], top["kind"], top["steps_last_share"]) == (1, "persistent", 1.0)
    assert top["typical_late_s"] == pytest.approx(0.010, rel=0.02)
    steps = len(analysis.found_steps)
    assert top["caused_s"] == pytest.approx(3 * 0.010 * steps, rel=0.05)
    assert top["delay_s"] == pytest.approx(0.010 * steps, rel=0.05)


def test_who_is_late_but_delays_nobody_is_charged_nothing():
    # One tensor alone is late on rank 1, and the others compute on long after it has come.
    whole = recording(Job(ranks=2, steps=10))
    one = whole.ranks[1]
    first = one.tensors["name"] == 0
    one.tensors["submitted"][first] += 300_000
    analysis = analyse(whole)
    rank = analysis.lateness[analysis.lateness["rank"] == 1]
    assert (rank["lateness_s"] >= 0.0002).all()
    assert rank["caused_s"].sum() < 0.0001


def test_a_transient_straggler_has_its_interval():
    analysis = analysed(Job(steps=60, noise=0.01, late=(Late(2, 0.02, 20, 35),)))
    top = analysis.stragglers.iloc[0]
    assert (top["rank"], top["kind"]) == (2, "transient")
    assert (top["from_step"], top["to_step"]) == (20, 35)


# ---- fusion and settings -------------------------------------------------------------------------


def test_fusion_counts_tensors_bytes_and_reasons():
    job = Job(steps=10, tensors=tensors(12, MIB), threshold=4 * MIB, cycle=1.0)
    fusion = analysed(job).fusion
    assert fusion.tensors_per_batch == 4
    assert fusion.fill == 1.0
    assert fusion.batches_per_step == 3
    assert fusion.reasons["full"] >= 20
    assert fusion.threshold_bytes == 4 * MIB
    assert fusion.cycle_time_s == 1.0


def test_the_threshold_in_force_counts_for_fill():
    whole = recording(Job(ranks=1, steps=10, tensors=tensors(2), overlap=False))
    batches = whole.ranks[0].batches
    batches["epoch"][len(batches) // 2 :] = 3
    changed = json.dumps({"fusion_threshold": 64 * MIB})  # the engine's words
    mark(whole, Mark.SETTINGS, int(batches["begin"][len(batches) // 2]), changed, 3)
    joint = join(whole)
    assert set(thresholds(joint)[: len(batches) // 2]) == {128 * MIB}
    assert set(thresholds(joint)[len(batches) // 2 :]) == {64 * MIB}
    # What an epoch does not mention goes on.
    assert settings_by_epoch(whole)[3]["HOROVOD_CYCLE_TIME"] == 1.0
    assert analyse(whole).settings["HOROVOD_FUSION_THRESHOLD"] == 64 * MIB


def test_settings_that_are_no_json_are_passed_over():
    whole = recording(Job(ranks=1, steps=3))
    mark(whole, Mark.SETTINGS, 10**13, "{no json", 4)
    mark(whole, Mark.SETTINGS, 10**13, '["a list"]', 5)
    assert set(settings_by_epoch(whole)) == {0}


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [
        ("allreduce", 2, 1.0),
        ("allreduce", 4, 1.5),
        ("allgather", 4, 0.75),
        ("reducescatter", 4, 0.75),
        ("alltoall", 8, 0.875),
        ("broadcast", 8, 1.0),
    ],
)
def test_bus_factors(op, ranks, factor):
    assert bus_factor(op, ranks) == factor


def test_no_bus_bandwidth_for_one_rank_and_for_barriers():
    assert np.isnan(bus_factor("allreduce", 1))
    assert np.isnan(bus_factor("barrier", 4))


def test_bandwidths_by_size():
    job = Job(ranks=4, steps=20, tensors=tensors(6, MIB, last=32 * MIB), cycle=1e-5, peak_gbps=6.0)
    table = analysed(job).sizes.set_index("bytes_from")
    large = table.loc[32 * MIB]
    seconds = job.batch + 32 * MIB / job.speed + 2 * (256 << 10) / job.copy_speed
    assert large["count"] == 20
    assert large["p50_s"] == pytest.approx(seconds, rel=1e-3)
    assert large["algbw_gbps"] == pytest.approx(32 * MIB / seconds / 1e9, rel=1e-3)
    assert large["busbw_gbps"] == pytest.approx(1.5 * large["algbw_gbps"])
    assert large["peak_share"] == pytest.approx(large["busbw_gbps"] / 6.0)
    assert (table["p50_s"] <= table["p95_s"]).all()
    assert (table["p95_s"] <= table["p99_s"]).all()


def test_a_size_with_few_batches_has_no_share_above_the_best(monkeypatch):
    joint = analysed(
        Job(ranks=4, steps=20, tensors=tensors(6, MIB, last=32 * MIB), cycle=1e-5)
    ).joint
    whole = sizes.sizes(joint)
    quick = whole["busbw_gbps"].idxmax()
    assert whole["peak_share"][quick] == 1
    others = whole["count"].drop(quick)
    monkeypatch.setattr(sizes, "ENOUGH", int(whole["count"][quick]) + 1)
    assert (others >= sizes.ENOUGH).any()
    told = sizes.sizes(joint)["peak_share"]
    assert np.isnan(told[quick])
    assert told.drop(quick).max() == 1


def test_the_whole_result_of_an_allgather_counts():
    own = (Tensor("gathered", MIB, kind="allgather"),)
    table = analysed(Job(ranks=4, steps=10, tensors=own)).sizes
    assert table["bytes"].tolist() == [4 * MIB]


def in_a_set(**more) -> Job:
    """Every rank of four submits to process set 3, whoever is in it."""
    own = (Tensor("t", MIB, process_set=3),)
    return Job(ranks=4, steps=10, tensors=own, **more)


def test_the_bus_bandwidth_of_a_process_set_needs_its_members():
    listed = (MemberList(3, 0, (0, 2)),)
    [row] = analysed(in_a_set(members=listed)).sizes.to_dict("records")
    assert row["ranks"] == 2
    assert row["busbw_gbps"] == pytest.approx(row["algbw_gbps"])
    # Without a list: those that recorded it, if all ranks did, or those that rank 0 heard of.
    for all_ranks in (True, False):
        [row] = analysed(in_a_set(all_ranks=all_ranks)).sizes.to_dict("records")
        assert row["ranks"] == 4
        assert row["busbw_gbps"] == pytest.approx(1.5 * row["algbw_gbps"])
    part = recording(in_a_set())
    del part.ranks[3]
    analysis = analyse(part)
    [row] = analysis.sizes.to_dict("records")
    assert row["ranks"] == 0
    assert np.isnan(row["busbw_gbps"])
    shown = api.text(document.numbers_of(analysis, findings(analysis)))
    assert "the recording does not say which ranks are in that process set" in " ".join(
        shown.split()
    )


def test_a_process_set_whose_number_is_used_again_has_other_members():
    lists = (MemberList(3, 0, (0, 1)), MemberList(3, 5, (0, 1, 2)), MemberList(7, 0, (1,)))
    whole = recording(in_a_set(members=lists))
    assert join(whole).members().tolist() == [2] * 5 + [3] * (len(join(whole)) - 5)
    one = whole.ranks[0]
    assert [one.members(3, serial) for serial in (0, 4, 5, 99)] == [2, 2, 3, 3]
    assert (one.members(0, 1), one.members(5, 1)) == (4, 0)


def test_tensors_know_who_comes_last():
    table = analysed(Job(steps=20, tensors=tensors(5, last=8 * MIB))).tensors
    assert table.iloc[0]["name"] == "allreduce.layer4.weight"
    assert table.set_index("name")["last_share"]["allreduce.layer4.weight"] == 1.0
    assert table["last_share"].sum() == 1.0
    assert (table["count"] == 20).all()


# ---- stalls, tuning, quality ---------------------------------------------------------------------


def test_a_stall_is_told_with_its_report():
    table = analysed(Job(steps=20, stall=Stall(1, 10, 70.0, reported_after=60.0))).stalls
    assert len(table) == 1
    row = table.iloc[0]
    assert (row["step"], row["rank"]) == (10, 1)
    assert row["seconds"] == pytest.approx(70.0, rel=0.01)
    assert "missing: rank 1" in row["text"]


def test_stalls_with_equal_reports_are_all_told():
    """Each lasts eight median steps only, but the stall check reported it."""
    again = Late(1, 65.0, 16, 16)
    job = Job(ranks=2, steps=20, forward=3.0, backward=5.0, stall=Stall(1, 6, 65.0), late=(again,))
    whole = recording(job)
    [text] = [one for one in whole.ranks[0].texts if "missing: rank 1" in one]
    marks = whole.ranks[0].marks
    ends = marks["time"][marks["kind"] == int(Mark.STEP)]
    mark(whole, Mark.STALL, int(ends[14]) + 70 * 10**9, text)
    table = analyse(whole).stalls
    assert table["step"].tolist() == [6, 16]
    assert table["text"].tolist() == [text, text]


def test_a_stall_that_goes_on_is_one_however_often_it_is_reported():
    whole = recording(Job(ranks=2, steps=10))
    end = max(int(one.streams["batches"]["end"].max()) for one in whole.ranks.values())
    for seconds in (60, 120, 180):
        text = f"Rank 0 waits for 1 tensor (a) since {seconds} s; missing: rank 1."
        mark(whole, Mark.STALL, end + seconds * 1_000_000_000, text)
    table = analyse(whole).stalls
    assert table["rank"].tolist() == [1]
    assert table["seconds"].tolist() == [pytest.approx(180, rel=0.01)]
    assert "since 60 s" in table["text"][0]


def test_a_stall_begins_when_ranks_begin_to_wait():
    whole = recording(Job(ranks=2, steps=10))
    end = max(int(one.streams["batches"]["end"].max()) for one in whole.ranks.values())
    text = "Rank 0 waits for 1 tensor (a) since 60 s; missing: rank 1."
    mark(whole, Mark.STALL, end + 60 * 10**9, text)
    analysis = analyse(whole)
    began = (end - analysis.origin_ns) / 1e9
    assert analysis.stalls["time_s"].tolist() == [pytest.approx(began)]
    [found] = endless_stalls(analysis)
    assert f"The others waited for rank 1 from {began:.1f} s on" in found.sentence


def test_a_stall_is_as_long_as_its_reports_say_while_other_operations_go_on():
    whole = recording(Job(ranks=2, steps=30, forward=1.0, backward=2.0))
    began = int(whole.ranks[0].batches["begin"][0]) + 5 * 10**9
    for seconds in (60, 80):
        text = f"Rank 0 waits for tensor allreduce.layer0.weight since {seconds} s"
        mark(whole, Mark.STALL, began + seconds * 10**9, f"{text}; missing: rank 1.")
    [row] = analyse(whole).stalls.to_dict("records")
    assert (row["step"], row["rank"], row["ended"]) == (-1, 1, True)
    assert 80 <= row["seconds"] < 84


def test_a_stall_outside_of_whole_steps_lasts_until_the_next_batch():
    whole = recording(Job(ranks=2, steps=10, stall=Stall(1, 9, 65.0)))
    for one in whole.ranks.values():  # the last steps have no marks
        last = (one.marks["kind"] == int(Mark.STEP)) & (one.marks["value"] > 7)
        one.streams["marks"] = one.marks[~last]
    analysis = analyse(whole)
    [row] = analysis.stalls.to_dict("records")
    assert (row["step"], row["rank"], row["ended"]) == (-1, 1, True)
    assert row["seconds"] == pytest.approx(65.0, rel=0.01)
    assert not endless_stalls(analysis)


@pytest.mark.parametrize(
    ("name", "ended"), [("allreduce.a", True), ("allreduce.b", False), ("Grouped_0", False)]
)
def test_a_stall_has_ended_if_its_process_set_went_on(name, ended):
    """Also if it is about a group: its tensors are recorded with their places."""
    others = ("Grouped_0_1of2", "Grouped_0_2of2") if name == "Grouped_0" else ("allreduce.b",)
    of_set = tuple(Tensor(other, MIB, process_set=3) for other in others)
    whole = recording(Job(ranks=2, steps=10, tensors=(Tensor("allreduce.a", MIB), *of_set)))
    marks = whole.ranks[0].marks
    time = int(marks["time"][marks["kind"] == int(Mark.STEP)][4]) + 1000
    for one in whole.ranks.values():  # from then on, process set 3 has no batches
        gone = (one.batches["process_set"] == 3) & (one.batches["begin"] > time)
        lost = one.batches["serial"][gone]
        one.streams["batches"] = one.batches[~gone]
        one.streams["tensors"] = one.tensors[~np.isin(one.tensors["batch"], lost)]
    mark(whole, Mark.STALL, time, f"Rank 0 waits for tensor {name} since 60 s; missing: rank 1.")
    analysis = analyse(whole)
    [row] = analysis.stalls.to_dict("records")
    assert (row["step"], row["rank"], row["ended"]) == (-1, 1, ended)
    assert len(endless_stalls(analysis)) == (not ended)


def test_tuning_is_told_in_order():
    whole = recording(Job(ranks=2, steps=10))
    times = whole.ranks[0].marks["time"][whole.ranks[0].marks["kind"] == int(Mark.STEP)]
    mark(whole, Mark.AUTOTUNE, int(times[4]) - 10, "sample 2")
    mark(whole, Mark.SETTINGS, int(times[5]) - 10, "{}", 2)
    table = analyse(whole).tuning
    assert table["kind"].tolist() == ["settings", "autotune", "settings"]
    assert table["step"].tolist() == [-1, 5, 6]
    assert table["epoch"].tolist() == [0, -1, 2]
    assert table["text"].tolist()[1] == "sample 2"


def test_quality_says_what_is_missing():
    whole = recording(Job(ranks=3, steps=5))
    del whole.ranks[1]
    whole.ranks[2].complete = False
    whole.ranks[2].dropped = {"tensors": 7}
    whole.problems.append("rank 1 is missing")
    quality = analyse(whole).quality
    assert quality.ranks_missing == (1,)
    assert quality.incomplete_ranks == (2,)
    assert quality.dropped == {"tensors": 7}
    assert quality.problems == ("rank 1 is missing",)
    assert quality.records == sum(
        len(table) for one in whole.ranks.values() for table in one.streams.values()
    )


# ---- replay --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_a_replay_without_a_change_takes_what_was_recorded(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1 << 12, 4 * MIB, int(rng.integers(2, 20)))
    job = Job(
        ranks=int(rng.integers(2, 6)),
        steps=24,
        tensors=tuple(Tensor(f"t{i}", int(size)) for i, size in enumerate(sizes)),
        overlap=bool(rng.integers(2)),
        threshold=int(rng.choice([MIB, 128 * MIB])),
        cycle=float(rng.choice([1e-3, 2e-2])),
        late=(Late(1, float(rng.uniform(0, 0.01))),),
        noise=0.02,
        seed=seed,
    )
    joint = join(recording(job))
    steps = find_steps(joint)
    plays = programs(joint, steps, range(2, 20))
    played = play([plays], Rules(job.threshold, job.cycle * 1e9, costs(joint, steps))).mean()
    measured = np.mean([one.measured for one in plays[1:]])
    assert played == pytest.approx(measured, rel=0.03)


@pytest.fixture
def two_ranks() -> tuple[list, Costs]:
    job = Job(ranks=2, steps=6, tensors=tensors(8, MIB))
    joint = join(recording(job))
    steps = find_steps(joint)
    return programs(joint, steps, range(5)), costs(joint, steps)


@pytest.mark.parametrize(("fixed", "size"), [(0.7e-6, 4096), (5e-6, 4096), (50e-6, 1024)])
def test_batches_of_one_small_tensor_cost_something_by_themselves(fixed, size):
    """Where none of several was recorded, nothing tells the batch's part from the tensor's."""
    job = Job(
        ranks=2,
        steps=8,
        tensors=tensors(60, size),
        threshold=0,
        batch=fixed,
        announce=0,
        schedule=0,
    )
    joint = join(recording(job))
    own = costs(joint, find_steps(joint))
    alone = own.duration(1, size)
    together = own.duration(60, 60 * size) / 60
    assert alone == pytest.approx(joint.together_of(np.arange(len(joint))).mean(), rel=0.05)
    assert 0.02 * alone < together < 0.7 * alone


def test_free_communication_leaves_the_computing(two_ranks):
    plays, own = two_ranks
    free = replace(own, batch=0, tensor=0, byte=0, closing=0, beginning=0, gap=0, waking=0)
    silent = [replace(one, recorded=()) for one in plays]
    played = play([silent], Rules(128 * MIB, 1e6, free)).mean()
    assert played == pytest.approx(max(p.compute for p in plays[0].programs), rel=0.01)


def test_slower_batches_make_longer_steps_and_never_shorter_ones(two_ranks):
    plays, own = two_ranks
    times = [
        play([plays], Rules(128 * MIB, 1e6, own, lambda one, batch, f=factor: f)).mean()
        for factor in (0.0, 0.5, 1.0, 2.0, 20.0)
    ]
    assert times == sorted(times)
    assert times[-1] > 1.5 * times[2]


def test_a_recording_with_gaps_can_be_played(two_ranks):
    plays, own = two_ranks
    nobody = plays[0].programs[0]
    # What is waited for is never submitted by the other rank.
    lame = replace(nobody, submit=np.full(8, 1e9), waits=(), compute=1e9)
    stuck = replace(plays[0], programs=(nobody, replace(lame, submit=np.full(8, np.inf))))
    assert np.isfinite(play([[stuck, stuck]], Rules(128 * MIB, 1e6, own)).mean())
