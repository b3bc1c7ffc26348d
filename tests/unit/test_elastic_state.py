"""The framework-neutral states, the loop around them and the announcements, in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from hvdtune.elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    HostUpdateResult,
    ObjectState,
    State,
    notification_manager,
    run_fn,
)

REMOVED, ADDED, MIXED = HostUpdateResult.removed, HostUpdateResult.added, HostUpdateResult.mixed


def own(value: Any) -> Any:
    """The broadcast of a job of one process."""
    return value


def object_state(**kwargs: Any) -> Any:
    return ObjectState(own, lambda: 0, **kwargs)


class Recorder(State):
    """A state that notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__(own, lambda: 0)
        self.calls: list[str] = []

    def save(self) -> None:
        self.calls.append("save")

    def restore(self) -> None:
        self.calls.append("restore")

    def sync(self) -> None:
        self.calls.append("sync")

    def reset(self) -> None:
        self.calls.append("reset state")


def test_kinds_of_change_have_horovods_numbers():
    assert [int(kind) for kind in (HostUpdateResult.no_update, REMOVED, ADDED, MIXED)] == [
        0,
        1,
        2,
        3,
    ]
    assert REMOVED | ADDED == MIXED


def test_objects_are_saved_and_restored_as_references():
    batches = [1]
    state = object_state(epoch=1, batches=batches, note=None)
    assert (state.epoch, state.batches, state.note) == (1, batches, None)
    state.epoch, state.batches = 2, [7]
    state.restore()
    assert state.epoch == 1
    assert state.batches is batches
    state.epoch = 3
    state.batches.append(2)  # in place: the saved state has it too
    state.commit()
    state.epoch, state.note = 4, "lost"
    state.restore()
    assert (state.epoch, state.batches, state.note) == (3, [1, 2], None)


def test_synchronising_sends_what_was_saved_and_saves_what_comes():
    sent = []

    def from_rank_0(value: Any) -> Any:
        sent.append(value)
        return {"epoch": 50}

    state: Any = ObjectState(from_rank_0, lambda: 1, epoch=1)
    state.epoch = 2
    state.sync()
    assert sent == [{"epoch": 1}]
    assert state.epoch == 50
    state.epoch = 51
    state.restore()
    assert state.epoch == 50
    nothing = ObjectState(from_rank_0, lambda: 1)
    nothing.sync()
    assert len(sent) == 1, "a state without objects has nothing to send"


@pytest.mark.parametrize("name", ["commit", "save", "on_reset", "_set_attributes"])
def test_a_keyword_does_not_hide_a_method(name):
    with pytest.raises(ValueError, match=f"ObjectState: {name}=… would hide"):
        object_state(**{name: 1})


@pytest.mark.parametrize(
    ("messages", "skip_sync"),
    [
        ([], None),
        ([(1, REMOVED)], True),
        ([(1, ADDED)], False),
        ([(1, REMOVED), (2, REMOVED)], True),
        ([(1, REMOVED), (2, ADDED)], False),
        ([(2, ADDED), (1, REMOVED)], False),
        ([(1, ADDED), (1, REMOVED)], False),
        ([(3, MIXED)], False),
        ([(0, ADDED)], None),
    ],
)
def test_changes_of_hosts_interrupt(messages, skip_sync):
    state = object_state()
    for timestamp, kind in messages:
        state.on_hosts_updated(timestamp, kind)
    for check in (state.commit, state.check_host_updates):
        if skip_sync is None:
            check()
        else:
            with pytest.raises(HostsUpdatedInterrupt) as caught:
                check()
            assert caught.value.skip_sync is skip_sync
            skip_sync = None  # the news is told once


def test_old_news_is_no_news():
    state = object_state()
    state.on_hosts_updated(5, ADDED)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
    state.on_hosts_updated(5, REMOVED)
    state.on_hosts_updated(4, REMOVED)
    state.check_host_updates()
    state.on_hosts_updated(6, REMOVED)
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.check_host_updates()
    assert caught.value.skip_sync


def test_rank_0_decides():
    """Other ranks hear of changes that only rank 0 knows, and wait with those it does not know."""
    answers = [(0, 0, 0), (0, 7, int(REMOVED)), (7, 7, 0)]
    state = ObjectState(lambda value: answers.pop(0), lambda: 1)
    state.on_hosts_updated(7, REMOVED)
    state.check_host_updates()
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.check_host_updates()
    assert caught.value.skip_sync
    state.check_host_updates()


