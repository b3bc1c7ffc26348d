"""No page cuts anything off, on screens of 400 to 1400 pixels; nor the narrowest and the widest in
the dark.

Screenshots of these go to HVDTUNE_TEST_ARTEFACTS, if that names a folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.models.simulated_training import SimulatedSteps, short_cycle_is_best, tune
from support.recordings.synthetic_capture import Job, Late, Tensor, recording
from support.tiers import EVERY
from viewers import artefact, change_colours, chromium

from hvdtune.autotune.report import log
from hvdtune.autotune.report import page as autotune_report
from hvdtune.autotune.search.tuner import TunerConfig
from hvdtune.bench.memory import MemoryCurve, MemoryPoint
from hvdtune.bench.metrics import Summary
from hvdtune.bench.report import page as bench_page
from hvdtune.bench.report import results
from hvdtune.timeline import api
from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.report import document

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.long

WIDTHS = (400, 500, 640, 768, 900, 1024, 1280, 1400)
DATA = Path(__file__).parents[1] / "data"
MIB = 1 << 20
LONG_NAME = "allreduce.model.module.encoder.layers.{}.self_attention.output_projection.weight_g"
LONG_HOST = "worker-{}-a-rather-long-name.training-cluster.eu-central-2.compute.example.internal"

# Every element whose content is wider than itself and is cut off or runs over its edge, but for
# those that scroll sideways; and every line of text that sticks out of a card, a tile or the page.
CUT_OFF = """() => {
  const name = (node) => node.tagName + '.' + node.className + ': '
    + node.textContent.trim().slice(0, 60);
  const scrolls = (node) => ['auto', 'scroll'].includes(getComputedStyle(node).overflowX);
  const found = [];
  if (document.documentElement.scrollWidth > window.innerWidth) found.push('the page scrolls');
  for (const node of document.querySelectorAll('body *')) {
    if (node.closest('svg, .plot') || !node.clientWidth || scrolls(node)) continue;
    if (node.scrollWidth > node.clientWidth + 1) found.push('wide: ' + name(node));
  }
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode, node = text.parentElement;
    if (!text.textContent.trim()) continue;
    if (node.closest('script, style, svg, .plot, .scroll, pre')) continue;
    const box = (node.closest('.facts div, .card, main') || document.body).getBoundingClientRect();
    const range = document.createRange();
    range.selectNodeContents(text);
    for (const line of range.getClientRects()) {
      if (line.right > box.right + 1 || line.left < box.left - 1) found.push('out: ' + name(node));
    }
  }
  for (const plot of document.querySelectorAll('.plot')) {
    const frame = plot.getBoundingClientRect();
    for (const text of plot.querySelectorAll('svg text')) {
      const box = text.getBoundingClientRect();
      if (box.width && (box.left < frame.left - 1 || box.right > frame.right + 1)) {
        found.push(plot.dataset.figure + ': ' + text.textContent);
      }
    }
  }
  return found;
}"""
# The pictures have taken the width that there is for them.
SETTLED = """() => [...document.querySelectorAll('.plot')].every((plot) => {
  const drawn = plot.querySelector('svg.main-svg');
  return drawn && Math.abs(drawn.getBoundingClientRect().width - plot.clientWidth) <= 1;
})"""
UNFOLD = "() => document.querySelectorAll('details').forEach((one) => { one.open = true; })"


def report_page(job: Job, host: str = "") -> str:
    made = recording(job)
    if host:
        for rank, one in made.ranks.items():
            named = replace(one.identity, host=host.format(rank // job.local_size))
            made.ranks[rank] = replace(one, identity=named)
    analysis = analyse(made)
    return api.page(document.numbers_of(analysis, findings(analysis)))


def autotune_page(folder: Path) -> str:
    """What a run that began with a cycle of 100 ms has written."""
    bad = {"fusion_threshold": 0, "cycle_time": 100.0, "chunk_size": 0}
    run = tune(SimulatedSteps(short_cycle_is_best), TunerConfig(max_samples=8), bad)
    writer = log.LogWriter(str(folder / "log.csv"), pytest.fail)
    for one in run.tuner.history:
        values = {**bad, **one.trial.values}
        writer.write(log.Row(values, one.sample, one.number, one.trial.phase, 0, one.trial.note))
    end, number = run.outcome, len(run.tuner.history) + 1
    final = {**bad, **end.values}
    writer.write(log.Row(final, end.sample, number, "final", 0, end.verdict, accepted=True))
    writer.close()
    autotune_report.write(folder / "log.csv", folder / "autotune.html")
    return (folder / "autotune.html").read_text(encoding="utf-8")


def write_bench_page(target: Path) -> None:
    curve = MemoryCurve(2, (MemoryPoint(MIB, 40e9, 120e9), MemoryPoint(64 * MIB, 15e9, 50e9)))
    sweep, works = [], []
    for power in range(2, 27, 3):
        seconds = 2e-5 + 2**power / 4e9
        time = Summary(20, seconds, 0.9 * seconds, seconds, 1.5 * seconds)
        case = results.measurement("allreduce", 2**power, 8, time, 0, curve)
        count = max(1, 2**power // 4)
        row = ("allreduce", 2**power, count, "float32", "sum", -1, case, case)
        sweep.append(results.SweepRow(*row))
    for title in ("ResNet-50", "A model of a considerably longer name than the others have"):
        works.append(results.WorkloadRow("resnet50", title, 161, 1 << 24, 1 << 26, "float32", case))
    made = results.Report(8, 2, memory=curve, sweep=sweep, workloads=works)
    made.advice = f"start it with HOROVOD_CYCLE_TIME=0.31 {'and so on ' * 20}"
    made.notes.append(f"this machine was busy: {'x' * 150}")
    heading = [f"hvdtune bench on {LONG_HOST.format(0)}", "8 ranks on 2 CPUs"]
    bench_page.write_html(made, heading, target)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    names = tuple(Tensor(LONG_NAME.format(i), 2 ** (12 + i % 9)) for i in range(24))
    made = {
        # Steps of 740 µs to 2.8 ms or so: the widest of what stands in a tile.
        "short-steps": report_page(
            Job(
                steps=60,
                forward=3e-4,
                backward=2e-4,
                optimizer=1e-4,
                noise=2.0,
                tensors=(Tensor("t", 4096),),
            )
        ),
        "long-names": report_page(
            Job(ranks=16, steps=40, tensors=names, late=(Late(11, 0.01),), noise=0.05),
            LONG_HOST,
        ),
        "one-rank": report_page(Job(ranks=1, steps=20)),
        "horovod": api.page(api.document([DATA / "horovod-timeline.json"])),
        "autotune": autotune_page(folder),
    }
    paths = {name: folder / f"{name}.html" for name in made}
    for name, text in made.items():
        paths[name].write_text(text, encoding="utf-8")
    paths["horovods-autotune"] = folder / "horovods-autotune.html"
    autotune_report.write(DATA / "horovod-autotune.csv", paths["horovods-autotune"])
    paths["bench"] = folder / "bench.html"
    write_bench_page(paths["bench"])
    return paths


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = chromium()
    with playwright.sync_playwright() as started:
        # The sandbox needs rights that containers do not give.
        found = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.mark.parametrize(
    "name",
    [
        *("short-steps", "long-names", "one-rank", "horovod"),
        *("autotune", "bench"),
        *(["horovods-autotune"] if EVERY else []),
    ],
)
def test_nothing_is_cut_off(browser: Any, pages: dict[str, Path], name: str) -> None:
    edges = (WIDTHS[0], WIDTHS[-1])
    turns = [*((w, "light") for w in WIDTHS), *((w, "dark") for w in edges[::-1])]
    context = browser.new_context(viewport={"width": 400, "height": 900}, color_scheme="light")
    page = context.new_page()
    try:
        page.goto(pages[name].as_uri())
        page.wait_for_selector("html[data-ready]", timeout=60_000)
        faults = {}
        for width, scheme in turns:
            if (width, scheme) == (edges[1], "dark"):
                change_colours(page, scheme)
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate(UNFOLD)
            page.wait_for_function(SETTLED, timeout=60_000)
            if found := page.evaluate(CUT_OFF):
                faults[width, scheme] = found
            target = artefact(f"width-{name}-{width}-{scheme}.png")
            if target is not None and width in edges:
                page.screenshot(path=target, full_page=True)
        assert faults == {}
    finally:
        context.close()


def test_a_tile_that_is_cut_off_is_seen(browser: Any, pages: dict[str, Path]) -> None:
    """What the pages had before: one line in a tile, however wide."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    try:
        page.goto(pages["short-steps"].as_uri())
        page.wait_for_selector("html[data-ready]", timeout=60_000)
        page.add_style_tag(
            content=".facts dd { white-space: pre !important; overflow-wrap: normal }"
        )
        assert any("–" in fault for fault in page.evaluate(CUT_OFF))
    finally:
        context.close()
