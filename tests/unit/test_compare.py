"""benchmarks/compare.py without its peers: works, clocks, statistics, tables, picture, jobs."""

from __future__ import annotations

import importlib.util
import itertools
import json
import signal
import sys
import time
import types
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from hvdtune.bench import metrics
from hvdtune.bench.memory import MemoryCurve, MemoryPoint
from hvdtune.bench.workloads.gradient_sets import WORKLOADS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def _importable():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def comparison():
    """Two rounds of two peers at np 2; the machine was twice as slow in the second."""
    from peers import results, works

    made = results.Comparison(
        machine={"cpu": "Some CPU", "cpus": 2, "memory_gib": 8.0},
        options={"rounds": 2, "seconds": 0.4},
        works={
            work.key: {"title": work.title, "size_bytes": work.size_bytes, "is_set": work.is_set}
            for work in works.parse("4,1M,tiny")
        },
        peers={
            key: {"title": title, "version": "1.0", "settings": {"2": ""}}
            for key, title in (("hvdtune", "hvdtune"), ("other", "Other"), ("slow", "Slow & co"))
        },
        memory=MemoryCurve(2, (MemoryPoint(1 << 20, 80e9, 240e9),)),
    )
    collector = results.Collector(made)
    for number, pace in enumerate((1.0, 2.0)):
        for work, own in (("4", 2e-6), (str(1 << 20), 100e-6), ("tiny", 2e-3)):
            collector.take("hvdtune", 2, work, number, np.array([own, own, 9 * own]) * pace)
            collector.take("other", 2, work, number, np.array([own, own]) * pace * 1.5)
    collector.take("slow", 2, "4", 0, np.array([4e-6]))
    collector.finish()
    return made


def test_works_are_sizes_and_gradient_sets():
    from peers import works

    found = works.parse("64K, resnet50,4,64K")
    assert [work.key for work in found] == ["65536", "resnet50", "4"]
    assert found[0].counts == (16384,)
    assert found[1].size_bytes == 4 * WORKLOADS["resnet50"].elements()
    # A backward pass finishes the last layer first.
    assert found[1].counts[:2] == (1000, 1000 * 2048)
    for text in ("64K,resnet", "6", "0", ""):
        with pytest.raises(ValueError, match=r"float32|resnet50"):
            works.parse(text)


def test_a_set_is_handed_to_ranks_as_a_file(tmp_path):
    from peers import works

    work = works.gradients("tiny")
    kind, _, path = work.argument(tmp_path).partition(":")
    assert kind == "set"
    assert Path(path).read_text().split() == ["256"] * 1000
    assert works.array(64).argument(tmp_path) == "size:64"


def test_works_that_do_not_fit_are_left_out():
    from peers import works

    small, large = works.parse("4K,1M")
    assert works.that_fit([small, large], 8, 8 << 20) == (small,)
    assert works.that_fit([small, large], 2, 8 << 20) == (small, large)
    assert works.that_fit([small, large], 8, None) == (small, large)


def test_pace_is_completion_to_completion_on_the_slowest_rank():
    from peers import jobs

    first = np.array([2, 10.0, 11.0, 15.0, 1, 20.0, 21.0])
    second = np.array([2, 10.5, 13.0, 14.0, 1, 20.0, 22.0])
    paces = jobs.pace([first, second], 2)
    # Starts 10.5, ends 13 and 15; then 20 and 22.
    assert [pace.tolist() for pace in paces] == [[2.5, 2.0], [2.0]]


@pytest.mark.parametrize("bad", [[1, 10.0, 11.0], [2, 10.0, 11.0], []])
def test_clocks_that_do_not_match_are_refused(bad):
    from peers import jobs

    good = np.array([2, 10.0, 11.0, 15.0])
    with pytest.raises(jobs.JobFailed, match="rank"):
        jobs.pace([good, np.array(bad)], 1)


