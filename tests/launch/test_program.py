"""What is said about a job's program before it is started, or when it cannot be."""

from __future__ import annotations

import pytest
from support.jobs.launcher import launch

from hvdtune.launch.local.program import without_script


@pytest.mark.parametrize(
    "line",
    [
        "python",
        "/usr/bin/python3.11",
        "python -",
        "python -u",
        "python -W ignore -X dev",
        "python3 -Wignore -i",
        "pypy3",
        "bash",
        "sh -ex",
        "bash -o pipefail",
        "env LR=1 python",
        "numactl --cpunodebind=0 python -u",
    ],
)
def test_an_interpreter_without_a_script_is_seen(line):
    words = line.split()
    assert without_script(words) in words


@pytest.mark.parametrize(
    "line",
    [
        "python train.py",
        "python -u -W ignore train.py",
        "python -um torch.distributed.run",
        "python -c pass",
        "python -V",
        "python --version",
        "bash -c true",
        "bash -lc true",
        "sh run.sh",
        "env",
        "env LR=1 python train.py",
        "nice -n 5 ./program",
        "echo python",
        "./python-like",
        "pythonic",
    ],
)
def test_nothing_is_said_about_a_program_that_has_what_it_needs(line):
    assert without_script(line.split()) is None


@pytest.mark.parametrize("verb", [["run", "-np", "2"], ["tune", "-np", "2", "--"]])
@pytest.mark.parametrize("words", [["python"], ["python3", "-u"], ["bash"]])
def test_it_is_refused_before_anything_is_started(tmp_path, verb, words):
    ended = launch(tmp_path, [*verb, *words])
    assert (ended.status, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"hvdtune {verb[0]}: {words[0]} has no script, and ranks have no standard input to read "
        f"one from: hvdtune {' '.join(verb)} {words[0]} train.py\n"
    )


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("train.py", "No such file or directory. Did you mean: python train.py?"),
        ("./train.py", "Permission denied. Did you mean: python ./train.py?"),
        ("job.sh", "No such file or directory. Did you mean: ./job.sh?"),
        ("./job.sh", "The file is there; the program that its first line names is not."),
        ("pyhton", "No such file or directory. Did you mean: python?"),
        ("frog", "cannot start 'frog': No such file or directory."),
    ],
)
def test_what_may_have_been_meant_by_a_program_that_is_not_there(tmp_path, program, said):
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "job.sh").write_text("#!/no/such/shell\n")
    (tmp_path / "job.sh").chmod(0o755)
    ended = launch(tmp_path, ["run", "-np", "2", program])
    assert ended.status in (126, 127)
    assert ended.stderr.endswith(f"{said}\n")