def test_a_reset_forgets_messages_and_calls_back_in_order():
    state = Recorder()
    state.register_reset_callbacks([lambda: state.calls.append("first")])
    state.register_reset_callbacks(iter([lambda: state.calls.append("second")]))
    state.on_hosts_updated(1, ADDED)
    state.on_reset()
    assert state.calls == ["reset state", "first", "second"]
    state.check_host_updates()


def loop(state: Recorder, rounds: list[Any]) -> Callable[..., Any]:
    """A training function whose rounds raise or return what is listed."""

    def train(got: Recorder, *args: Any, **kwargs: Any) -> Any:
        assert got is state
        state.calls.append("train")
        outcome = rounds.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome, args, kwargs

    return run_fn(train, lambda: state.calls.append("reset job"))


def test_the_loop_restores_after_a_failure(capfd):
    state = Recorder()
    rounds = [HorovodInternalError("rank 3 is gone"), HorovodInternalError("again"), "done"]
    train = loop(state, rounds)
    assert train.__name__ == "train"
    assert train(state, 1, key=2) == ("done", (1,), {"key": 2})
    again = ["restore", "reset job", "reset state", "sync", "train"]
    assert state.calls == ["sync", "train", *again, *again]
    assert "rank 3 is gone" in capfd.readouterr().err, "the reason is logged"


@pytest.mark.parametrize("skip_sync", [True, False])
def test_the_loop_keeps_the_state_when_hosts_change(skip_sync):
    state = Recorder()
    assert loop(state, [HostsUpdatedInterrupt(skip_sync), "done"])(state)[0] == "done"
    sync = [] if skip_sync else ["sync"]
    assert state.calls == [
        *("sync", "train", "save", "reset job", "reset state"), *sync, "train",
    ]  # fmt: skip


def test_a_failure_after_skipping_synchronises_again():
    state = Recorder()
    rounds = [HostsUpdatedInterrupt(True), HorovodInternalError("x"), "done"]
    loop(state, rounds)(state)
    assert state.calls[-5:] == ["restore", "reset job", "reset state", "sync", "train"]


def test_a_failure_while_synchronising_is_a_failure():
    class Failing(Recorder):
        def sync(self) -> None:
            super().sync()
            if self.calls.count("sync") == 1:
                raise HorovodInternalError("not yet")

    state = Failing()
    loop(state, ["done"])(state)
    assert state.calls == ["sync", "restore", "reset job", "reset state", "sync", "train"]


def test_nothing_is_lost_when_hosts_change_between_commits():
    """Objects that were not committed survive the synchronisation that follows."""
    state: Any = object_state(batch=0)
    seen = []

    def train(state: Any) -> None:
        seen.append(state.batch)
        if state.batch < 5:
            state.batch = 5
            notification_manager.handle_hosts_updated(1, ADDED)
            state.check_host_updates()

    run_fn(train, lambda: None)(state)
    assert seen == [0, 5]


@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt()])
def test_other_errors_end_the_loop(error):
    state = Recorder()
    with pytest.raises(type(error)):
        loop(state, [error])(state)
    assert state.calls == ["sync", "train"]
    notification_manager.handle_hosts_updated(1, ADDED)
    state.check_host_updates()  # it does not listen any more


def test_an_error_of_the_reset_ends_the_loop():
    state = Recorder()

    def train(state: State) -> None:
        raise HorovodInternalError("x")

    def reset() -> None:
        raise ValueError("Horovod initialization failed")

    with pytest.raises(ValueError, match="initialization failed"):
        run_fn(train, reset)(state)


def test_announcements_reach_every_running_loop_from_any_thread():
    first, second = Recorder(), Recorder()

    def train(state: Recorder) -> str:
        thread = threading.Thread(target=notification_manager.handle_hosts_updated, args=(9, 1))
        if state is first:
            return run_fn(train, lambda: None)(second)
        thread.start()
        thread.join()
        for listening in (first, second):
            with pytest.raises(HostsUpdatedInterrupt):
                listening.check_host_updates()
        return "told"

    assert run_fn(train, lambda: None)(first) == "told"


@pytest.mark.parametrize("kind", [-1, 4])
def test_unknown_changes_are_refused(kind):
    with pytest.raises(ValueError, match=f"update_res={kind} is no change"):
        notification_manager.handle_hosts_updated(1, kind)