def test_python_ranks_write_what_pace_reads(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    from peers import jobs, rank_loop, works

    ticks = itertools.count()
    clock = types.SimpleNamespace(monotonic=lambda: next(ticks) / 1024)
    monkeypatch.setattr(rank_loop, "time", clock)

    class Alone:
        rank, size = 0, 1

        def single(self, tensor):
            return self.pass_time

        def step(self, tensors):
            assert [tensor.numel() for tensor in tensors] == [256] * 1000
            assert all(tensor.dtype == torch.float32 for tensor in tensors)
            return self.pass_time

        def slowest(self, value):
            return value

        def pass_time(self):
            next(ticks)

    arguments = [work.argument(tmp_path) for work in works.parse("4K,tiny")]
    for most, calls in ((50, 12), (9, 9)):
        rank_loop.run(Alone(), [str(tmp_path), str(19 / 1024), str(most), *arguments])
        paces = jobs.pace([np.fromfile(tmp_path / "rank-0")], 2)
        # A call and a look at the clock take a tick each. The warm-up's second batch, two calls in
        # three ticks, is as long as 0.15 of the 19; so 12 calls of 1.5 ticks fit into these.
        assert [len(pace) for pace in paces] == [calls, calls]
        assert all((pace == 2 / 1024).all() for pace in paces)


def test_a_rank_with_wrong_sums_ends(tmp_path):
    pytest.importorskip("torch")
    from peers import rank_loop

    class Deaf:
        rank, size = 0, 2

        def single(self, tensor):
            return lambda: None

    with pytest.raises(SystemExit, match="wrong sums: size:8"):
        rank_loop.run(Deaf(), [str(tmp_path), "0.1", "50", "size:8"])


def test_ratios_are_paired_by_round(comparison):
    from peers import results

    own, other = (comparison.case(peer, 2, "4") for peer in ("hvdtune", "other"))
    assert own.median == pytest.approx(3e-6)  # the middle of 2 and 4
    assert own.p95 == pytest.approx(36e-6)
    assert own.mean == pytest.approx(11e-6)
    assert own.ratio == 1.0
    assert other.ratio == pytest.approx(1.5)
    # Measured in the fast round only: not compared with the slow one.
    assert comparison.case("slow", 2, "4").ratio == pytest.approx(2.0)
    assert results.paired_ratio([results.Turn(7, 1, 1.0)], own.turns) is None


def test_the_bound_is_the_allreduce_of_all_bytes(comparison):
    size = 1 << 20
    expected = 2 * size / 80e9 + 3 * size / 240e9
    assert comparison.bound(2, str(size)) == pytest.approx(expected)
    assert comparison.bound(2, str(size)) == pytest.approx(
        metrics.memory_bound_seconds("allreduce", size, 2, 80e9, 240e9)
    )
    assert comparison.bound(2, "4") is None
    assert comparison.case("other", 2, str(size)).share == pytest.approx(expected / 225e-6)


def test_the_bound_without_a_cache_has_the_rates_of_the_largest_arrays(comparison):
    size = 1 << 20
    assert comparison.bound_without_cache(2, str(size)) == comparison.bound(2, str(size))
    points = (*comparison.memory.points, MemoryPoint(64 << 20, 20e9, 60e9))
    comparison.memory = MemoryCurve(2, points)
    assert comparison.bound_without_cache(2, str(size)) == pytest.approx(
        metrics.memory_bound_seconds("allreduce", size, 2, 20e9, 60e9)
    )
    assert comparison.bound_without_cache(2, "4") is None


def test_the_page_has_the_figures_of_the_run_that_is_kept():
    """docs/performance.md, beside docs/compare.json: ratios and shares of all works."""
    from peers import results

    docs = BENCHMARKS.parent / "docs"
    kept = results.from_json(json.loads((docs / "compare.json").read_text()))
    section = (docs / "performance.md").read_text().split("## Beside other systems")[1]
    titles = {"tiny": "1000 x 256 floats"}
    for work, about in kept.works.items():
        title = titles.get(work, about["title"])
        row = next(line for line in section.splitlines() if line.startswith(f"| {title} | "))
        cells = [cell.strip() for cell in row.strip("| ").split(" | ")]
        for ranks, cell in zip((2, 4, 8), cells[2::2], strict=True):
            own, bound = kept.case(results.OWN, ranks, work), kept.bound(ranks, work)
            ratio = kept.best_peer(ranks, work)[1]
            expected = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"
            if bound is not None and work != "tiny":
                expected += f", {100 * bound / own.median:.0f} ({100 * bound / own.best:.0f}) %"
            assert cell == expected, f"{title}, np {ranks}"


def test_the_best_rates_of_several_measurements_count():
    from peers import results

    curves = [
        MemoryCurve(2, (MemoryPoint(4, 1.0, 9.0), MemoryPoint(8, 5.0, 2.0))),
        MemoryCurve(2, (MemoryPoint(4, 3.0, 8.0), MemoryPoint(8, 4.0, 7.0))),
    ]
    assert results.best_curve(curves).points == (MemoryPoint(4, 3.0, 9.0), MemoryPoint(8, 5.0, 7.0))


def test_the_best_peer_is_not_hvdtune(comparison):
    case, ratio = comparison.best_peer(2, "4")
    assert case.peer == "other"
    assert ratio == pytest.approx(1 / 1.5)
    assert comparison.best_peer(4, "4") is None


def test_json_and_back(comparison):
    import json

    from peers import report, results

    again = results.from_json(json.loads(json.dumps(comparison.to_json())))
    assert report.tables(again) == report.tables(comparison)
    assert report.summary(again) == report.summary(comparison)
    assert again.to_json() == comparison.to_json()


def test_tables(comparison):
    from peers import report

    lines = "\n".join(report.tables(comparison))
    assert "np 2" in lines
    assert "hvdtune              3.00 us     36.0 us      1.00 x         -" in lines
    assert "Other                4.50 us     6.00 us      1.50 x         -" in lines
    assert lines.count("bound") == 3  # the column's title; 1 MiB; the set; none for 4 B
    rows = report.summary(comparison)[-3:]
    assert [row.split() for row in rows] == [
        ["4", "B", "0.67", "x", "Other"],
        ["1", "MiB", "0.67", "x", "Other"],
        ["1000", "x", "256", "0.67", "x", "Other"],
    ]
    assert all(line == line.rstrip() for line in report.tables(comparison))


def test_a_comparison_without_figures_says_so(comparison):
    from peers import plot, report

    comparison.cases.clear()
    assert report.tables(comparison) == []
    assert report.summary(comparison) == ["nothing was measured"]
    ElementTree.fromstring(plot.svg(comparison))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.5e-7, "0.25 us"),
        (1.53e-6, "1.53 us"),
        (27.51e-6, "27.5 us"),
        (275e-6, "275 us"),
        (1.5e-3, "1.50 ms"),
        (1.06, "1060 ms"),
    ],
)
def test_durations(seconds, text):
    from peers import report

    assert report.duration(seconds) == text


