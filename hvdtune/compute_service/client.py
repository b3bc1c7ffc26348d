"""The client of a compute service: in a dispatcher, a worker, or a process that trains."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hvdtune.compute_service import messages
from hvdtune.compute_service.errors import BY_NAME

_SECONDS = 10.0  # to connect, and to answer, beyond the time that the question itself may take
_TRIES = 3
# So a dead host is noticed after a minute, also by clients that only wait.
_KEEP_ALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}


class ComputeClient:
    """Asks the service that listens at one of `compute_addresses` (see `ComputeService.addresses`).

    `key` is the service's. `verbose`, which Horovod has, is ignored. Any number of threads may use
    a client, and it needs no closing.

    All methods raise ConnectionError if the service does not answer (here: at none of the
    addresses), RuntimeError if it is shut down while they wait, and the errors that they name.
    """

    def __init__(
        self,
        compute_addresses: Mapping[str, Sequence[tuple[str, int]]],
        key: bytes,
        verbose: int = 1,
    ) -> None:
        self._key = key
        self._lock = threading.Lock()
        self._watching: threading.Thread | None = None
        places = [
            (str(host), int(port)) for some in compute_addresses.values() for host, port in some
        ]
        # A loopback address comes last: others could not reach what this process registers.
        places.sort(key=lambda place: place[0].startswith("127.") or place[0] == "::1")
        failures = []
        for self._place in places:
            try:
                _, self.own_address = self._exchange("is_running", {}, 0.0)
                return
            except (OSError, messages.Rejected) as error:
                failures.append(f"{_text(self._place)} ({error})")
        raise ConnectionError(
            "the compute service answers at none of its addresses: "
            + (", ".join(failures) or "there is none")
        )

    #: This host's address on its connection to the service.
    own_address: str

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """Register a dispatcher's address; repeating that does no harm.

        Raises IndexError for an id that the service does not expect, and ValueError if this
        dispatcher is known at another address.
        """
        self._ask("register_dispatcher", dispatcher=dispatcher_id, address=dispatcher_address)

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """The dispatcher's address, once it is registered.

        Raises IndexError for an id that the service does not expect, and TimeoutException after
        `timeout` seconds.
        """
        return str(
            self._ask(
                "wait_for_dispatcher", seconds=timeout, dispatcher=dispatcher_id, timeout=timeout
            )
        )

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """Register a dispatcher's worker as ready; repeating that does no harm.

        Raises IndexError for a dispatcher id that the service does not expect.
        """
        self._ask("register_worker", dispatcher=dispatcher_id, worker=worker_id)

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Return once all of a dispatcher's workers are registered.

        Raises IndexError for an id that the service does not expect, and TimeoutException after
        `timeout` seconds.
        """
        self._ask("wait_for_workers", seconds=timeout, dispatcher=dispatcher_id, timeout=timeout)

    def is_running(self) -> bool:
        """Whether the service runs and was not told to shut down."""
        try:
            return bool(self._ask("is_running"))
        except ConnectionError:
            return False

    def shutdown(self) -> None:
        """Tell the service, and through it all processes that wait for its end, to shut down."""
        self._ask("end")

    def wait_for_shutdown(self, timeout: float | None = None) -> None:
        """Return when the service is told to shut down or is gone, or after `timeout` seconds."""
        self._wait_for_shutdown_thread.join(timeout)

    @property
    def _wait_for_shutdown_thread(self) -> threading.Thread:  # Horovod's name; its tests join it
        with self._lock:
            if self._watching is None:
                self._watching = threading.Thread(target=self._watch, daemon=True)
                self._watching.start()
            return self._watching

    def _watch(self) -> None:
        failures = 0
        while failures < _TRIES:
            begin = time.monotonic()
            try:
                self._exchange("wait_for_end", {}, None)
                return
            except (OSError, messages.Rejected):
                # A connection that had lasted was cut on the way: count from 1 again.
                failures = 1 if time.monotonic() - begin > 2 * _SECONDS else failures + 1
                time.sleep(0.1)

    def _ask(self, name: str, *, seconds: float = 0.0, **parameters: Any) -> Any:
        try:
            answer, _ = self._exchange(name, parameters, seconds)
        except (OSError, messages.Rejected) as error:
            raise ConnectionError(
                f"the compute service at {_text(self._place)} does not answer: {error}"
            ) from None
        if "error" in answer:
            kind, text = answer["error"]
            raise BY_NAME[kind](text)
        return answer["value"]

    def _exchange(
        self, name: str, parameters: dict[str, Any], seconds: float | None
    ) -> tuple[dict[str, Any], str]:
        """The answer to a question that may take `seconds`, and this end's address."""
        with socket.create_connection(self._place, _SECONDS) as connection:
            challenge = _receive(connection, messages.CHALLENGE_BYTES)
            question, digest = messages.pack(
                self._key, challenge, {"ask": name, "with": parameters}
            )
            connection.sendall(question)
            if seconds is None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in _KEEP_ALIVE.items():
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)
            connection.settimeout(None if seconds is None else seconds + _SECONDS)
            prefix = _receive(connection, messages.PREFIX.size)
            text = _receive(connection, messages.length(prefix))
            address = str(connection.getsockname()[0])
        return messages.unpack(self._key, digest, prefix, text)[0], address


def _text(place: tuple[str, int]) -> str:
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionResetError("the connection was closed")
        data += more
    return data
