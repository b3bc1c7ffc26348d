"""The skeleton of the HTML pages: nothing is fetched, everything is escaped."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re

from hvdtune import pages

SPEC = {"data": [{"type": "bar", "x": [1, math.nan], "y": ["</script>", "b"]}], "layout": {}}


def test_a_page_holds_plotly_compressed_and_only_where_it_is_drawn() -> None:
    from plotly.offline import get_plotlyjs

    drawn = pages.figure("one", SPEC, height=100, says="Bars.")
    text = pages.page("a <title>", ["<h1>Hello</h1>", "", drawn])
    packed = re.search(r'<script type="text/plain" id="plotly">([^<]+)</script>', text)
    assert packed
    assert gzip.decompress(base64.b64decode(packed[1])).decode() == get_plotlyjs()
    assert len(text) < 3_000_000
    assert "<title>a &lt;title&gt;</title>" in text
    assert len(pages.page("plain", ["<p>no picture</p>"])) < 30_000


def test_nothing_of_a_page_names_another_file() -> None:
    text = pages.page("page", [pages.figure("one", SPEC, height=100, says="Bars.")])
    tags = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert not re.search(r"<(link|img|iframe)|\b(src|href)=|url\(|@import", tags)
    assert not re.search(r"<script[^>]*\bsrc=", text)
    assert "default-src 'none'" in text


def test_a_figure_cannot_break_out_of_its_script() -> None:
    text = pages.figure("one", SPEC, height=100, says='"quoted" <b>', legend=[("a<b", "series-1")])
    content = re.search(r'<script type="application/json" id="one-data">(.*?)</script>', text, re.S)
    assert content
    assert json.loads(content[1])["data"][0] == {
        "type": "bar", "x": [1, None], "y": ["</script>", "b"],
    }  # fmt: skip
    assert 'aria-label="&quot;quoted&quot; &lt;b&gt;"' in text
    assert "a&lt;b" in text


def test_tables_mark_words_and_rows() -> None:
    text = pages.table(("name", "n"), [("<x>", 1), ("y", 2)], caption="Things", marked=[1])
    assert '<td class="words">&lt;x&gt;</td><td>1</td>' in text
    assert '<tr class=changed><td class="words">y</td>' in text
    assert 'role="region" aria-label="Things"' in text
    assert pages.table(("a",), [], caption="c", summary="Open").startswith("<details><summary>Open")
    open_at_first = pages.table(("a",), [], caption="c", summary="Open", folds="narrow")
    assert open_at_first.startswith('<details class="folds-if-narrow" open><summary>Open')


def test_dark_colours_define_every_colour_that_light_ones_do() -> None:
    def names(text: str) -> set[str]:
        return set(re.findall(r"(--[a-z0-9-]+):", text))

    light = names(pages._text("page.css").partition("}")[0])
    assert light == names(pages._text("dark.css"))
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", pages._text("page.css")))
    assert used <= light
