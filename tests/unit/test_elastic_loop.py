"""The elastic loop of a job of one process, whose driver the test plays."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.elastic_driver import ElasticDriver, place_variables

import hvdtune as hvd
from hvdtune import elastic
from hvdtune.core import job, operations, world
from hvdtune.core.driver import member, messages
from hvdtune.elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    HostUpdateResult,
    State,
    loop,
)
from hvdtune.faces.buckets import form_groups

np = pytest.importorskip("numpy")

ADDED, REMOVED = int(HostUpdateResult.added), int(HostUpdateResult.removed)
FAILURE, INTERRUPT, START = messages.FAILURE, messages.INTERRUPT, messages.START


@pytest.fixture
def driver(monkeypatch) -> Iterator[ElasticDriver]:
    """The driver of this process, "p0", until the test ends."""
    fresh: dict[Any, dict[str, Any]] = {
        member: {
            "_connection": None, "_place": None, "_has_finished": False, "_joins_late": False,
            "_function": "", "_comes_back": False, "_reason": START, "_why": "a test",
        },
        loop: {"_depth": 0, "_has_state": False},
    }  # fmt: skip
    for module, values in fresh.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    with ElasticDriver() as found:
        for name, value in found.environment("p0").items():
            monkeypatch.setenv(name, value)
        for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"):
            monkeypatch.setenv(f"HOROVOD_{name}", "-1")
        monkeypatch.setenv("HOROVOD_HOSTNAME", "localhost")
        yield found
        hvd.shutdown()


class Answers:
    """Answers each time that p0 is ready; `asked` has what it said."""

    def __init__(self, driver: ElasticDriver, *answers: Callable[[int], None]) -> None:
        self.asked: list[tuple[int, str]] = []
        self._driver = driver
        self._answers = answers
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for generation, answer in enumerate(self._answers, 1):
            message = self._driver.wait_for("ready", "p0")[0]
            self.asked.append((message["generation"], message["reason"]))
            answer(generation)

    def all(self) -> list[tuple[int, str]]:
        self._thread.join()
        return self.asked


class Recorder(State):
    """A state that notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__(hvd.broadcast_object, hvd.rank)
        self.calls: list[str] = []

    def save(self) -> None:
        self.calls.append("save")

    def restore(self) -> None:
        self.calls.append("restore")

    def sync(self) -> None:
        self.calls.append("sync")

    def reset(self) -> None:
        self.calls.append("reset")


def start_with(driver: ElasticDriver) -> Callable[[int], None]:
    return lambda generation: driver.place(generation, ["p0"], ["p0"])


def go_on(driver: ElasticDriver, synchronise: bool) -> Callable[[int], None]:
    return lambda generation: driver.place(generation, ["p0"], synchronise=synchronise)


def collective() -> None:
    hvd.allreduce(np.ones(1), name="step")


def interrupted(driver: ElasticDriver, state: State, number: int, change: int) -> None:
    """News come while steps are done, each of which is committed."""
    driver.send("p0", "news", number=number, change=change)
    steps(state)


def steps(state: State) -> None:
    """Many, each of which is committed."""
    for _ in range(100_000):
        collective()
        state.commit()
    raise AssertionError("no interrupt")


def test_the_driver_decides_whether_states_are_synchronised(driver):
    answers = Answers(
        driver, start_with(driver), go_on(driver, False), go_on(driver, True), go_on(driver, True)
    )
    hvd.init()
    state = Recorder()
    rounds = []

    @elastic.run
    def train(state: Recorder) -> str:
        rounds.append(state.calls[:])
        state.calls.clear()
        match len(rounds):
            case 1:
                interrupted(driver, state, 1, ADDED)
            case 2:
                interrupted(driver, state, 2, REMOVED)
            case 3:
                raise HorovodInternalError("made up")
        return "done"

    assert train(state) == "done"
    assert rounds[0] == ["sync", "save"], "what it goes back to is the job's state"
    assert rounds[1][-2:] == ["save", "reset"], "news of more hosts, but nobody is new"
    assert rounds[2][-3:] == ["save", "reset", "sync"], "only fewer hosts, but somebody is new"
    assert rounds[3] == ["restore", "reset", "sync"]
    assert answers.all() == [(0, START), (1, INTERRUPT), (2, INTERRUPT), (3, FAILURE)]
    driver.wait_for("finished", "p0")
    collective()  # the job goes on


def test_an_interrupt_comes_once_and_says_what_has_changed(driver):
    Answers(driver, start_with(driver))
    hvd.init()
    state, other = Recorder(), Recorder()
    elastic.notification_manager.register_listener(state)
    member.listen(elastic.notification_manager.handle_hosts_updated)
    for number, change in ((5, REMOVED), (7, ADDED)):
        with pytest.raises(HostsUpdatedInterrupt) as caught:
            interrupted(driver, state, number, change)
        assert caught.value.skip_sync == (change == REMOVED)
        assert state._last_updated_timestamp == number
        assert state._host_messages.empty()
        for _ in range(100):
            collective()
            state.commit()
    with pytest.raises(HostsUpdatedInterrupt):
        other.check_host_updates()
    driver.send("p0", "news", number=6, change=ADDED)  # an old number
    driver.send("p0", "leave", why="that all is heard")
    elastic.notification_manager.remove_listener(state)
    for _ in range(100):
        collective()
        state.check_host_updates()


