"""What every test gets: a directory for its ranks, and a check that nothing is left of it."""

from __future__ import annotations

import functools
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter
from support.environments import ENVIRONMENTS, Making
from support.jobs.nursery import MARK, Nurseries
from support.native_builds import SANITIZERS, NativeBuilds
from support.tiers import TOO_LATE, too_late

TESTS = Path(__file__).parent
WITHOUT_PROCESSES = (TESTS / "unit",)
NATIVE = TESTS / "native"
# From so many tests on, their gaps are long enough to build the native ones.
MANY = 200
# With `-n`, environments are tested after the files with so many tests: they are made by then.
AS_MANY = 10
BUILDS = pytest.StashKey[NativeBuilds]()
ENVIRONMENTS_MADE = pytest.StashKey[Making]()
# Tests that have begun and not ended, and when they began, s. With `-n`, those of all processes.
RUNNING: dict[str, float] = {}


def pytest_report_header(config: pytest.Config) -> str | None:
    """Which tests run: who names a file of long tests sees why none of them does."""
    if config.option.markexpr != "not long":
        return None
    return "long tests are left out: -m long runs them, -m '' runs all"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The native tests last: they are built meanwhile. With `-n`, files with few tests are last,
    and fill what is left of the time that one process takes longer than another."""
    items.sort(key=lambda item: NATIVE in item.path.parents)
    if hasattr(config, "workerinput"):
        scopes = [scope_of(config.rootpath, item.nodeid) for item in items]
        many = Counter(scopes)
        places = dict(zip(items, scopes, strict=True))
        items.sort(key=lambda item: -max(many[places[item]], AS_MANY * is_environment(item.nodeid)))


def is_environment(nodeid: str) -> bool:
    """Whether a test runs all tests of an environment."""
    return "::test_in_environment[" in nodeid


def scope_of(root: Path, nodeid: str) -> str:
    """What stays in one process with `-n`: a file's tests, which share rigs and what they have
    started. So do all tests of rigs of hosts: two rigs have hosts of the same names, of which Open
    MPI takes one for the other. Environments, which share nothing, are tests by themselves."""
    if is_environment(nodeid):
        return nodeid
    file = nodeid.split("::", 1)[0]
    return "rigs of hosts" if _builds_rigs(root / file) else file


def pytest_configure(config: pytest.Config) -> None:
    """Own the builds of the native tests, or, with `-n`, use those of the process that shares the
    tests out."""
    given = getattr(config, "workerinput", None)
    config.stash[BUILDS] = (
        NativeBuilds(Path(given["native_builds"])) if given else NativeBuilds.own()
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """End what builds in the background."""
    if not hasattr(config, "workerinput"):
        config.stash[BUILDS].end()
        if ENVIRONMENTS_MADE in config.stash:
            config.stash[ENVIRONMENTS_MADE].end()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin to build the native tests; with `-n`, the next hook does."""
    if not hasattr(session.config, "workerinput"):
        _begin_builds(session.config, [item.nodeid for item in session.items])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """The first process that runs tests has found which there are."""
    if node.gateway.id == "gw0":
        _begin_builds(node.config, ids)


def _begin_builds(config: pytest.Config, tests: Sequence[str]) -> None:
    """In the gaps of other tests, if there are many."""
    sanitizers = [
        name
        for name in SANITIZERS
        if any(test.endswith(f"::test_native[{name}]") for test in tests)
    ]
    if len(tests) < MANY or config.option.collectonly:
        return
    if sanitizers:
        config.stash[BUILDS].begin(sanitizers)
    wanted = [
        name
        for name, environment in ENVIRONMENTS.items()
        if any(test.endswith(f"::test_in_environment[{name}]") for test in tests)
        and not environment.on_request
    ]
    if wanted:
        config.stash[ENVIRONMENTS_MADE] = Making(wanted)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """With `-n`: tell a process that will run tests where native ones are built."""
    node.workerinput["native_builds"] = str(node.config.stash[BUILDS].directory)


@functools.cache
def _builds_rigs(file: Path) -> bool:
    return "hosts_rig" in file.read_text(encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`: see scope_of."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(config.rootpath, nodeid)

    config.option.loadscopereorder = False  # pytest_collection_modifyitems has the order
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def native_builds(pytestconfig: pytest.Config) -> NativeBuilds:
    """Builds of the native tests; begun at once where there are many other tests before them."""
    return pytestconfig.stash[BUILDS]


@pytest.fixture(scope="session", autouse=True)
def nurseries() -> Iterator[None]:
    """Processes that ranks are forked from; started by the first test that needs one."""
    from support.jobs import ranks

    ranks.nurseries = Nurseries(ranks.clean_environment())
    yield
    ranks.nurseries.close()
    ranks.nurseries = None


@pytest.fixture(autouse=True)
def nothing_left_behind(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Fail a test that leaves a process or a file in /dev/shm; keep the user's cache as it is."""
    for name in list(os.environ):
        # What a developer exports decides nothing here, but for the tests' own variables.
        if name.startswith(("HOROVOD_", "HVDTUNE_")) and not name.startswith("HVDTUNE_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HVDTUNE_AUTOTUNE_STORE", "")
    if any(directory in request.path.parents for directory in WITHOUT_PROCESSES):
        yield
        return
    # Imported here: unit tests run without psutil.
    from support.jobs.leftovers import left_by_test, look

    mark = secrets.token_hex(16)
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("HVDTUNE_TEST_DIRECTORY", str(tmp_path_factory.mktemp("job")))
    before = look(mark)
    yield
    left = left_by_test(before)
    assert not left, "the test left something behind: " + "; ".join(left)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose turn comes too late; but not the second try of one that has failed."""
    if too_late() and getattr(item, "execution_count", 1) == 1:
        pytest.skip(TOO_LATE)


def pytest_runtest_logstart(nodeid: str) -> None:
    """A test begins."""
    RUNNING[nodeid] = time.monotonic()


def pytest_runtest_logfinish(nodeid: str) -> None:
    """A test has ended."""
    RUNNING.pop(nodeid, None)


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Show which tests were running if the others were interrupted, and why a test needed its
    second try (`--reruns 1` in .ci/run)."""
    for nodeid, began in RUNNING.items():
        terminalreporter.line(f"running for {time.monotonic() - began:.0f} s: {nodeid}", red=True)
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"RERUN {report.nodeid}: its first try failed", sep="=")
        report.toterminal(terminalreporter._tw)
