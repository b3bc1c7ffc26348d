"""Elastic jobs of `hvdtune run`: what Horovod's own tests demand, deaths of all kinds, and ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from support.jobs.launcher import Launcher, alive, start, wait_until_gone
from support.tiers import long_too

import hvdtune

PROGRAMS = Path(__file__).parents[1] / "rank_programs"
FAILED = "Horovod detected that one or more processes exited with non-zero status"
TWO_AND_TWO = ["-np", "4", "--min-np", "2", "-H", "localhost:2,127.0.0.1:2"]


class Job:
    """A job of rank_programs/elastic_epochs.py, its script's answers, and rank 0's notes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()

    def script(self, *answers: str) -> list[str]:
        """Flags: hosts by the number of epochs that have been noted."""
        cases = " ".join(f"{n}) printf '{hosts}' ;;" for n, hosts in enumerate(answers[:-1]))
        text = f"case $(wc -l <{self.log}) in {cases} *) printf '{answers[-1]}' ;; esac"
        return ["--host-discovery-script", text]

    def run(self, words, sizes, fails=None, how="raise", **more):
        """Run the job to its end: how it ended, what rank 0 has noted."""
        plan = {"log": str(self.log), "sizes": sizes, "fails": fails or {}, "how": how, **more}
        program = [sys.executable, str(PROGRAMS / "elastic_epochs.py"), json.dumps(plan)]
        with start(self.folder, ["run", *words, *program]) as launcher:
            ended = launcher.wait()
        return ended, [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def column(notes, name):
    return [note[name] for note in notes]


# ---- Horovod's scenarios ----------------------------------------------------------------------


@pytest.mark.parametrize("slots", long_too(1, long=[1, 2]))
def test_hosts_added_and_removed(job, slots):
    hosts = f"localhost:{slots}", f"localhost:{slots}\\n127.0.0.1:{slots}", f"127.0.0.1:{slots}"
    words = ["-np", str(slots), "--min-np", str(slots), "--max-np", str(2 * slots)]
    ended, notes = job.run([*words, *job.script(*hosts)], [slots, 2 * slots, slots])
    assert ended.status == 0, ended
    assert column(notes, "size") == [slots, 2 * slots, slots]
    assert column(notes, "host") == ["localhost", "localhost", "127.0.0.1"]
    assert column(notes, "start_rank") == [0, 0, slots]
    assert column(notes, "generation") == [1, 2, 3]
    assert column(notes, "commits") == sorted(column(notes, "commits"))


@pytest.mark.parametrize("how", long_too("kill", long=["kill", "raise"]))
@pytest.mark.parametrize("hosts", long_too("fixed", long=["fixed", "script"]))
def test_a_rank_fails_and_its_host_goes_with_it(job, how, hosts):
    words = TWO_AND_TWO
    if hosts == "script":
        words = [*TWO_AND_TWO[:4], *job.script("localhost:2\\n127.0.0.1:2")]
    ended, notes = job.run(words, [4, 2, 2], {"1,0": [0]}, how)
    assert ended.status == 0, ended
    assert column(notes, "size") == [4, 2, 2]
    assert column(notes, "start_rank") == [0, 2, 2]
    assert column(notes, "generation") == [1, 2, 2]
    assert column(notes, "host") == ["localhost", "127.0.0.1", "127.0.0.1"]
    assert "localhost is excluded for ever" in ended.stderr


@pytest.mark.long
@pytest.mark.parametrize("failing", [[0, 1, 2, 3], [0, 2]], ids=["all ranks", "one of each host"])
def test_nobody_is_left(job, failing):
    ended, notes = job.run(TWO_AND_TWO, [4, 4], {"1,0": failing})
    assert ended.status == 1
    assert FAILED in ended.stderr
    assert "ArithmeticError: this rank was to fail" in ended.stderr
    assert "SIGTERM" not in ended.stderr  # whom the driver has ended is not to blame
    assert len(notes) == 1


@pytest.mark.long
def test_too_few_are_left_for_too_long(job):
    # Processes have as long to start, on a machine that may have other things to do.
    words = ["-np", "4", "--elastic-timeout", "6", *job.script("localhost:2\\n127.0.0.1:2")]
    ended, notes = job.run(words, [4, 4], {"1,0": [0]})
    assert ended.status == 1
    assert FAILED in ended.stderr
    assert "4 slots are needed, 2 are there" in ended.stderr
    assert len(notes) == 1


@pytest.mark.long
@pytest.mark.parametrize("limit", [1, 2])
def test_the_limit_of_resets(job, limit):
    hosts = "localhost:1", "localhost:1\\n127.0.0.1:1", "127.0.0.1:1"
    words = ["-np", "1", "--max-np", "2", "--reset-limit", str(limit), *job.script(*hosts)]
    ended, notes = job.run(words, [1, 2, 1])
    if limit == 2:
        assert (ended.status, len(notes)) == (0, 3)
    else:
        assert (ended.status, len(notes)) == (1, 2)
        words = "Horovod was shutdown because number of resets during elastic job exceeded limit: 1"
        assert words in ended.stderr


@pytest.mark.long
def test_an_excluded_host_returns(job):
    words = [*TWO_AND_TWO, "--blacklist-cooldown-range", "1", "2"]
    ended, notes = job.run(words, [4, 2, 4, 2, 4], {"1,0": [3], "3,0": [3]})
    assert ended.status == 0, ended
    assert column(notes, "size") == [4, 2, 4, 2, 4]
    assert column(notes, "generation") == [1, 2, 3, 4, 5]
    assert ended.stderr.count("127.0.0.1 is excluded for 2.0 s") == 2


# ---- further flags ----------------------------------------------------------------------------


@pytest.mark.long
def test_a_failed_process_is_replaced(job):
    words = ["-np", "3", "--min-np", "2", "-H", "localhost:3", "--replace-failed"]
    words += ["--output-filename", "out"]
    ended, notes = job.run(words, [3, 3], {"1,0": [1]}, "kill")
    assert ended.status == 0, ended
    assert column(notes, "size") == [3, 3]
    assert sorted(path.name for path in (job.folder / "out").iterdir()) == [
        *("rank.0", "rank.1", "rank.2", "rank.3"),
    ]


@pytest.mark.long
def test_a_process_keeps_its_local_rank_if_a_lower_one_is_free(job):
    # Then two slots are counted on its host, as many as the job has processes.
    words = ["-np", "3", "--min-np", "2", "-H", "localhost:2,127.0.0.1:1", "--replace-failed"]
    words += ["--blacklist-cooldown-range", "600", "600"]
    ended, notes = job.run(words, [3, 2], {"1,0": [0]}, "kill")
    assert ended.status == 0, ended
    assert column(notes, "size") == [3, 2]
    assert column(notes, "local_rank") == [0, 1]


@pytest.mark.long
def test_a_straggler_is_replaced_on_another_host(job):
    words = ["-np", "3", "--min-np", "1", "--max-np", "3", "-H", "localhost:3,127.0.0.1:1"]
    words += ["--replace-failed", "--replace-stragglers", "1"]
    ended, notes = job.run(words, [3, 2, 3], slow={"1": 0.03})
    assert ended.status == 0, ended
    assert column(notes, "size") == [3, 2, 3]
    assert column(notes, "start_rank") == [0, 0, 0]
    [sentence] = [line for line in ended.stderr.splitlines() if "is late" in line]
    assert sentence.startswith("hvdtune run: localhost[1] (started as rank 1) is late: the others ")
    assert sentence.endswith("; it is ended (--replace-stragglers).")
    assert "localhost[1] is excluded for ever" in ended.stderr


def plan(do: str, at=None, seconds: float = 0.0) -> str:
    """What a process of rank_programs/elastic_member.py does at [generation, start rank]."""
    return json.dumps({"at": at, "do": do, "seconds": seconds})


def start_members(folder: Path, words, *plans: str, **env: str) -> Launcher:
    program = [sys.executable, str(PROGRAMS / "elastic_member.py"), *plans]
    return start(folder, ["run", *words, *program], env=env)


def pids(launcher: Launcher, generation: int, size: int) -> dict[int, int]:
    """The processes of a generation, by rank, when all have their places."""
    lines = launcher.wait_for_lines(f"place {generation} ", size)
    return {int(line.split()[0]): int(line.split()[-1]) for line in lines}


FINISH = "member.say('finished'); raise SystemExit"


def test_a_spare_takes_the_place_of_a_failed_process(tmp_path):
    words = ["-np", "2", "--min-np", "1", "--max-np", "2", "--spares", "1", "-H", "localhost:3"]
    plans = [plan("os._exit(5)", [1, 0], 1.0), *(plan(FINISH, [2, n]) for n in (1, 2))]
    with start_members(tmp_path, [*words, "--replace-failed"], *plans) as launcher:
        ended = launcher.wait()
    assert ended.status == 0, ended
    places = [line.split()[1:5] for line in ended.stdout.splitlines()]
    assert sorted(places) == [
        *(["1", "0", "2", "localhost"], ["1", "1", "2", "localhost"]),
        *(["2", "0", "2", "localhost"], ["2", "1", "2", "localhost"]),
    ]


# ---- newcomers ----------------------------------------------------------------------------------


def start_late(folder: Path, program: str) -> Launcher:
    """A job of rank_programs/elastic_late.py: two processes, and one more once it says `grow`."""
    words = ["-np", "2", "--min-np", "1", "--max-np", "3", "--replace-failed"]
    words += ["--host-discovery-script", "test -e grow && echo localhost:3 || echo localhost:2"]
    return start(
        folder, ["run", *words, sys.executable, str(PROGRAMS / "elastic_late.py"), program]
    )


def lines_of(ended) -> list[dict]:
    return [json.loads(line.partition("<stdout>:")[2]) for line in ended.stdout.splitlines()]


def test_the_others_train_on_while_a_newcomer_prepares(tmp_path):
    with start_late(tmp_path, "join") as launcher:
        ended = launcher.wait()
    assert ended.status == 0, ended
    lines = lines_of(ended)
    rounds = [line for line in lines if line["what"] == "round"]
    first = [line for line in rounds if line["number"] == 0]
    assert [line["size"] for line in first[:2]] == [2, 1]
    assert first[2]["step"] >= first[1]["step"] + 50, "the newcomer has interrupted nobody"
    came = next(line for line in rounds if line["number"] == 2)
    assert came["expected"] == [2, 3]
    assert came["rank"] == 1, "somebody has died meanwhile"
    # Its place is another than expected: it resets, with the step that it was made with.
    assert {"what": "reset", "rank": 1, "place": [1, came["size"]], "step": 0} in lines
    assert came["step"] == next(line["step"] for line in first[2:] if line["size"] == came["size"])


@pytest.mark.long
def test_a_newcomer_that_begins_with_another_function_waits(tmp_path):
    with start_late(tmp_path, "stay") as launcher:
        words = "localhost[2] waits: it is in train(), the others are in tune()."
        launcher.wait_for(lambda: words in launcher.output(1))
        (tmp_path / "end").touch()
        ended = launcher.wait()
    assert ended.status == 0, ended
    assert ended.stderr.count(words) == 1
    found = [(line["number"], line["function"], line["size"]) for line in lines_of(ended)]
    assert sorted(found) == [(n, f, 2) for n in (0, 1) for f in ("train", "tune")]


# ---- silence and strangers --------------------------------------------------------------------


def test_a_stopped_process_is_given_up(tmp_path):
    with start_members(
        tmp_path, TWO_AND_TWO, plan(FINISH, [2, 0]), plan(FINISH, [2, 1]),
        HVDTUNE_ELASTIC_HEARTBEAT="3",
    ) as launcher:  # fmt: skip
        first = pids(launcher, 1, 4)
        os.kill(first[3], signal.SIGSTOP)
        ended = launcher.wait()
    assert ended.status == 0, ended
    assert "127.0.0.1[1] (started as rank 3) has been silent for 3 s" in ended.stderr
    wait_until_gone(list(first.values()))


@pytest.mark.long
def test_a_launcher_that_was_stopped_holds_its_own_silence_against_nobody(tmp_path):
    until = "while not os.path.exists('end'):\n  member.next(0.1)\n" + FINISH
    with start_members(
        tmp_path, TWO_AND_TWO, plan(until), HVDTUNE_ELASTIC_HEARTBEAT="3"
    ) as launcher:
        runner = parent_of(pids(launcher, 1, 4)[0])
        os.kill(runner, signal.SIGSTOP)
        time.sleep(5)
        os.kill(runner, signal.SIGCONT)
        (tmp_path / "end").touch()
        ended = launcher.wait()
    assert (ended.status, ended.stderr) == (0, "")


def test_strangers_disturb_nobody(tmp_path):
    until = "while not os.path.exists('end'):\n  member.next(0.1)\n" + FINISH
    with start_members(tmp_path, TWO_AND_TWO, plan(until)) as launcher:
        member = pids(launcher, 1, 4)[0]
        variables = Path(f"/proc/{member}/environ").read_text().split("\0")
        address = next(v for v in variables if v.startswith("HVDTUNE_ELASTIC_DRIVER="))
        host, _, port = address.partition("=")[2].rpartition(":")
        assert host == "127.0.0.1"
        clients = [socket.create_connection((host, int(port))) for _ in range(50)]
        words = [
            b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100_000, b'{"kind": "ready"}\n', b"[]\n",
            b"[" * 3000 + b"\n",
            b'{"kind": "hello", "id": "localhost[0].0", "nonce": "x", "proof": "y"}\n',
            b'{"kind": "hello", "id": ["x"], "nonce": 3, "proof": null}\n', b'{"kind": "beat"}',
        ]  # fmt: skip
        for client, data in zip(clients, words, strict=False):
            try:
                client.sendall(data)
                client.settimeout(20)
                heard = b""
                while data != words[-1] and (more := client.recv(4096)):
                    heard += more
            except ConnectionError:
                pass
            assert heard.count(b"\n") <= 1  # the challenge: nothing else is said to strangers
        (tmp_path / "end").touch()
        ended = launcher.wait()
        for client in clients:
            client.close()
    assert ended.status == 0, ended
    assert ended.stderr == ""


# ---- ends -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job(tmp_path, number):
    with start_members(tmp_path, TWO_AND_TWO) as launcher:
        members = pids(launcher, 1, 4)
        launcher.send(number)
        ended = launcher.wait()
    assert ended.status == 128 + number
    assert ended.stderr == f"hvdtune run: ending the job after {signal.Signals(number).name}\n"
    wait_until_gone(list(members.values()))


def test_signals_are_passed_on(tmp_path):
    hear = (
        "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: open('heard', 'a').write('x'))\n"
        "print('hears', flush=True)\n"
        "while os.path.getsize('heard') < 4:\n  member.next(0.1)\n" + FINISH
    )
    (tmp_path / "heard").touch()
    with start_members(tmp_path, TWO_AND_TWO, plan(hear)) as launcher:
        launcher.wait_for_lines("hears", 4)
        launcher.send(signal.SIGUSR1)
        assert launcher.wait().status == 0


@pytest.mark.parametrize("victim", ["launcher", "job"])
def test_nothing_is_left_of_a_launcher_that_is_killed_while_the_job_forms_anew(tmp_path, victim):
    # Rank 0 of the second generation never comes to it: the others wait.
    stuck = plan("time.sleep(600)", [1, 0])
    with start_members(tmp_path, ["-np", "4", "--min-np", "2", "-H", "localhost:2,127.0.0.1:2"],
                       stuck) as launcher:  # fmt: skip
        members = pids(launcher, 1, 4)
        os.kill(members[2], signal.SIGKILL)
        launcher.wait_for(lambda: "was killed by SIGKILL" in launcher.output(1))
        runner = parent_of(members[0])
        assert parent_of(runner) == launcher.process.pid
        os.kill(runner if victim == "job" else launcher.process.pid, signal.SIGKILL)
        wait_until_gone([*members.values(), runner])
        ended = launcher.wait()
    assert ended.status == (137 if victim == "job" else -signal.SIGKILL)


def parent_of(pid: int) -> int:
    assert alive(pid)
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^PPid:\s*(\d+)$", status, re.M)
    assert found
    return int(found[1])


# ---- functions --------------------------------------------------------------------------------


def test_a_function_returns_what_the_first_ranks_have(job, monkeypatch):
    def ranks_and_sizes(log: str) -> tuple[int, int]:
        from rank_programs import elastic_epochs

        import hvdtune as hvd

        plan = {"log": log, "sizes": [3, 2], "fails": {"1,0": [0]}, "how": "kill"}
        elastic_epochs.main(plan)
        return hvd.rank(), hvd.size()

    monkeypatch.chdir(job.folder)
    found = hvdtune.run(
        ranks_and_sizes,
        (str(job.log),),
        num_proc=3,
        min_num_proc=2,
        hosts="localhost:1,127.0.0.1:2",
    )
    assert found == [(0, 2), (1, 2)]


@pytest.mark.long
def test_a_function_that_fails_everywhere(job):
    def fail() -> None:
        raise ArithmeticError("no such number")

    with pytest.raises(RuntimeError, match="no such number") as raised:
        hvdtune.run(fail, num_proc=2, min_num_proc=1)
    assert FAILED in str(raised.value)
