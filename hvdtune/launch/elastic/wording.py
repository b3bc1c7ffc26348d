"""The sentences of an elastic job's driver about events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.elastic.suspicion import Lateness
from hvdtune.launch.errors import FAILED

_MOST_NAMES = 8  # in a sentence

# Horovod's words.
NO_STATE = "No hosts from previous set remaining, unable to broadcast state"


def too_many_resets(limit: int) -> str:
    """Why a job ends that would form anew too often; with Horovod's words."""
    return (
        f"Horovod was shutdown because number of resets during elastic job exceeded limit: {limit}"
    )


def too_few(needed: int, there: Sequence[Host], starting: bool) -> str:
    """The slots that a job waits for; `starting`: processes in the available slots are starting."""
    count = sum(host.slots for host in there)
    slots = "slot is" if needed == 1 else "slots are"
    words = f"{needed} {slots} needed, {_are(count)} there ({listed(there) or 'no host'})"
    if count < needed:
        words += f", {_are(needed - count)} missing"
    return words + ("; processes are starting" if starting else "")


def excluded(name: str, seconds: float, hint: bool) -> str:
    """Host or slot `name` gets no process for this long, which may be infinite.

    `hint`: name the flag that leaves the host in the job.
    """
    words = f"{name} is excluded for {seconds:.1f} s."
    if seconds == float("inf"):
        words = f"{name} is excluded for ever (there is no --blacklist-cooldown-range)."
    if hint:
        words += " With --replace-failed only that process would be replaced."
    return words


def late(found: Lateness, seconds: float) -> str:
    """How much a late process costs the others, which waited for it in `seconds` of steps."""
    return (
        f"is late: the others wait for it {found.late_s * 1000:.3g} ms a step, "
        f"{found.share:.0%} of the time, and have done so through {seconds:.0f} s of steps"
    )


def one_host(name: str) -> str:
    """A warning for a job with only one host, which a failure excludes for ever."""
    return (
        f"all slots are on {name}, so the job ends with the first process that fails: a failure "
        "excludes its host for ever. Give --replace-failed to replace that process alone, or "
        "--blacklist-cooldown-range to limit the time."
    )


def elsewhere(name: str, function: str, here: str) -> str:
    """A newcomer has begun an elastic `function`, but the members are in `here`."""
    its, theirs = (one.removeprefix("__main__.") for one in (function, here))
    return f"{name} waits: it is in {its}(), the others are in {theirs}()"


def generation(number: int, size: int, hosts: Iterable[Host]) -> str:
    """A generation was placed."""
    processes = "process" if size == 1 else "processes"
    return f"generation {number} has {size} {processes}: {listed(hosts)}."


def with_failures(text: str, failures: Sequence[str]) -> str:
    """The last sentence of an unsuccessful job, with the latest processes that failed."""
    if not failures:
        return f"{text}."
    words = text if FAILED in text else f"{text}. {FAILED}"
    return f"{words}: {'; '.join(failures[-_MOST_NAMES:])}."


def _are(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'}"


def listed(hosts: Iterable[Host]) -> str:
    """Hosts and slots; not all if there are many."""
    words = [f"{host.name}:{host.slots}" for host in hosts]
    if len(words) > _MOST_NAMES:
        words[_MOST_NAMES:] = [f"and {len(words) - _MOST_NAMES} more"]
    return ", ".join(words)
