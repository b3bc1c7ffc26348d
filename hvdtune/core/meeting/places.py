"""The meeting place of a job on several hosts, from user and launcher or from rank 0."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping

from hvdtune.core.libraries import network
from hvdtune.core.libraries.network import MeetingPlace
from hvdtune.core.meeting.seeker import Failed, Seeker, TooLate
from hvdtune.core.topology import Topology, detect
from hvdtune.settings import knobs

#: Gives rank 0's text to all processes of a job that a communicator describes.
Share = Callable[[str], str]

# Rank 0's message, which holds for every init of a job.
_told: dict[str, MeetingPlace] = {}
# Called by rank 0 once all ranks of that job have met for the first time.
_afterwards: dict[str, Callable[[], None]] = {}
_numbers = itertools.count()  # of the exchanges between all launched processes


def find(
    environ: Mapping[str, str],
    topology: Topology,
    settings: knobs.Settings,
    launched: Topology,
    root: int = 0,
    share: Share | None = None,
) -> MeetingPlace | None:
    """Find the meeting place, or None for a job on one host.

    All processes of the job call it; they wait for each other if user and launcher have not given
    everything. `launched` is this process's place among the launched processes, and `root` the
    number there of the job's rank 0.

    Raises ValueError, in one sentence, if there is no way to learn it.
    """
    if not network.needs_place(environ, topology):
        return None
    told = network.told_place(environ, topology, settings.secret)
    if told is not None:
        return told
    if topology.job_id not in _told:
        try:
            _told[topology.job_id] = _learn(environ, topology, settings, launched, root, share)
        except ValueError as error:
            said = str(error).removeprefix(network.FAILED)
            raise ValueError(f"{network.FAILED}{said}") from None
    return _told[topology.job_id]


def met(topology: Topology) -> None:
    """All ranks of the job have met: delete what was stored for that."""
    _afterwards.pop(topology.job_id, lambda: None)()


def explain(environ: Mapping[str, str]) -> tuple[bool, str]:
    """Whether this process would learn the meeting place of several hosts, and how or why not."""
    topology, settings = detect(environ), knobs.from_environ(environ)
    if topology.launcher == "single":
        return True, (
            "no launcher has started this process; under mpirun and srun, ranks meet through "
            "munge, PMIx, PMI or MPI"
        )
    if not network.needs_place(environ, topology):
        return True, "not needed: the job is on one host"
    if network.told_place(environ, topology, settings.secret):
        return True, "rank 0's address and the key are in the environment"
    from hvdtune.core.meeting import means

    seeker = _seeker(environ, topology, settings, topology, 0, 0)
    name, reasons = means.first_there(seeker)
    if not name and network.launchers_place(environ, topology, settings.secret):
        return True, (
            "rank 0's address is the launcher's, and the key is in the environment "
            f"({'; '.join(reasons)})"
        )
    if not name:
        return False, "; ".join(reasons)
    return True, f"by {name}" + (f" ({'; '.join(reasons)})" if reasons else "")


def _seeker(
    environ: Mapping[str, str],
    topology: Topology,
    settings: knobs.Settings,
    launched: Topology,
    root: int,
    number: int,
) -> Seeker:
    return Seeker(
        environ,
        topology,
        rank=launched.rank,
        size=launched.size,
        root=root,
        number=number,
        deadline=time.monotonic() + float(settings.start_timeout),
        mpi_library=settings.mpi_library or "",
        mpi_multiple=not settings.mpi_threads_disable,
    )


def _learn(
    environ: Mapping[str, str],
    topology: Topology,
    settings: knobs.Settings,
    launched: Topology,
    root: int,
    share: Share | None,
) -> MeetingPlace:
    from hvdtune.core.meeting import addresses, key_value, means, place  # one host needs none

    number = 0 if share else next(_numbers)
    seeker = _seeker(environ, topology, settings, launched, root, number)
    own = None
    if topology.rank == 0:
        own = place.of_this_process(network.interface_names(settings.gloo_iface))
    text = own.text() if own else ""
    try:
        used, text = ("", share(text)) if share else means.exchange(seeker, text)
    except TooLate as error:
        raise ValueError(
            "not all processes of the job came within "
            f"{float(settings.start_timeout):g} s (HOROVOD_START_TIMEOUT): {error}"
        ) from None
    except Failed as error:
        # Perhaps the interfaces that the user names are those to which the launcher's name leads.
        last_resort = network.launchers_place(environ, topology, settings.secret)
        if last_resort is not None:
            return last_resort
        raise network.absence(environ, topology, settings.secret, str(error)) from None
    found = own or place.read(text)
    secret = settings.secret or found.secret
    given = network.given(environ)
    if given and used != key_value.NAME:
        return MeetingPlace(*given, secret)
    if own:
        if used:
            _afterwards[topology.job_id] = functools.partial(means.forget, seeker, used)
        return MeetingPlace(own.addresses[0], own.port, secret, own.addresses)
    if set(found.addresses) <= set(addresses.reachable().values()):
        # On rank 0's host any of its addresses reaches it. This rank itself listens at all of them,
        # because it cannot know which one the other hosts use.
        return MeetingPlace(found.addresses[0], found.port, secret, found.addresses)
    return MeetingPlace(place.way_to(found, seeker.deadline), found.port, secret)