def test_scripts_see_that_messages_have_come(driver):
    """Horovod's own test script waits for `_host_messages`, before its next commit."""
    Answers(driver, start_with(driver))
    hvd.init()
    state = Recorder()
    begun = threading.Event()

    def train(state: Recorder) -> None:
        driver.send("p0", "news", number=1, change=ADDED)
        while state._host_messages.empty():
            assert not begun.wait(0.001)

    elastic.run(train)(state)


def test_news_before_the_first_collective_is_not_lost(driver):
    def place_and_tell(generation: int) -> None:
        driver.place(generation, ["p0"], ["p0"])
        driver.send("p0", "news", number=9, change=REMOVED)

    Answers(driver, place_and_tell)
    hvd.init()
    state = Recorder()
    with pytest.raises(HostsUpdatedInterrupt):
        steps(state)


def test_a_process_that_is_told_to_leave_ends_with_0(driver):
    Answers(driver, start_with(driver), lambda _: driver.send("p0", "leave", why="enough"))
    hvd.init()

    @elastic.run
    def train(state: Recorder) -> None:
        raise HorovodInternalError("made up")

    with pytest.raises(SystemExit) as caught:
        train(Recorder())
    assert caught.value.code == 0
    assert not driver.said("finished")


def test_a_failure_in_a_callback_is_another_round(driver):
    answers = Answers(driver, start_with(driver), go_on(driver, True), go_on(driver, True))
    hvd.init()
    state = Recorder()
    failures = [HorovodInternalError("in a callback")]

    def callback() -> None:
        if failures:
            raise failures.pop()

    state.register_reset_callbacks([callback])
    rounds = []

    @elastic.run
    def train(state: Recorder) -> int:
        rounds.append(hvd.size())
        if len(rounds) == 1:
            raise HorovodInternalError("made up")
        return len(rounds)

    assert train(state) == 2
    assert answers.all() == [(0, START), (1, FAILURE), (2, FAILURE)]


def test_functions_within_each_other_finish_once(driver):
    Answers(driver, start_with(driver))
    hvd.init()
    said: list[int] = []

    @elastic.run
    def inner(state: Recorder) -> None:
        pass

    @elastic.run
    def outer(state: Recorder) -> None:
        inner(state)
        said.append(len(driver.said("finished")))

    for _ in range(2):
        outer(Recorder())
        begun = driver.wait_for("begun", "p0")[0]["function"]
        assert begun == f"{__name__}.{outer.__qualname__}", "only the outer one"
        driver.wait_for("finished", "p0")
    hvd.shutdown()
    hvd.init()  # after the end, in the same place
    collective()
    assert not any(map(driver.said, ("finished", "begun", "ready")))
    assert said == [0, 0]


def test_an_error_of_the_program_ends_the_loop(driver):
    Answers(driver, start_with(driver))
    hvd.init()

    @elastic.run
    def train(state: Recorder) -> None:
        raise KeyError("the program's")

    with pytest.raises(KeyError):
        train(Recorder())
    assert not driver.said("finished")


def test_errors_of_frameworks_stand_for_collectives(driver):
    answers = Answers(driver, start_with(driver), go_on(driver, True))
    hvd.init()
    rounds = []

    def train(state: Recorder) -> None:
        rounds.append(state)
        raise OSError("collective" if len(rounds) == 1 else "other")

    elastic_train = elastic.run_translated(train, lambda error: str(error) == "collective")
    with pytest.raises(OSError, match="other"):
        elastic_train(Recorder())
    assert answers.all() == [(0, START), (1, FAILURE)]


def test_an_error_of_a_collective_in_a_reset_callback_is_another_round(driver):
    answers = Answers(driver, start_with(driver), go_on(driver, True), go_on(driver, True))
    hvd.init()
    rounds, resets = [], []
    state = Recorder()

    def train(state: Recorder) -> str:
        rounds.append(state)
        if len(rounds) == 1:
            raise OSError("collective")
        return "done"

    def call_back() -> None:
        resets.append(state)
        if len(resets) == 1:
            raise OSError("collective")

    state.register_reset_callbacks([call_back])
    elastic_train = elastic.run_translated(train, lambda error: str(error) == "collective")
    assert elastic_train(state) == "done"
    assert len(rounds) == 2
    assert answers.all() == [(0, START), (1, FAILURE), (2, FAILURE)]


def test_what_an_elastic_init_does_not_take(driver):
    with pytest.raises(ValueError, match="the driver of an elastic job decides which processes"):
        hvd.init([0])
    Answers(driver, start_with(driver))
    hvd.init([])
    assert world.is_running()


