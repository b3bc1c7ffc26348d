"""Causes of lost time in a host's CPUs: other programs use them, too many threads want them, or the
ranks may not use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hvdtune.timeline.evidence.case import Case
from hvdtune.timeline.evidence.finding import RELATIVE, Finding
from hvdtune.timeline.record import host_counters
from hvdtune.timeline.replay import changes

if TYPE_CHECKING:
    from hvdtune.timeline.analysis.cpus import Host
    from hvdtune.timeline.record.host_counters import Threads
    from hvdtune.timeline.replay.program import Play

#: CPUs are scarce if ranks wait for one during this share of the step. Other programs use them if
#: the ranks use less than this share of what they would if they only kept each other waiting.
KEPT, OWN = 0.1, 0.9
#: If CPU use was recorded: other programs take a rank's CPUs if they use this share of these CPUs,
#: and this share of the CPUs is busy.
OTHERS, BUSY = 0.1, 0.75
#: A limit of CPUs, or a hypervisor, holds ranks back for at least this share of the time.
HELD = 0.05
#: There are too many threads if a rank computes with this many on average, the ranks together have
#: this many times as many threads as CPUs, and this many of a rank's threads wait for a CPU.
SEVERAL, CROWD, WAITING = 1.5, 2.0, 0.2
#: Share of too many threads' CPU time that switching between them costs, at least and at most.
WASTE = 0.15, 0.7
#: A fault that the counters show costs at least this share of the step.
SEEN = 0.01
#: Free CPUs shorten batches to no less than this share of their time.
QUICKEST = 0.25


@dataclass(frozen=True)
class Place:
    """The recorded ranks of a host, and what each of them waits for. Arrays: [ranks of the host].

    waiting: share of the step in which it is ready to run and has no CPU; NaN: unknown. busy: how
    many of the CPUs that it may use are busy; others: how many of them programs other than the
    job's ranks keep busy. threads: their readings; empty unless every rank has some.
    """

    host: Host
    name: str
    ranks: list[int]
    waiting: np.ndarray
    threads: list[Threads]
    others: np.ndarray
    busy: np.ndarray

    @property
    def known(self) -> bool:
        """Whether the recording shows who uses the CPUs, for all ranks of the host."""
        return bool(self.threads) and len(self.ranks) == self.host.ranks

    @property
    def beside(self) -> np.ndarray:
        """[ranks of the host] share of the step in which the threads of a program that hardly
        computes, the engine's among them, wait for a CPU that others use. Such a program's main
        thread hardly waits, and all its threads together wait longer than they run. 0 for other
        programs, and if unknown."""
        main = np.nan_to_num(self.waiting)
        if not self.threads:
            return np.zeros(len(main))
        run, wait = (np.array([one[key] for one in self.threads]) for key in ("run", "wait"))
        every = np.minimum(np.nan_to_num(wait), 1.0)
        idle = (main < KEPT) & (run < every)
        return np.where(idle, self.of_others * np.maximum(every - main, 0.0), 0.0)

    @property
    def wanting(self) -> np.ndarray:
        """[ranks of the host] share of the step in which a program waits for a CPU; with its other
        threads' waiting if it hardly computes. 0 if unknown."""
        return np.nan_to_num(self.waiting) + self.beside

    @property
    def of_others(self) -> float:
        """The share of the waiting for a CPU that other programs cause. If there are more ranks
        than CPUs, ranks and other programs cause it in proportion to their CPU time."""
        if not self.threads or self.host.ranks <= self.host.cpus:
            return 1.0
        runs = sum(one["run"] for one in self.threads)
        rivals = runs * (self.host.ranks - 1) / self.host.ranks
        others = float(self.others.max())
        return float(others / max(others + rivals, 1e-9))

    @property
    def allowed(self) -> np.ndarray:
        """CPUs that each rank may use."""
        return np.array([len(one.allowed) or self.host.cpus for one in self.threads])

    def mean(self, key: str) -> float:
        """A counter's mean over the ranks; 0 if it is unknown."""
        values = np.array([one[key] for one in self.threads])
        return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0


def places(case: Case) -> list[Place]:
    """The hosts whose CPU use is known."""
    ranks = list(case.analysis.joint.views)
    found = []
    for host in case.load.hosts:
        kept = case.load.kept[host.members] / 1e9 / case.durations
        known = np.isfinite(kept).any(axis=1)
        waiting = np.full(len(kept), np.nan)
        waiting[known] = np.nanmean(kept[known], axis=1)
        own = [ranks[at] for at in host.members]
        threads = [case.threads[rank] for rank in own if rank in case.threads]
        read = len(threads) == len(own) and all(np.isfinite(one["busy"]) for one in threads)
        threads = threads if read else []
        name = case.analysis.joint.views[own[0]].recording.identity.host
        others = host_counters.used_by_others(threads)
        busy = np.array([one["busy"] for one in threads])
        found.append(Place(host, name, own, waiting, threads, others, busy))
    return found


