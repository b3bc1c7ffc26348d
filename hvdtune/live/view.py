"""A job's status in words: what `hvdtune top` shows, with rich on a terminal and as plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvdtune.timeline import words

if TYPE_CHECKING:
    from rich.console import Group

Status = dict[str, Any]

_SHOWN_RANKS = 8
#: A rank is named as the slowest if equal ranks would cost as much with less than this probability.
CHANCE = 1e-3


def time_text(seconds: float) -> str:
    """A duration in a suitable unit: 1.2 ms, 3.4 s, 5 min, 2 h 03 min."""
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def title(status: Status) -> str:
    """The job's identity: program, ranks, process, job."""
    size = status.get("size", len(status["ranks"]))
    ranks = "1 rank" if size == 1 else f"{size} ranks"
    return (
        f"{status.get('program', '?')}: {ranks}, pid {status.get('pid', '?')}, "
        f"up {time_text(status['uptime_s'])}, job {status.get('job', '?')}"
    )


def rows(status: Status, before: Status | None = None) -> list[tuple[str, str]]:
    """(what, value) in the order shown. `before`: an earlier status of the same job, for rates."""
    found = [("steps", _steps(status)), ("step", _step(status))]
    start = _start(status)
    if start:
        found.append(("start", start))
    found.append(("exposed", _exposed(status)))
    found.append(("bytes", _rate(status, before)))
    found.append(("queue", _queue(status)))
    found.append(("slowest", _slowest(status)))
    found.append(("stalls", _stalls(status)))
    if status.get("gpus"):
        found.append(("GPUs", _gpus(status["gpus"])))
    tuner = status["notes"].get("tuner")
    found.append(("tuner", str(tuner) if tuner else "off"))
    settings = status["settings"]
    found.append(
        (
            "settings",
            f"fusion threshold {words.size(settings['fusion_threshold'])}, cycle time "
            f"{settings['cycle_time_us'] / 1e3:g} ms, epoch {status['epoch']}",
        )
    )
    return found


def rank_rows(status: Status) -> list[tuple[str, str, str, str, str]]:
    """(rank, host, pid, how late a step, share of steps last), the latest first."""
    order = sorted(
        range(len(status["ranks"])),
        key=lambda rank: (-status["lateness"][rank]["late_s"], rank),
    )
    return [
        (
            str(rank),
            str(status["ranks"][rank]["host"]),
            str(status["ranks"][rank]["pid"]),
            time_text(status["lateness"][rank]["late_s"]),
            f"{status['lateness'][rank]['last_share']:.0%}",
        )
        for rank in order[:_SHOWN_RANKS]
    ]


def text(status: Status, before: Status | None = None) -> str:
    """All of it as plain text, one fact a line."""
    lines = [title(status)]
    lines += [f"  {what:<9}{value}" for what, value in rows(status, before)]
    if status["steps"]:
        lines.append("  rank  host              pid      late/step   steps last")
        lines += [
            f"  {rank:<6}{host:<18}{pid:<9}{late:<12}{last}"
            for rank, host, pid, late, last in rank_rows(status)
        ]
    if status.get("stall"):
        lines += ["", str(status["stall"])]
    return "\n".join(lines)


def frame(status: Status, before: Status | None = None) -> Group:
    """The same for a terminal. Raises ModuleNotFoundError without rich."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column()
    for what, value in rows(status, before):
        bad = (
            (what == "slowest" and bool(_late_ranks(status)))
            or (what == "stalls" and status["stalled_tensors"] > 0)
            or (what == "GPUs" and ";" in value)
        )
        facts.add_row(what, Text(value, style="red" if bad else ""))
    parts: list[Any] = [Panel(facts, title=Text(title(status)), title_align="left")]
    if status["steps"]:
        ranks = Table("rank", "host", "pid", "late/step", "steps last", box=None)
        for number, host, *rest in rank_rows(status):
            late = int(number) in _late_ranks(status)
            ranks.add_row(number, Text(host), *rest, style="red" if late else "")
        parts.append(ranks)
    if status.get("stall"):
        parts.append(Text(str(status["stall"])))
    return Group(*parts)


def _steps(status: Status) -> str:
    if status["step_s"] is None:
        return (
            f"{status['steps']} seen so far; a step ends when the coordinator gets a tensor again"
        )
    return (
        f"{1 / status['step_s']:.2f} steps/s, {status['steps']} so far, the last "
        f"{time_text(status['last_step_ago_s'])} ago"
    )


def _step(status: Status) -> str:
    if status["step_s"] is None:
        return "not known yet"
    batches = status["step_batches"]
    return (
        f"{time_text(status['step_s'])}: {status['step_tensors']} tensors, "
        f"{words.size(status['step_bytes'])} in {batches} {'batch' if batches == 1 else 'batches'}"
    )


def _start(status: Status) -> str:
    """The one-time starts; "" if there were none, or if an earlier version's engine ran."""
    parts = []
    first, once = status.get("start_s"), status.get("one_time_s") or 0.0
    if status["steps"] and first is not None:
        parts.append(f"the first step ended after {time_text(first)}")
    if once > 0:
        parts.append(f"{time_text(once)} once in the last steps")
    return f"{', '.join(parts)}; not counted in rates and ranks' costs" if parts else ""


