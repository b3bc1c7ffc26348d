"""A planted program: what it trains, its fault, and the ranks at fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from planted.job import Job

Train = Callable[[Job], None]
#: The verdicts that a healthy job may get: that it is healthy, or advice that helps every job.
HARMLESS = frozenset({"compute bound", "communication bound", "copies", "nothing stands out"})
#: … and beside other programs, which take CPUs from different ranks at different moments.
BUSY_HOST = frozenset({"CPUs taken", "ranks take turns"})


@dataclass(frozen=True)
class Program:
    """A job and the truth about it.

    kinds: the kinds of findings that name its fault, the most exact first; empty for a healthy job.
    culprits: the ranks at fault; empty: all alike or none; None: the named ranks are not judged.
    allowed: further findings that a verdict on this healthy job may have.
    environment: of all runs. faulty_environment: added in runs with the fault.
    """

    name: str
    train: Train
    framework: str = "numpy"
    ranks: int = 2
    hosts: int = 1
    kinds: tuple[str, ...] = ()
    culprits: frozenset[int] | None = frozenset()
    allowed: frozenset[str] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)
    faulty_environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        """Whether it has no fault, so there is nothing to cure."""
        return not self.kinds

    def variables(self, fault: bool) -> dict[str, str]:
        """The environment of a run: each rank computes on one thread, unless that is the fault."""
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        return threads | dict(self.environment) | (dict(self.faulty_environment) if fault else {})


class Programs:
    """Programs of one module; a decorator adds the function below it."""

    def __init__(self) -> None:
        self.all: list[Program] = []

    def faulty(
        self,
        name: str,
        kinds: str | tuple[str, ...],
        *,
        framework: str = "numpy",
        ranks: int = 2,
        hosts: int = 1,
        culprits: tuple[int, ...] | None = (),
        environment: Mapping[str, str] | None = None,
        faulty_environment: Mapping[str, str] | None = None,
    ) -> Callable[[Train], Train]:
        """A program with a fault, which its function plants if `job.fault` holds."""

        def add(train: Train) -> Train:
            self.all.append(
                Program(
                    name, train, framework, ranks, hosts,
                    (kinds,) if isinstance(kinds, str) else kinds,
                    None if culprits is None else frozenset(culprits),
                    environment=environment or {},
                    faulty_environment=faulty_environment or {},
                )
            )  # fmt: skip
            return train

        return add

    def healthy(
        self,
        name: str,
        *,
        framework: str = "numpy",
        ranks: int = 2,
        hosts: int = 1,
        allowed: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Callable[[Train], Train]:
        """A program without a fault."""

        def add(train: Train) -> Train:
            self.all.append(
                Program(
                    name, train, framework, ranks, hosts,
                    allowed=frozenset(allowed), environment=environment or {},
                )
            )  # fmt: skip
            return train

        return add
