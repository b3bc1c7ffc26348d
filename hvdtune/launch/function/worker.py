"""One rank of a function job; see `hvdtune.launch.function.call_site`."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Sequence
from typing import IO, Protocol

from hvdtune.core import topology
from hvdtune.core.driver.messages import IDENTITY
from hvdtune.launch.local.environment import alias_folder


class _Caller(Protocol):
    """Where the call comes from, and the result goes."""

    def call(self) -> IO[bytes]: ...

    def own_path(self) -> list[str]:
        """Folders for modules that come after the caller's."""

    def take(self, rank: int, result: object) -> None: ...


class _Files:
    """Open files that this process has inherited: the call, then one for each rank's result.

    With `own` there is one file for the result of this process, whatever its rank.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._own = words[0] == "--own"
        descriptors = [int(word) for word in words[self._own :]]
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._call, *self._results = descriptors

    def call(self) -> IO[bytes]:
        # Through /proc: an open file's position is shared by all processes that inherited it.
        return open(f"/proc/self/fd/{self._call}", "rb")

    def own_path(self) -> list[str]:
        return []

    def take(self, rank: int, result: object) -> None:
        import cloudpickle

        place = 0 if self._own else rank
        if place < len(self._results):  # in an elastic job, others are not needed
            with open(self._results[place], "wb") as file:
                # In an elastic job another process may have had this rank before.
                file.seek(0)
                file.truncate()
                cloudpickle.dump(result, file)


class _Connection:
    """The connection to a caller that may be on another host."""

    def __init__(self, words: Sequence[str]) -> None:
        from hvdtune.launch.function import exchange

        port, *addresses = words
        key = os.environ.pop(exchange.KEY, "")
        self._worker = exchange.Worker(int(port), addresses, key)

    def call(self) -> IO[bytes]:
        return self._worker.call()

    def own_path(self) -> list[str]:
        # On another host, packages may be elsewhere.
        return list(sys.path)

    def take(self, rank: int, result: object) -> None:
        import cloudpickle

        self._worker.send(rank, cloudpickle.dumps(result))
        self._worker.close()


def main(words: Sequence[str]) -> int:
    """Make the caller's call and give it what the function returns.

    `words` are numbers of open files, maybe after "--own" (see `_Files`), or "--at", a port and
    addresses. Returns 1 after an exception, whose traceback goes to stderr. In an elastic job the
    rank is the one that the process has in the end.
    """
    rank = _rank() if not _is_elastic() else None
    try:
        caller: _Caller = _Connection(words[1:]) if words[0] == "--at" else _Files(words)
        with caller.call() as file:
            path, arguments = pickle.load(file)
            alias = alias_folder(os.environ)
            own = (entry for entry in caller.own_path() if entry not in path)
            sys.path[:] = [*alias, *(entry for entry in path if entry not in alias), *own]
            sys.argv[:] = arguments
            function, args, kwargs = pickle.load(file)
    except Exception as error:
        print(f"The function cannot be read by this worker: {_words(error)}", file=sys.stderr)
        return 1
    try:
        value = function(*args, **kwargs)
    except Exception as error:
        trace = error.__traceback__
        traceback.print_exception(error.with_traceback(trace.tb_next if trace else None))
        return 1
    return _give(caller, _rank() if rank is None else rank, value)


def _rank() -> int:
    return topology.detect(os.environ).rank


def _is_elastic() -> bool:
    return bool(os.environ.get(IDENTITY))


def _give(caller: _Caller, rank: int, value: object) -> int:
    try:
        caller.take(rank, value)
    except Exception as error:
        print(
            f"The function's result, a {type(value).__qualname__}, cannot be sent to the "
            f"caller: {_words(error)}",
            file=sys.stderr,
        )
        return 1
    return 0


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