def why_late(case: Case, rank: int) -> str:
    """`it waits for a CPU during 40 % of the step, the others during 3 %`, if that is why a rank is
    late; else "". For findings that name a rank."""
    shares: dict[int, float] = {}
    for place in places(case):
        shares.update(zip(place.ranks, place.waiting.tolist(), strict=True))
    own = shares.pop(rank, float("nan"))
    rest = [share for share in shares.values() if np.isfinite(share)]
    if not rest or not np.isfinite(own):
        return ""
    others = float(np.median(rest))
    if own - others < KEPT or own < 2 * others:
        return ""
    return (
        f"it waits for a CPU during {100 * own:.0f} % of the step, the others during "
        f"{100 * others:.0f} %"
    )


def explain(case: Case, late: Sequence[int], share: float) -> bool:
    """Whether these ranks are late only because other programs take their host's CPUs: most ranks
    of the host wait for such a CPU, and these ranks for no less than `share`, their lateness as a
    share of the steps. Then it means nothing which rank is last, and `cpus_taken` reports them."""
    if not (worst := _worst(case)):
        return False
    place, taken = worst
    own = np.isin(place.ranks, late)
    if own.sum() < len(late) or not taken[own].all() or taken.mean() <= 0.5:
        return False
    told = any(one.is_worth_it() for one in cpus_taken(case))
    return told and share <= float(place.wanting[own].mean())


# ---- others have the CPUs ------------------------------------------------------------------------


def cpus_taken(case: Case) -> list[Finding]:
    """Other programs use the CPUs of a host, so its ranks wait for one although they could compute.
    Ranks that only keep each other waiting are not reported here: while one of these waits, its CPU
    is busy with another, so they use at least CPUs × their waiting."""
    if not (worst := _worst(case)):
        return []
    place, taken = worst
    share = float(place.wanting[taken].mean())
    host, name = place.host, place.name
    who, wait = f"The ranks on host {name} are", "wait"
    if not taken.all():
        named = [str(r) for r, one in zip(place.ranks, taken, strict=True) if one]
        who = f"Ranks {', '.join(named[:-1])} and {named[-1]} on host {name} are"
        if len(named) == 1:
            who, wait = f"Rank {named[0]} on host {name} is", "waits"
    own = np.nan_to_num(place.waiting[taken]) >= KEPT
    ready = "compute" if own.all() else "communicate" if not own.any() else "compute or communicate"
    evidence: dict[str, float | str] = {
        "host": name,
        "waiting_share": float(np.nan_to_num(place.waiting[taken]).mean()),
        "threads_waiting_share": share,
        "cpus_used": host.used,
        "cpus": float(host.cpus),
        "replay_error": case.replay_error(case.sample),
    }
    blame = "other programs run there, or the container's share of the CPUs is used up"
    if place.known:
        most = int(np.argmax(np.where(taken, place.others, -1.0)))
        evidence["cpus_of_others"] = float(place.others[most])
        blame = (
            f"other processes use {place.others[most]:.2g} of the {_cpus(place.allowed[most])} "
            f"that {'it' if taken.sum() == 1 else 'they'} may use{_busiest(place)}"
        )
    if taken.sum() == 1:
        evidence["rank"] = float(place.ranks[int(np.argmax(taken))])
    return [
        Finding(
            "CPUs taken",
            f"{who} ready to {ready} but {wait} for a CPU during {100 * share:.0f} % of the step, "
            f"while the job keeps only {host.used:.2g} of {_cpus(host.cpus)} busy: {blame}.",
            f"End the other programs on {name} (top shows them; processes that the ranks have "
            "started themselves, such as data loaders, count as well), or give this job CPUs of "
            "its own (cpuset, taskset, a larger CPU limit).",
            case.gain(_not_kept(case, place, taken)),
            evidence,
        )
    ]


def _worst(case: Case) -> tuple[Place, np.ndarray] | None:
    """The host whose ranks wait the longest for CPUs that others use, and which of its ranks do,
    [ranks of the host] bool."""
    found = [(place, taken) for place in places(case) if (taken := _taken(place)).any()]
    shares = [float(place.wanting[taken].mean()) for place, taken in found]
    return found[int(np.argmax(shares))] if shares and max(shares) >= KEPT else None


