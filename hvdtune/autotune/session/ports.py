"""The session's interfaces: the engine, the optimiser and the log, as far as it needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hvdtune.autotune.report import log
from hvdtune.autotune.search.question import Answer, Request
from hvdtune.autotune.search.space import Value
from hvdtune.autotune.statistics.cycle import Part


class Engine(Protocol):
    """What the session needs of the engine (`hvdtune.core.tuning` has it)."""

    @property
    def EngineStopped(self) -> type[Exception]:
        """Raised by `read_steps` when the engine is shut down."""

    def read_steps(self, timeout_s: float) -> Sequence[Part]:
        """The steps since the last call; waits for one, at most `timeout_s` seconds."""

    def apply(self, values: Mapping[str, Value]) -> int:
        """Apply settings on all ranks; returns the number of the epoch that begins.

        If somebody else has changed settings meanwhile, does nothing; the number is then an earlier
        one.
        """

    def current(self) -> Mapping[str, Value]:
        """The settings in force."""

    def peek(self) -> Mapping[str, Value]:
        """The same, without taking note of changes: more settings may appear over time."""

    def asked(self) -> Mapping[str, Value]:
        """The newest values that anyone but the session has asked for since the start."""


class Optimiser(Protocol):
    """What the session needs of the optimiser (`client.ServiceClient` has it)."""

    computing_ms: float
    started_s: float | None  # how long its process took to start; None: it has not yet

    def ask(self, request: Request) -> None:
        """Send a question."""

    def poll(self) -> Answer | None:
        """The answer, if it has arrived."""

    def close(self) -> None:
        """End the optimiser."""


class Writer(Protocol):
    """The destination of the log's rows (`log.LogWriter` is one)."""

    def write(self, row: log.Row) -> None:
        """Write a row."""

    def close(self) -> None:
        """Finish: there will be no more rows."""
