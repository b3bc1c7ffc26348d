"""benchmarks/timeline/planted: its programs, and how their verdicts are held against the truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.tiers import EVERY

from hvdtune.timeline.evidence.finding import Finding

TIMELINE = Path(__file__).resolve().parents[2] / "benchmarks" / "timeline"
_path = list(sys.path)
sys.path.insert(0, str(TIMELINE))

from planted import judge  # noqa: E402
from planted.catalogue import FAULTY, HEALTHY  # noqa: E402
from planted.judge import NOTHING, Row  # noqa: E402
from planted.program import Program  # noqa: E402

sys.path[:] = _path

LATE = "persistent straggler"


def program(**truth: object) -> Program:
    return Program("some program", lambda job: None, ranks=4, **truth)  # type: ignore[arg-type]


def finding(kind: str = LATE, gain: float = 0.2, **evidence: float | str) -> Finding:
    return Finding(kind, "", "", gain, evidence, between=(gain - 0.05, gain + 0.05))


SLOW = program(kinds=(LATE, "slow input"), culprits=frozenset({1}))
ALIKE = program(kinds=("slow input",))
UNKNOWN = program(kinds=("CPUs taken",), culprits=None)


def row(
    which: Program = SLOW,
    found: Sequence[Sequence[Finding]] = (),
    faulty: Sequence[float] = (1.0,),
    cured: Sequence[float] = (0.8,),
    busy_host: bool = False,
) -> Row:
    return Row(which, busy_host, list(faulty), list(cured), list(found))


def test_there_are_as_many_programs_as_promised_and_each_has_its_own_name():
    names = [one.name for one in FAULTY + HEALTHY]
    assert len(FAULTY) >= 40
    assert len(HEALTHY) >= 20
    assert len(set(names)) == len(names)
    assert all(one.kinds for one in FAULTY)
    assert not any(one.kinds for one in HEALTHY)
    for which in FAULTY + HEALTHY:
        assert which.framework in ("numpy", "torch"), which.name
        assert 1 <= which.ranks <= 8, which.name
        assert which.ranks % which.hosts == 0, which.name
        assert (which.culprits or frozenset()) <= set(range(which.ranks)), which.name
    for framework in ("numpy", "torch"):
        assert sum(one.framework == framework for one in FAULTY) >= 10
    assert {one.hosts for one in FAULTY} == {1, 2}


def test_only_a_faulty_run_has_the_faults_environment():
    which = program(environment={"A": "1"}, faulty_environment={"OMP_NUM_THREADS": "8"})
    assert which.variables(fault=True) == {
        "OMP_NUM_THREADS": "8", "OPENBLAS_NUM_THREADS": "1", "A": "1",
    }  # fmt: skip
    assert which.variables(fault=False)["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("evidence", "ranks"),
    [
        ({}, set()),
        ({"rank": 2.0}, {2}),
        ({"rank": -1.0}, set()),
        ({"ranks": "1, 3"}, {1, 3}),
        ({"ranks": "1, 3", "rank": 3.0}, {1, 3}),
        ({"ranks": 4.0}, set()),
    ],
)
def test_the_ranks_that_a_finding_blames(evidence, ranks):
    assert judge.named(finding(**evidence)) == ranks


@pytest.mark.parametrize(
    ("which", "first", "right"),
    [
        (SLOW, finding(rank=1.0), True),
        (SLOW, finding("slow input", rank=1.0), True),
        (SLOW, finding(rank=2.0), False),
        (SLOW, finding(ranks="1, 2"), False),
        (SLOW, finding(), False),
        (SLOW, finding("no overlap", rank=1.0), False),
        (ALIKE, finding("slow input"), True),
        (ALIKE, finding("slow input", ranks="0, 1, 2, 3"), True),
        (ALIKE, finding("slow input", rank=0.0), False),
        (UNKNOWN, finding("CPUs taken", rank=0.0), True),
    ],
)
def test_cause_and_rank_have_to_be_right_first(which, first, right):
    assert row(which, [[first]]).right == right
    assert row(which, [[finding("copies"), first]]).right == 0


def test_a_gain_is_inside_if_its_interval_holds_what_was_measured_give_or_take_its_error():
    one = [finding("no overlap", 0.9), finding(gain=0.26, rank=1.0)]  # promises 21 to 31 %
    assert row(found=[one], faulty=[1.0], cured=[0.75]).inside == 1
    assert row(found=[one], faulty=[1.0], cured=[0.8]).inside == 0
    unsure = row(found=[one, one], faulty=[1.0, 1.0], cured=[0.75, 0.85])
    assert unsure.measured == pytest.approx(0.2)
    assert unsure.error == pytest.approx(0.05)
    assert unsure.inside == 2
    assert unsure.promised == pytest.approx(0.26)


def test_a_cause_that_is_not_told_promises_nothing():
    missed = row(found=[[finding("no overlap", 0.2)]])
    assert missed.inside == 0
    assert missed.promised is None
    assert " – " in judge.line(judge.cells(missed))


@pytest.mark.parametrize(
    ("told", "busy_host", "right"),
    [
        ([finding("compute bound")], False, True),
        ([finding("copies"), finding("communication bound")], False, True),
        ([finding("cache misses")], False, True),  # this program's own
        ([finding("copies"), finding("no overlap")], False, False),
        ([finding("copies", rank=0.0)], False, False),
        ([finding("CPUs taken")], False, False),
        ([finding("CPUs taken")], True, True),
        ([finding("ranks take turns", ranks="0, 1")], True, False),
        ([finding(rank=1.0)], True, False),
    ],
)
def test_on_a_healthy_job_nothing_may_be_invented(told, busy_host, right):
    healthy = program(allowed=frozenset({"cache misses"}))
    judged = row(healthy, [told], busy_host=busy_host, cured=())
    assert judged.right == right
    assert (judged.measured, judged.error, judged.promised) == (0.0, 0.0, None)


def test_the_goals_are_shares_of_all_recordings():
    good, bad = [finding(rank=1.0)], [finding("no overlap")]
    assert judge.reached([row(found=[good] * 19 + [bad])])[1] is True
    sentences, reached = judge.reached([row(found=[good] * 18 + [bad] * 2)])
    assert not reached
    assert sentences[0] == "cause and rank right first: 18 of 20 recordings (90.0 %, goal 95 %)"
    assert sentences[1].startswith("gain inside the interval: 18 of 20")
    outside = [finding(gain=0.5, rank=1.0)]
    assert judge.reached([row(found=[good] * 8 + [outside] * 2)])[1] is False
    healthy = row(program(), [[finding("compute bound")]] * 19 + [bad], cured=())
    assert judge.reached([healthy])[1] is True
    assert judge.reached([healthy, row(program(), [bad], cured=())])[1] is False


def test_the_confusion_matrix_counts_what_was_told_of_what():
    counts = judge.confusion(
        [
            row(found=[[finding(rank=1.0)], [finding("slow input")], [finding("copies")]]),
            row(program(), [[finding("compute bound")], [finding("copies", rank=2.0)]], cured=()),
        ]
    )
    assert counts == {
        (LATE, LATE): 2, (LATE, "copies"): 1, (NOTHING, NOTHING): 1, (NOTHING, "copies"): 1,
    }  # fmt: skip
    lines = judge.matrix(counts).splitlines()
    assert lines[2:] == [
        "  1 copies",
        f"  2 {NOTHING:32}   1   1   .",
        f"  3 {LATE:32}   1   .   2",
    ]


def test_the_table_for_the_docs():
    table = judge.markdown([row(found=[[finding(gain=0.21, rank=1.0)]])]).splitlines()
    assert table[0].startswith("| program | what |")
    assert table[2] == (
        "| some program | NumPy | 4 | 1000.0 ms | 800.0 ms | 20.0 % | 21.0 % | 1/1 | 1/1 "
        f"| {LATE} |"
    )


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TIMELINE / "planted.py"), *words], env=os.environ | variables,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_wrong_words_end_in_one_sentence():
    none = run("--only", "no such program")
    assert none.returncode == 1
    assert none.stderr.startswith("No faulty program matches --only and --np; there")
    assert len(none.stderr.splitlines()) == 1
    beside = run("--busy-host")
    assert beside.returncode == 2
    assert "--busy-host needs --healthy" in beside.stderr


EACH_ONCE = """
import os, sys, time
from planted.catalogue import FAULTY, HEALTHY
from planted.job import Job

