import random

import pytest

from hvdtune.launch.local.output import LinePrefixer


def prefixed(chunks):
    lines = LinePrefixer(lambda: b"[0]:")
    return [lines.feed(chunk) for chunk in chunks] + [lines.finish()]


@pytest.mark.parametrize(
    ("chunks", "wanted"),
    [
        ([b"one\ntwo\n"], [b"[0]:one\n[0]:two\n", b""]),
        ([b"on", b"e\ntw", b"o\n"], [b"", b"[0]:one\n", b"[0]:two\n", b""]),
        ([b"no end"], [b"", b"[0]:no end"]),
        ([b"\n\n"], [b"[0]:\n[0]:\n", b""]),
        # A progress bar shows at once, piece by piece.
        ([b"1%\r2%\r", b"3%\r"], [b"[0]:1%\r[0]:2%\r", b"[0]:3%\r", b""]),
        ([b"a\r\nb\r\n"], [b"[0]:a\r\n[0]:b\r\n", b""]),
        # "\r\n" cut in the middle is still one end of a line.
        ([b"a\r", b"\nb\n"], [b"[0]:a\r", b"\n[0]:b\n", b""]),
        ([b"a\r", b"\n", b"\n"], [b"[0]:a\r", b"\n", b"[0]:\n", b""]),
        ([b"a\rb", b"\n"], [b"[0]:a\r", b"[0]:b\n", b""]),
        (["h\u00e9\n".encode()[:2], "h\u00e9\n".encode()[2:]], [b"", b"[0]:h\xc3\xa9\n", b""]),
        ([b"\xff\xfe\n"], [b"[0]:\xff\xfe\n", b""]),
    ],
)
def test_lines_are_prefixed_when_they_are_complete(chunks, wanted):
    assert prefixed(chunks) == wanted


def test_cutting_the_stream_anywhere_changes_nothing():
    rng = random.Random(7)
    for _ in range(300):
        text = bytes(rng.choice(b"ab\n\r") for _ in range(rng.randrange(40)))
        chunks, rest = [], text
        while rest:
            cut = rng.randrange(1, len(rest) + 1)
            chunks.append(rest[:cut])
            rest = rest[cut:]
        assert b"".join(prefixed(chunks)) == b"".join(prefixed([text])), (text, chunks)


def test_nothing_but_prefixes_is_added():
    rng = random.Random(8)
    for _ in range(300):
        text = bytes(rng.choice(b"ab\n\r") for _ in range(rng.randrange(40)))
        assert b"".join(prefixed([text])).replace(b"[0]:", b"") == text
