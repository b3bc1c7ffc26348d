"""The pages in a real, headless Chromium: drawn, legible, on a desk and on a phone, light and dark.

Screenshots go to HVDTUNE_TEST_ARTEFACTS, if that names a folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from support.recordings.synthetic_capture import Job, Late, Stall, Tensor, planted, recording
from support.tiers import EVERY
from viewers import artefact, change_colours, chromium

from hvdtune.timeline import api
from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.report import document

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = pytest.mark.long

MIXED = (
    *(Tensor(f"allreduce.encoder.layer{i}.weight", 2 ** (12 + i * 7 % 11)) for i in range(40)),
    *(Tensor(f"allgather.batch_norm{i}", 4096, "allgather") for i in range(2)),
)
JOBS = {
    "late": replace(planted()["late for a while"][0], tensors=MIXED, peak_gbps=12.0),
    "wide": Job(ranks=24, steps=120, noise=0.05, late=(Late(17, 0.01),)),
    "stalled": Job(steps=60, noise=0.01, stall=Stall(3, 50, 65.0)),
    "one-rank": Job(ranks=1, steps=20),
}
SCREENS = {"desk": (1400, 900), "phone": (390, 844)}
# All on both with HVDTUNE_TEST_LONG=1.
SHOWN = [("late", "desk"), ("wide", "phone"), ("stalled", "phone"), ("horovod", "desk")]
#: WCAG 2.1 level AA: 4.5 for text, 3 for large text.
CONTRAST, LARGE_CONTRAST, LARGE = 4.5, 3.0, 24.0
SMALLEST_TEXT = 11.0  # px

# Every text that is seen, with its size, its colour and the background that it stands on.
TEXTS = """() => {
  const parse = (text) => {
    const found = text.match(/[\\d.]+/g);
    return found ? found.map(Number) : [0, 0, 0, 0];
  };
  const opaque = (c) => c.length < 4 || c[3] === 1;
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const c = parse(getComputedStyle(at).backgroundColor);
      if (opaque(c)) return c;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || node.closest('script, style')) continue;
    const box = node.getBoundingClientRect();
    const style = getComputedStyle(node);
    if (!box.width || !box.height || style.visibility === 'hidden') continue;
    const svg = node.closest('svg');
    let ground = behind(node);
    const bar = node.closest('g.point');
    if (bar) ground = parse(getComputedStyle(bar.querySelector('path')).fill);
    found.push({
      text: walker.currentNode.textContent.trim().slice(0, 60),
      size: parseFloat(style.fontSize), bold: Number(style.fontWeight) >= 600,
      colour: parse(svg ? style.fill : style.color), ground,
    });
  }
  return found;
}"""

# What is wider than the screen, unless it scrolls by itself.
TOO_WIDE = """() => [...document.querySelectorAll('body *')].filter((node) => {
  const box = node.getBoundingClientRect();
  return box.width && (box.right > window.innerWidth + 1 || box.left < -1)
    && !node.closest('.scroll table') && !node.closest('svg') && !node.closest('pre');
}).map((node) => node.tagName + '.' + node.className)"""

# What the text of a picture is cut off by its frame.
CUT_OFF = """() => [...document.querySelectorAll('.plot')].flatMap((plot) => {
  const frame = plot.getBoundingClientRect();
  return [...plot.querySelectorAll('svg text')].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.width && (box.left < frame.left - 1 || box.right > frame.right + 1);
  }).map((text) => plot.dataset.figure + ': ' + text.textContent);
})"""

# The shapes that a picture shows.
SHAPES = """() => Object.fromEntries([...document.querySelectorAll('.plot')].map((plot) => [
  plot.dataset.figure,
  [...plot.querySelectorAll('.plot-container path, .plot-container image, .plot-container canvas')]
    .filter((shape) => {
      const box = shape.getBoundingClientRect();
      return box.width > 1 || box.height > 1;
    })
    .filter((shape) => shape.closest('.trace, .hm, .imagelayer, .scatterlayer, .barlayer')).length,
]))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = chromium()
    with playwright.sync_playwright() as started:
        # The sandbox needs rights that containers do not give.
        found = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name, job in JOBS.items():
        analysis = analyse(recording(job))
        made[name] = folder / f"{name}.html"
        numbers = document.numbers_of(analysis, findings(analysis))
        made[name].write_text(api.page(numbers), encoding="utf-8")
    made["horovod"] = folder / "horovod.html"
    source = Path(__file__).parents[1] / "data" / "horovod-timeline.json"
    made["horovod"].write_text(api.page(api.document([source])), encoding="utf-8")
    return made


