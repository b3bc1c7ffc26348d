"""What is said if the recording does not show when the program waits: which ranks are late, by how
much, and what is unknown. No gain is promised: at most what waits.at_most says can be saved."""

from __future__ import annotations

from hvdtune.timeline import schema, words
from hvdtune.timeline.analysis.waits import ASYNC, ends_on_gpus
from hvdtune.timeline.evidence import pattern
from hvdtune.timeline.evidence.case import Case, milliseconds
from hvdtune.timeline.evidence.finding import WORTH, Finding
from hvdtune.timeline.words import ordinal

#: Face → why the engine does not see the program wait.
_WHY = {
    "tensorflow": "TensorFlow's graphs start operations and go on when these are done, so that no "
    "thread waits in the engine",
    "mxnet": "MXNet's engine starts operations and goes on when these are done, so that no thread "
    "waits in hvdtune's",
}


def findings(case: Case) -> list[Finding]:
    """Late ranks, the costliest first, and then that waits are not recorded. Never empty."""
    kinds = "persistent", "transient", "recurring"
    late = [_late_rank(case, row) for kind in kinds for row in case.rows(kind)]
    late += _late_group(case)
    late = [one for one in late if one.interval[1] >= WORTH]
    return [*sorted(late, key=lambda one: -one.interval[1]), _unknown(case)]


def _late_rank(case: Case, row: schema.Straggler) -> Finding:
    rank, first, final = int(row["rank"]), int(row["from_step"]), int(row["to_step"])
    who, late = case.where(rank), milliseconds(float(row["typical_late_s"]))
    period = int(row["period"])
    if row["kind"] == "persistent":
        share = float(row["steps_last_share"])
        when = f"In {100 * share:.0f} % of the steps, {who} is late, typically by {late}."
    elif row["kind"] == "recurring":
        paused = case.paused(rank)
        steps = f"Every {ordinal(period)} step" if period else ""
        steps = steps or f"In {paused.sum()} of {len(paused)} steps"
        when = f"{steps}, {who} is late, typically by {late}."
    else:
        steps = f"steps {first} to {final}" if first < final else f"step {first}"
        when = f"In {steps}, {who} was late, typically by {late}, but hardly before and after."
    evidence: dict[str, float | str] = {
        "rank": float(rank),
        "host": str(row["host"]),
        "late_ms": 1e3 * float(row["typical_late_s"]),
        "steps_last_share": float(row["steps_last_share"]),
        "from_step": float(first),
        "to_step": float(final),
        "period_steps": float(period),
    }
    most = float(row["delay_s"]) / float(case.durations.sum())
    return _late(f"{row['kind']} straggler", when, f"rank {rank} is", "its", evidence, most)


def _late_group(case: Case) -> list[Finding]:
    """See Case.slow_group."""
    if not case.slow_group:
        return []
    ranks, share = words.ranks(case.slow_group), case.held_up_by(case.slow_group)
    table = case.analysis.lateness
    own = table["rank"].isin(case.slow_group)
    late = float(table.loc[own, "lateness_s"].median())
    when = (
        f"In {100 * share:.0f} % of the steps, {ranks} are late together, typically by "
        f"{milliseconds(late)}."
    )
    evidence: dict[str, float | str] = {
        "ranks": ", ".join(map(str, case.slow_group)),
        "late_ms": 1e3 * late,
        "steps_last_share": share,
    }
    most = pattern.share(case, pattern.held_up(case, case.slow_group))
    return [_late("persistent straggler", when, f"{ranks} are", "their", evidence, most)]


def _late(
    kind: str, when: str, who: str, their: str, evidence: dict[str, float | str], most: float
) -> Finding:
    """`most`: the share of the time for which the others waited at most."""
    most = min(most, 1.0)
    return Finding(
        kind,
        f"{when} How long the others waited is not recorded; it was at most "
        f"{words.percent(most)} of the time.",
        f"Find out why {who} late: {their} share of the data, {their} input pipeline, other "
        "processes on the host, the clock speed.",
        0.0,
        {**evidence, "at_most_share": most},
        (0.0, most),
    )


def _unknown(case: Case) -> Finding:
    """The finding that says what the recording does not show."""
    overlap, table = case.analysis.overlap, case.analysis.waterfall
    why = next((text for face, text in _WHY.items() if face in case.faces), "")
    if not why and ends_on_gpus(case.analysis.recording):
        why = (
            f"{ASYNC} is on, so operations on GPUs count as done when they are enqueued, and "
            "the GPU waits for their end, not a thread"
        )
    why = why or "the engine hardly ever blocked one of its threads"
    running = float(table["communication_s"].sum() / table["step_s"].sum())
    return Finding(
        "waits not recorded",
        f"The recording does not show when this program waits for communication: {why}. So it is "
        "unknown how much communication is hidden, and what hiding more of it would gain. "
        f"Operations run for {words.percent(running)} of a step, and are under way (from a "
        f"rank's submission until the end) for {words.percent(overlap.exposed_at_most)} of it: "
        "the program cannot have waited longer.",
        "To see whether a change helps, record a run with it and one without it, and compare "
        "their steps: hvdtune diff.",
        0.0,
        {
            "communication_share": running,
            "exposed_at_most_share": overlap.exposed_at_most,
            "step_ms": 1e3 * overlap.step_s,
        },
    )
