"""Invariants of the analysis: they hold for every recording, also a random or damaged one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support.recordings.synthetic_capture import Call, Job, Late, Tensor, recording, tensors

from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.analysis.answers import EXPOSED_PARTS, PARTS, Analysis
from hvdtune.timeline.record.layout import (
    BATCH,
    MARK,
    NONE,
    TENSOR,
    WAIT,
    Identity,
    Mark,
    Name,
    RankRecording,
    Recording,
)
from hvdtune.timeline.structure.joint import join
from hvdtune.timeline.structure.steps import find_steps

SEEDS = range(12)


def random_job(seed: int) -> Job:
    """A job of random shape."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 15))
    ranks = int(rng.integers(1, 6))
    own = tuple(
        Tensor(f"t{i}", int(rng.integers(1, 1 << 22)), dtype=str(rng.choice(["float32", "int64"])))
        for i in range(count)
    )
    late = tuple(
        Late(int(rng.integers(ranks)), float(rng.uniform(0, 0.02)), int(rng.integers(1, 8)))
        for _ in range(int(rng.integers(0, 3)))
    )
    return Job(
        ranks=ranks,
        steps=int(rng.integers(3, 15)),
        tensors=own,
        overlap=bool(rng.integers(2)),
        late=late,
        threshold=int(rng.choice([0, 1 << 20, 1 << 27])),
        cycle=float(rng.choice([1e-4, 1e-3, 2e-2])),
        noise=0.05,
        seed=seed,
    )


def nonsense(seed: int, ranks: int = 3, batches: int = 40) -> Recording:
    """Times without rhyme or reason, as a damaged file may hold them; serials ascend."""
    rng = np.random.default_rng(seed)
    result = Recording("nonsense")

    def times(count: int) -> np.ndarray:
        return rng.integers(0, 10**9, count)

    for rank in range(ranks):
        kept = np.flatnonzero(rng.random(batches) < 0.9)
        table = np.zeros(len(kept), BATCH)
        table["serial"] = kept
        begins = np.sort(times(len(kept)))
        table["begin"], table["end"] = begins, begins + rng.integers(0, 10**8, len(kept))
        for column in ("scheduled", "first_ready", "packed", "unpacking"):
            table[column] = times(len(kept)) * rng.integers(0, 2, len(kept))
        table["waited_ns"] = rng.integers(0, 10**8, len(kept))
        table["tensors"] = rng.integers(0, 4, len(kept))
        table["bytes"] = rng.integers(0, 1 << 20, len(kept))
        for column, most in (("kind", 8), ("dtype", 13), ("reason", 7), ("process_set", 2)):
            table[column] = rng.integers(0, most, len(kept))
        of = np.repeat(kept, rng.integers(0, 4, len(kept)))
        submissions = np.zeros(len(of), TENSOR)
        submissions["batch"], submissions["submitted"] = of, times(len(of))
        submissions["name"] = rng.integers(0, 8, len(of))
        waits = np.zeros(20, WAIT)
        waits["begin"] = times(20)
        waits["end"] = waits["begin"] + rng.integers(-(10**6), 10**8, 20)
        waits["name"] = rng.choice([0, 1, 99, NONE], 20)
        waits["thread"] = rng.integers(0, 2, 20)
        marks = np.zeros(8, MARK)
        marks["time"] = np.sort(times(8))
        marks["kind"], marks["text"] = int(Mark.STEP), NONE
        marks["value"] = np.arange(8) + rng.integers(0, 2)
        identity = Identity("j", rank, ranks + 1, rank, "h", 1, "0")
        streams = {"tensors": submissions, "batches": table, "waits": waits, "marks": marks}
        names = [Name(f"n{i}", 0, "allreduce", "float32", 4) for i in range(6)]
        one = RankRecording(identity, names)
        one.streams.update(streams)
        result.ranks[rank] = one
    return result


def check_parts(analysis: Analysis) -> None:
    table = analysis.waterfall
    assert (table[list(PARTS)] >= -1e-9).all().all()
    assert np.allclose(table[list(PARTS)].sum(axis=1), table["step_s"], rtol=0, atol=1e-9)
    assert np.allclose(table[list(EXPOSED_PARTS)].sum(axis=1), table["exposed_s"], atol=1e-9)
    assert (table["overlapped_s"] <= table["communication_s"] + 1e-9).all()
    # What runs hidden is hidden behind compute.
    assert (table["overlapped_s"] <= table["compute_s"] + 1e-9).all()


