"""The server of the process that has the registry: one thread serves all clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Collection
from typing import Any

from hvdtune.compute_service import messages
from hvdtune.compute_service.registry import Registry
from hvdtune.core.meeting.addresses import addresses_of, present_interfaces, reachable

_PATIENCE = 10.0  # seconds for a question to arrive, and at the end for answers to be sent
_BACKLOG = 1024  # all workers of a service may connect at the same time


class ComputeService:
    """Answers `ComputeClient`s that have the same key, until `shutdown` or the process's end.

    It expects `dispatchers` and `workers_per_dispatcher` (at least 1 each). It listens on an
    address of each of this host's interfaces, or only of those that `nics` names.

    Raises ValueError for numbers below 1, an empty key, and `nics` without an address.
    """

    def __init__(
        self,
        dispatchers: int,
        workers_per_dispatcher: int,
        key: bytes,
        nics: Collection[str] | None = None,
    ) -> None:
        for name, number in (
            ("dispatchers", dispatchers),
            ("workers_per_dispatcher", workers_per_dispatcher),
        ):
            if number < 1:
                raise ValueError(f"ComputeService: {name} is {number}, must be at least 1")
        if not key:
            raise ValueError("ComputeService: the key is empty")
        self._key = key
        self._registry = Registry(dispatchers, workers_per_dispatcher)
        self._listening = _listen(nics)
        self._stop = asyncio.Event()
        self._answering: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, name="hvdtune compute service", daemon=True
        )
        self._thread.start()

    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """The addresses that it listens on: for each interface, with ports."""
        return {name: [place] for name, (place, _) in self._listening.items()}

    def shutdown(self) -> None:
        """Tell waiting clients that the service has ended, and end it; repeating does no harm."""
        with contextlib.suppress(RuntimeError):  # the loop is already closed
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        servers = [
            await asyncio.start_server(self._take, sock=listener, backlog=_BACKLOG)
            for _, listener in self._listening.values()
        ]
        await self._stop.wait()
        for server in servers:
            server.close()
        self._registry.end()
        if self._answering:
            _, late = await asyncio.wait(self._answering, timeout=_PATIENCE)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            await self._answer(reader, writer)
        except (OSError, EOFError, asyncio.TimeoutError, messages.Rejected):
            pass  # a stranger, or a client that is gone
        finally:
            writer.close()
            try:
                await asyncio.wait_for(writer.wait_closed(), _PATIENCE)
            except (OSError, asyncio.TimeoutError):
                writer.transport.abort()
            self._answering.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        challenge = os.urandom(messages.CHALLENGE_BYTES)
        writer.write(challenge)
        arriving = _message(reader)
        question, digest = messages.unpack(
            self._key, challenge, *await asyncio.wait_for(arriving, _PATIENCE)
        )
        answering = asyncio.ensure_future(self._registry.answer(question))
        leaving = asyncio.ensure_future(reader.read(1))  # a client sends nothing else
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                writer.write(messages.pack(self._key, digest, answering.result())[0])
                await asyncio.wait_for(writer.drain(), _PATIENCE)
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    prefix = await reader.readexactly(messages.PREFIX.size)
    return prefix, await reader.readexactly(messages.length(prefix))


def _listen(nics: Collection[str] | None) -> dict[str, tuple[tuple[str, int], socket.socket]]:
    """A listening socket on an address of each interface, with its address.

    First come those that other hosts may reach: a client registers its own address on the first
    connection that works.
    """
    if nics is None:
        found = {**reachable(), **addresses_of(present_interfaces())}
    else:
        found = addresses_of([*nics])
    missing = [name for name in nics or () if name not in found]
    if missing or not found:
        raise ValueError(
            f"ComputeService: nics: {', '.join(missing) or 'no interface'} has no address here; "
            f"{', '.join(addresses_of(present_interfaces())) or 'no interface'} has"
        )
    listening = {}
    for name, address in found.items():
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        listening[name] = ((address, int(listener.getsockname()[1])), listener)
    return listening
