"""What launcher and agent say to each other, however it is cut, and what is no such thing."""

import random

import pytest

from hvdtune.launch.remote.frames import LONGEST, MARK, Frame, FrameError, FrameReader, Kind, encode

FRAMES = [
    Frame(Kind.START, 0, b"{}"),
    Frame(Kind.STDOUT, 3, b""),
    Frame(Kind.STDERR, 2**31, bytes(range(256)) * 5),
    Frame(Kind.EXIT, 1, b"-9"),
]
WHOLE = b"".join(encode(*frame) for frame in FRAMES)


def read(reader, data, cuts):
    found = []
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        found += reader.feed(data[begin:end])
    return found


@pytest.mark.parametrize("seed", range(20))
def test_frames_come_out_as_they_went_in(seed):
    chance = random.Random(seed)
    noise = chance.randbytes(chance.randrange(200)).replace(b"\0", b"x") + b"\0hvdtune"
    for data, reader in (
        (WHOLE, FrameReader()),
        (noise + MARK + WHOLE, FrameReader(after_mark=True)),
    ):
        cuts = sorted(chance.choices(range(len(data) + 1), k=chance.randrange(30)))
        assert read(reader, data, cuts) == FRAMES
    assert read(FrameReader(), WHOLE, range(1, len(WHOLE))) == FRAMES


def test_the_end_of_a_frame_is_awaited():
    reader = FrameReader()
    assert list(reader.feed(WHOLE[:-1])) == FRAMES[:-1]
    assert list(reader.feed(WHOLE[-1:])) == FRAMES[-1:]


@pytest.mark.parametrize(
    "data",
    [
        (LONGEST + 1).to_bytes(4, "big") + bytes([Kind.STDOUT]) + bytes(4),
        b"\xff" * 9,
        bytes(9),
        b"Permission denied, please try again.",
    ],
)
def test_what_is_no_frame(data):
    with pytest.raises(FrameError):
        list(FrameReader().feed(data))


def test_endless_noise_is_given_up():
    reader = FrameReader(after_mark=True)
    assert list(reader.feed(b"Welcome! " * 10_000)) == []
    with pytest.raises(FrameError, match="no mark"):
        list(reader.feed(b"Welcome! " * 1_000_000))
