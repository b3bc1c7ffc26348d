"""What makes a job elastic, on the command line, in a file and in `hvdtune.run`: taken or refused.

And what discovery scripts may do: whatever it is, one sentence is the worst that follows.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs.launcher import launch, start
from support.jobs.ranks import clean_environment

import hvdtune
from hvdtune.cli.main import main
from hvdtune.launch import start as starting
from hvdtune.launch.elastic.limits import Limits
from hvdtune.launch.remote.interfaces import FLAG

MEMBER = Path(__file__).parents[1] / "rank_programs" / "elastic_member.py"
DONE = json.dumps(
    {"at": None, "do": "member.say('finished'); raise SystemExit", "seconds": 0.1}
)  # fmt: skip


@pytest.fixture
def asked(monkeypatch, capsys):
    """What a command line asks for, with what is said of it; nothing is started."""

    def ask(*words: str):
        requests = []
        monkeypatch.setattr(starting, "start", lambda request: requests.append(request) or 0)
        try:
            status = main(["run", *words])
        except SystemExit as end:
            status = end.code
        said = capsys.readouterr().err
        return (requests[0] if requests else None), status, said

    return ask


# ---- the command line --------------------------------------------------------------------------


def test_all_flags(asked):
    request, status, said = asked(
        "-np", "4", "--min-np", "2", "--max-np", "8", "--slots-per-host", "3",
        "--elastic-timeout", "20", "--reset-limit", "7", "--blacklist-cooldown-range", "1", "9",
        "--host-discovery-script", "./hosts --all", "--spares", "1", "--replace-failed",
        "--health-check-script", "nvidia-smi", "--start-timeout", "11",
        "--replace-stragglers", "90", "true",
    )  # fmt: skip
    assert (status, said) == (0, "")
    options, limits, heartbeat = request.elastic
    assert limits == Limits(4, 2, 8, 7, 20.0, 11.0, 1, True, 90)
    assert (options.slots, options.cooldown, options.script) == (3, (1, 9), "./hosts --all")
    assert (options.health_check, heartbeat) == ("nvidia-smi", 5.0)
    assert request.hosts == []
    assert request.environment["HOROVOD_ELASTIC_TIMEOUT"] == "20.0"


def test_other_names(asked):
    request, status, _ = asked(
        "--num-proc", "2", "--min-num-proc", "1", "--max-num-proc", "3", "--slots", "4",
        "--host-discovery-script", "x", "true",
    )  # fmt: skip
    assert status == 0
    assert request.elastic.limits[:3] == (2, 1, 3)
    assert request.elastic.options.slots == 4


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-np", "3", "--host-discovery-script", "x"], (3, 3, None)),
        (["--min-np", "2", "--host-discovery-script", "x"], (2, 2, None)),
        (["-np", "3", "--min-np", "2", "-H", "localhost:4"], (3, 2, None)),
        (["--min-np", "2"], (2, 2, None)),
    ],
)
def test_numbers_that_are_not_given(asked, words, expected):
    request, status, said = asked(*words, "true")
    assert (status, said) == (0, "")
    assert request.elastic.limits[:3] == expected


def test_timeouts_of_the_environment(asked, monkeypatch):
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "33")
    monkeypatch.setenv("HVDTUNE_ELASTIC_HEARTBEAT", "7")
    request, _, _ = asked("-np", "2", "--min-np", "2", "true")
    assert request.elastic.limits.elastic_timeout == 33
    assert request.elastic.heartbeat == 7


SCRIPT = ["--host-discovery-script", "x"]
MISTAKES = [
    (["-np", "2", "--max-np", "4"], "--max-np is for elastic jobs: also give --min-np or"),
    (["-np", "4", "--min-np", "2", "--max-np", "3"], "--max-np 3 is less than the 4 processes"),
    (["-np", "2", "--min-np", "3"], "-np 2 is less than --min-np 3"),
    (["-np", "2", "--min-np", "0"], "--min-np: '0' is not accepted: give a whole number, 1 or"),
    (["-np", "2", "--min-np", "x"], "--min-np: 'x' is not accepted: give a whole number, 1 or"),
    (["-np", "2", "--max-np", "-1", *SCRIPT], "--max-np: '-1' is not accepted"),
    (["-np", "2", "--slots", "0", *SCRIPT], "--slots: '0' is not accepted"),
    (["-np", "2", "--reset-limit", "-1", *SCRIPT], "--reset-limit: '-1' is not accepted"),
    (["-np", "2", "--elastic-timeout", "0", *SCRIPT], "--elastic-timeout is '0'"),
    (["-np", "2", "--spares", "1", *SCRIPT], "--spares needs --max-np"),
    (["-np", "2", "--host-discovery-script", " "], "' ' is not accepted: give a command"),
    (["-np", "2", "--blacklist-cooldown-range", "5", "2", *SCRIPT], "5 2 is not accepted"),
    (["-np", "2", "--blacklist-cooldown-range", "0", "2", *SCRIPT], "from 1 to 3600"),
    (["-np", "2", "--blacklist-cooldown-range", "1", "3601", *SCRIPT], "from 1 to 3600"),
    (["-np", "2", "--blacklist-cooldown-range", "1", *SCRIPT], "expected 2 arguments"),
    (["-np", "2", "-H", "localhost:2", *SCRIPT], "leave out -H and --hostfile"),
    (["-np", "2", "--mpi", *SCRIPT], "leave out --mpi"),
    (["-np", "2", "--jsrun", *SCRIPT], "leave out --jsrun"),
    (SCRIPT, "give the number of processes"),
]


@pytest.mark.parametrize(("words", "expected"), MISTAKES)
def test_a_mistake_is_one_sentence(asked, words, expected):
    request, status, said = asked(*words, "true")
    assert (request, status) == (None, 2)
    assert said.startswith("hvdtune run: ")
    assert said.count("\n") == 1
    assert expected in said


def test_a_heartbeat_that_nobody_keeps(asked, monkeypatch):
    monkeypatch.setenv("HVDTUNE_ELASTIC_HEARTBEAT", "1")
    request, status, said = asked("-np", "2", *SCRIPT, "true")
    assert (request, status) == (None, 2)
    assert "HVDTUNE_ELASTIC_HEARTBEAT is 1, which is not accepted: give 2 or more" in said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--reset-limit", "3"], "--reset-limit has no effect: neither --min-np nor"),
        (["--min-np", "1", "--slots", "3"], "--slots has no effect: no script prints the hosts"),
    ],
)
def test_what_has_no_effect_is_said(asked, words, expected):
    request, status, said = asked("-np", "2", *words, "true")
    assert status == 0
    assert (request.elastic is not None) == ("--min-np" in words)
    assert expected in said


def test_an_elastic_job_may_grow_beyond_one_host(asked):
    flags = ["-np", "2", "--min-np", "1", "--tcp", "--hierarchical-allreduce"]
    assert asked(*flags, "-H", "localhost:2,far1:2", "true")[1:] == (0, "")
    _, status, said = asked(*flags, "-H", "localhost:2", "true")
    assert status == 0
    assert said.count("has no effect: all ranks are on one host") == 2


def test_interfaces_by_flag_or_variable(asked, monkeypatch):
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "ib0, eth0")
    job = ["-np", "2", "--min-np", "1"]
    for flags, found, setting in (
        (SCRIPT, ["ib0", "eth0"], "HOROVOD_GLOO_IFACE"),
        (["-H", "localhost:2,far1:2"], ["ib0", "eth0"], "HOROVOD_GLOO_IFACE"),
        ([*SCRIPT, "--network-interface", "lo"], ["lo"], "--network-interfaces"),
        (["-H", "localhost:2"], [], "HOROVOD_GLOO_IFACE"),
    ):
        request, status, said = asked(*job, *flags, "true")
        assert (status, said) == (0, "")
        assert request.interfaces == (found, setting)


@pytest.mark.parametrize(
    ("hosts", "flags", "variable", "setting"),
    [
        ("localhost:2,far1.invalid:2", [], "eth77", "HOROVOD_GLOO_IFACE"),
        ("far1.invalid:2,localhost:2", [FLAG, "eth77"], "lo", FLAG),
    ],
)
def test_an_interface_is_for_hosts_too_that_an_elastic_job_uses_later(
    tmp_path, hosts, flags, variable, setting
):
    words = ["run", "-np", "2", "--min-np", "1", "-H", hosts, *flags, "true"]
    ended = launch(tmp_path, words, env={"HOROVOD_GLOO_IFACE": variable})
    assert (ended.status, ended.stdout) == (2, "")
    beginning = f"hvdtune run: {setting}: this host has no interface 'eth77'; it has "
    assert ended.stderr.startswith(beginning)
    assert ended.stderr.count("\n") == 1


def test_fixed_hosts_with_too_few_slots(tmp_path):
    ended = launch(tmp_path, ["run", "-np", "4", "--min-np", "2", "-H", "localhost:3", "true"])
    assert ended.status == 2
    assert "Requested more processes (4) than there are available slots (3)" in ended.stderr


def test_help_and_dry_run(tmp_path):
    said = launch(tmp_path, ["run", "--help"]).stdout
    for flag in ("--min-np", "--max-num-proc", "--slots", "--elastic-timeout", "--spares"):
        assert flag in said
    words = ["run", "-np", "2", "--dry-run"]
    script = ["--host-discovery-script", "./d 'x'", "--cycle-time-ms", "7"]
    ended = launch(tmp_path, [*words, *script, "A=1", "python", "t.py"])
    *comments, command = ended.stdout.splitlines()
    assert comments == [
        "# elastic: starts with 2 slots, goes on with 2, uses all there are",
        "# hosts, every second: ./d 'x'",
    ]
    assert command.startswith("env ")
    assert command.endswith(" python t.py")
    assert {"A=1", "HOROVOD_CYCLE_TIME=7.0", "HOROVOD_ELASTIC=1"} <= set(command.split())
    ended = launch(tmp_path, [*words, "--min-np", "1", "--max-np", "3", "-H", "localhost:4", "t"])
    lines = ended.stdout.splitlines()
    assert lines[0] == "# elastic: starts with 2 slots, goes on with 1, uses 3 at most"
    assert [line.split()[0] for line in lines[1:]] == ["env"] * 3
    assert all("HOROVOD_ELASTIC=1" in line and line.endswith(" t") for line in lines[1:])


# ---- the file ----------------------------------------------------------------------------------

FILE = """\
elastic:
  min-np: 2
  max_num_proc: 6
  slots: 2
  elastic-timeout: 44
  heartbeat: 9
  reset-limit: 3
  blacklist-cooldown-range: [2, 4]
  host-discovery-script: ./hosts
  health-check-script: ./check
  spares: 1
  replace-failed: true
  replace-stragglers: 90
