"""The frameworks' tests, each in the environments that `support.environments` says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import warnings
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import psutil
import pytest
from support.environments import ENVIRONMENTS, ROOT, Environment, python_of
from support.tiers import EVERY, TOO_LATE

import hvdtune

TESTS = ROOT / "tests"
# For an environment's tests, which usually take half of that beside other tests.
SECONDS = 7200.0 if EVERY else 1800.0
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(2 * SECONDS),  # pip may take long
    pytest.mark.flaky(reruns=0),  # pip and each test within have their second try
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
    again = re.findall("^RERUN .*", shown, re.MULTILINE)
    if again:
        warnings.warn(f"in {name}: {'; '.join(again)}", stacklevel=1)
    # Where a framework cannot be imported, all tests of a file are skipped: that is no success.
    passed, late = outcomes(report)
    idle = [file.name for file in files if not passed[file.stem] and not late[file.stem]]
    assert not idle, f"no test of {', '.join(idle)} has run in {name}\n{shown}"
    missed = {file.name: late[file.stem] for file in files if late[file.stem]}
    if missed:
        said = ", ".join(f"{number} of {file}" for file, number in missed.items())
        pytest.skip(f"none of its tests has failed, but {said} were skipped: {TOO_LATE}")


def outcomes(report: Path) -> tuple[Counter[str], Counter[str]]:
    """How many tests of each file have passed, and how many came too late to begin."""
    passed: Counter[str] = Counter()
    late: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        names = set(case.attrib["classname"].split("."))
        if any(TOO_LATE in one.attrib.get("message", "") for one in case.iter("skipped")):
            late.update(names)
        elif not {child.tag for child in case} & {"skipped", "failure", "error"}:
            passed.update(names)
    return passed, late


def run(command: list[str | Path], environment: Environment, folder: Path) -> str:
    """Run a command in an environment, in a folder; what it has shown. Fails if that does."""
    variables = {
        variable: value for variable, value in os.environ.items() if "XDIST" not in variable
    }
    process = subprocess.Popen(
        command,
        env={**variables, **environment.variables, **({} if EVERY else environment.in_a_hurry)},
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
