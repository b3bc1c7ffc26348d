"""One rank of a function job; see `hvdtune.launch.function.call_site`."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Sequence

from hvdtune.core.driver.messages import IDENTITY
from hvdtune.launch.local.environment import alias_folder


def main(words: Sequence[str]) -> int:
    """Make the call in file words[0] and store what it returns in this rank's file.

    `words` are numbers of open files: the call, then one for each rank's result. Returns 1 after
    an exception, whose traceback goes to stderr. In an elastic job the rank is the one that the
    process has in the end; if there is no file for it, its result is not needed. After the word
    "--own" there is one file for the result of this process, whatever its rank.
    """
    own = words[0] == "--own"
    descriptors = [int(word) for word in words[own:]]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    call, *results = descriptors
    rank = _rank() if not _is_elastic() else None
    try:
        # Through /proc: an open file's position is shared by all processes that inherited it.
        with open(f"/proc/self/fd/{call}", "rb") as file:
            path, arguments = pickle.load(file)
            alias = alias_folder(os.environ)
            sys.path[:] = [*alias, *(entry for entry in path if entry not in alias)]
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
    if own:
        return _store(value, results[0])
    rank = _rank() if rank is None else rank
    return _store(value, results[rank]) if rank < len(results) else 0


def _rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


def _is_elastic() -> bool:
    return bool(os.environ.get(IDENTITY))


def _store(value: object, descriptor: int) -> int:
    import cloudpickle

    try:
        with open(descriptor, "wb") as file:
            # In an elastic job another process may have had this rank before.
            file.seek(0)
            file.truncate()
            cloudpickle.dump(value, file)
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