class Shown:
    """A page in a browser, and what the browser had to say about it."""

    def __init__(self, browser: Any, path: Path, screen: str, scheme: str) -> None:
        width, height = SCREENS[screen]
        self.context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            is_mobile=screen == "phone",
            has_touch=screen == "phone",
        )
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]", timeout=60_000)
        self.name, self.scheme = f"{path.stem}-{screen}", scheme

    def change_to(self, scheme: str) -> None:
        """The colours that the system asks for."""
        if scheme != self.scheme:
            change_colours(self.page, scheme)
            self.scheme = scheme

    def screenshot(self) -> None:
        target = artefact(f"report-{self.name}-{self.scheme}.png")
        if target is not None:
            self.page.screenshot(path=target, full_page=True)


@pytest.fixture
def show(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    opened: list[Shown] = []

    def open_page(name: str, screen: str, scheme: str = "light") -> Shown:
        opened.append(Shown(browser, pages[name], screen, scheme))
        return opened[-1]

    yield open_page
    for one in opened:
        one.context.close()


def contrast(one: list[float], other: list[float]) -> float:
    """WCAG 2.1's ratio of two sRGB colours, 0..255."""

    def luminance(colour: list[float]) -> float:
        linear = [
            c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
            for c in (value / 255 for value in colour[:3])
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_contrast_is_computed_as_the_standard_says() -> None:
    assert contrast([0, 0, 0], [255, 255, 255]) == pytest.approx(21)
    assert contrast([119, 119, 119], [255, 255, 255]) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(
    ("name", "screen"), product((*JOBS, "horovod"), SCREENS) if EVERY else SHOWN
)
def test_a_page_is_drawn_and_legible(show: Any, name: str, screen: str) -> None:
    shown = show(name, screen)
    for scheme in ("light", "dark"):
        shown.change_to(scheme)
        shown.screenshot()
        check_shown(shown, SCREENS[screen][0])


def check_shown(shown: Shown, width: int) -> None:
    page = shown.page
    assert shown.said == []
    assert [url for url in shown.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    shapes = page.evaluate(SHAPES)
    assert shapes
    assert min(shapes.values()) > 0, shapes
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(TOO_WIDE) == []
    assert page.evaluate(CUT_OFF) == []
    texts = page.evaluate(TEXTS)
    assert len(texts) > 30
    small = [one for one in texts if one["size"] < SMALLEST_TEXT]
    assert small == []
    faint = []
    for one in texts:
        needed = LARGE_CONTRAST if one["size"] >= LARGE else CONTRAST
        ratio = contrast(one["colour"], one["ground"])
        if ratio < needed:
            faint.append((one["text"], round(ratio, 2), one["colour"], one["ground"]))
    assert faint == []


def test_the_button_switches_the_colours_of_page_and_pictures(show: Any) -> None:
    page = show("late", "desk").page
    look = (
        "() => [getComputedStyle(document.body).backgroundColor, "
        "getComputedStyle(document.querySelector('#waterfall .point path')).fill]"
    )
    assert page.locator("details.folds-if-narrow table").is_visible()
    light = page.evaluate(look)
    page.get_by_role("button", name="Switch to dark colours").click()
    page.wait_for_function(
        "fill => getComputedStyle(document.querySelector('#waterfall .point path')).fill !== fill",
        arg=light[1],
    )
    dark = page.evaluate(look)
    assert contrast(colour(light[0]), colour(dark[0])) > 10
    assert dark == show("late", "desk", "dark").page.evaluate(look)


def colour(text: str) -> list[float]:
    return [float(part) for part in text[text.index("(") + 1 : -1].split(",")]


def test_everything_can_be_reached_and_read_out(show: Any) -> None:
    page = show("late", "phone").page
    plots = page.locator(".plot[role=img]")
    assert plots.count() == page.locator("figure").count() > 4
    for at in range(plots.count()):
        assert len(plots.nth(at).get_attribute("aria-label")) > 20
    # Headings go down one level at a time, and the verdict comes first.
    levels = page.evaluate(
        "() => [...document.querySelectorAll('h1, h2, h3')].map((h) => Number(h.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    assert page.locator("main > section").first.get_attribute("aria-label") == "Verdict"
    # Tables that are folded away open with the keyboard.
    summary = page.locator("#waterfall summary")
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("#waterfall table").is_visible()
    # On a phone long tables are folded away, too.
    settings = page.locator("details.folds-if-narrow")
    assert not settings.locator("table").is_visible()
    settings.locator("summary").click()
    assert settings.locator("table").is_visible()
    assert page.evaluate(TOO_WIDE) == []


def test_without_scripts_the_numbers_are_still_there(browser: Any, pages: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(pages["late"].as_uri())
    assert page.locator(".sentence").is_visible()
    assert page.get_by_text("The tables and sentences have the same numbers").first.is_visible()
    page.locator("#waterfall summary").click()
    assert page.locator("#waterfall table").is_visible()
    assert page.locator("details.folds-if-narrow table").is_visible()
    context.close()