def _cpus(count: int) -> str:
    return f"{count} {'CPU' if count == 1 else 'CPUs'}"


def _taken(place: Place) -> np.ndarray:
    """[ranks of the host] bool: those whose CPUs others use."""
    waits = place.wanting >= KEPT
    if not place.known:
        share = float(np.nanmean(place.waiting)) if np.isfinite(place.waiting).any() else 0.0
        taken = share >= KEPT and place.host.used < OWN * place.host.cpus * share
        return np.full(len(waits), taken)
    others = place.others >= OTHERS * place.allowed
    return waits & others & (place.busy >= BUSY * place.allowed) & ~_limited(place)


def _busiest(place: Place) -> str:
    """` (mostly python, process 4711: 0.8)`: the busiest program that is no rank of the host."""
    own = {one.pid for one in place.threads}
    programs = [item for one in place.threads for item in one.programs.items()]
    rest = [(used, name, pid) for pid, (name, used) in programs if pid not in own]
    if not rest or max(rest)[0] < OTHERS:
        return ""
    used, name, pid = max(rest)
    return f" (mostly {name}, process {pid}: {used:.2g})"


def starved(case: Case) -> float:
    """The share (0 to 1) of the time blocked in communication in which the ranks' threads wait for
    a CPU that others use (see Place.beside): no operation is to blame for it."""
    blocked = case.analysis.overlap.exposed_share
    if not (worst := _worst(case)) or blocked <= 0:
        return 0.0
    place, taken = worst
    return float(min(1.0, place.beside[taken].mean() / blocked))


def _not_kept(case: Case, place: Place, chosen: np.ndarray, cpus: float = 0.0) -> changes.Change:
    """The change: only the job's own ranks keep the `chosen` ranks of a host ([ranks of it] bool)
    from a CPU. A rank computes for at least as long as its thread had a CPU; it did the rest of its
    waiting in batches, which become shorter. If there are more ranks than CPUs, their waiting for
    each other stays, in proportion to CPU time. `cpus`: how many there are after the change."""
    host, load = place.host, case.load
    positions = np.array(host.members)[chosen]
    share, main = 1.0, np.ones(len(load.computing))
    if place.threads:
        share = 1.0 if cpus else place.of_others
        runs = np.array([one["run"] for one in place.threads])
        ratio = np.array([one["main"] for one in place.threads]) / np.maximum(runs, 1e-9)
        main[host.members] = np.where(np.isfinite(ratio), ratio.clip(0, 1), 1.0)
    # If programs hardly compute, all communication becomes quicker, whichever thread must be woken.
    quicker = max(QUICKEST, 1 - starved(case)) if not cpus and place.beside[chosen].any() else 1.0

    def split(one: Play) -> tuple[np.ndarray, float]:
        """[ranks] ns for which each computes, and the factor of the batches' time."""
        compute = np.array([p.compute for p in one.programs])
        if len(one.kept) != len(compute):
            return compute, 1.0
        kept = np.zeros(len(compute))
        kept[positions] = share * one.kept[positions]
        least = np.minimum(np.nan_to_num(main * load.computing[:, one.step]), compute)
        spared = np.minimum(kept, compute - least)
        rest = float((kept - spared).sum() / max(len(positions), 1))
        batches = sum(duration for _, duration in one.recorded)
        return compute - spared, max(QUICKEST, 1 - rest / batches) if batches > 0 else 1.0

    def batches(one: Play) -> float:
        return min(split(one)[1], quicker)

    work = host.cpus / cpus if cpus else 1.0
    cure = changes.computing_takes(lambda one: split(one)[0], batches, work)
    woken = changes.quicker_latencies(quicker)
    return lambda stretches, rules: woken(*cure(stretches, rules))


# ---- CPUs that may not be used -------------------------------------------------------------------


def _limited(place: Place) -> np.ndarray:
    """[ranks of the host] bool: held back by the control group's limit."""
    return np.array([one["throttled"] >= HELD for one in place.threads], bool)


