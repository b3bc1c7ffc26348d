"""The loop behind the ``run`` decorators: training that starts over when the job has changed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hvdtune.core import world
from hvdtune.core.driver import member, messages
from hvdtune.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from hvdtune.core.job import init, shutdown
from hvdtune.core.observation import log
from hvdtune.elastic.notifications import notification_manager
from hvdtune.elastic.state import State

_depth = 0  # of elastic functions within each other
_has_state = False  # whether this process has been synchronised with the job


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for ``func(state, …)``: training that starts over when the job has changed.

    If a collective fails (a rank is gone, ranks disagree, the job was shut down), the state goes
    back to its last commit and the process joins the job anew with ``shutdown()`` and ``init()``.
    If hosts have changed, the current state is kept. Then the reset callbacks run, every rank gets
    rank 0's state, and ``func`` is called again. Only the content of the state survives.
    """
    return run_fn(func, reset)


def run_translated(
    func: Callable[..., Any], is_of_collective: Callable[[Exception], bool]
) -> Callable[..., Any]:
    """``run`` for a framework that has its own errors for failed collectives."""
    return _until_it_ends(func, reset, is_of_collective)


def reset() -> None:
    """Leave the job and join it anew; an elastic job's driver says where."""
    shutdown()
    init()


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """``func(state, …)`` as a function that starts over when collectives fail or hosts change.

    Every round synchronises the state with rank 0's and calls ``func``; its result ends the loop.

    - HorovodInternalError: the state goes back to its last commit.
    - HostsUpdatedInterrupt: the state stays, and counts as committed; it is not synchronised if
            the interrupt says so, because then no process is new.

    Before the next round ``reset()`` leaves the job and joins it anew, and ``state.on_reset()``
    runs the state's callbacks; if a collective fails in these, that is another round. Any other
    exception ends the loop, and so does one of ``reset``. The number of rounds is not limited.

    In an elastic job its driver decides how often the job may start over, whether states are
    synchronised, and whether this process goes on at all: if not, SystemExit(0) is raised. There a
    synchronised state counts as committed on every rank. A process that is new in a running job
    joins it here; ``state.on_reset()`` precedes its first round, as it precedes the next round of
    the others.
    """
    return _until_it_ends(func, reset, lambda error: False)


def _until_it_ends(
    func: Callable[..., Any],
    reset: Callable[[], None],
    is_of_collective: Callable[[Exception], bool],
) -> Callable[..., Any]:
    """As `run_fn`; errors that are `is_of_collective` count as HorovodInternalError."""

    @functools.wraps(func)
    def until_it_ends(state: State, *args: Any, **kwargs: Any) -> Any:
        with notification_manager.listening(state), _taking_part(func) as joins_late:
            equal = False  # whether the ranks' states are known to be equal
            starts_over = joins_late
            while True:
                try:
                    with _translating(is_of_collective):
                        if starts_over:
                            state.on_reset()
                        if not equal:
                            _synchronise(state)
                        return func(state, *args, **kwargs)
                except (HorovodInternalError, HostsUpdatedInterrupt) as reason:
                    equal = _prepare_next_round(state, reason)
                # After the except: the failed round's frames, and what they hold, are gone here.
                reset()
                starts_over = True
                if member.is_connected():
                    equal = not member.place().synchronise

    return until_it_ends


@contextmanager
def _taking_part(func: Callable[..., Any]) -> Iterator[bool]:
    """Tell the driver of an elastic job when the outermost function begins and returns.

    If the job ran before this process started, join it now; yields whether it did.
    """
    global _depth
    joins_late = False
    if _depth == 0 and member.is_elastic():
        member.listen(notification_manager.handle_hosts_updated)
        member.has_begun(_name_of(func))
        if joins_late := world.is_expected():
            init()
    _depth += 1
    try:
        yield joins_late
    finally:
        _depth -= 1
    if _depth == 0:
        member.has_finished()


def _name_of(func: Callable[..., Any]) -> str:
    """The function's name, the same in every process of the job."""
    while isinstance(func, functools.partial):
        func = func.func
    named = func if hasattr(func, "__qualname__") else type(func)
    name = f"{named.__module__}.{named.__qualname__}"
    if name.endswith("<lambda>"):
        name += f" in line {func.__code__.co_firstlineno}"
    return name


@contextmanager
def _translating(is_of_collective: Callable[[Exception], bool]) -> Iterator[None]:
    """Raise HorovodInternalError for a framework's error of a collective."""
    try:
        yield
    except Exception as error:
        if is_of_collective(error):
            raise HorovodInternalError(str(error)) from error
        raise


def _synchronise(state: State) -> None:
    global _has_state
    if not member.is_connected():
        state.sync()
        return
    if world.rank() == 0 and member.joins_late() and not _has_state:
        raise RuntimeError(
            "the state of this elastic job is lost: all processes that had it are gone, and this "
            "one has never got it"
        )
    state.sync()
    # A rank may become the next rank 0, so it must go back to the job's state. The present rank 0
    # has sent its own, except the first time, when it may have loaded something.
    if world.rank() != 0 or not _has_state:
        state.save()
    if not _has_state:
        member.has_state()
    _has_state = True


def _prepare_next_round(state: State, reason: HorovodInternalError | HostsUpdatedInterrupt) -> bool:
    """Prepare the state for the next round; return True if it need not be synchronised."""
    if isinstance(reason, HostsUpdatedInterrupt):
        log.write("info", "The hosts have changed; training starts over from its current state")
        # Synchronising sends the committed state, so commit: nothing must be lost.
        state.save()
        member.will_ask(messages.INTERRUPT, "hosts have changed")
        return reason.skip_sync
    log.write("warning", f"Training starts over from its last commit: {reason}")
    state.restore()
    member.will_ask(messages.FAILURE, str(reason))
    return False
