from __future__ import annotations

import pytest

from hvdtune import _native
from hvdtune.core.driver.changes import HostUpdateResult
from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.elastic.discovery import MOST_SLOTS, difference, ordered, parse
from hvdtune.launch.errors import LaunchError


@pytest.mark.parametrize(
    ("output", "hosts"),
    [
        ("", []),
        ("\n\n  \n", []),
        ("b:2\na:4\n", [("b", 2), ("a", 4)]),
        ("b:2\r\na:4\r\n", [("b", 2), ("a", 4)]),
        ("  a:2  \t\n# all of them\nb:3 # the big one", [("a", 2), ("b", 3)]),
        ("a : 2", [("a", 2)]),
        ("node-1.example.org slots=8", [("node-1.example.org", 8)]),
        ("a slots = 2\nb\tslots=3", [("a", 2), ("b", 3)]),
        ("a\nb:3", [("a", 1), ("b", 3)]),
        ("a:0\nb:1", [("a", 0), ("b", 1)]),
        ("a:2\nb:1\na:2", [("a", 2), ("b", 1)]),
        ("a\na:1", [("a", 1)]),
        ("10.0.0.1:2", [("10.0.0.1", 2)]),
        ("[fe80::1]:2", [("fe80::1", 2)]),
        ("[fe80::1%eth0] slots=2", [("fe80::1%eth0", 2)]),
        ("fe80::1:2", [("fe80::1:2", 1)]),  # an address, which ends in 2
        ("[::1]", [("::1", 1)]),
    ],
)
def test_what_a_script_prints(output: str, hosts):
    assert parse(output) == [Host(*pair) for pair in hosts]


def test_slots_of_hosts_without_slots():
    assert parse("a\nb:1\n[::1]\nc:0", 4) == [
        Host("a", 4),
        Host("b", 1),
        Host("::1", 4),
        Host("c", 0),
    ]


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("a:1\nx:y:z", ["line 2", "'x:y:z'", "node1:4"]),
        ("a b:4", ["line 1", "'a b:4'"]),
        ("a:", ["'a:'"]),
        (":4", ["':4'"]),
        ("a:-1", ["'a:-1'"]),
        ("a:two", ["'a:two'"]),
        ("a:٣", ["'a:٣'"]),
        ("-oProxyCommand=x:1", ["'-oProxyCommand=x'"]),
        ("a slots=", ["'a slots='"]),
        ("a slots=1 max_slots=2", ["max_slots"]),
        ("[a]:2", ["'[a]:2'"]),
        ("[::1:2", ["'[::1:2'"]),
        ("a;b", ["'a;b'"]),
        ("a:1\nb:2\na:3", ["a twice", "1 and with 3"]),
        ("a:65", ["'a:65'", "at most 64"]),
        ("a:99999999999999999999", ["line 1"]),
        ("Traceback (most recent call last):\n  File", ["line 1", "'Traceback"]),
        ("\x00\x01", ["line 1", r"\x00"]),
        ("x" * 10_000 + " y", ["line 1", "x" * 60 + "…"]),
    ],
)
def test_what_no_script_should_print(output: str, words):
    with pytest.raises(LaunchError) as caught:
        parse(output)
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "\n" not in text
    assert len(text) < 300


def test_ten_thousand_hosts():
    hosts = parse("".join(f"node{index}:2\n" for index in range(10_000)))
    assert hosts[9_999] == Host("node9999", 2)
    assert ordered(["node5", "gone"], hosts)[:2] == [Host("node5", 2), Host("node0", 2)]


def test_the_most_slots_are_those_the_engine_connects():
    assert MOST_SLOTS == _native.MAX_RANKS_PER_HOST


def test_hosts_known_before_come_first_in_their_order():
    found = [Host(name, 1) for name in "dcb"]
    assert [host.name for host in ordered("abc", found)] == ["b", "c", "d"]
    assert [host.name for host in ordered((), found)] == ["d", "c", "b"]


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("a2", "a2", HostUpdateResult.no_update),
        ("a2 b1", "b1 a2", HostUpdateResult.no_update),
        ("a2", "a2 b1", HostUpdateResult.added),
        ("a2", "a3", HostUpdateResult.added),
        ("a2", "a2 b0", HostUpdateResult.added),
        ("a2", "a1", HostUpdateResult.removed),
        ("a2 b1", "b1", HostUpdateResult.removed),
        ("a2", "a0", HostUpdateResult.removed),
        ("b0", "", HostUpdateResult.removed),
        ("a2", "b2", HostUpdateResult.mixed),
        ("a2 b1", "a1 b2", HostUpdateResult.mixed),
    ],
)
def test_what_happened_between_two_answers(before: str, after: str, change: HostUpdateResult):
    first, second = (
        [Host(word[0], int(word[1:])) for word in text.split()] for text in (before, after)
    )
    assert difference(first, second) == change