def cpu_limit(case: Case) -> list[Finding]:
    """The control group of a container or a batch system limits the CPU time of its processes."""
    found = []
    for place in places(case):
        held = place.mean("throttled")
        if not place.threads or held < HELD or np.nanmax([0.0, *place.waiting]) < HELD:
            continue
        wanted = float(min(place.mean("online"), max(place.host.ranks, place.host.cpus)))
        every = np.ones(len(place.ranks), bool)
        found.append(
            Finding(
                "CPU limit",
                f"The CPU limit of the control group (container) on host {place.name} holds the "
                f"ranks back during {100 * held:.0f} % of the time: {place.host.ranks} ranks get "
                f"{sum(one['run'] for one in place.threads):.2g} CPUs and want more.",
                f"Raise the limit to {wanted:.0f} CPUs or more (docker run --cpus, "
                "resources.limits.cpu in Kubernetes, CPUQuota in systemd), or start fewer ranks "
                "and threads there.",
                case.gain(_not_kept(case, place, every, place.mean("online"))),
                {
                    "host": place.name,
                    "held_back_share": held,
                    "cpus_used": place.host.used,
                    "replay_error": case.replay_error(case.sample),
                },
            )
        )
    return found


def cpus_stolen(case: Case) -> list[Finding]:
    """The host is a virtual machine, and its hypervisor runs others on the CPUs."""
    found = []
    for place in places(case):
        stolen, busy = place.mean("stolen"), place.mean("busy")
        share = stolen / (stolen + busy) if stolen + busy > 0 else 0.0
        if not place.threads or share < HELD or stolen < HELD * float(place.allowed.mean()):
            continue

        def times(one: Play, share: float = share) -> np.ndarray:
            return (1 - share) * np.array([p.compute for p in one.programs])

        change = changes.computing_takes(times, lambda _, share=share: 1 - share)  # type: ignore[misc]
        found.append(
            Finding(
                "CPUs stolen",
                f"Host {place.name} is a virtual machine whose hypervisor gives {stolen:.2g} of "
                f"its CPUs to others: {100 * share:.0f} % of the time that they should be busy.",
                "Ask for a machine whose CPUs are not shared (dedicated cores), or move the job.",
                case.gain(change),
                {"host": place.name, "stolen_cpus": stolen, "stolen_share": share},
            )
        )
    return found


def bound_together(case: Case) -> list[Finding]:
    """Ranks are bound to the same CPU although the host has others."""
    found = []
    for place in places(case):
        online = int(place.mean("online"))
        if not place.known or not online:
            continue
        waits = np.nan_to_num(place.waiting) >= KEPT
        masks = [one.allowed for one in place.threads]
        inside = np.array([sum(other <= mask for other in masks) for mask in masks])
        sizes = np.array([max(len(mask), 1) for mask in masks])
        chosen = waits & (inside > sizes) & (inside / sizes > place.host.ranks / online)
        chosen &= ~_limited(place)
        if not chosen.any():
            continue
        at = int(np.argmax(np.where(chosen, inside / sizes, 0)))
        ranks = [str(r) for r, mask in zip(place.ranks, masks, strict=True) if mask <= masks[at]]
        cpus = ", ".join(map(str, sorted(masks[at])))
        one = f"CPU {cpus}" if sizes[at] == 1 else f"CPUs {cpus}"
        many = float(min(online, place.host.ranks))
        gain = case.gain(_not_kept(case, place, chosen, many))
        # With more CPUs, the ranks' work takes proportionally less time, and batches no longer wait
        # for their turn.
        most = min(1.0, float(place.busy.max() / sizes[at])) * (1 - float(sizes[at]) / many)
        most = max(gain, most if inside[at] == place.host.ranks else 0.0)
        found.append(
            Finding(
                "bound to the same CPU",
                f"Ranks {', '.join(ranks[:-1])} and {ranks[-1]} on host {place.name} may use {one} "
                f"only, though the host has {online}, and wait for it during "
                f"{100 * float(place.waiting[chosen].mean()):.0f} % of the step.",
                "Give each rank CPUs of its own: start the job without a taskset or cpuset that "
                "confines all ranks, or bind each rank to a different CPU.",
                (gain + most) / 2,
                {
                    "host": place.name,
                    "ranks": ", ".join(ranks),
                    "cpus_allowed": float(sizes[at]),
                    "cpus": float(online),
                    "waiting_share": float(place.waiting[chosen].mean()),
                },
                ((1 - RELATIVE) * gain, min(1.0, (1 + RELATIVE) * most)),
            )
        )
    return found


# ---- too many threads ----------------------------------------------------------------------------