def test_the_picture_is_one_self_contained_file(comparison):
    from peers import plot

    text = plot.svg(comparison)
    root = ElementTree.fromstring(text)
    words = "".join(root.itertext())
    assert "on 2 CPUs (Some CPU): time of a call" in words
    assert "2 ranks, one array" in words
    assert "2 ranks, one step's gradients" in words
    assert "Slow & co: 4.00 us" in words
    assert "href" not in text
    # hvdtune and Other at three works, Slow at one; three in the legend.
    assert text.count("<circle") == 2 * 3 + 1 + 3


def test_flags_say_what_they_accept(capsys):
    import compare

    args = compare.parse(["--quick", "--np", "4,2", "--peers", "gloo"])
    assert (args.np, args.rounds, args.seconds) == ((2, 4), 2, 0.2)
    assert [peer.key for peer in args.peers] == ["hvdtune", "gloo"]
    for flags, message in (
        (["--peers", "mpi"], "unknown peer 'mpi'; accepted: hvdtune, open-mpi"),
        (["--works", "vgg"], "'vgg' is not a size"),
        (["--np", "1"], "at least 2 ranks"),
        (["--rounds", "0"], "'0' is not a positive whole number"),
        (["--seconds", "-1"], "--seconds and --limit must be positive"),
    ):
        with pytest.raises(SystemExit):
            compare.parse(flags)
        assert message in capsys.readouterr().err


def test_a_failed_job_says_why(tmp_path):
    from peers import jobs
    from peers.systems import Start

    start = Start(("/bin/sh", "-c", "echo starting; echo the error: no network >&2; exit 3"))
    with pytest.raises(jobs.JobFailed, match="status 3: the error: no network"):
        jobs.run(start, 2, [], tmp_path, 30)
    with pytest.raises(jobs.JobFailed, match="cannot be started"):
        jobs.run(Start(("/nonexistent",)), 2, [], tmp_path, 30)


def test_a_job_that_hangs_leaves_no_process(tmp_path, monkeypatch):
    from peers import jobs
    from peers.systems import Start

    monkeypatch.setattr(jobs, "_GRACE", 0.1)
    # Both ignore the request to end, and the child is no longer its launcher's.
    rank = tmp_path / "rank"
    rank.write_text("trap '' TERM; while :; do sleep 0.05; done")
    launcher = tmp_path / "launcher"
    launcher.write_text(f"trap '' TERM; setsid /bin/sh {rank} $1 & wait")
    start = Start(("/bin/sh", str(launcher)))
    with pytest.raises(jobs.JobFailed, match=r"took longer than 1 s"):
        jobs.run(start, 2, [str(tmp_path)], tmp_path, 1)
    _await(lambda: not jobs._mentioning(str(tmp_path)))  # killed, and not gone yet