"""


def test_a_config_file(asked, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(FILE)
    request, status, said = asked("--config-file", str(path), "-np", "3", "true")
    assert (status, said) == (0, "")
    options, limits, heartbeat = request.elastic
    assert limits == Limits(3, 2, 6, 3, 44.0, 30.0, 1, True, 90)
    assert (options.slots, options.cooldown, options.script) == (2, (2, 4), "./hosts")
    assert (options.health_check, heartbeat) == ("./check", 9.0)
    request, _, _ = asked("--config-file", str(path), "-np", "3", "--max-np", "5", "true")
    assert request.elastic.limits.most == 5


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        ("min-np: two", 2, "elastic.min_np in {}: 'two' is not accepted: give a whole number"),
        ("min-np: 0", 2, "elastic.min_np in {}: 0 is not accepted"),
        ("min-np: true", 2, "elastic.min_np in {}: True is not accepted"),
        ("blacklist-cooldown-range: 3", 2, "3 is not accepted: give two numbers of seconds"),
        ("blacklist-cooldown-range: [1, 2, 3]", 2, "give two numbers of seconds"),
        ("blacklist-cooldown-range: [9, 2]", 2, "9 2 is not accepted"),
        ("replace-stragglers: true", 2, "True is not accepted: give a whole number, 1 or more"),
        ("replace-failed: maybe", 2, "'maybe' is not accepted: give true or false"),
        ("host-discovery-script: [a]", 2, "['a'] is not accepted: give a command"),
        ("max-np: 4", 2, "elastic.max_np is for elastic jobs"),
        ("min-nq: 4", 0, "elastic.min_nq is no known setting; did you mean elastic.min_np?"),
        ("elastic-timeout: soon", 2, "elastic.elastic_timeout in {} is 'soon'"),
    ],
)
def test_mistakes_of_a_config_file(asked, tmp_path, text, status, expected):
    path = tmp_path / "c.yaml"
    path.write_text(f"elastic:\n  {text}\n")
    _, ended, said = asked("--config-file", str(path), "-np", "2", "true")
    assert ended == status
    assert said.count("\n") == 1
    assert expected.format(path) in said


def test_hvdtune_config_takes_the_section(tmp_path, capsys):
    path = tmp_path / "c.yaml"
    path.write_text(FILE)
    assert main(["config", "--config-file", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "44" in captured.out


# ---- functions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"max_num_proc": 4}, "max_num_proc is for elastic jobs: also give min_num_proc or"),
        ({"num_proc": 2, "min_num_proc": 3}, "num_proc 2 is less than min_num_proc 3"),
        ({"num_proc": 4, "min_num_proc": 1, "max_num_proc": 2}, "max_num_proc 2 is less than"),
        ({"min_num_proc": "2x"}, "min_num_proc='2x' is not accepted: give a whole number"),
        ({"min_num_proc": 1, "cooldown_range": (4, 2)}, "cooldown_range=4 2 is not accepted"),
        ({"min_num_proc": 1, "cooldown_range": 4}, "cooldown_range=4 is not accepted: give two"),
        ({"min_num_proc": 1, "reset_limit": -1}, "reset_limit=-1 is not accepted"),
        ({"host_discovery_script": "x", "hosts": "localhost:1"}, "leave out hosts and hostfile"),
        ({"min_num_proc": 1, "use_mpi": True}, "elastic jobs are started by hvdtune itself"),
    ],
)
def test_arguments_that_are_not_accepted(arguments, expected):
    with pytest.raises(ValueError, match=re.escape(expected)):
        hvdtune.run(len, ((),), **arguments)


# ---- discovery scripts -------------------------------------------------------------------------

# Asks each script once, in a process of its own; "late" ones have half a second.
ASK = """
import json, selectors, sys, time
from hvdtune.launch.elastic.driver.errands import Errands
from hvdtune.launch.elastic.driver.script import Script
from hvdtune.launch.local import processes
from hvdtune.launch.local.relay import Relay
selector = selectors.DefaultSelector()
errands = Errands(selector, Relay(selector, lambda: False, lambda: None))
answers = {}
scripts = []
for text in sys.argv[1:]:
    scripts.append(Script(
        errands, text, 3,
        lambda hosts, text=text: answers.setdefault(text, [len(hosts), *hosts[:4]]),
        lambda why, text=text: answers.setdefault(text, why), 0.5 if "sleep" in text else 20,
    ))
    scripts[-1].advance(time.monotonic())