def test_a_newcomer_never_becomes_the_source_of_the_state(driver, monkeypatch):
    """It was to be synchronised; but all who had the state are gone."""
    answers = Answers(driver, prepare(driver), go_on(driver, True))
    expect(monkeypatch, 2, 3)
    hvd.init()
    with pytest.raises(RuntimeError, match="the state of this elastic job is lost"):
        elastic.run(lambda state: None)(Recorder())
    assert answers.all() == [(0, START), (0, START)]


# ---- a job that runs already ---------------------------------------------------------------------


def prepare(driver: ElasticDriver) -> Callable[[int], None]:
    return lambda generation: driver.send("p0", "prepare")


def expect(monkeypatch, rank: int, size: int) -> None:
    """The place that the launcher has told this process to expect."""
    for name, value in place_variables(rank, size).items():
        monkeypatch.setenv(name, value)


def test_until_its_function_begins_a_newcomer_has_an_expected_place(driver, monkeypatch):
    Answers(driver, prepare(driver))
    expect(monkeypatch, 2, 3)
    some, few = hvd.ProcessSet([1, 2]), hvd.ProcessSet([0, 3])
    hooked = []
    monkeypatch.setattr(job, "_hooks", [(lambda: hooked.append("after init"), hooked.clear)])
    hvd.init(process_sets=[some, few])
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (2, 3, 2, 3)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert (some.rank(), some.size(), hvd.global_process_set.size()) == (1, 2, 3)
    assert few.size() is None, "it has no rank 3"
    # What optimizers ask for at their construction.
    assert form_groups(2, {"x": "a", "y": "b"}, hvd.global_process_set) == [("x",), ("y",)]
    operations.check_adasum(hvd.global_process_set)
    hvd.mark("loading")
    Recorder().commit()
    assert hooked == []
    for call in (
        collective,
        hvd.is_homogeneous,
        lambda: hvd.allreduce(np.ones(1), process_set=some),
        lambda: hvd.start_timeline("t.json"),
        lambda: hvd.add_process_set([0, 1]),
    ):
        with pytest.raises(ValueError, match=r"\(\) before the elastic function: this process has"):
            call()
    hvd.shutdown()
    assert not hvd.is_initialized()
    assert some.size() is None


@pytest.mark.parametrize("expected", [(0, 1), (2, 3)])
def test_who_joins_late_resets_before_it_synchronises(driver, monkeypatch, expected):
    """As the others do then, wherever it has expected to be."""
    answers = Answers(driver, prepare(driver), go_on(driver, True))
    expect(monkeypatch, *expected)
    hvd.init()
    monkeypatch.setattr(loop, "_has_state", True)  # it is rank 0, and is to go on
    state, sizes = Recorder(), []
    state.register_reset_callbacks([lambda: sizes.append(hvd.size())])
    assert elastic.run(lambda state: hvd.size())(state) == 1
    assert answers.all() == [(0, START), (0, START)]
    assert state.calls == ["reset", "sync"]
    assert sizes == [1]


def test_hooks_and_sets_of_init_come_with_the_function(driver, monkeypatch):
    Answers(driver, prepare(driver), prepare(driver), go_on(driver, True))
    expect(monkeypatch, 1, 2)
    whole = hvd.ProcessSet([0])
    hooked = []
    monkeypatch.setattr(job, "_hooks", [(lambda: hooked.append(hvd.size()), lambda: None)])
    hvd.init(process_sets=[whole])
    hvd.init()  # once more changes nothing
    assert (whole.size(), hooked) == (1, [])
    monkeypatch.setattr(loop, "_has_state", True)

    @elastic.run
    def train(state: Recorder) -> list[int]:
        return hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=whole).tolist()

    assert train(Recorder()) == [1]
    assert hooked == [1]


def test_sets_of_a_second_init_are_not_made_again(driver, monkeypatch):
    Answers(driver, prepare(driver), prepare(driver))
    expect(monkeypatch, 1, 2)
    monkeypatch.setattr(job, "_sets_of_program", None)
    hvd.init()
    hvd.init(process_sets=[hvd.ProcessSet([0])])
    assert job._sets_of_program is None


def test_a_fork_before_the_function_knows_that_it_is_one(driver, monkeypatch):
    Answers(driver, prepare(driver))
    expect(monkeypatch, 1, 2)
    hvd.init()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            hvd.allreduce(np.ones(1))
        except ValueError as error:
            status = int(hvd.rank() != 1 or "is a fork of rank 1" not in str(error))
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert world.is_expected()


def test_functions_are_told_apart_by_their_names():
    def train(state: Any, rate: float) -> None:
        pass

    names = [loop._name_of(func) for func in (partial(train, rate=1.0), train)]
    assert names[0] == names[1] == f"{__name__}.{train.__qualname__}"
    functions = [
        lambda state: None,
        lambda state: 1,
    ]
    assert len(set(map(loop._name_of, functions))) == 2
