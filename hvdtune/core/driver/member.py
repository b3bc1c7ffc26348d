"""This process as a member of an elastic job: its place, and its driver's messages.

An environment variable says where the driver is. The first `take_place` connects; all requests
and answers use that connection.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import hvdtune._native as _native
from hvdtune.core import world
from hvdtune.core.driver import messages
from hvdtune.core.driver.place import Place
from hvdtune.core.libraries import network

if TYPE_CHECKING:  # other jobs do not need Python's sockets
    from hvdtune.core.driver.connection import Connection

Listener = Callable[[int, int], None]

#: Variables that a place unsets if it does not name them.
_MEETING = (network.ADDRESS, network.PORT)

_connection: Connection | None = None
_job = ""  # the launcher's name for the job; each generation has a name of its own
_place: Place | None = None
_reason, _why = messages.START, "it has started"
_asked_why = ""  # for the present place
_comes_back = False
_has_finished = False
_joins_late = False  # the job already ran when this process came
_function = ""  # the elastic function that began last
_listeners: list[Listener] = []
# The values of the variables of places before a place first named them.
_before: dict[str, str | None] = {}


def is_elastic() -> bool:
    """Whether an elastic job's driver gives this process its place."""
    return bool(os.environ.get(messages.DRIVER))


def is_connected() -> bool:
    """Whether the driver has been asked for a place."""
    return _connection is not None


def place() -> Place:
    """The present place, which `take_place` has returned."""
    assert _place is not None
    return _place


def job() -> str:
    """The common beginning of the names of the job's generations; "" in other jobs."""
    return _job


def is_reformed() -> bool:
    """Whether the job has been formed more than once."""
    return _place is not None and _place.generation > 1


def describe() -> str:
    """The present generation and why this process has asked for it, in words."""
    found = place()
    size = found.environment.get("HOROVOD_SIZE")
    new = ", ".join(map(str, sorted(found.newcomers))) or "none"
    return f"generation {found.generation}: {size} ranks, new ones: {new}; {_asked_why}"


def joins_late() -> bool:
    """Whether the job already ran when this process came, so that others have its state."""
    return _joins_late


def has_begun(function: str) -> None:
    """An elastic function begins, which has this name in all processes of the job."""
    global _function, _has_finished
    _function, _has_finished = function, False
    if _connection is not None and _place is not None:
        _connection.say_begun(function)


def will_ask(reason: str, why: str) -> None:
    """`take_place` will be called soon, and must give this reason."""
    global _reason, _why, _comes_back
    _reason, _why, _comes_back = reason, why, is_connected()


def comes_back() -> bool:
    """Whether this process, if it leaves the job now, is about to ask for another place."""
    return _comes_back


def take_place() -> Place | None:
    """Ask the driver for a place, wait until there is one, and set the environment's variables.

    Once the elastic function has returned, the place stays. Returns None, before it has begun, if
    the job runs already: this process gets a place when its function has begun.

    Raises ValueError if the driver's variables are malformed. Raises SystemExit: with exit code 0
    if the job goes on without this process, with a sentence if there is no driver any more.
    """
    global _connection, _place, _joins_late, _reason, _why, _asked_why, _comes_back
    if _has_finished and _place is not None:
        return _place
    from hvdtune.core.driver.connection import Gone, Left

    try:
        if _connection is None:
            _connection = _connect()
        given = _connection.ask(_place.generation if _place else 0, _reason, _why, _function)
    except Left as left:
        _native.log("info", __file__, 0, -1, f"This process leaves the job: {left}")
        raise SystemExit(0) from None
    except Gone as gone:
        raise SystemExit(f"hvdtune: {gone}") from None
    if given is None:
        _joins_late = True
        return None
    _place, _asked_why = given, _why
    # A call of init() without the loop of `hvdtune.elastic`: the running work is lost.
    _reason, _why, _comes_back = messages.FAILURE, "the program has called init() again", False
    for name in _MEETING:
        os.environ.pop(name, None)
    for name, text in _place.environment.items():
        before = _before.setdefault(name, os.environ.get(name))
        value = before if text is None else text
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return _place


def cancellation(place: Place) -> _native.Cancellation:
    """A handle that lets the driver end the meeting of the generation."""
    assert _connection is not None
    found = _native.Cancellation()
    _connection.on_cancel(place.generation, found.cancel)
    return found


def is_cancelled(place: Place) -> bool:
    """Whether the generation of a place will not come together, or has ended."""
    return _connection is not None and _connection.is_cancelled(place.generation)


def has_joined(engine: _native.Engine) -> None:
    """The processes of the generation have come together."""
    assert _connection is not None
    generation = place().generation
    _connection.on_cancel(generation, engine.cancel)
    _connection.say_joined(generation)
    if news := _connection.news()[0]:
        engine.interrupt(news)


def has_state() -> None:
    """This process has got the job's state, or had it from the beginning."""
    assert _connection is not None
    _connection.say_synchronised()


def is_finished() -> bool:
    """Whether the elastic function has returned, and has not begun again."""
    return _has_finished


def has_finished() -> None:
    """The elastic function has returned: the process will end."""
    global _has_finished
    if _connection is not None and not _has_finished:
        _has_finished = True
        _connection.say_finished()


def news() -> tuple[int, int]:
    """Number and change (a HostUpdateResult) of the driver's announcements since it gave this
    place; (0, 0) if there are none."""
    return _connection.news() if _connection is not None else (0, 0)


def listen(listener: Listener) -> None:
    """Call `listener` with the number and the change of all news, in a thread of its own."""
    if listener not in _listeners:
        _listeners.append(listener)


def _connect() -> Connection:
    global _job
    values = {
        name: os.environ.get(name, "")
        for name in (messages.DRIVER, messages.IDENTITY, network.SECRET)
    }
    missing = [name for name, value in values.items() if not value]
    if missing:
        raise ValueError(
            f"{network.FAILED}{messages.DRIVER} is set, but {' and '.join(missing)} "
            "is not: the driver of an elastic job sets all of them"
        )
    from hvdtune.core.driver.connection import Connection

    connection = Connection(_hear, *values.values(), measure=_measure)
    _job = os.environ.get("HVDTUNE_JOB_ID", "")
    os.register_at_fork(after_in_child=_forget)
    atexit.register(_stop_listening)
    return connection


def _hear(number: int, change: int) -> None:
    for listener in _listeners:
        listener(number, change)
    engine = world.running.engine
    if engine is not None:
        engine.interrupt(number)


def _measure() -> messages.Message | None:
    """Rank 0's measurement for the driver; None while this process is in no generation."""
    from hvdtune.core.driver import lateness

    present = _place  # read before the engine: the driver ignores an outdated generation
    engine = world.running.engine
    if present is None or engine is None:
        return None
    return {"generation": present.generation, **lateness.of_status(engine.status())}


def _forget() -> None:
    """A fork is not a member; its parent still is."""
    global _connection
    if _connection is not None:
        _connection.forget()
        _connection = None


def _stop_listening() -> None:
    if _connection is not None:
        _connection.stop_listening()
