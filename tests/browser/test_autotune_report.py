"""The page about an autotune log, opened in a browser. Skipped without playwright and Chromium."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.models.simulated_training import SimulatedSteps, short_cycle_is_best, tune
from support.tiers import EVERY

from hvdtune.autotune.report import log
from hvdtune.autotune.report import page as report
from hvdtune.autotune.search.tuner import TunerConfig

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = pytest.mark.long
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# The drawing is not wider than its place.
FITS = """at => {
  const plot = document.querySelectorAll('.js-plotly-plot')[at];
  const drawn = plot.querySelector('svg').getBoundingClientRect().width;
  return drawn <= plot.parentElement.clientWidth + 1;
}"""
HOROVODS_LOG = Path(__file__).parents[1] / "data" / "horovod-autotune.csv"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with sync_api.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def own_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run that began with a cycle of 100 ms has written."""
    path = tmp_path_factory.mktemp("log") / "log.csv"
    bad = {"fusion_threshold": 0, "cycle_time": 100.0, "chunk_size": 0}
    run = tune(SimulatedSteps(short_cycle_is_best), TunerConfig(max_samples=8), bad)
    writer = log.LogWriter(str(path), pytest.fail)
    for one in run.tuner.history:
        values = {**bad, **one.trial.values}
        writer.write(log.Row(values, one.sample, one.number, one.trial.phase, 0, one.trial.note))
    end = run.outcome
    number = len(run.tuner.history) + 1
    writer.write(
        log.Row({**bad, **end.values}, end.sample, number, "final", 0, end.verdict, accepted=True)
    )
    writer.close()
    return path


@pytest.mark.parametrize(
    ("width", "horovods"),
    product((1400, 390), (False, True)) if EVERY else [(1400, True), (390, False)],
)
def test_the_page_in_a_browser(
    browser: Any, own_log: Path, tmp_path: Path, width: int, horovods: bool
) -> None:
    target = tmp_path / "page.html"
    verdict = report.write(HOROVODS_LOG if horovods else own_log, target)
    page = browser.new_page(viewport={"width": width, "height": 900})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.on("request", lambda asked: problems.append(asked.url)
            if not asked.url.startswith("file:") else None)  # fmt: skip
    page.goto(target.as_uri())
    # Every figure is drawn once its last part, the layer for the pointer, is there.
    plots = page.locator(".js-plotly-plot")
    expected = 2 if horovods else 5  # samples, (surface,) slices, (comparison)
    assert plots.count() >= expected
    page.wait_for_function(
        "() => [...document.querySelectorAll('.js-plotly-plot')].every(p => p.querySelector('svg'))"
    )
    assert problems == []
    assert verdict in page.locator("p.verdict, p.note").first.inner_text()
    # Nothing sticks out, and nothing is too narrow to be read.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for at in range(plots.count()):
        box = plots.nth(at).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width + 1
        assert box["width"] > 200
        page.wait_for_function(FITS, arg=at)
    if not horovods:
        shown = page.locator("h3", has_text="Step time over")
        assert shown.count() == 1
        times = [float(row["step_time_ms"]) for row in log.read(own_log)]
        axis = page.evaluate(
            "(({type, range}) => ({type, range}))"
            "(document.querySelector('.js-plotly-plot')._fullLayout.yaxis)"
        )
        assert (axis["type"] == "log") == (math.log(max(times) / min(times)) > math.log(3))
        if axis["type"] == "log":  # in decades: what stands beside the points is there, too
            low, high = axis["range"]
            assert math.log10(min(times)) - 1 < low < high < math.log10(max(times)) + 1
    page.close()
