"""What README shows runs as it is written there, also in a checkout."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ranks import clean_environment, hvdtune_command, new_directory, run_under

README = Path(__file__).resolve().parents[2] / "README.md"


def programs() -> list[str]:
    """README's Python programs, in order."""
    return re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)


def run_program(text: str, ranks: int) -> str:
    """Run a program under `hvdtune run`; returns what the job printed to stdout."""
    script = new_directory() / "train.py"
    script.write_text(text, encoding="utf-8")
    return run_under(hvdtune_command("run", "-np", str(ranks)), script)[0].stdout


def test_the_horovod_script() -> None:
    printed = run_program(programs()[0], 4)
    loss = re.search(r"^\[0\]<stdout>:loss ([0-9.]+) on 4 ranks$", printed, re.M)
    assert loss, printed
    # The target's weights are all 1 and the model's begin near 0: untrained, the loss is near 10.
    assert float(loss[1]) < 1.0


def test_the_function_as_a_job() -> None:
    script = new_directory() / "job.py"
    script.write_text(programs()[1], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script],
        cwd=script.parent,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["[0, 10]"], done.stdout + done.stderr


def test_the_numpy_script() -> None:
    printed = run_program(programs()[2], 2)
    assert sorted(printed.splitlines()) == [
        "[0]<stdout>:0 [2. 2. 2.]",
        "[1]<stdout>:1 [2. 2. 2.]",
    ]


def test_bench_in_a_checkout_uses_the_installed_package() -> None:
    # README's first command runs where `import hvdtune` would find the source, not yet compiled.
    checkout = new_directory()
    (checkout / "hvdtune").mkdir()
    (checkout / "hvdtune" / "__init__.py").write_text("raise ImportError('not compiled')\n")
    command = hvdtune_command("bench", "--np", "2", "-b", "4", "-e", "4", "--workload", "none")
    done = subprocess.run(
        command, cwd=checkout, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "float32" in done.stdout
