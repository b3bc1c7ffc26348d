"""Every operation has an owner: which call it is of, and what that costs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from support.recordings.synthetic_capture import (
    Call,
    Job,
    Late,
    Tensor,
    describing,
    recording,
    step_seconds,
    tensors,
)

from hvdtune.timeline import api
from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.evidence.finding import Finding
from hvdtune.timeline.record.layout import Mark, MemberList
from hvdtune.timeline.report.document import numbers_of
from hvdtune.timeline.structure.owners import Family

MIB = 1 << 20
HEALTHY = Job(steps=24, noise=0.01, tensors=tensors(10, 2 * MIB))
LOSS = Tensor("allreduce.loss", 4)
BARRIER = Tensor("barrier.noname", 0, kind="barrier", dtype="uint8")


def loop(count: int, name: str, size: int = 4, **of: float) -> tuple[Call, ...]:
    """Blocking allreduces, one after the other."""
    return tuple(Call(Tensor(f"allreduce.{name}{i}", size), **of) for i in range(count))


def sent_object(name: str, size: int, kind: str = "broadcast", **of: float) -> tuple[Call, Call]:
    """The two operations of broadcast_object or allgather_object."""
    return (
        Call(Tensor(f"{kind}.{name}.sz", 8, kind=kind, dtype="int64"), pickles=True, **of),
        Call(Tensor(f"{kind}.{name}.t", size, kind=kind, dtype="uint8"), at=of.get("at", 0.0)),
    )


def gathered(name: str, size: int, kind: str = "allgather", **of: float) -> Call:
    return Call(Tensor(f"{kind}.{name}", size, kind=kind), **of)


@cache
def told(job: Job) -> list[Finding]:
    return findings(analyse(recording(job)))


def family(job: Job, call: str) -> Family:
    [one] = [one for one in analyse(recording(job)).owners if one.call == call]
    return one


def true_gain(bad: Job, good: Job) -> float:
    return 1 - step_seconds(good) / step_seconds(bad)


#: Calls of a step, what they are replaced by, the finding's kind, and what its sentence says.
FAULTS = {
    "100 metrics": (
        loop(100, "metric.", gap=30e-6),
        (Call(Tensor("allreduce.metrics", 400), gap=30e-6),),
        "metrics one by one",
        ("100 times a step, after the update", "metric.#"),
    ),
    "40 metrics in the middle": (
        loop(40, "acc", 16, at=0.010, gap=100e-6),
        (Call(Tensor("allreduce.acc", 640), at=0.010, gap=100e-6),),
        "metrics one by one",
        ("40 times a step, before the gradients",),
    ),
    "metrics of different names": (
        (*loop(10, "loss/task"), *loop(10, "top/"), *loop(10, "f/")),
        loop(1, "all", 120),
        "metrics one by one",
        ("30 times a step",),
    ),
    "an object broadcast": (
        sent_object("config", 64 * MIB, gap=0.015),
        (),
        "object operations in every step",
        ("pickles and broadcasts config in every step, 64 MiB",),
    ),
    "objects gathered": (
        sent_object("stats", 4 * MIB, "allgather", gap=0.004),
        (),
        "object operations in every step",
        ("pickles and gathers stats in every step",),
    ),
    "an object without pickling recorded": (
        sent_object("epoch_3", 32 * MIB, at=0.010),
        (),
        "object operations in every step",
        ("broadcasts epoch_3", "before the gradients"),
    ),
    "features gathered": (
        (gathered("features", 32 * MIB),),
        (),
        "allgather in every step",
        ("gathers features in every step, 32 MiB, after the update",),
    ),
    "small tables gathered in parts": (
        tuple(gathered(f"table.{i}", 2 * MIB, at=0.010) for i in range(5)),
        (),
        "allgather in every step",
        ("gathers table.# (5 operations) in every step, 10 MiB",),
    ),
    "weights broadcast": (
        (Call(Tensor("broadcast.ema", 64 * MIB, kind="broadcast")),),
        (),
        "broadcast in every step",
        ("broadcasts ema in every step, 64 MiB",),
    ),
    "tokens exchanged": (
        (gathered("tokens", 32 * MIB, "alltoall", at=0.005),),
        (),
        "alltoall in every step",
        ("exchanges tokens in every step, 32 MiB",),
    ),
    "a large average": (
        (Call(Tensor("allreduce.teacher", 32 * MIB)),),
        (),
        "blocking allreduce in every step",
        ("averages teacher in every step, 32 MiB",),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_call_that_costs_is_told_first_with_its_gain(name):
    calls, instead, kind, words = FAULTS[name]
    bad, good = replace(HEALTHY, calls=calls), replace(HEALTHY, calls=instead)
    found = told(bad)
    first = found[0]
    assert first.kind == kind
    # What is no gradient says nothing about gradients.
    kinds = {one.kind for one in found}
    assert not kinds & {"no overlap", "small tensors one by one", "huge tensor last"}
    assert all(part in first.sentence for part in words), first.sentence
    assert first.gain == pytest.approx(true_gain(bad, good), rel=0.15, abs=0.01)
    least, most = first.interval
    assert least <= true_gain(bad, good) <= most


@pytest.mark.parametrize("name", ["features gathered", "tokens exchanged", "a large average"])
def test_calls_that_return_at_once_are_advised_only_where_there_are_any(name):
    calls, _, kind, _ = FAULTS[name]
    job = replace(HEALTHY, calls=calls)
    for framework, there in (("torch 2.13.0", True), ("jax 0.7.1", False), ("", False)):
        first = told(replace(job, framework=framework))[0]
        assert first.kind == kind
        assert ("_async" in first.action) == there, first.action


MODEL = tuple(
    Call(Tensor(f"allgather.sync_batch_norm.{what}", 4096, kind="allgather"), at=at)
    for what, at in (("mean", 0.004), ("var", 0.005))
)
HEALTHY_CALLS = {
    "the loss averaged after the step": (Call(LOSS),),
    "three metrics after the step": loop(3, "metric"),
    "a barrier after the step": (Call(BARRIER),),
    "weights broadcast now and then": (
        Call(Tensor("broadcast.ema", 64 * MIB, kind="broadcast"), every=20),
    ),
    "synchronized statistics": MODEL,
    "the loss averaged by ranks that are even": (Call(LOSS, at=0.010),),
}


@pytest.mark.parametrize("name", HEALTHY_CALLS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_call_that_costs_nothing_is_no_finding(name, seed):
    job = replace(HEALTHY, calls=HEALTHY_CALLS[name], seed=seed)
    assert [one.kind for one in told(job)] == ["compute bound"]


@pytest.mark.parametrize("noise", [0.2, 0.4])
def test_a_barrier_where_ranks_wait_anyway_is_not_blamed(noise):
    job = replace(HEALTHY, noise=noise, calls=(Call(BARRIER),))
    found = told(job)
    assert found[0].kind == "ranks take turns"
    assert "barrier in every step" not in {one.kind for one in found}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_loss_in_the_middle_is_not_blamed_above_the_jitter(seed):
    job = replace(HEALTHY, steps=80, noise=0.4, calls=(Call(LOSS, at=0.015),), seed=seed)
    assert told(job)[0].kind == "ranks take turns"


def test_a_late_rank_is_blamed_not_the_call_that_waits_for_it():
    job = replace(HEALTHY, calls=(Call(LOSS, at=0.010),), late=(Late(2, 0.030),))
    found = told(job)
    assert found[0].kind == "persistent straggler"
    assert "blocking allreduce in every step" not in {one.kind for one in found}


def test_operations_of_a_process_set_are_named_with_it():
    ema = Tensor("broadcast.ema", 64 * MIB, kind="broadcast", process_set=3)
    job = replace(HEALTHY, calls=(Call(ema),), members=(MemberList(3, 0, (0, 1, 2, 3)),))
    assert "of process set 3 (ranks 0-3)" in told(job)[0].sentence
    assert family(job, "broadcast").process_set == 3


def test_families_are_told_with_count_bytes_wait_and_phase():
    calls = (*loop(20, "metric.", gap=30e-6), *sent_object("config", MIB, at=0.010))
    job = replace(HEALTHY, calls=calls)
    metrics, gradients = (
        [one for one in analyse(recording(job)).owners if one.name == name]
        for name in ("metric.#", "gradients")
    )
    assert (metrics[0].count, metrics[0].bytes, metrics[0].steps) == (20, 80, 1)
    assert metrics[0].alone
    assert not gradients[0].alone
    assert metrics[0].phase == "after the update"
    assert (gradients[0].count, gradients[0].bytes) == (10, 20 * MIB)
    one = family(job, "broadcast_object")
    assert (one.name, one.count, one.phase) == ("config", 2, "before the gradients")
    # Twenty batches of 100 us and what agreeing takes, on each rank.
    assert metrics[0].blocked_s == pytest.approx(20 * (100e-6 + 60e-6), rel=0.3)


def test_a_number_is_no_gradient_though_it_is_outstanding_with_them_and_a_layers_scalar_is() -> (
    None
):
    bias = Tensor("allreduce.layer0.bias", 4)
    for job in (HEALTHY, replace(HEALTHY, tensors=tensors(10, 256))):
        every = analyse(recording(replace(job, tensors=(LOSS, bias, *job.tensors)))).owners
        assert {(one.name, one.count) for one in every} == {("gradients", 11), ("loss", 1)}


def test_of_gradients_that_are_all_scalars_none_is_left_out() -> None:
    [one] = analyse(recording(replace(HEALTHY, tensors=tensors(3, 4)))).owners
    assert (one.name, one.count) == ("gradients", 3)


def test_what_ranks_wait_for_a_late_one_is_told_apart():
    job = replace(HEALTHY, calls=(Call(LOSS, at=0.010),), late=(Late(2, 0.030),))
    loss = next(one for one in analyse(recording(job)).owners if one.name == "loss")
    assert loss.blocked_s == pytest.approx(0.75 * 0.030, rel=0.1)  # three of four ranks wait
    assert loss.late_s == pytest.approx(loss.blocked_s, rel=0.1)


def test_gradients_waited_for_one_by_one_are_gradients_and_their_loss_is_not():
    calls = tuple(
        Call(Tensor(f"allreduce.layer{i}.weight", MIB), at=0.010 + 0.001 * i) for i in range(20)
    )
    job = replace(HEALTHY, tensors=tensors(1, 4), calls=(*calls, Call(LOSS, at=0.030)))
    found = {one.name: one for one in analyse(recording(job)).owners}
    assert found["gradients"].count == 20
    assert not found["loss"].gradients


def test_names_that_the_engine_made_up_are_told_apart_by_their_size():
    calls = tuple(Call(Tensor("allreduce.noname", size)) for size in (4, 64))
    owned = analyse(recording(replace(HEALTHY, calls=calls))).owners
    assert sorted(one.bytes for one in owned if not one.gradients) == [4, 64]


def test_without_steps_nothing_is_owned():
    assert analyse(recording(replace(HEALTHY, steps=1))).owners == ()


def told_by(job: Job, program: object, **settings: object) -> list[Finding]:
    """What a program is told that said this of itself when its first step ended."""
    whole = recording(job)
    for one in whole.ranks.values():
        one.identity.settings.update(settings)
    return findings(analyse(whole if program is None else describing(whole, program)))


BURST = replace(HEALTHY, overlap=False, tensors=tensors(10, 4 * MIB))
USES = {"optimizer": "DistributedOptimizer", "groups": False, "compression": "", "passes": 1}


@pytest.mark.parametrize(
    ("program", "setting", "advice"),
    [
        (None, "", "Use hvd.DistributedOptimizer"),
        (USES, "off", "HVDTUNE_OVERLAP=on"),
        (USES, "on", "Leave each rank a CPU"),
        ({**USES, "groups": True}, "on", "A group's gradients are sent when the last"),
    ],
)
def test_advice_about_overlap_is_something_the_program_does_not_do_yet(program, setting, advice):
    found = told_by(BURST, program, HVDTUNE_OVERLAP=setting)
    assert found[0].kind == "no overlap"
    assert found[0].action.startswith(advice)
    assert program is None or "Use hvd.DistributedOptimizer" not in found[0].action


@pytest.mark.parametrize(
    ("program", "kind", "words", "never"),
    [
        (USES, "communication bound", "backward_passes_per_step=2", "nothing"),
        ({**USES, "passes": 4}, "communication bound", "backward_passes_per_step=8", "nothing"),
        ({**USES, "compression": "FP16Compressor"}, "communication bound", "Send less", "fp16"),
    ],
)
def test_advice_to_send_less_is_something_the_program_does_not_do_yet(program, kind, words, never):
    [one] = [one for one in told_by(BURST, program) if one.kind == kind]
    assert words in one.action
    assert never not in one.action


@pytest.mark.parametrize("has", [{"views": True}, {"compression": "FP16Compressor"}])
def test_who_reduces_in_place_or_cannot_is_not_told_to(has):
    assert "copies" in {one.kind for one in told_by(BURST, USES)}
    assert "copies" not in {one.kind for one in told_by(BURST, {**USES, **has})}


@pytest.mark.parametrize("on", [True, False])
def test_whose_autotuner_runs_is_told_to_let_it(on):
    job = replace(HEALTHY, tensors=tensors(250, 32 << 10), threshold=0)
    first = told_by(job, USES, HOROVOD_AUTOTUNE=on)[0]
    assert first.kind == "fusion threshold too small"
    assert first.action.startswith("The autotuner is on") == on


def test_a_program_that_says_something_else_is_read_all_the_same():
    assert told_by(BURST, ["of", "a", "later", "version"])[0].kind == "no overlap"


def test_the_report_shows_the_owners():
    job = replace(HEALTHY, calls=loop(20, "metric."))
    analysis = analyse(recording(job))
    numbers = numbers_of(analysis, findings(analysis))
    rows = {(one["call"], one["name"]): one for one in numbers["owners"]}
    assert rows["allreduce", "metric.#"]["count"] == 20
    assert "names" not in rows["allreduce", "gradients"]
    for shown in (api.text(numbers), api.page(numbers)):
        assert "Operations by owner" in shown
        assert "metric.#" in shown
    alone = analyse(recording(HEALTHY))
    assert "Operations by owner" not in api.text(numbers_of(alone, findings(alone)))


def test_what_has_no_name_is_told_by_the_line_that_calls_it():
    calls = tuple(Call(Tensor("allreduce.noname", 4), gap=30e-6) for _ in range(40))
    whole = recording(replace(HEALTHY, calls=calls))
    for one in whole.ranks.values():
        lines = ("train.py:42 in metrics", "train.py:42 in metrics", "other.py:7 in <module>")
        one.texts += [f"allreduce|0|{line}" for line in lines]
        marks = one.marks[:3].copy()
        marks["kind"], marks["value"] = int(Mark.CALL_SITE), (1, 1, 1)
        marks["text"] = np.arange(len(one.texts) - 3, len(one.texts))
        one.streams["marks"] = np.concatenate([marks, one.marks])
    first = findings(analyse(whole))[0]
    assert first.kind == "metrics one by one"
    assert "a tensor without a name (train.py:42 in metrics)" in first.sentence
