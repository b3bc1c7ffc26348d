"""The skeleton of hvdtune's HTML pages: one file with everything in it, which needs no network.

A page is a list of pieces of HTML, made by the functions here. Figures are plotly's; `@name` in one
is the variable `--name` of page.css, so figures follow the page from light to dark. Knows nothing
else of hvdtune.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
#: The browser must not fetch anything, not even because of a mistake here.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
_TOO_OLD = (
    "The pictures need a browser with JavaScript (Chrome 80, Firefox 113, Safari 16.4 or later). "
    "The tables and sentences have the same numbers."
)


def page(title: str, body: Iterable[str]) -> str:
    """The whole page. `title` is text, the pieces of `body` are HTML; empty ones are left out."""
    pieces = [piece for piece in body if piece]
    drawn = any("data-figure=" in piece for piece in pieces)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f"<title>{escape(title)}</title>",
            f"<style>{_style()}</style></head><body>",
            '<button id="theme" type="button" hidden>Theme</button><main>',
            *pieces,
            "</main>",
            f'<script type="text/plain" id="plotly">{_plotly()}</script>' if drawn else "",
            f"<script>{_text('page.js')}</script>",
            "</body></html>",
        ]
    ) + "\n"  # fmt: skip


def figure(
    identifier: str,
    spec: dict[str, Any],
    *,
    height: int,
    says: str,
    heading: str = "",
    about: str = "",
    legend: Sequence[tuple[str, str]] = (),
    after: str = "",
    level: int = 2,
) -> str:
    """A picture with its heading and what it says.

    spec: `data` and `layout` for plotly.js, colours also as `@name`
    height: px
    says: what a reader should see in it, in a sentence; screen readers read it out
    about: how to read it
    legend: (text, colour's name) pairs, set above the picture
    after: HTML below the picture, such as a table with its numbers
    """
    chips = "".join(
        f'<li><span class="chip" style="background:var(--{escape(colour)})"></span>{escape(text)}'
        "</li>"
        for text, colour in legend
    )
    content = json.dumps(_finite(spec), separators=(",", ":"), allow_nan=False)
    content = content.replace("<", "\\u003c")
    name = escape(identifier)
    return "\n".join(
        [
            f'<figure class="card" id="{name}">',
            f"<h{level}>{escape(heading)}</h{level}>" if heading else "",
            f'<p class="says">{escape(says)}</p>' if says else "",
            f'<p class="about">{escape(about)}</p>' if about else "",
            f'<ul class="legend" aria-label="Colours">{chips}</ul>' if chips else "",
            f'<div class="plot" role="img" data-figure="{name}-data" style="height:{height}px" '
            f'aria-label="{escape(says or heading)}"><p class="undrawn">{_TOO_OLD}</p></div>',
            f'<script type="application/json" id="{name}-data">{content}</script>',
            after,
            "</figure>",
        ]
    )


def plotly_figure(drawn: Any, identifier: str, says: str = "") -> str:
    """A picture made with plotly's Python classes; its title becomes the heading."""
    spec = json.loads(drawn.to_json())
    layout = spec["layout"]
    layout.pop("template", None)
    title = layout.pop("title", {}).get("text", "")
    height = int(layout.pop("height", 420))
    # Every subplot keeps its own title: an annotation.
    return figure(identifier, spec, height=height, says=says or f"{title}.", heading=title)


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    caption: str,
    words: Sequence[int] = (0,),
    marked: Sequence[int] = (),
    summary: str = "",
    folds: str = "always",
) -> str:
    """A table that scrolls sideways on its own if the screen is narrow.

    words: columns that contain words, which are aligned left; the others are numbers
    marked: rows that are marked
    summary, folds: if given, the table is folded away under these words; see folded()
    """
    head_cells = "".join(
        f'<th scope="col"{_words(column, words)}>{escape(name)}</th>'
        for column, name in enumerate(head)
    )
    lines = []
    for number, row in enumerate(rows):
        cells = "".join(
            f"<td{_words(column, words)}>{escape(str(cell))}</td>"
            for column, cell in enumerate(row)
        )
        lines.append(f"<tr{' class=changed' if number in marked else ''}>{cells}</tr>")
    text = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><caption><span>{escape(caption)}</span></caption><thead><tr>{head_cells}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
    return folded(summary, text, folds) if summary else text


def folded(summary: str, content: str, folds: str = "always") -> str:
    """HTML folded under words that open it. `folds`: "always", or "narrow": on narrow screens."""
    kind = ' class="folds-if-narrow" open' if folds == "narrow" else ""
    return f"<details{kind}><summary>{escape(summary)}</summary>{content}</details>"


def paragraph(text: str, kind: str = "") -> str:
    """A sentence; `kind` is one of page.css's classes: verdict, note, bad, about."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A few figures side by side: what, and how much. A number stays beside its unit."""
    tiles = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(much).replace(' ', '&nbsp;')}</dd></div>"
        for what, much in pairs
    )
    return f'<dl class="facts">{tiles}</dl>'


def _words(column: int, words: Sequence[int]) -> str:
    return ' class="words"' if column in words else ""


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: plotly leaves a gap where the value is null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@cache
def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    """The dark colours apply in two cases: the system is dark, or the reader chose dark."""
    dark = _text("dark.css").strip()
    return (
        f"{_text('page.css')}\n@media (prefers-color-scheme: dark) "
        f"{{ :root:not([data-theme=light]) {{ {dark} }} }}\n"
        f":root[data-theme=dark] {{ {dark} }}"
    )


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    packed = gzip.compress(get_plotlyjs().encode(), 9, mtime=0)
    return base64.b64encode(packed).decode()