def check_charges(analysis: Analysis) -> None:
    waited = analysis.waterfall.groupby("step")["skew_wait_s"].sum()
    caused = analysis.lateness.groupby("step")["caused_s"].sum()
    pd.testing.assert_series_equal(
        waited.sort_index(), caused.sort_index(), check_names=False, rtol=0, atol=1e-9
    )
    assert (analysis.lateness["delay_s"] <= analysis.lateness["caused_s"] + 1e-9).all()
    assert (analysis.lateness.groupby("step")["last"].sum() <= 1).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_parts_are_not_negative_and_sum_to_the_step(seed):
    analysis = analyse(recording(random_job(seed)))
    assert len(analysis.steps)
    check_parts(analysis)


@pytest.mark.parametrize("seed", SEEDS)
def test_charges_are_conserved(seed):
    check_charges(analyse(recording(random_job(seed))))


@pytest.mark.parametrize("seed", SEEDS)
def test_nonsense_keeps_the_invariants(seed):
    analysis = analyse(nonsense(seed))
    check_parts(analysis)
    found = findings(analysis)
    assert found
    assert all(np.isfinite(one.gain) for one in found)


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_may_have_other_numbers(seed):
    """Whoever is called rank 1: the same happened to it. Rank 0 stays, it coordinates."""
    job = random_job(seed)
    whole = recording(job)
    order = [0, *np.random.default_rng(seed).permutation(np.arange(1, job.ranks)).tolist()]
    renamed = Recording("renamed", clock_bound_ns=whole.clock_bound_ns)
    for new, old in enumerate(order):
        one = whole.ranks[old]
        identity = replace(one.identity, rank=new)
        renamed.ranks[new] = RankRecording(
            identity, one.names, one.texts, one.streams, complete=True
        )
    first, second = analyse(whole), analyse(renamed)
    for frame in ("waterfall", "lateness"):
        a = getattr(first, frame)
        b = getattr(second, frame).copy()
        b["rank"] = [order[rank] for rank in b["rank"]]
        b = b.sort_values(["rank", "step"], ignore_index=True)
        if frame == "lateness":  # equals are charged to the lowest number
            a, b = a.drop(columns="last"), b.drop(columns="last")
        pd.testing.assert_frame_equal(a, b, check_exact=False, atol=1e-9, rtol=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_found_by_names_or_by_marks_a_step_takes_as_long(seed):
    """Over all steps: where one begins and the other ends is another matter."""
    job = replace(random_job(seed), steps=12, noise=0.0, late=())
    with_marks = recording(job)
    without = recording(job)
    for one in without.ranks.values():
        one.streams["marks"] = one.marks[one.marks["kind"] != int(Mark.STEP)]
    a, b = analyse(with_marks), analyse(without)
    assert (a.quality.steps_from, b.quality.steps_from) == ("marks", "names")
    check_parts(b)
    assert b.overlap.step_s == pytest.approx(a.overlap.step_s, rel=0.01)


def test_what_a_joined_rank_contributes_has_no_latency():
    """Zeros, never submitted: their time is 0."""
    whole = recording(Job(ranks=2, steps=8))
    expected = analyse(whole).tensors
    first = whole.ranks[0]
    last = first.tensors["batch"] >= first.batches["serial"][-3]
    first.tensors["submitted"][last] = 0
    found = analyse(whole).tensors
    assert found["latency_s"].max() <= expected["latency_s"].max() * 1.01
    assert found["count"].sum() == expected["count"].sum() - last.sum()


def unnamed(whole: Recording, which: set[int]) -> Recording:
    """As if the program gave these tensors (numbers) no names: the recorder leaves out the numbers
    of the names that the engine makes up, so all of one operation, dtype and size have one."""
    for one in whole.ranks.values():
        told = [
            replace(name, name=f"{name.kind}.noname") if at in which else name
            for at, name in enumerate(one.names)
        ]
        one.names = list(dict.fromkeys(told))
        ids = np.array([one.names.index(name) for name in told])
        one.tensors["name"] = ids[one.tensors["name"]]
        one.streams["marks"] = one.marks[:0]
    return whole


@pytest.mark.parametrize("overlap", [True, False])
def test_names_that_the_engine_made_up_show_steps_by_their_sizes(overlap):
    job = Job(steps=10, tensors=tensors(4, last=5 << 20), overlap=overlap)
    expected = analyse(recording(job))
    analysis = analyse(unnamed(recording(job), {0, 1, 2, 3}))
    assert analysis.quality.steps_from == "sizes"
    assert analysis.overlap.step_s == pytest.approx(expected.overlap.step_s, rel=0.01)


def test_names_that_the_engine_made_up_do_not_cut_steps_that_others_show():
    own = (*tensors(4), Tensor("allreduce.loss", 4), Tensor("allreduce.accuracy", 4))
    job = Job(steps=10, tensors=own)
    expected = analyse(recording(job))
    analysis = analyse(unnamed(recording(job), {4, 5}))
    assert analysis.quality.steps_from == "names"
    assert analysis.steps["step"].nunique() == 9
    assert analysis.overlap.step_s == pytest.approx(expected.overlap.step_s, rel=0.01)


@pytest.mark.parametrize("odd", [{"bytes": 12}, {"name": "allreduce.ready"}])
def test_what_is_sent_once_does_not_hide_steps_that_sizes_show(odd):
    whole = unnamed(recording(Job(steps=10, tensors=tensors(4, last=5 << 20))), {0, 1, 2, 3})
    for one in whole.ranks.values():
        one.names.append(replace(one.names[0], **odd))
        one.tensors["name"][0] = len(one.names) - 1
    analysis = analyse(whole)
    assert analysis.quality.steps_from == "sizes"
    assert analysis.steps["step"].nunique() == 9


@pytest.mark.parametrize("size", [4, 4096])
@pytest.mark.parametrize("every", [10, 50])
def test_what_is_sent_now_and_then_does_not_make_steps_longer(every, size):
    own = tuple(Tensor(f"allreduce.layer{at}", at << 20) for at in (1, 2, 3, 4))
    accuracy = Call(Tensor("allreduce.accuracy", size), every=every)
    job = Job(ranks=2, steps=4 * every, tensors=own, calls=(accuracy,))
    expected = analyse(recording(job))
    analysis = analyse(unnamed(recording(job), set(range(5))))
    assert analysis.quality.steps_from == "sizes"
    assert analysis.steps["step"].nunique() == job.steps - 1
    assert analysis.overlap.step_s == pytest.approx(expected.overlap.step_s, rel=0.01)


def test_a_named_metric_now_and_then_does_not_make_steps_longer():
    own = tuple(Tensor(f"allreduce.layer{at}", at << 20) for at in (1, 2, 3, 4))
    accuracy = Call(Tensor("allreduce.accuracy", 4), every=10)
    job = Job(ranks=2, steps=40, tensors=own, calls=(accuracy,))
    analysis = analyse(unnamed(recording(job), set(range(4))))
    assert analysis.quality.steps_from == "sizes"
    assert analysis.steps["step"].nunique() == job.steps - 1


def test_names_show_the_steps_if_the_program_names_the_gradients_only():
    """It also sends more equal tensors without names than gradients."""
    own = (*tensors(2), *(Tensor(f"allreduce.mean{at}", 4096) for at in range(40)))
    job = Job(ranks=2, steps=10, tensors=own, overlap=False)
    analysis = analyse(unnamed(recording(job), set(range(2, 42))))
    assert analysis.quality.steps_from == "names"
    assert analysis.steps["step"].nunique() == job.steps - 1


def test_what_is_sent_before_the_first_step_does_not_shift_the_others():
    own = tuple(Tensor(f"allreduce.layer{at}", at << 20) for at in (1, 2, 3, 4))
    whole = unnamed(recording(Job(ranks=2, steps=10, tensors=own, threshold=0)), set(range(4)))
    for one in whole.ranks.values():  # of the first step, one tensor is left, of another size
        one.names.append(replace(one.names[0], bytes=12))
        one.streams["batches"], one.streams["tensors"] = one.batches[3:], one.tensors[3:]
        one.tensors["name"][0] = len(one.names) - 1
    steps = find_steps(join(whole))
    assert steps.found_from == "sizes"
    for rank, one in whole.ranks.items():
        first = one.tensors["submitted"][one.tensors["name"] == 0]
        assert steps.begin[rank][1:].tolist() == first[1:-1].tolist()


@pytest.mark.parametrize("size", [4, 24])
def test_a_metric_after_an_evaluation_does_not_make_steps_longer(size):
    accuracy = Call(Tensor("allreduce.accuracy", size), gap=0.3, every=100)
    job = Job(ranks=2, steps=400, tensors=tensors(1), calls=(accuracy,))
    analysis = analyse(unnamed(recording(job), {0, 1}))
    assert analysis.steps["step"].nunique() == job.steps - 1


QUICK = {"forward": 0.05, "backward": 0.1, "speed": 2e11, "batch": 1e-5, "cycle": 1e-5}


@pytest.mark.parametrize("last", [Tensor("allreduce.embedding", 3 << 20), Tensor("allreduce.l", 4)])
@pytest.mark.parametrize("job", [{"overlap": True}, QUICK, {"overlap": False}, {"alone": 24}])
def test_equal_layers_are_no_steps(job, last):
    """Two arrays in each of twelve layers, and one more. They overlap, also with gaps between
    them; or they are submitted together, or one by one."""
    layers = tuple(Tensor(f"allreduce.layer{at}", (1 + at % 2) << 20) for at in range(24))
    whole = recording(Job(ranks=2, steps=12, tensors=(*layers, last), **job))
    analysis = analyse(unnamed(whole, set(range(25))))
    assert analysis.steps["step"].nunique() == 11


def test_very_many_equal_layers_that_overlap_are_no_steps():
    layers = tuple(Tensor(f"allreduce.layer{at}", (1 + at % 2) << 20) for at in range(160))
    own = (*layers, Tensor("allreduce.embedding", 3 << 20))
    analysis = analyse(unnamed(recording(Job(ranks=2, steps=6, tensors=own)), set(range(161))))
    assert analysis.steps["step"].nunique() == 5


def test_steps_that_not_all_ranks_have_are_left_out_and_counted():
    whole = recording(Job(ranks=2, steps=10))
    marks = whole.ranks[1].marks
    whole.ranks[1].streams["marks"] = marks[marks["value"] != 4]
    analysis = analyse(whole)
    assert sorted(set(analysis.steps["step"])) == [2, 3, 6, 7, 8, 9, 10]
    assert analysis.quality.steps_ignored == 2


def test_dropped_tensor_records_do_not_shift_the_others():
    whole = recording(Job(ranks=2, steps=10))
    expected = join(recording(Job(ranks=2, steps=10)))
    kept = np.ones(len(whole.ranks[1].tensors), bool)
    kept[30:50] = False
    whole.ranks[1].streams["tensors"] = whole.ranks[1].tensors[kept]
    joint = join(whole)
    lost = set(np.flatnonzero(joint.views[1].rows < expected.views[1].rows).tolist())
    rest = [b for b in range(len(joint)) if b not in lost]
    assert lost
    assert (joint.last[rest] == expected.last[rest]).all()
    check_parts(analyse(whole))


def test_rank_0_alone_knows_who_was_late_from_what_it_heard():
    job = Job(ranks=3, steps=20, late=(Late(2, 0.03),), all_ranks=False)
    analysis = analyse(recording(job))
    assert sorted(set(analysis.waterfall["rank"])) == [0]
    assert analysis.stragglers.iloc[0]["rank"] == 2
    assert analysis.stragglers.iloc[0]["kind"] == "persistent"
    check_charges(analysis)
    assert findings(analysis)[0].kind == "persistent straggler"


def test_a_job_that_starts_over_counts_its_batches_anew():
    job = Job(ranks=2, steps=6)
    whole = recording(job)
    last = max(int(one.batches["end"].max()) for one in whole.ranks.values())
    shift = last - int(min(one.batches["begin"].min() for one in whole.ranks.values())) + 10**9
    for one in whole.ranks.values():
        again = {name: table.copy() for name, table in one.streams.items()}
        for name, columns in {
            "tensors": ["submitted"],
            "waits": ["begin", "end"],
            "marks": ["time"],
            "batches": ["scheduled", "first_ready", "begin", "packed", "unpacking", "end"],
        }.items():
            for column in columns:
                again[name][column] += shift * (again[name][column] != 0)
        again["marks"]["value"] += job.steps * (again["marks"]["kind"] == int(Mark.STEP))
        one.streams = {
            name: np.concatenate([table, again[name]]) for name, table in one.streams.items()
        }
    joint = join(whole)
    assert len(joint) == 2 * len(join(recording(job)))
    assert (joint.over_ranks("rows") == joint.tensors).all()
    check_parts(analyse(whole))


def test_no_recording_is_an_error_that_says_so():
    with pytest.raises(ValueError, match=r"t\.json has no rank's recording"):
        analyse(Recording("t.json"))


def test_an_empty_recording_has_empty_answers():
    identity = Identity("j", 0, 1, 0, "h", 1, "0")
    analysis = analyse(Recording("t.json", {0: RankRecording(identity)}))
    assert analysis.steps.empty
    assert analysis.batches.empty
    assert findings(analysis)[0].kind == "no steps"
