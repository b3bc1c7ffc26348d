"""`hvdtune report`: the numbers, the text, the page, and what it answers to files it cannot use."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.recordings import synthetic_capture
from support.recordings.synthetic_capture import (
    Job,
    Late,
    Tensor,
    recording,
    tensors,
    write_capture,
)

from hvdtune.cli.main import main
from hvdtune.timeline import api, words
from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.analysis.answers import PARTS
from hvdtune.timeline.report import comparison, comparison_text, document, figures, strips
from hvdtune.timeline.viewers.merge import write_view

HOROVOD = Path(__file__).parents[1] / "data" / "horovod-timeline.json"
PLANTED = synthetic_capture.planted()
LATE = replace(PLANTED["late for a while"][0], peak_gbps=12.0)


def numbers_of(job: Job) -> dict[str, Any]:
    analysis = analyse(recording(job))
    return document.numbers_of(analysis, findings(analysis))


@pytest.fixture(scope="module")
def late() -> dict[str, Any]:
    return numbers_of(LATE)


def test_the_document_is_json_and_begins_with_the_best_finding(late: dict[str, Any]) -> None:
    assert json.loads(json.dumps(late, allow_nan=False)) == late
    assert late["verdict"] == late["findings"][0]
    gains = [one["gain"] for one in late["findings"]]
    assert gains == sorted(gains, reverse=True)
    assert "ank 1" in late["verdict"]["sentence"]


def test_parts_sum_to_the_step(late: dict[str, Any]) -> None:
    found = late["waterfall"]
    assert [part["name"] for part in found["parts"]] == list(PARTS)
    for bar in (found["typical"], found["mean"], *found["ranks"]):
        assert sum(bar["parts_s"].values()) == pytest.approx(bar["step_s"], rel=1e-6)
    assert [bar["rank"] for bar in found["ranks"]] == [0, 1, 2, 3]
    # Rank 1 was late in 21 of the 100 steps: that is in the mean, not in the typical step.
    assert found["typical"]["parts_s"]["skew_wait_s"] < 0.001
    assert found["mean"]["parts_s"]["skew_wait_s"] == pytest.approx(0.75 * 0.21 * 0.030, rel=0.2)


def test_the_heat_map_shows_who_was_late_and_when(late: dict[str, Any]) -> None:
    found = late["lateness"]
    cells = np.array(found["late_ms"], float)
    firsts = np.array([first for first, _ in found["steps"]])
    during = (firsts >= 40) & (firsts <= 60)
    assert found["ranks"][1] == [1, 1]
    assert cells[1, during].min() > 25
    assert cells[1, ~during].max() < 10
    assert np.delete(cells, 1, axis=0).max() < 10
    assert 25 < found["most_ms"] < 40


def test_the_strips_are_a_typical_and_a_bad_step(late: dict[str, Any]) -> None:
    typical, bad = late["strips"]
    assert (typical["kind"], bad["kind"]) == ("typical", "bad")
    assert 40 <= bad["step"] <= 60
    assert not 40 <= typical["step"] <= 60
    assert bad["duration_s"] > 1.8 * typical["duration_s"]
    for strip in (typical, bad):
        assert [lanes["rank"] for lanes in strip["ranks"]] == [0, 1, 2, 3]
        for lanes in strip["ranks"]:
            compute, blocked = (
                sum(b - a for a, b in lanes[name]) for name in ("compute", "blocked")
            )
            edges = lanes["compute"] + lanes["blocked"]
            whole = max(b for _, b in edges) - min(a for a, _ in edges)
            assert compute + blocked == pytest.approx(whole, rel=0.01)
            assert min(a for a, _ in edges) >= 0
            assert max(b for _, b in edges) <= strip["length_ms"] + 0.01
    blocked = [sum(b - a for a, b in lanes["blocked"]) for lanes in bad["ranks"]]
    assert blocked[1] < 5 < 25 < min(blocked[0], blocked[2], blocked[3])


def test_many_short_spans_are_drawn_as_one() -> None:
    job = Job(ranks=2, steps=6, tensors=tensors(700, 4096), cycle=0.0, threshold=0, backward=0.1)
    strip = strips.strips(analyse(recording(job)))[0]
    for lanes in strip["ranks"]:
        assert 0 < len(lanes["communication"]) <= 2 * strips.MOST_SPANS


def test_fusion_counts_every_batch_once(late: dict[str, Any]) -> None:
    found = late["fusion"]
    assert sum(map(sum, found["histogram"].values())) == found["batches"]
    assert set(found["histogram"]) >= {"cycle", "blocked"}


def test_bins_of_the_fusion_histogram() -> None:
    job = Job(ranks=2, steps=10, tensors=tensors(5, 4096), overlap=False)
    found = numbers_of(job)["fusion"]
    # 5 tensors at once: one batch a step, in the bin of 5 to 8.
    assert found["bins"] == ["1", "2", "3-4", "5-8"]
    assert [sum(column) for column in zip(*found["histogram"].values(), strict=True)] == [
        0,
        0,
        0,
        10,
    ]


def test_the_roofline_bounds_every_batch(late: dict[str, Any]) -> None:
    assert late["roof"] == {"peak_gbps": 12.0, "measured": True}
    xs, ys = np.array(late["roofline"]).T
    for point in late["points"]:
        bound = np.exp(np.interp(np.log(point["bytes"]), np.log(xs), np.log(ys)))
        assert point["busbw_gbps"] <= bound * 1.001


def test_points_of_an_allgather_are_of_its_whole_result() -> None:
    own = (Tensor("allgather.x", 1 << 20, kind="allgather"),)
    numbers = numbers_of(Job(ranks=4, steps=10, tensors=own))
    [size] = numbers["sizes"]
    assert {one["bytes"] for one in numbers["points"]} == {4 << 20}
    busbw = float(np.median([one["busbw_gbps"] for one in numbers["points"]]))
    assert busbw == pytest.approx(size["busbw_gbps"], rel=1e-3)


def test_settings_that_are_not_the_default_come_first() -> None:
    found = numbers_of(PLANTED["cycle 50 ms"][0])["settings"]
    assert found[0]["name"] == "HOROVOD_CYCLE_TIME"
    assert found[0]["changed"]
    assert not any(one["changed"] for one in found[1:])
    assert not any(one["moved"] for one in found)


def test_settings_without_a_value_are_the_default() -> None:
    whole = recording(PLANTED["cycle 50 ms"][0])
    for one in whole.ranks.values():
        one.identity.settings.update(HOROVOD_AUTOTUNE_LOG=None, HOROVOD_THREAD_AFFINITY=[])
    analysis = analyse(whole)
    rows = document.numbers_of(analysis, findings(analysis))["settings"]
    assert [one["name"] for one in rows if one["changed"]] == ["HOROVOD_CYCLE_TIME"]
    assert not any(one["moved"] for one in rows)


@pytest.mark.long
def test_a_large_recording_makes_a_small_page() -> None:
    job = Job(ranks=80, steps=200, tensors=tensors(4), noise=0.05)
    numbers = numbers_of(job)
    cells = sum(len(row) for row in numbers["lateness"]["late_ms"])
    assert cells <= document.MOST_CELLS
    assert len(numbers["lateness"]["ranks"]) <= document.MOST_ROWS
    # Every rank and step is in some cell.
    ranks = [r for first, last in numbers["lateness"]["ranks"] for r in range(first, last + 1)]
    assert ranks == list(range(80))
    assert len(numbers["waterfall"]["ranks"]) == document.MOST_BARS
    assert numbers["waterfall"]["left_out"] == 80 - document.MOST_BARS
    assert all(len(strip["ranks"]) == strips.MOST_RANKS for strip in numbers["strips"])
    assert len(json.dumps(numbers)) < 1_000_000
    assert len(api.page(numbers)) < 4_000_000


def test_every_figure_is_one_that_plotly_accepts(late: dict[str, Any]) -> None:
    import plotly.graph_objects as go

    def coloured(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: coloured(one) for key, one in value.items()}
        if isinstance(value, list):
            return [coloured(one) for one in value]
        return "#123456" if isinstance(value, str) and value.startswith("@") else value

    made = [figure(late)[0] for figure in (
        figures.waterfall, figures.lateness, figures.fusion,
        figures.sizes, figures.steps,
    )]  # fmt: skip
    made += [figures.strip(one)[0] for one in late["strips"]]
    for spec in made:
        assert go.Figure(coloured(spec)).data  # raises ValueError for what it does not know


def test_text_and_page_say_the_same_first(late: dict[str, Any]) -> None:
    text, page = api.text(late), api.page(late)
    sentence = late["verdict"]["sentence"]
    flat = " ".join(text.split())
    assert flat.startswith(f"Verdict: {sentence} Next: {late['verdict']['action']}")
    main_part = page[page.index("<main>") :]
    assert 0 < main_part.index(sentence) < main_part.index("<figure")
    for finding in late["findings"][1:]:
        assert finding["sentence"] in flat
    order = ["waterfall", "lateness", "strip-typical", "strip-bad", "steps", "fusion", "sizes"]
    assert re.findall(r'<figure class="card" id="([^"]+)"', page) == order
    assert len(page) < 6_000_000


def test_whatever_names_hold_is_text() -> None:
    evil = '</script><img src=x onerror="alert(1)">'
    job = Job(ranks=2, steps=8, tensors=(Tensor(f"allreduce.{evil}", 4096),), id=evil)
    page = api.page(numbers_of(job))
    assert "<img" not in page
    # The only closing tags of scripts are the page's own.
    assert page.count("</script>") == page.count("<script")


def test_a_job_of_one_rank_and_one_without_steps() -> None:
    alone = numbers_of(Job(ranks=1, steps=10))
    assert "A typical step" in api.page(alone)
    assert "strip-typical" in api.page(alone)
    assert "lateness" not in re.findall(r'<figure class="card" id="([^"]+)"', api.page(alone))
    assert api.text(alone).startswith("Verdict: ")
    empty = numbers_of(Job(ranks=2, steps=0))
    json.dumps(empty, allow_nan=False)
    for shown in (api.text(empty), api.page(empty)):
        assert "No training step was recognised" in shown


def test_only_some_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_capture(Job(ranks=4, steps=10), tmp_path)
    (tmp_path / "t.rank1.json").unlink()
    (tmp_path / "t.rank3.json").unlink()
    assert main(["report", str(path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "No recording of ranks 1, 3 (of 4) was found" in text
    assert "hvdtune timeline merge" in text


def test_a_recording_that_still_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_capture(Job(ranks=2, steps=30), tmp_path, records=64)
    for file in (path, tmp_path / "t.rank1.json"):
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(lines[: len(lines) // 2]).rstrip(",\n") + "\n]")
    assert main(["report", str(path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "The recording of ranks 0, 1 is incomplete: the job is still running" in text
    assert "Ranks 0, 1: the recording has no end" in text
    assert text.count("has no end") == 1
    assert "steps in" in text


def test_files_of_all_ranks_can_be_given_one_by_one(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    path = write_capture(Job(ranks=2, steps=10), first)
    other = (first / "t.rank1.json").rename(second / "t.rank1.json")
    assert api.document([path, other])["job"]["recorded"] == [0, 1]
    assert api.document([path])["job"]["recorded"] == [0]


def test_json_has_the_numbers_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_capture(replace(LATE, steps=60), tmp_path, "t.json.gz")
    target = tmp_path / "page.html"
    assert main(["report", str(path), "--json", "-o", str(target)]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert api.page(numbers) == target.read_text(encoding="utf-8")
    assert numbers["source"] == str(path)
    assert main(["report", str(path), "-o", str(target)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{target}: {numbers['verdict']['sentence']}")
    assert shown.count("\n") == 1


def test_horovods_own_timeline_gives_a_limited_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(HOROVOD)]) == 0
    text = capsys.readouterr().out
    assert "Verdict: ranks wait for each other" in text
    assert "a start proves nothing about a rank" in " ".join(text.split())
    assert "no waterfall" in text
    assert "until a tensor is in its cache" in text
    # hvdtune marks every step in this layout: it is not said of its files.
    content = HOROVOD.read_text().replace('"E"', '"E", "args": {"batch": 1}')
    (tmp_path / "ours.json").write_text(content)
    numbers = api.document([str(tmp_path / "ours.json")])
    assert numbers["kind"] == "horovod"
    assert len(numbers["missing"]) == 2
    assert main(["report", str(HOROVOD), "--json", "-o", str(tmp_path / "page.html")]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["kind"] == "horovod"
    assert numbers["lateness"][0]["rank"] == 1
    page = (tmp_path / "page.html").read_text()
    assert "Horovod's timeline" in page.replace("&#x27;", "'")
    assert 'data-figure="lateness-data"' in page


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["gone.json"], 1, "gone.json: No such file or directory."),
        (["empty.json"], 2, "empty.json is empty: nothing was recorded"),
        (["text.json"], 2, "text.json is not a timeline"),
        (["kineto.json"], 2, "contains no operation of hvdtune or Horovod"),
        (["view.json"], 2, "view.json shows some steps of a recording in trace viewers"),
        (["t.json", "kineto.json"], 2, "kineto.json is not a recording made by hvdtune"),
        (["t.json", "t.json"], 2, "rank 0 is in"),
        (["t.json", "other.json"], 2, "they do not belong together"),
        (["t.json", "-o", "t.json"], 2, "--output t.json would replace an input file"),
        (["t.json", "-o", "no/where.html"], 2, "no/where.html cannot be written: there is no"),
        (["t.json", "--json", "--text"], 2, "exclude each other"),
    ],
)
def test_mistakes_get_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_capture(Job(ranks=1, steps=5), tmp_path)
    write_capture(Job(ranks=1, steps=5, id="another"), tmp_path, "other.json")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "text.json").write_text("Dear reader,\n")
    kernel = {"ph": "X", "name": "gemm", "cat": "kernel", "ts": 1, "dur": 5, "pid": 0, "tid": 7}
    (tmp_path / "kineto.json").write_text(json.dumps({"traceEvents": [kernel]}))
    write_view("t.json", "view.json", (1, 3))
    assert main(["report", *arguments]) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert sentence in shown.err
    assert shown.err.startswith("hvdtune report: ")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0314, "31.4 ms"), (2.5, "2.50 s"), (7.2e-6, "7.20 µs"), (0.0, "0 µs"), (None, "-"),
     (float("nan"), "-"), (0.9999e-3, "1.00 ms"), (180.0, "3.0 min"), (-0.002, "-2.00 ms")],
)  # fmt: skip
def test_times_in_words(value: float | None, text: str) -> None:
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0314, "31.4"), (12.3e-6, "0.0123"), (9.996e-6, "0.0100"), (4.4e-6, "0.004"),
     (-3.9e-6, "-0.004"), (0.6e-6, "0.001"), (0.4e-6, "0"), (0.0, "0"), (None, "-")],
)  # fmt: skip
def test_a_column_of_milliseconds_knows_microseconds(value: float | None, text: str) -> None:
    assert words.milliseconds(value) == text


def test_ranks_in_words() -> None:
    assert words.ranks([3]) == "rank 3"
    assert words.ranks([0, 1, 2, 5, 7, 8]) == "ranks 0-2, 5, 7, 8"
    assert words.size(128 << 20) == "128 MiB"
    assert words.size(100) == "100 B"
    assert words.percent(0.0213) == "2.1 %"
    assert words.percent(0.479) == "48 %"
    assert words.number(12000, "step") == "12\u202f000 steps"


@pytest.mark.parametrize(
    ("count", "text"),
    [(1023, "1023 B"), (1024, "1 KiB"), (1_000_000, "977 KiB"), (1023 << 10, "1023 KiB"),
     (1_048_000, "1023 KiB"), (1_048_500, "1 MiB"), (5 << 40, "5 TiB"), (None, "-")],
)  # fmt: skip
def test_sizes_in_words(count: int | None, text: str) -> None:
    assert words.size(count) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(3.21e9, "3.21 GB/s"), (1e12, "1000 GB/s"), (12.5e6, "12.5 MB/s"), (999_700, "1.00 MB/s"),
     (7.0, "7 B/s"), (float("nan"), "-")],
)  # fmt: skip
def test_bandwidths_in_words(rate: float, text: str) -> None:
    assert words.bandwidth(rate) == text


@pytest.mark.parametrize("name", PLANTED)
def test_sizes_count_in_1024_and_bandwidths_in_1000(name: str) -> None:
    jobs = [replace(job, steps=12) for job in PLANTED[name]]
    jobs[0] = replace(jobs[0], framework="")
    bad, good = (analyse(recording(job)) for job in jobs)
    numbers = document.numbers_of(bad, findings(bad))
    shown = [
        api.text(numbers),
        api.text(document.numbers_of(good, findings(good))),
        comparison_text.text(comparison.compare(bad, good)),
        re.sub(r"<script.*?</script>", "", api.page(numbers), flags=re.DOTALL),
    ]
    for text in shown:
        assert not re.findall(r"\d (?:[kMGT]B\b(?!/s)|[KMGT]iB/s)", text)
        assert re.search(r"\d [KMG]iB\b", text)


def test_a_rank_late_throughout_is_named_in_text_and_waterfall() -> None:
    numbers = numbers_of(Job(ranks=4, steps=30, noise=0.01, late=(Late(2, 0.030),)))
    found = numbers["waterfall"]
    by_rank = {bar["rank"]: bar["parts_s"] for bar in found["ranks"]}
    assert by_rank[2]["compute_s"] - by_rank[0]["compute_s"] == pytest.approx(0.030, rel=0.1)
    assert by_rank[0]["skew_wait_s"] == pytest.approx(0.030, rel=0.15)
    text = " ".join(api.text(numbers).split())
    assert "Late ranks: Rank 2 (host0) is late throughout" in text


def test_ranks_that_are_late_together_are_named_together() -> None:
    late = (Late(2, 0.030), Late(3, 0.030))
    numbers = numbers_of(Job(ranks=4, steps=30, noise=0.01, local_size=2, late=late))
    text = " ".join(api.text(numbers).split())
    assert re.search(
        r"Late ranks: Ranks 2, 3 are late together: [23]\d(\.\d)? ms in a typical", text
    )
    noise = " ".join(api.text(numbers_of(Job(ranks=4, steps=30, noise=0.3))).split())
    assert "together" not in noise


def test_a_notebook_gets_data_frames(tmp_path: Path, late: dict[str, Any]) -> None:
    job = api.read(write_capture(LATE, tmp_path))
    found = job.findings()
    assert found["sentence"].tolist() == [one["sentence"] for one in late["findings"]]
    assert found["gain"].tolist() == pytest.approx([one["gain"] for one in late["findings"]])
    assert (found["at_least"] <= found["gain"]).all()
    waterfall = job.waterfall()
    assert waterfall[list(PARTS)].sum(axis=1).to_numpy() == pytest.approx(waterfall["step_s"])
    assert len(job.steps()) == len(waterfall)
    assert 1 in job.stragglers()["rank"].tolist()
    for answer in (job.batches, job.sizes, job.tensors):
        assert len(answer())
    assert {"rank", "step"} <= set(job.phases().columns)
    # What a caller does with a frame is his affair alone.
    waterfall["step_s"] = 0.0
    assert (job.waterfall()["step_s"] > 0).all()


def test_a_notebook_is_told_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(api.TimelineError, match="not a recording made by hvdtune"):
        api.read(HOROVOD)
    with pytest.raises(api.TimelineError, match="no file was given"):
        api.read()
    with pytest.raises(OSError, match=r"none\.json"):
        api.read(tmp_path / "none.json")
