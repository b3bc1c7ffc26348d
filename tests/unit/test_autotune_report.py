"""The page about a log: what it shows, of whose log, and that it needs nothing else."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from support.models.simulated_training import short_cycle_is_best
from test_autotune_session import SimulatedEngine, session

from hvdtune.autotune.report import figures, log, page, runs
from hvdtune.autotune.report.surface import Axis
from hvdtune.cli.main import main

HOROVODS_LOG = Path(__file__).parents[1] / "data" / "horovod-autotune.csv"

MOVED = 3  # settings of the simulated engine; each has a figure, beside those of all together


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a finished run that found a gain."""
    path = tmp_path_factory.mktemp("report") / "log.csv"
    less = {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "20"}
    session(SimulatedEngine(short_cycle_is_best), path, less).run()
    return path


def divs(text: str) -> int:
    return text.count('class="plot"')


def test_a_page_with_everything_in_it(tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tuned.with_name("report.html")
    assert main(["autotune", "report", str(tuned), "-o", str(target)]) == 0
    last = log.read(tuned)[-1]
    assert f"{target}: {last['decision']}" in capsys.readouterr().out
    text = target.read_text()
    assert f'<p class="verdict">{last["decision"]}</p>' in text
    assert divs(text) == 3 + MOVED
    # Nothing is fetched: no tag of the page names another file.
    tags = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert not re.search(r"<(link|img|iframe)|\b(src|href)=", tags)
    assert not re.search(r"<script[^>]*\bsrc=", text)
    assert re.search(r'<tr class=changed><td class="words">cycle_time_ms</td><td>1</td>', text)
    assert "chunk_size_kb</td>" in text
    assert "nccl" not in tags  # what such a job does not have is not listed as 0
    assert "the verdict's margin also" in text or "the verdict&#x27;s margin also" in text


def test_the_figures_show_the_samples(tuned: Path) -> None:
    [run] = runs.read(tuned)
    rows = log.read(tuned)[:-1]
    assert run.adopted
    import plotly.graph_objects as go

    drawn = figures.in_order(run, go)
    points = sorted(
        (x, y, error)
        for trace in drawn.data
        for x, y, error in zip(trace.x, trace.y, trace.error_y.array, strict=True)
    )
    steps = [int(row["steps"]) for row in rows]
    assert points == [
        (sum(steps[:at]) + steps[at] / 2, float(row["step_time_ms"]),
         float(row["step_time_stderr_ms"]))
        for at, row in enumerate(rows)
    ]  # fmt: skip
    [end] = drawn.layout.shapes
    assert end.y0 == run.final.cost
    [adopted] = drawn.layout.annotations
    logarithmic = drawn.layout.yaxis.type == "log"
    assert adopted.y == (math.log10(run.final.cost) if logarithmic else run.final.cost)
    pairs = run.pairs()
    assert pairs
    assert all(candidate.settings == run.final.settings for candidate, _ in pairs)
    bars = figures.comparison(run, go).data[0].y
    assert all(bar < 0 for bar in bars)
    estimate = figures.mean_of(run)
    assert estimate.value + estimate.margin(0.99) < 0


@pytest.mark.parametrize("adopted", [True, False])
def test_the_pairs_that_decided_are_those_of_the_settings_adopted(adopted: bool) -> None:
    def pair(number: int, cycle: float) -> list[runs.Sample]:
        note = f"pair {number} of at most 30"
        return [
            runs.Sample(1, "confirm", {"cycle_time_ms": ms}, 10.0, decision=note)
            for ms in ((cycle, 1.0) if number % 2 else (1.0, cycle))
        ]

    samples = [one for number in (1, 2) for one in pair(number, 0.5)]
    samples += [one for number in (1, 2) for one in pair(number, 0.2)]
    final = runs.Sample(9, "final", {"cycle_time_ms": 0.5 if adopted else 1.0}, 10.0)
    pairs = runs.Run(samples, final, adopted).pairs()
    wanted = 0.5 if adopted else 0.2
    assert [one.settings["cycle_time_ms"] for one, _ in pairs] == [wanted] * 2


def test_the_surface_knows_what_matters(tuned: Path) -> None:
    [run] = runs.read(tuned)
    surface = figures._surface(run)
    influence = surface.influence()
    assert max(influence, key=influence.__getitem__) == "cycle_time_ms"
    slow, fast = ({**run.start, "cycle_time_ms": value} for value in (10.0, 0.2))
    [above, below], _ = surface.at([slow, fast])
    assert above > 0 > below


def test_horovods_own_log(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    assert "has no final row" in page.write(HOROVODS_LOG, target)
    assert divs(target.read_text()) == 2 + 4  # four settings were moved
    [run] = runs.read(HOROVODS_LOG)
    assert run.samples[0].cost == pytest.approx(1e3 / 44.0417)
    # Horovod repeats its best row when it is done.
    done = tmp_path / "done.csv"
    text = HOROVODS_LOG.read_text().rstrip("\n")
    done.write_text(f"{text}\n{text.splitlines()[-1]}\n")
    [run] = runs.read(done)
    assert len(run.samples) == 9
    assert run.final is not None
    assert run.final.settings["cycle_time_ms"] == 4.40589
    assert "best single sample" in page.write(done, target)


def test_a_log_without_samples_or_without_an_end(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tuned.read_text().splitlines(keepends=True)
    for count, words in ((1, "no samples yet"), (2, "has no final row"), (9, "has no final row")):
        path = tmp_path / f"{count}.csv"
        path.write_text("".join(lines[:count]))
        assert main(["autotune", "report", str(path)]) == 0
        assert words in capsys.readouterr().out
        assert "</html>" in path.with_suffix(".html").read_text()


def test_a_log_of_several_runs_has_a_section_for_each(tuned: Path, tmp_path: Path) -> None:
    header, *rows = tuned.read_text().splitlines(keepends=True)
    path = tmp_path / "log.csv"
    short = [*rows[:9], rows[-1]]
    path.write_text("".join([header, *short, *short]))
    page.write(path, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert text.index("Run 2 of 2") < text.index("Run 1 of 2")
    assert divs(text) == 2 * (2 + MOVED)  # there are no pairs in either


def test_whatever_a_log_says_is_text(tuned: Path, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    evil = "<script>alert(1)</script>"
    text = tuned.read_text()
    for told in ("2 remaining", "adopted:", "pairs 1 to"):
        assert told in text
        text = text.replace(told, f"{told} {evil}")
    path.write_text(text)
    page.write(path, tmp_path / "page.html")
    written = (tmp_path / "page.html").read_text()
    assert "&lt;script&gt;alert(1)" in written
    assert evil not in written


def test_unknown_times_are_left_out(tuned: Path, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = tuned.read_text().splitlines(keepends=True)
    at = rows[0].split(",").index("step_time_ms")
    fields = rows[8].split(",")
    fields[at] = "nan"
    path.write_text("".join([*rows[:8], ",".join(fields), *rows[9:]]))
    [run] = runs.read(path)
    assert run.samples[7].cost is None
    assert divs(page.page([run], "log.csv")) == 3 + MOVED


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        ("a,b\n1,2\n", 2, "line 1: this is not an autotune log"),
        (HOROVODS_LOG.read_text().replace("44.0417", "fast"), 2, "row 1: score is 'fast'"),
        (None, 1, "No such file or directory"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, content: str, status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.csv"
    if content is not None:
        path.write_text(content)
    assert main(["autotune", "report", str(path)]) == status
    error = capsys.readouterr().err
    assert error.startswith("hvdtune autotune: ")
    assert words in error
    assert error.count("\n") == 1
    assert not path.with_suffix(".html").exists()
    if content is not None:
        assert main(["autotune", "report", str(path), "-o", str(path)]) == 2
        assert "is the log itself" in capsys.readouterr().err
        assert path.read_text() == content


@pytest.mark.parametrize("values", [(0.0, 1.0, 256.0), (0.1, 25.0), (3.0, 4.0), (0.0, 1.0)])
def test_an_axis_runs_from_the_least_to_the_largest(values: tuple[float, ...]) -> None:
    axis = Axis("x", values)
    assert axis.place(min(values)) == 0
    assert axis.place(max(values)) == 1
    grid = axis.grid(5)
    assert grid == sorted(grid)
    assert [axis.place(value) for value in grid] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