def _exposed(status: Status) -> str:
    share = status["exposed_share"]
    if share is None:
        return "not known yet"
    return f"{share:.0%} of the step, rank 0 waits for communication"


def _rate(status: Status, before: Status | None) -> str:
    if before is not None and status["uptime_s"] > before["uptime_s"]:
        rate = (status["bytes"] - before["bytes"]) / (status["uptime_s"] - before["uptime_s"])
    elif status["step_s"]:
        rate = status["step_bytes"] / status["step_s"]
    else:  # no bytes could be sent during the start
        return f"{words.size(status['bytes'])} reduced on each rank so far"
    return f"{words.bandwidth(rate)} reduced on each rank, {words.size(status['bytes'])} so far"


def _queue(status: Status) -> str:
    count, for_ranks = status["queue"], status["queue_for_ranks"]
    if not count:
        return "empty"
    rest = count - for_ranks
    tensors = "1 tensor" if count == 1 else f"{count} tensors"
    waits = [f"{for_ranks} for ranks"] * (for_ranks > 0)
    waits += [f"{rest} for a batch or its execution"] * (rest > 0)
    return f"{tensors}: {', '.join(waits)}"


def _slowest(status: Status) -> str:
    """The rank or host that holds the others up by the log's rule; else the one that costs most, if
    that is not by chance."""
    if not status["steps"]:
        return "not known yet"
    hosts = [(one, _host_name(status, host)) for host, one in enumerate(status["hosts"])]
    ranks = [(one, _rank_name(status, rank)) for rank, one in enumerate(status["lateness"])]
    named = [
        table[status[key]]
        for table, key in ((hosts, "straggler_host"), (ranks, "straggler"))
        if status[key] is not None
    ]
    if named:
        return "; ".join(f"{name} holds the others up: it {_cost(one)}" for one, name in named)
    one, name = max([*ranks, *hosts], key=lambda pair: float(pair[0]["late_s"]))
    if one["late_s"] <= 0:
        return "none: no rank waits for another"
    # Engines of earlier versions do not report the chance.
    if one.get("chance", 0.0) < CHANCE:
        return f"{name} {_cost(one)}"
    waited, share = (sum(rank[key] for rank, _ in ranks) for key in ("late_s", "share"))
    return (
        f"no rank in particular: ranks wait {time_text(waited)} of a step ({share:.0%}) for the "
        "last one"
    )


def _cost(one: Mapping[str, Any]) -> str:
    return (
        f"costs {time_text(one['late_s'])} a step ({one['share']:.0%}), last in "
        f"{one['last_share']:.0%} of the steps"
    )


def _rank_name(status: Status, rank: int) -> str:
    place = status["ranks"][rank]
    return f"rank {rank} ({place['host']}, pid {place['pid']})"


def _host_name(status: Status, host: int) -> str:
    ranks = status["hosts"][host]["ranks"]
    return f"host {status['ranks'][ranks[0]]['host']} ({words.ranks(ranks)})"


def _late_ranks(status: Status) -> list[int]:
    """The ranks that the log names as late, or whose host it names."""
    host = status["straggler_host"]
    ranks = [] if host is None else list(status["hosts"][host]["ranks"])
    return ranks if status["straggler"] is None else [*ranks, status["straggler"]]


def _stalls(status: Status) -> str:
    if not status["stalled_tensors"]:
        return f"none now, {status['stall_reports']} reports so far"
    return (
        f"{status['stalled_tensors']} tensors wait for missing ranks, reported "
        f"{time_text(status['stalled_for_s'])} ago"
    )


def _gpus(readings: Sequence[Mapping[str, float]]) -> str:
    """How busy the GPUs are and, after semicolons, what is wrong with some of them."""
    count = len(readings)
    parts = [f"{count} GPU{'s' if count > 1 else ''}"]
    busy = [one["utilization_ratio"] for one in readings if "utilization_ratio" in one]
    if busy:
        low, high = f"{min(busy):.0%}", f"{max(busy):.0%}"
        parts.append(f"{high} busy" if low == high else f"{low} to {high} busy")
    watts = [one["power_watts"] for one in readings if "power_watts" in one]
    if watts:
        parts.append(f"up to {max(watts):.0f} W")
    wrong = [
        (f"throttled_by_{reason}", f"throttled by {reason}")
        for reason in ("heat", "power", "hardware")
    ]
    wrong.append(("ecc_uncorrected_errors", "memory errors that could not be corrected"))
    faults = []
    for key, what in wrong:
        numbers = [str(number) for number, one in enumerate(readings) if one.get(key, 0) > 0]
        if numbers:
            faults.append(f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}: {what}")
    return "; ".join([", ".join(parts), *faults])