class Short(Job):
    def steps(self, count, mark=True):
        return super().steps(min(count, 3), mark)

os.environ["HOROVOD_LOCAL_RANK"] = "0"
time.sleep = lambda seconds: None
cpus = os.sched_getaffinity(0)
for program in FAULTY + HEALTHY:
    if "HOROVOD_DYNAMIC_PROCESS_SETS" in program.environment:
        continue  # these need their ranks
    for fault in (False,) if program.healthy else (True, False):
        os.sched_setaffinity(0, cpus)
        job = Short(program.framework, fault)
        program.train(job)
        print(program.name, len(job.times))
        job.hvd.shutdown()
"""


def test_a_job_that_fails_is_told_and_the_others_run():
    words = ("--healthy", "--only", "one rank", "--rounds", "1")
    failed = run(*words, HOROVOD_CYCLE_TIME="never")
    assert failed.returncode == 1
    assert "one rank: a job ended with 2: hvdtune run: HOROVOD_CYCLE_TIME is" in failed.stdout
    last = failed.stdout.splitlines()[-1]
    assert last.startswith("not judged, since a job failed: one rank, one rank, PyTorch")


@pytest.mark.long
def test_every_program_trains():
    environment = {**os.environ, "PYTHONPATH": f"{TIMELINE}{os.pathsep}{TIMELINE.parent}"}
    trained = subprocess.run(
        [sys.executable, "-c", EACH_ONCE], env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    lines = trained.stdout.splitlines()
    assert len(lines) >= 2 * 40 + 20
    assert all(line.endswith(" 3") for line in lines)


@pytest.mark.long
def test_programs_run_and_are_judged(tmp_path):
    """How well they are judged is for a quiet machine."""
    faults = ["late rank", *(["one slow rank of eight"] if EVERY else [])]
    results = tmp_path / "results.jsonl"
    words = ("--rounds", "1", "--json", str(results), "--markdown")
    faulty = run(*(word for name in reversed(faults) for word in ("--only", name)), *words)
    assert "cause and rank right first: " in faulty.stdout, faulty.stderr
    assert "not judged" not in faulty.stdout
    assert "| late rank | PyTorch | 2 | " in faulty.stdout
    healthy = run("--healthy", "--busy-host", "--only", "one rank, PyTorch", *words)
    assert "healthy, and reported so: " in healthy.stdout, healthy.stderr
    found = [json.loads(text) for text in results.read_text().splitlines()]
    assert [one["program"] for one in found] == [*faults, "one rank, PyTorch"]
    assert [len(one["cured_s"]) for one in found] == [1] * len(faults) + [0]
    assert [one["busy_host"] for one in found] == [False] * len(faults) + [True]
    assert all(one["faulty_s"][0] > 0.02 for one in found)  # what is slept takes as long
    assert [1] in [one["ranks"] for one in found[0]["found"][0]]
