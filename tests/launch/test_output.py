"""What the workers print reaches the console whole, in order, and with the right name."""

from __future__ import annotations

import re
import selectors
import subprocess
import sys
from collections import deque

import pytest
from support.jobs.launcher import launch, start
from support.jobs.ranks import clean_environment, hvdtune_command

from hvdtune.launch.local.output import WorkerStream
from hvdtune.launch.local.relay import Relay


def test_streams_keep_their_names(tmp_path):
    script = "print('out', rank)\nprint('err', rank, file=sys.stderr)\n"
    ended = launch(tmp_path, ["run", "-np", "2"], script)
    assert sorted(ended.stdout.splitlines()) == [f"[{r}]<stdout>:out {r}" for r in range(2)]
    assert sorted(ended.stderr.splitlines()) == [f"[{r}]<stderr>:err {r}" for r in range(2)]


def test_lines_of_busy_workers_stay_whole_and_in_order(tmp_path):
    """Lines are written in pieces on purpose, by four workers at once."""
    lines = 3000
    script = f"""
for index in range({lines}):
    text = f"{{rank}} {{index}} " + "x" * (index * 7 % 300)
    for piece in (text[:5], text[5:], "\\n"):
        os.write(1, piece.encode())
"""
    ended = launch(tmp_path, ["run", "-np", "4"], script)
    assert ended.status == 0
    seen = dict.fromkeys(range(4), 0)
    for line in ended.stdout.splitlines():
        match = re.fullmatch(r"\[(\d)\]<stdout>:(\d) (\d+) (x*)", line)
        assert match, line
        assert match[1] == match[2]
        rank, index = int(match[1]), int(match[3])
        assert index == seen[rank]
        assert len(match[4]) == index * 7 % 300
        seen[rank] += 1
    assert set(seen.values()) == {lines}


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("h\u00e9 \U0001f680\n".encode(), "[0]<stdout>:h\u00e9 \U0001f680\n".encode()),
        (b"\xff not utf-8\n", b"[0]<stdout>:\xff not utf-8\n"),
        (b"1%\r2%\rdone\n", b"[0]<stdout>:1%\r[0]<stdout>:2%\r[0]<stdout>:done\n"),
        (b"dos\r\nline\r\n", b"[0]<stdout>:dos\r\n[0]<stdout>:line\r\n"),
        (b"\n\nx\n", b"[0]<stdout>:\n[0]<stdout>:\n[0]<stdout>:x\n"),
        (b"no end", b"[0]<stdout>:no end"),
        (b"", b""),
    ],
)
def test_bytes_pass_through(tmp_path, written, printed):
    ended = launch(tmp_path, ["run", "-np", "1"], f"os.write(1, {written!r})\n")
    assert ended.stdout.encode("utf-8", "surrogateescape") == printed


def test_a_character_cut_in_two_arrives_whole(tmp_path):
    script = "os.write(1, b'\\xe4\\xb8')\ntime.sleep(0.1)\nos.write(1, b'\\x96\\n')\n"
    assert launch(tmp_path, ["run", "-np", "1"], script).stdout == "[0]<stdout>:\u4e16\n"


def test_a_progress_bar_shows_before_its_line_ends(tmp_path):
    script = "os.write(1, b'10%\\r')\ntime.sleep(600)\n"
    with start(tmp_path, ["run", "-np", "1"], script) as launcher:
        launcher.wait_for(lambda: launcher.output(0) == "[0]<stdout>:10%\r")


def test_an_unfinished_line_does_not_swallow_another_workers(tmp_path):
    script = """
if rank == 0:
    os.write(1, b"no end")
else:
    time.sleep(0.5)
    print("mine")
"""
    ended = launch(tmp_path, ["run", "-np", "2"], script)
    assert ended.stdout == "[0]<stdout>:no end\n[1]<stdout>:mine\n"


def test_a_long_line_arrives_whole(tmp_path):
    script = "sys.stdout.write('y' * 5_000_000 + '\\n')\n"
    assert launch(tmp_path, ["run", "-np", "1"], script).stdout == (
        "[0]<stdout>:" + "y" * 5_000_000 + "\n"
    )


def test_what_children_print_after_the_worker_ended_is_not_lost(tmp_path):
    script = "subprocess.Popen(['sh', '-c', 'sleep 0.2; echo late'])\n"
    assert launch(tmp_path, ["run", "-np", "1"], script).stdout == "[0]<stdout>:late\n"


def test_endless_output_of_children_does_not_hold_the_launcher_up(capfd):
    class Endless(WorkerStream):
        reads = 0

        def read(self):
            self.reads += 1
            assert self.reads < 1000, "the launcher reads for ever"
            return b"y\n", True

    with selectors.DefaultSelector() as selector:
        stream = Endless(0, "stdout", None, deque())
        Relay(selector, lambda: False, lambda: None).flush(stream)
    assert capfd.readouterr().out == stream.reads * "y\n"
    assert not stream.closed


def test_timestamps(tmp_path):
    script = "print('a\\nb')\nprint('c', file=sys.stderr)\n"
    ended = launch(tmp_path, ["run", "-np", "1", "--prefix-output-with-timestamp"], script)
    time = r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}"
    assert re.fullmatch(rf"({time}\[0\]<stdout>:[ab]\n){{2}}", ended.stdout)
    assert re.fullmatch(rf"{time}\[0\]<stderr>:c\n", ended.stderr)


@pytest.mark.parametrize(("count", "width"), [(1, 1), (2, 1), (10, 1), (11, 2)])
def test_output_files(tmp_path, count, width):
    script = "print('out')\nprint('err', file=sys.stderr)\n"
    folder = tmp_path / "new" / "logs"
    job = ["run", "-np", str(count), "--output-filename", str(folder)]
    assert launch(tmp_path, job, script).status == 0
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"rank.{rank:0{width}d}" for rank in range(count)]
    for rank, name in enumerate(names):
        assert (folder / name / "stdout").read_text() == f"[{rank}]<stdout>:out\n"
        assert (folder / name / "stderr").read_text() == f"[{rank}]<stderr>:err\n"


def test_output_files_keep_what_was_written_before_a_failure(tmp_path):
    script = "print('before', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    launch(tmp_path, ["run", "-np", "1", "--output-filename", "logs"], script)
    assert (tmp_path / "logs/rank.0/stdout").read_text() == "[0]<stdout>:before\n"


def test_a_reader_that_leaves_ends_the_job(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text("while True: print('again')\n")
    process = subprocess.Popen(
        hvdtune_command("run", "-np", "2", sys.executable, str(worker)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b"]<stdout>:again\n")
    process.stdout.close()
    assert process.wait(60) == 141
    process.communicate()


def test_a_reader_that_stalls_does_not_keep_the_job_alive(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text("while True: print('again')\n")
    with subprocess.Popen(
        hvdtune_command("run", "-np", "2", sys.executable, str(worker)),
        stdout=subprocess.PIPE,
        env=clean_environment(),
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the pipe is full soon after
        process.terminate()
        assert process.wait(60) == 143


@pytest.mark.parametrize("redirection", [">&-", "> /dev/full"])
def test_output_that_cannot_be_written_does_not_end_the_job(tmp_path, redirection):
    worker = tmp_path / "worker.py"
    worker.write_text("print('x\\n' * 100)\nopen('done', 'w').close()\n")
    command = hvdtune_command("run", "-np", "2", sys.executable, str(worker))
    ended = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *command],
        cwd=tmp_path,
        env=clean_environment(),
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "done").exists()
    assert ended.stderr.count("cannot be written") == (redirection == "> /dev/full")
