"""benchmarks/gpu_checks.sh as far as it goes without a GPU: arguments, judgements, jobs, page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.tiers import EVERY

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from gpu import checks, conformance, jobs, outcome, parts  # noqa: E402
from gpu.jobs import JobFailed, Machine  # noqa: E402
from gpu.outcome import FAILED, PASSED, SKIPPED, Outcome, Results  # noqa: E402

sys.path.remove(str(BENCHMARKS))

GPU = Machine(gpus=1, cuda="/lib/libcuda.so.1")


class Answers(Machine):
    """A machine whose jobs' results are given: by script, the next of a list."""

    def __new__(cls, answers: list[Any]):
        return super().__new__(cls)

    def __init__(self, answers: list[Any]) -> None:
        super().__init__(gpus=1)
        object.__setattr__(self, "answers", answers)
        object.__setattr__(self, "asked", [])
        object.__setattr__(self, "shared", [])

    def result_of(self, script: str, count: int, arguments=(), **others: Any) -> Any:
        self.asked.append((script, count, others.get("changes", {})))
        self.shared.append(others.get("share"))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def program(folder: Path, text: str) -> Path:
    """A program of the test's own."""
    path = folder / "program"
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)
    return path


def test_without_a_gpu_it_ends_in_one_sentence(tmp_path):
    """The script itself; libraries that may be here are left out."""
    page = tmp_path / "page.md"
    ended = subprocess.run(
        [BENCHMARKS / "gpu_checks.sh", "--output", page],
        env={**os.environ, "PYTHON": sys.executable, "HVDTUNE_CUDA_LIBRARY": "none"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr == (
        "benchmarks/gpu_checks.sh: HVDTUNE_CUDA_LIBRARY is none: no CUDA driver is used.\n"
    )
    assert not page.exists()


def test_unknown_parts_are_answered_with_the_names(capsys):
    with pytest.raises(SystemExit) as ended:
        checks.parse(["--only", "copies,frogs"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "--only frogs: there is no such part; give some of conformance, digits, copies" in said
    assert checks.parse(["--only", "copies"]).only == ["copies"]
    assert checks.parse([]).output == checks.PAGE
    assert checks.parse(["--device", "cpu"]).output is None


def test_the_page_holds_every_part(tmp_path):
    results = Results({"GPUs": "1: H200"})
    results.parts.append(("One", Outcome(PASSED, "well.", [("a|b", "c"), ("1", "2")]), 3.4))
    results.parts.append(("Two", Outcome(FAILED, "not well."), 0.6))
    assert results.failed == ["Two"]
    page = outcome.page(results)
    assert page.startswith("# Results on a GPU\n")
    for line in (
        "- GPUs: 1: H200", "| One | passed | 3 |", "| Two | FAILED | 1 |", "## Two",
        "FAILED: not well.", "| a\\|b | c |", "|---|---|", "| 1 | 2 |",
    ):  # fmt: skip
        assert line in page.splitlines(), line
    with pytest.raises(ValueError, match="as many cells"):
        outcome.markdown_table([("a", "b"), ("1",)])


def test_every_part_is_run_and_a_failure_is_told(tmp_path, monkeypatch, capsys):
    def broken(machine: Machine) -> Outcome:
        raise JobFailed("rank 1 exited")

    made = (
        parts.Part("good", "Good", lambda machine: Outcome(PASSED, f"{machine.device}.")),
        parts.Part("bad", "Bad", broken),
        parts.Part("copies", "On a GPU only", broken),
    )
    monkeypatch.setattr(parts, "PARTS", made)
    page = tmp_path / "page.md"
    assert checks.main(["--device", "cpu", "--output", str(page)]) == 1
    said = capsys.readouterr()
    assert "Good … passed: cpu.\nBad … FAILED: rank 1 exited.\n" in said.out
    assert said.err == "benchmarks/gpu_checks.sh: failed: Bad.\n"
    assert "| Bad | FAILED |" in page.read_text()
    assert "On a GPU only" not in page.read_text()
    assert checks.main(["--device", "cpu", "--only", "good"]) == 0


def test_what_every_part_calls_is_there():
    assert len({part.name for part in parts.PARTS}) == len(parts.PARTS)
    for path in ("gpu/conformance.py", "gpu/steps.py", "kill.py", "gpu/pack_bandwidth.cc"):
        assert (BENCHMARKS / path).is_file(), path
    assert "pack_bandwidth" in (BENCHMARKS.parent / "CMakeLists.txt").read_text()
    sizes = [int(line) for line in parts.gradient_sizes().split()]
    assert len(sizes) == 161
    assert sum(sizes) == 4 * 25_557_032


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, PASSED),
        ({"unpack": 1.5}, FAILED),  # 67 % of a copy's speed
        ({"same": False}, FAILED),
        ({"pack_scaled": None}, FAILED),  # there were no kernels
    ],
)
def test_copies_are_judged(tmp_path, changes, state):
    found = {"kernels": "NVRTC 12.4", "tensors": 161, "bytes": 102_228_128, "same": True,
             "copy": 1.0, "pack": 1.1, "unpack": 1.2, "pack_scaled": 1.1, "unpack_scaled": 1.1,
             **changes}  # fmt: skip
    found = {key: value for key, value in found.items() if value is not None}
    made = program(
        tmp_path,
        "import json, sys\nassert len(sys.stdin.read().split()) == 161\n"
        f"assert sys.argv[1:] == ['/lib/libcuda.so.1', '-']\nprint(json.dumps({found!r}))",
    )
    outcome = parts.copies(GPU, lambda: made)
    assert outcome.state == state
    assert outcome.table[1] == ("copy", "1.000", "102", "100%")
    if not changes:
        assert "the slowest is unpack with 83% of a copy's speed; the goal is 70%" in outcome.said


def test_the_sanitizer(tmp_path, monkeypatch):
    made = program(tmp_path, "")
    monkeypatch.setattr(parts.shutil, "which", lambda *words, **others: None)
    assert parts.sanitizer(GPU, lambda: made).state == SKIPPED
    log = tmp_path / "log"
    tool = program(
        tmp_path, f"import sys\nopen({str(log)!r}, 'a').write(' '.join(sys.argv[1:3]) + '\\n')"
    )
    monkeypatch.setattr(parts.shutil, "which", lambda *words, **others: str(tool))
    assert parts.sanitizer(GPU, lambda: made).state == PASSED
    assert log.read_text() == "--tool memcheck\n--tool racecheck\n"
    program(tmp_path, "print('ERROR SUMMARY: 1 error'); raise SystemExit(3)")
    with pytest.raises(JobFailed, match="ERROR SUMMARY: 1 error"):
        parts.sanitizer(GPU, lambda: made)


def test_conformance_is_asked_of_all_ways_and_all_counts():
    fine = {"cases": 900, "failures": []}
    machine = Answers([fine] * 9)
    assert parts.conformance(machine).state == PASSED
    assert [count for _, count, _ in machine.asked] == [1, 1, 1, 2, 2, 2, 4, 4, 4]
    without = ["HVDTUNE_NCCL_LIBRARY" in changes for _, _, changes in machine.asked]
    assert without == 3 * [False, True, True]
    assert machine.shared == 3 * [None, True, False]
    wrong = {"cases": 900, "failures": ["rank 1: sum torch.float16.7: off by 3"]}
    answers = [*[fine] * 4, JobFailed("died"), fine, wrong, fine, fine]
    found = parts.conformance(Answers(answers))
    assert found.state == FAILED
    assert found.said == "2 wrong; the first: 2 ranks, CUDA IPC: died."
    assert found.table[5] == ("2", "CUDA IPC", "-", "failed")
    assert found.table[7] == ("4", "NCCL", "900", "1")


def test_conformance_is_asked_past_nccl_where_each_rank_has_a_gpu():
    def names(gpus: int, count: int) -> list[str]:
        return [plane.name for plane in parts.planes_of(Machine(gpus=gpus), count)]

    assert names(4, 4) == names(4, 2) == ["NCCL", "CUDA IPC", "host", "past NCCL"]
    assert names(4, 1) == names(2, 4) == names(1, 2) == ["NCCL", "CUDA IPC", "host"]


@pytest.mark.parametrize(
    ("past", "said", "wrong", "state", "words"),
    [
        ((5.0, 30.0), "", 0, PASSED, "2 ranks: faster past NCCL up to 1024 bytes."),
        ((25.0, 30.0), "", 0, FAILED, "2 ranks: no size is faster past NCCL than over it."),
        ((5.0, 30.0), "", 3, FAILED, "3 results were wrong."),
        (
            (5.0, 30.0), "[0]: short batches also use NCCL: no peers", 0, SKIPPED,
            "short batches also use NCCL: no peers.",
        ),
    ],
)  # fmt: skip
def test_short_batches_past_nccl_are_judged(monkeypatch, past, said, wrong, state, words):
    def output_of(command, environment, seconds):
        times = past if "HVDTUNE_NCCL_BYPASS_LIMIT" in environment else (20.0, 20.0)
        sweep = [
            {"size_bytes": size, "in_place": {"time": {"p50": time / 1e6}}, "out_of_place": None}
            for size, time in zip((1024, 4096), times, strict=True)
        ]
        path = Path(command[command.index("--json") + 1])
        path.write_text(json.dumps({"sweep": sweep, "wrong": wrong}))
        return said

    monkeypatch.setattr(parts, "output_of", output_of)
    assert parts.bypass(Machine(gpus=1)).state == SKIPPED
    found = parts.bypass(Machine(gpus=2))
    assert (found.state, found.said) == (state, words)
    if state == PASSED:
        assert found.table[1:] == [
            ("1024", "20.0", "5.0", "4.00"),
            ("4096", "20.0", "30.0", "0.67"),
        ]


def test_a_job_that_took_another_way_is_told(tmp_path, monkeypatch):
    script = program(
        tmp_path,
        "import sys\nopen(sys.argv[sys.argv.index('--result') + 1], 'w').write('[1]')\n"
        "print('tensors on GPUs travel through host memory: no NCCL')",
    )
    monkeypatch.setattr(Machine, "launcher", lambda *words, **others: [])
    monkeypatch.setattr(jobs, "HERE", tmp_path)
    assert GPU.result_of(script.name, 1, unsaid="something else") == [1]
    with pytest.raises(JobFailed, match="host memory: no NCCL"):
        GPU.result_of(script.name, 1, unsaid=parts.PLANES[0].unsaid)


@pytest.mark.parametrize(("per_tensor", "state"), [(0.02, PASSED), (0.005, FAILED)])
def test_the_comparison_is_a_ratio(per_tensor, state):
    def way(seconds: float) -> dict[str, float]:
        return {"step_s": seconds, "thread_s": 0.001, "process_s": 0.002}

    answer = {"hvdtune": way(0.01), "per tensor": way(per_tensor), "buckets": way(0.012)}
    outcome = parts.comparison(Answers([answer]))
    assert outcome.state == state
    assert "buckets take 1.20 times as long as hvdtune" in outcome.said
    assert outcome.table[3] == ("buckets", "12.00", "1.20", "1.00", "2.00")


@pytest.mark.parametrize(("recorded", "state"), [(0.0101, PASSED), (0.0103, FAILED)])
def test_the_timeline_is_judged_by_medians(recorded, state):
    def step(seconds: float) -> dict:
        return {"hvdtune": {"step_s": seconds}}

    machine = Answers([step(s) for s in (0.01, recorded, 0.5, 0.01, 0.01, recorded)])
    assert parts.timeline(machine).state == state
    assert ["HOROVOD_TIMELINE" in changes for _, _, changes in machine.asked] == [False, True] * 3


@pytest.mark.skipif(not EVERY, reason="takes up to 100 s: HVDTUNE_TEST_LONG=1")
def test_tuning_is_run_to_its_end():
    found = parts.autotune(Machine(gpus=0, device="cpu"))
    assert found.state == PASSED, found
    assert re.search(r"^\d+ samples; num_nccl_streams tried with ", found.said), found.said


@pytest.mark.parametrize(
    ("gpus", "streams", "ctas", "state"),
    [
        (1, "12", "00", PASSED),
        (1, "11", "00", FAILED),
        (2, "12", "00", FAILED),
        (2, "12", "08", PASSED),
    ],
)
def test_tuning_has_to_move_what_it_can(monkeypatch, gpus, streams, ctas, state):
    rows = [
        {"phase": phase, "decision": "kept", "num_nccl_streams": one, "nccl_max_ctas": other}
        for phase, one, other in zip(("search", "final"), streams, ctas, strict=True)
    ]
    monkeypatch.setattr(parts, "output_of", lambda *_: "")
    monkeypatch.setattr(parts.log, "read", lambda _: rows)
    assert parts.autotune(Machine(gpus=gpus)).state == state


def test_jobs_share_a_gpu_where_there_are_fewer():
    assert "--share-gpu" in GPU.launcher(2)
    assert "--share-gpu" not in GPU.launcher(1)
    assert "--share-gpu" in GPU.launcher(1, share=True)
    assert "--share-gpu" not in GPU.launcher(2, share=False)
    assert "--share-gpu" not in Machine(gpus=0, device="cpu").launcher(2)


def test_programs_that_fail_or_last_too_long_are_told(tmp_path):
    path = str(program(tmp_path, "print('one\\n\\ntwo'); raise SystemExit(4)"))
    with pytest.raises(JobFailed, match=r"^one / two$"):
        jobs.output_of([path], os.environ, 60)
    assert jobs.output_of([path], os.environ, 60, check=False) == "one\n\ntwo\n"
    path = str(program(tmp_path, "import time; time.sleep(600)"))
    with pytest.raises(JobFailed, match=r"not over after 0\.2 s"):
        jobs.output_of([path], os.environ, 0.2)
    with pytest.raises(JobFailed, match="/nowhere/program: No such file"):
        jobs.output_of(["/nowhere/program"], os.environ, 60)


def test_conformance_sees_wrong_elements_shapes_and_places(monkeypatch):
    import torch

    monkeypatch.setattr(conformance.hvd, "rank", lambda: 0)
    monkeypatch.setattr(conformance.hvd, "size", lambda: 2)
    one = conformance.Conformance(torch.device("cpu"))
    every = one.inputs(1, 7, torch.float16)
    good = every.sum(0).to(torch.float16)
    one.check("right", good, every.sum(0), one.rounding(torch.float16, every))
    assert one.failures == []
    good[3] += 0.1
    one.check("wrong", good, every.sum(0), one.rounding(torch.float16, every))
    one.check("short", good[:6], every.sum(0))
    one.device = torch.device("meta")
    one.check("elsewhere", good, every.sum(0))
    assert [text.partition(":")[0] for text in one.failures] == ["wrong", "short", "elsewhere"]
    assert one.cases == 4
    assert one.rounding(torch.int32, every) == 0
    assert sum(one.splits(7)) == 7


@pytest.mark.long
def test_rank_programs_run_with_tensors_in_cpu_memory():
    machine = Machine(gpus=0, device="cpu")
    variables = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    found = machine.result_of("conformance.py", 2, ["--quick"], changes=variables)
    assert found["failures"] == []
    assert found["cases"] > 600
    found = machine.result_of(
        "steps.py", 2, ["--workload", "tiny", "--rounds", "1", "--steps", "1"]
    )
    assert set(found) == {"hvdtune", "per tensor", "buckets"}
    assert all(way["step_s"] > 0 for way in found.values())
    with pytest.raises(JobFailed, match="unrecognized arguments: --frog"):
        machine.result_of("steps.py", 1, ["--frog"])


def test_a_killed_rank_is_timed():
    outcome = parts.death(Machine(gpus=0, device="cpu"))
    assert outcome.said.startswith("in 5 kills, the survivor raised at most ")
    assert "s after the kill; the limit is 2 s." in outcome.said