while len(answers) < len(scripts):
    for key, _ in selector.select(0.02):
        key.data()
    for child in processes.reap_all():
        errands.collect(*child)
    errands.advance(time.monotonic())
processes.become_subreaper()
processes.kill_descendants()
print(json.dumps([answers[text] for text in sys.argv[1:]]))
"""
ANSWERS = [
    ("printf 'a:2\\nb:4\\n'", [2, ["a", 2], ["b", 4]]),
    ("printf 'a:2\\r\\n\\r\\nb\\r\\n'", [2, ["a", 2], ["b", 3]]),
    ("printf ' a:2  # the first\\n# none\\nb slots=4'", [2, ["a", 2], ["b", 4]]),
    ("printf 'a:2\\na:2\\n'", [1, ["a", 2]]),
    ("printf '[fd00::1]:2\\nfd00::2\\n'", [2, ["fd00::1", 2], ["fd00::2", 3]]),
    ("echo a:0", [1, ["a", 0]]),
    ("true", [0]),
    ("seq -f node%.0f:4 10000", [10000, *([f"node{i}", 4] for i in range(1, 5))]),
    ("echo a:2; (sleep 60 &)", [1, ["a", 2]]),
    ("false", "'false' ended with exit status 1"),
    ("echo no cloud >&2; exit 9", "ended with exit status 9 (no cloud)"),
    ("./plain", "exit status 126"),
    ("./plain #", "it is not executable: chmod +x, or name its interpreter"),
    ("./nowhere", "there is no such command"),
    ("head -c 20000000 /dev/zero", "printed more than 16 MiB"),
    ("kill -9 $$", "was killed by signal 9"),
    ("sleep 60", "was ended after 0.5 s without an answer"),
    ("trap '' TERM INT; sleep 60; sleep 60", "was ended after 0.5 s without an answer"),
    ("echo a:2; echo a:3", "names a twice"),
    ("echo a:b:c", "line 1 of the host discovery script's output: 'a:b:c' is not the name of a"),
    ("echo -e", "is not the name of a host"),
    ("head -c 300 /dev/urandom | base64 -w0 | tr + /", "a host with its slots is expected"),
    ("printf '\\000\\377\\376'", "a host with its slots is expected"),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "plain").write_text("echo a:1\n")
    ended = subprocess.run(
        [sys.executable, "-c", ASK, *(text for text, _ in ANSWERS)],
        cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "hvdtune run: host discovery script: no cloud\n" in ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("case", range(len(ANSWERS)), ids=[text[:30] for text, _ in ANSWERS])
def test_what_a_script_may_do(answers, case):
    expected, found = ANSWERS[case][1], answers[case]
    if isinstance(expected, str):
        assert expected in found
        assert "\n" not in found
    else:
        assert found == expected


def test_a_script_that_fails_at_once_ends_the_job(tmp_path):
    words = ["run", "-np", "2", "--host-discovery-script", "echo no cloud >&2; exit 9", "true"]
    ended = launch(tmp_path, words)
    assert (ended.status, ended.stdout) == (1, "")
    assert ended.stderr.splitlines() == [
        "hvdtune run: host discovery script: no cloud",
        "hvdtune run: host discovery failed: 'echo no cloud >&2; exit 9' ended with exit status 9 "
        "(no cloud).",
    ]


def test_a_script_that_fails_later_is_told_of_once(tmp_path):
    script = "[ ! -e broken ] && echo localhost:2 || exit 4"
    until = json.dumps(
        {
            "at": None,
            "do": "while not os.path.exists('end'):\n  member.next(0.1)\n"
            "member.say('finished'); raise SystemExit",
            "seconds": 0.1,
        }
    )
    words = ["run", "-np", "2", "--host-discovery-script", script]
    with start(tmp_path, [*words, sys.executable, str(MEMBER), until]) as launcher:
        launcher.wait_for_lines("place 1", 2)
        (tmp_path / "broken").touch()
        launcher.wait_for(lambda: "host discovery failed" in launcher.output(1))
        (tmp_path / "broken").unlink()
        launcher.wait_for(lambda: "answers again" in launcher.output(1))
        (tmp_path / "end").touch()
        ended = launcher.wait()
    assert ended.status == 0
    assert ended.stderr.count("host discovery failed") == 1
    assert "exit status 4" in ended.stderr


def test_hosts_without_slots_are_waited_for_and_named(tmp_path):
    words = ["run", "-np", "2", "--elastic-timeout", "1", "--host-discovery-script"]
    ended = launch(tmp_path, [*words, "echo localhost:0; echo 127.0.0.1:1", "true"])
    assert (ended.status, ended.stdout) == (1, "")
    assert "2 slots are needed, 1 is there" in ended.stderr
    assert "after 1 s (--elastic-timeout)" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ["./check here", "exit 3"])
def test_a_health_check(tmp_path, command):
    (tmp_path / "check").write_text('#!/bin/sh\necho "$1 $HOROVOD_HOSTNAME" >>asked\n')
    os.chmod(tmp_path / "check", 0o755)
    words = ["run", "-np", "2", "--min-np", "2", "-H", "localhost:1,127.0.0.1:1"]
    words += ["--health-check-script", command, sys.executable, str(MEMBER), DONE]
    ended = launch(tmp_path, words)
    if command == "exit 3":
        assert ended.status == 1
        assert "its health check ended with exit status 3" in ended.stderr
        assert ended.stdout == ""
    else:
        assert ended.status == 0, ended
        assert sorted((tmp_path / "asked").read_text().split("\n")) == [
            "", "here 127.0.0.1", "here localhost",
        ]  # fmt: skip


def test_processes_that_end_well_without_taking_part(tmp_path):
    words = ["run", "-np", "2", "--min-np", "1", "-H", "localhost:1,127.0.0.1:1", "true"]
    ended = launch(tmp_path, words)
    assert (ended.status, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "is_warned"),
    [
        ([], True),
        (["--replace-failed"], False),
        (["--blacklist-cooldown-range", "1", "2"], False),
        (["--host-discovery-script", "echo localhost:2"], False),
    ],
)
def test_who_has_one_host_is_told_what_a_failure_costs(tmp_path, words, is_warned):
    ended = launch(tmp_path, ["run", "-np", "2", "--min-np", "1", *words, "true"])
    assert (ended.status, ended.stdout) == (0, "")
    assert ended.stderr.startswith("hvdtune run: all slots are on localhost,") == is_warned
    assert ("Give --replace-failed" in ended.stderr) == is_warned
    assert (ended.stderr == "") == (not is_warned)