def too_many_threads(case: Case) -> list[Finding]:
    """The ranks of a host compute with more threads than it has CPUs, which wait for each other."""
    found = []
    for place in places(case):
        host = place.host
        fit = max(1, host.cpus // host.ranks)
        computing, waiting = place.mean("computing"), place.mean("wait")
        count = place.mean("set") if place.mean("set") > fit else computing
        crowd = host.ranks * count
        if not place.known or computing < SEVERAL or waiting < WAITING * count:
            continue
        if count <= fit or crowd < CROWD * host.cpus:
            continue
        gains = sorted(
            case.sample.gain(_with_fewer_threads(case, place, fit, *bounds))
            for bounds in ((WASTE[0], False), (WASTE[1], True))
        )
        case.fixes.append((gains[0], _with_fewer_threads(case, place, fit, WASTE[0], False)))
        found.append(
            Finding(
                "too many threads",
                f"{host.ranks} {'ranks' if host.ranks > 1 else 'rank'} × {count:.0f} threads "
                f"compute on the {_cpus(host.cpus)} of host "
                f"{place.name}: on average {waiting:.1f} threads of a rank wait for a CPU, and "
                "its other threads wait for them.",
                f"Set OMP_NUM_THREADS={fit} (or torch.set_num_threads({fit})) on every rank: "
                "ranks × threads should not exceed the number of CPUs.",
                max(0.0, sum(gains) / 2),
                {
                    "host": place.name,
                    "threads": count,
                    "threads_that_fit": float(fit),
                    "threads_waiting": waiting,
                    "cpus": float(host.cpus),
                    "cpus_used": host.used,
                    "replay_error": case.replay_error(case.sample),
                },
                (max(SEEN, gains[0]), max(SEEN, gains[1])),
            )
        )
    return found


def _with_fewer_threads(
    case: Case, place: Place, fit: int, waste: float, all_computes: bool
) -> changes.Change:
    """The change: each rank of the host computes with `fit` threads. Its threads' CPU time, less
    the waste, is spread over as many CPUs; CPUs used by others stay so. The rest of its computing
    is sleeping or reading and stays: the time in which its main thread neither ran nor waited, or,
    if `all_computes`, only the time in which the CPUs were not busy."""
    host, load = place.host, case.load
    others = float(place.others.max())
    mine = max(host.cpus - others, host.used)
    each = min(float(fit), mine / host.ranks)
    main = np.nan_to_num(np.array([one["main"] for one in place.threads]))
    full = min(1.0, 1.25 * float(place.busy.max()) / host.cpus)

    def times(one: Play) -> np.ndarray:
        compute: np.ndarray = np.array([p.compute for p in one.programs])
        own = host.members
        work = load.computing[own, one.step]
        if len(one.kept) != len(compute) or not np.isfinite(work).all():
            return compute
        idle = (1 - full) * compute[own]
        if not all_computes:
            idle = np.maximum(idle, compute[own] - one.kept[own] - main * one.measured)
        new = compute.copy()
        new[own] = np.minimum(compute[own], np.maximum(idle, 0.0) + (1 - waste) * work / each)
        return new

    return changes.computing_takes(times, work=1 - waste)


# ---- memory --------------------------------------------------------------------------------------

#: Memory is short if threads of a host wait for it for this share of the time, and a rank reads
#: this many pages a second from the disk.
SHORT, FROM_DISK = 0.05, 5.0


def memory_short(case: Case) -> list[Finding]:
    """A host's memory is used up: the kernel reads the ranks' pages from the disk again."""
    found = []
    for place in places(case):
        pressure, faults = place.mean("memory_pressure"), place.mean("major")
        if not place.threads or pressure < SHORT or faults < FROM_DISK:
            continue
        swapped = sum(one["swapped"] for one in place.threads if np.isfinite(one["swapped"]))
        worst = max(place.threads, key=lambda one: np.nan_to_num(one["major"]))
        most = min(1.0, pressure) * case.part("compute_s")
        found.append(
            Finding(
                "memory short",
                f"Host {place.name} has too little memory: threads wait for it during "
                f"{100 * pressure:.0f} % of the time, and rank {worst.rank} reads "
                f"{worst['major']:.0f} pages a second back from the disk "
                f"({swapped / 2**20:.0f} MiB of the ranks' memory is swapped out).",
                "Use less memory there (a smaller batch, fewer ranks or data loader workers), "
                "end other programs that use it, or add memory.",
                most / 2,
                {
                    "host": place.name,
                    "rank": float(worst.rank),
                    "pressure_share": pressure,
                    "pages_from_disk_per_s": faults,
                    "swapped_bytes": swapped,
                },
                (min(SEEN, most), most),
            )
        )
    return found


QUESTIONS: tuple[Callable[[Case], list[Finding]], ...] = (
    cpus_taken,
    cpu_limit,
    cpus_stolen,
    bound_together,
    too_many_threads,
    memory_short,
)
