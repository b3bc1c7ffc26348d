"""Functions in threads."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: Sequence[Any] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Call a function in a new thread and return the thread; `silent` hides its errors.

    Raises ValueError unless `args` is a tuple of arguments.
    """
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple of arguments, not {type(args).__name__}")

    def call() -> None:
        try:
            target(*args)
        except Exception:
            if not silent:
                traceback.print_exc()

    thread = threading.Thread(target=call, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Call a function once an event is set, in a thread, which is returned.

    If `stop` is set first, the thread ends.
    """

    def wait() -> None:
        while not event.wait(None if stop is None else check_stop_interval_s):
            if stop is not None and stop.is_set():
                return
        func(*args)

    return in_thread(wait, daemon=daemon, silent=silent)


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Iterable[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Call a function with each of the argument lists, in threads; the results by index.

    Without `block_until_all_done` it does not wait for the calls, and returns nothing.
    """
    calls = [tuple(args) for args in args_list]
    if not calls:
        return {} if block_until_all_done else None
    pool = ThreadPoolExecutor(min(len(calls), max_concurrent_executions))
    futures = [pool.submit(fn, *args) for args in calls]
    pool.shutdown(wait=block_until_all_done)
    if not block_until_all_done:
        return None
    return {index: future.result() for index, future in enumerate(futures)}