#: Makes two files in shared memory, maps one and keeps the other open.
_RANK = """
import mmap, pathlib, sys, time
folder, shared = map(pathlib.Path, sys.argv[1:])
opened = open(shared / "opened", "w+b")
with open(shared / "mapped", "w+b") as file:
    file.truncate(mmap.PAGESIZE)
    mapped = mmap.mmap(file.fileno(), 0)
(shared / "made by somebody else").touch()
(folder / "ready").touch()
while not (folder / "seen").exists():
    time.sleep(0.01)
sys.exit(3)
"""


def _await(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def job_with_memory(tmp_path, monkeypatch):
    """(how to start it, its folder, its shared memory), with a file there from before."""
    from peers import shared_memory
    from peers.systems import Start

    folder, shared, rank = tmp_path / "job", tmp_path / "shm", tmp_path / "rank.py"
    folder.mkdir()
    shared.mkdir()
    (shared / "from before").touch()
    rank.write_text(_RANK)
    monkeypatch.setattr(shared_memory, "FOLDER", shared)
    # Like a launcher of MPI: the rank is not the process that is started.
    script = f'{sys.executable} {rank} "$0" {shared} & wait $!'
    return Start(("/bin/sh", "-c", script)), folder, shared


@pytest.mark.parametrize("expected", ["JobFailed", "KeyboardInterrupt"])
def test_an_ended_job_leaves_no_shared_memory(job_with_memory, monkeypatch, expected):
    from peers import jobs

    start, folder, shared = job_with_memory
    error = {"JobFailed": jobs.JobFailed, "KeyboardInterrupt": KeyboardInterrupt}[expected]

    def wait(*ignored):
        _await((folder / "ready").exists)
        raise error

    monkeypatch.setattr(jobs, "_wait", wait)
    with pytest.raises(error):
        jobs.run(start, 2, [str(folder)], folder, 30)
    left = sorted(path.name for path in shared.iterdir())
    assert left == ["from before", "made by somebody else"]


def test_a_second_interruption_waits_for_the_end_of_the_job(job_with_memory, monkeypatch):
    from peers import jobs, shared_memory

    start, folder, shared = job_with_memory
    look = shared_memory.SharedMemory.look

    def interrupted(memory, job, *, last=False):
        signal.raise_signal(signal.SIGINT)
        look(memory, job, last=last)

    monkeypatch.setattr(shared_memory.SharedMemory, "look", interrupted)
    before = signal.getsignal(signal.SIGINT)

    def wait(*ignored):
        _await((folder / "ready").exists)
        raise jobs.JobFailed("took too long")

    monkeypatch.setattr(jobs, "_wait", wait)
    with pytest.raises(KeyboardInterrupt):
        jobs.run(start, 2, [str(folder)], folder, 30)
    assert signal.getsignal(signal.SIGINT) is before
    left = sorted(path.name for path in shared.iterdir())
    assert left == ["from before", "made by somebody else"]
    _await(lambda: not jobs._mentioning(str(folder)))


def test_an_interrupted_figure_is_no_figure(comparison, monkeypatch):
    from peers import results

    before = comparison.to_json()

    def interrupted(values):
        raise KeyboardInterrupt

    monkeypatch.setattr(results.np, "median", interrupted)
    collector = results.Collector(comparison)
    for peer in ("hvdtune", "new"):
        with pytest.raises(KeyboardInterrupt):
            collector.take(peer, 2, "4", 2, np.array([1.0]))
    collector.finish()
    assert comparison.to_json() == before


def test_a_job_that_fails_leaves_no_shared_memory(job_with_memory, monkeypatch):
    from peers import jobs, shared_memory

    start, folder, shared = job_with_memory
    look = shared_memory.SharedMemory.look

    def spied(memory, job, *, last=False):
        look(memory, job, last=last)
        if (folder / "ready").exists():
            (folder / "seen").touch()

    monkeypatch.setattr(shared_memory.SharedMemory, "look", spied)
    # Looks at unknown files end some time, which is not what this is about.
    monkeypatch.setattr(shared_memory, "_LOOKS", 1_000_000)
    with pytest.raises(jobs.JobFailed, match="status 3"):
        jobs.run(start, 2, [str(folder)], folder, 30)
    left = sorted(path.name for path in shared.iterdir())
    assert left == ["from before", "made by somebody else"]


def test_files_of_other_jobs_are_not_looked_at_for_ever(tmp_path, monkeypatch):
    from peers import shared_memory

    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    memory = shared_memory.SharedMemory()
    asked = []
    (tmp_path / "other").touch()
    for _ in range(20):
        memory.look(lambda: asked.append("again") or [])
    assert 1 <= len(asked) < 20
    memory.remove()
    assert (tmp_path / "other").exists()


def test_ranks_of_one_command_each_know_their_rank(tmp_path):
    from peers import jobs
    from peers.systems import Start

    start = Start(("/bin/sh", "-c", 'touch "$0/$RANK-of-$WORLD_SIZE"'), {"WORLD_SIZE": "3"}, True)
    jobs.run(start, 3, [str(tmp_path)], tmp_path, 30)
    assert sorted(path.name for path in tmp_path.glob("*-of-3")) == ["0-of-3", "1-of-3", "2-of-3"]


def test_the_line_that_says_most():
    from peers import environments

    assert (
        environments.reason("a\nERROR: no such package\nhint\n====\n") == "ERROR: no such package"
    )
    assert environments.reason("first\nlast\n===\n\n") == "last"
    # As pip without a network and a compiler say it.
    warned = "WARNING: Retrying after connection broken by NewConnectionError('...')\n"
    assert environments.reason(warned + "ERROR: No matching distribution") == (
        "ERROR: No matching distribution"
    )
    assert environments.reason("In function main:\nx.c:3:1: fatal error: mpi.h: No such file") == (
        "x.c:3:1: fatal error: mpi.h: No such file"
    )
    assert environments.reason("") == ""


@pytest.mark.parametrize("missing", ["venv", "ensurepip"])
def test_a_python_without_environments_says_what_to_install(tmp_path, monkeypatch, missing):
    from peers import environments

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else find(name)
    )
    package = f"python3.{sys.version_info.minor}-venv"
    with pytest.raises(
        environments.Unavailable, match=rf"no module {missing}; .*apt-get install {package}"
    ):
        environments.install(tmp_path / "peer", ["peer"])
    assert not (tmp_path / "peer").exists()


