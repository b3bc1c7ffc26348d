"""The means of telling ranks where rank 0 is, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hvdtune.core.meeting import key_value, mpi, munge, pmi, pmix, torch_store
from hvdtune.core.meeting.seeker import Failed, Seeker, TooLate


class Means(NamedTuple):
    """A way in which rank 0's text reaches the other ranks.

    `absence` says why a process does not have it ("" if it does), without contacting anyone;
    `exchange` takes the text on rank 0 (any on others), and returns it on every rank. `forget`, on
    rank 0 after all ranks have met, removes data that would otherwise outlive the job.
    """

    name: str
    absence: Callable[[Seeker], str]
    exchange: Callable[[Seeker, str], str]
    forget: Callable[[Seeker], None] = lambda seeker: None


MEANS = (
    Means("MPI, which runs already", mpi.absence_of_running, mpi.exchange),
    # Before PMIx and PMI, which under srun belong to whichever MPI the script may start.
    Means(munge.NAME, munge.absence, munge.exchange),
    Means("PMIx", pmix.absence, pmix.exchange),
    Means("PMI", pmi.absence, pmi.exchange),
    Means("MPI", mpi.absence, mpi.exchange),
    Means("torchrun's store", torch_store.absence, torch_store.exchange, torch_store.forget),
    Means(key_value.NAME, key_value.absence, key_value.exchange, key_value.forget),
)


def exchange(seeker: Seeker, text: str) -> tuple[str, str]:
    """The name of the first means that works, and rank 0's text.

    Raises `Failed`, which names every means and says why it did not work; `TooLate`, which names
    the one that timed out.
    """
    reasons: list[str] = []
    for means in MEANS:
        reason = means.absence(seeker)
        if not reason:
            try:
                return means.name, means.exchange(seeker, text)
            except TooLate as error:
                others = f" ({'; '.join(reasons)})" if reasons else ""
                raise TooLate(f"{means.name}: {error}{others}") from None
            except Failed as error:
                reason = str(error)
        reasons.append(f"{means.name}: {reason}")
    raise Failed("; ".join(reasons))


def forget(seeker: Seeker, name: str) -> None:
    """On rank 0: all ranks have met with the means of that name."""
    for means in MEANS:
        if means.name == name:
            means.forget(seeker)


def first_there(seeker: Seeker) -> tuple[str, list[str]]:
    """The name of the means that `exchange` would try first; "" and why there is none."""
    reasons: list[str] = []
    for means in MEANS:
        reason = means.absence(seeker)
        if not reason:
            return means.name, reasons
        reasons.append(f"{means.name}: {reason}")
    return "", reasons
