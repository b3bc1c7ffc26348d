"""The frameworks' tests, each in the environments that `support.environments` says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import psutil
import pytest
from support.environments import ENVIRONMENTS, ROOT, Environment, python_of
from support.tiers import EVERY, too_late

import hvdtune

TESTS = ROOT / "tests"
SECONDS = 1800.0  # for an environment's quick tests, which take half of that beside other tests
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),  # pip may take long
    pytest.mark.flaky(reruns=0),  # each test within has its second try
]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_in_environment(name: str, tmp_path: Path):
    environment = ENVIRONMENTS[name]
    if environment.on_request and not EVERY:
        pytest.skip("a client's own environment, or an older version: HVDTUNE_TEST_LONG=1")
    files = environment.files(TESTS)
    assert files, f"{name} has no tests"
    python = python_of(environment)
    looked = "import hvdtune, json; found = {'hvdtune': hvdtune.__file__}\n" + "".join(
        f"import {module}; found[{module!r}] = {module}.__file__\n"
        for module in environment.imports
    )
    shown = run([python, "-c", f"{looked}print(json.dumps(found))"], environment, tmp_path)
    found = json.loads(shown.splitlines()[-1])
    assert found.pop("hvdtune") == hvdtune.__file__
    assert all(Path(file).is_relative_to(python.parents[1]) for file in found.values()), found

    report = tmp_path / "report.xml"
    which = ["-m", ""] if environment.of_a_client or EVERY else []
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *which, *files]
    shown = run([*command, f"--junitxml={report}"], environment, ROOT)
    if too_late():
        pytest.skip(f"none of its tests has failed; the last ones came too late:\n{shown}")
    # Where a framework cannot be imported, all tests of a file are skipped: that is no success.
    passed = passed_tests(report)
    idle = [file.name for file in files if not passed[file.stem]]
    assert not idle, f"no test of {', '.join(idle)} has run in {name}\n{shown}"


def passed_tests(report: Path) -> Counter[str]:
    """How many tests of each file have passed."""
    passed: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        if not {child.tag for child in case} & {"skipped", "failure", "error"}:
            passed.update(set(case.attrib["classname"].split(".")))
    return passed


def run(command: list[str | Path], environment: Environment, folder: Path) -> str:
    """Run a command in an environment, in a folder; what it has shown. Fails if that does."""
    variables = {
        variable: value for variable, value in os.environ.items() if "XDIST" not in variable
    }
    process = subprocess.Popen(
        command,
        env={**variables, **environment.variables},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        shown, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # pytest ends its ranks
        try:
            shown, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            for one in (*psutil.Process(process.pid).children(recursive=True), process):
                one.kill()
            shown, _ = process.communicate()
        pytest.fail(f"{environment.name}: not ended after {SECONDS:g} s\n{shown}")
    assert process.returncode == 0, f"{environment.name}: exit code {process.returncode}\n{shown}"
    return shown