@pytest.mark.parametrize("fails", ["venv", "pip"])
def test_a_failed_installation_is_removed_and_tried_again(tmp_path, monkeypatch, fails):
    from peers import environments

    commands = []

    def run(command, seconds, environ=None):
        commands.append(command)
        (tmp_path / "peer").mkdir(exist_ok=True)
        if fails in command:
            raise environments.Unavailable("no network")
        return "Name: peer\nVersion: 1.2\n"

    monkeypatch.setattr(environments, "_run", run)
    with pytest.raises(environments.Unavailable, match="no network"):
        environments.install(tmp_path / "peer", ["peer", "peer-devel"])
    assert not (tmp_path / "peer").exists()

    fails = "nothing"
    assert environments.install(tmp_path / "peer", ["peer", "peer-devel"]) == "1.2"
    done = len(commands)
    assert environments.install(tmp_path / "peer", ["peer", "peer-devel"]) == "1.2"
    assert len(commands) == done  # used as it is
    assert environments.install(tmp_path / "peer", ["peer"]) == "1.2"
    assert len(commands) > done  # other requirements


def test_without_pypi_an_mpi_of_debian_is_used(tmp_path, monkeypatch):
    from peers import environments, systems

    compilers = []

    def install(folder, requirements):
        raise environments.Unavailable("no network")

    monkeypatch.setattr(environments, "install", install)
    monkeypatch.setattr(environments, "compile_mpi", lambda *args: compilers.append(args[0]))
    monkeypatch.setenv("PATH", str(tmp_path))
    peer = systems.all_peers()["mpich"]
    with pytest.raises(
        environments.Unavailable, match=r"no network .*apt-get install libmpich-dev"
    ):
        peer.prepare(tmp_path)
    for name in ("mpicc.mpich", "mpiexec.mpich"):
        (tmp_path / name).touch(0o755)
    peer.prepare(tmp_path)
    assert compilers == [str(tmp_path / "mpicc.mpich")]
    assert peer.start(2, 2).command[0] == str(tmp_path / "mpiexec.mpich")
    assert peer.version() == "of Debian"


def test_oversubscribed_ranks_get_the_settings_for_it():
    from peers import systems

    peers = systems.all_peers()
    assert "mpi_yield_when_idle" not in peers["open-mpi"].settings(2, 2)
    assert "mpi_yield_when_idle 1" in peers["open-mpi"].settings(4, 2)
    assert "MPIR_CVAR_CH4_PROGRESS_THROTTLE" in peers["mpich"].start(4, 2).environ
    assert "MPIR_CVAR_CH4_PROGRESS_THROTTLE" not in peers["mpich"].start(2, 2).environ
