"""The data of a compute service: addresses of dispatchers, and the workers of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hvdtune.compute_service.errors import BY_NAME, TimeoutException


class Registry:
    """Dispatchers and workers of one data service; all calls come from one event loop."""

    def __init__(self, dispatchers: int, workers_per_dispatcher: int) -> None:
        self._addresses: list[str | None] = [None] * dispatchers
        self._workers: list[set[int]] = [set() for _ in range(dispatchers)]
        self._workers_wanted = workers_per_dispatcher
        self._ended = False
        self._changed = asyncio.Event()
        self._questions: dict[str, Callable[..., Any]] = {
            "register_dispatcher": self._register_dispatcher,
            "wait_for_dispatcher": self._wait_for_dispatcher,
            "register_worker": self._register_worker,
            "wait_for_workers": self._wait_for_workers,
            "wait_for_end": self._wait_for_end,
            "end": self.end,
            "is_running": self._is_running,
        }

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to `{"ask": NAME, "with": {…}}`: {"value": …} or {"error": [class, text]}."""
        try:
            value = self._questions[question["ask"]](**question["with"])
            return {"value": await value if asyncio.iscoroutine(value) else value}
        except tuple(BY_NAME.values()) as error:
            known = next(name for name, kind in BY_NAME.items() if isinstance(error, kind))
            return {"error": [known, str(error)]}
        except (KeyError, TypeError) as error:  # another version's client
            return {"error": ["ValueError", f"the compute service was asked wrongly: {error}"]}

    def end(self) -> None:
        """Release every client that waits for the end or for other processes."""
        self._ended = True
        self._change()

    def _is_running(self) -> bool:
        return not self._ended

    def _register_dispatcher(self, dispatcher: int, address: str) -> None:
        self._check(dispatcher)
        known = self._addresses[dispatcher]
        if known not in (None, address):
            raise ValueError(
                f"Dispatcher with id {dispatcher} has already been registered under different "
                f"address {known}: {address}"
            )
        self._addresses[dispatcher] = address
        self._change()

    def _register_worker(self, dispatcher: int, worker: int) -> None:
        self._check(dispatcher)
        self._workers[dispatcher].add(worker)
        self._change()

    async def _wait_for_dispatcher(self, dispatcher: int, timeout: float) -> str | None:
        self._check(dispatcher)
        await self._until(
            lambda: self._addresses[dispatcher] is not None, timeout, "the dispatcher",
            f"dispatcher {dispatcher}",
        )  # fmt: skip
        return self._addresses[dispatcher]

    async def _wait_for_workers(self, dispatcher: int, timeout: float) -> None:
        self._check(dispatcher)
        await self._until(
            lambda: len(self._workers[dispatcher]) >= self._workers_wanted, timeout, "the workers",
            f"workers for dispatcher {dispatcher}",
        )  # fmt: skip

    async def _wait_for_end(self) -> None:
        while not self._ended:
            await self._changed.wait()

    async def _until(
        self, holds: Callable[[], bool], timeout: float, them: str, waited_for: str
    ) -> None:
        async def wait() -> None:
            while not holds() and not self._ended:
                await self._changed.wait()

        if not isinstance(timeout, int | float):
            raise TypeError(f"timeout is {timeout!r}, must be a number of seconds")
        try:
            if not holds():
                await asyncio.wait_for(wait(), timeout)
        except asyncio.TimeoutError:
            raise TimeoutException(
                f"Timed out waiting for {waited_for} to register. Try to find out what takes "
                f"{them} so long to register or increase timeout. Timeout after {timeout} seconds."
            ) from None
        if not holds():
            raise RuntimeError(f"The compute service was shut down before {waited_for} registered.")

    def _check(self, dispatcher: int) -> None:
        if not 0 <= dispatcher < len(self._addresses):
            raise IndexError(
                f"Dispatcher id {dispatcher} is not one of this service, which has ids from 0 to "
                f"{len(self._addresses) - 1}"
            )

    def _change(self) -> None:
        before, self._changed = self._changed, asyncio.Event()
        before.set()
