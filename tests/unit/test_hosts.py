import socket

import pytest

from hvdtune.launch.allocation.hosts import (
    Host,
    assign_ranks,
    is_local,
    parse_hosts,
    read_hostfile,
)
from hvdtune.launch.errors import LaunchError


def places(slots):
    return [
        (s.hostname, s.rank, s.size, s.local_rank, s.local_size, s.cross_rank, s.cross_size)
        for s in slots
    ]


def test_hosts_in_the_order_given_with_blanks_around():
    assert parse_hosts("b-1.example:2, a:4") == [Host("b-1.example", 2), Host("a", 4)]


def test_a_repeated_host_is_one_host():
    assert parse_hosts("a:2,b:1,a:3") == [Host("a", 5), Host("b", 1)]


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":2", "a:b", "a:2,,b:1", "::1:2", "a:-1", "a:2:3", "-v:2"]
)
def test_entries_without_slots_are_named(text):
    with pytest.raises(LaunchError, match="name:slots"):
        parse_hosts(text)


def test_open_mpi_hostfile(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(
        "# two machines\n"
        "\n"
        "a slots=2 max_slots=4   # the big one\n"
        "b\n"
        "  c slots = 3\n"
        "d:2\n"
        "b\n"
        "a max-slots=9 slots=1\n"
    )
    assert read_hostfile(str(path)) == [Host("a", 3), Host("b", 2), Host("c", 3), Host("d", 2)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a slots=x", ["line 1", "'x'", "whole number"]),
        ("\na slotz=2", ["line 2", "'slotz=2'", "slots=N"]),
        ("a 2", ["line 1", "'2'"]),
        ("a/b slots=2", ["line 1", "'a/b'", "letters, digits, dots and dashes"]),
        ("a\n\n-oProxyCommand", ["line 3", "'-oProxyCommand'"]),
        ("# nothing\n", ["names no host"]),
    ],
)
def test_a_bad_hostfile_is_named_with_its_line(tmp_path, text, words):
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(LaunchError) as error:
        read_hostfile(str(path))
    for word in [str(path), *words]:
        assert word in str(error.value)


def test_a_missing_hostfile_is_named(tmp_path):
    with pytest.raises(LaunchError, match=r"none cannot be read: No such file"):
        read_hostfile(str(tmp_path / "none"))


def test_ranks_fill_hosts_in_order():
    slots = assign_ranks([Host("a", 2), Host("b", 1), Host("c", 3)], 5)
    assert places(slots) == [
        ("a", 0, 5, 0, 2, 0, 3),
        ("a", 1, 5, 1, 2, 0, 2),
        ("b", 2, 5, 0, 1, 1, 3),
        ("c", 3, 5, 0, 2, 2, 3),
        ("c", 4, 5, 1, 2, 1, 2),
    ]


def test_only_as_many_as_asked_for():
    assert places(assign_ranks([Host("a", 4), Host("b", 4)], 2)) == [
        ("a", 0, 2, 0, 2, 0, 1),
        ("a", 1, 2, 1, 2, 0, 1),
    ]


def test_every_assignment_is_consistent():
    hosts = [Host("a", 3), Host("b", 0), Host("c", 1), Host("d", 5)]
    for count in range(1, 10):
        slots = assign_ranks(hosts, count)
        assert [slot.rank for slot in slots] == list(range(count))
        for slot in slots:
            same_host = [s.local_rank for s in slots if s.hostname == slot.hostname]
            assert same_host == list(range(slot.local_size))
            same_local = [s.cross_rank for s in slots if s.local_rank == slot.local_rank]
            assert same_local == list(range(slot.cross_size))


def test_too_few_slots():
    with pytest.raises(LaunchError) as error:
        assign_ranks([Host("a", 2), Host("b", 1)], 4)
    assert "Requested more processes (4) than there are available slots (3)" in str(error.value)


def test_names_of_this_machine_are_local():
    for name in ("localhost", "127.0.0.1", socket.gethostname()):
        assert is_local(name)


def test_other_machines_are_not_local():
    # Documentation addresses: they belong to nobody.
    assert not is_local("192.0.2.1")
    assert not is_local("no-such-host.invalid")
