"""Two runs compared: which is faster, by how much, how surely, and why.

Method: each step counts as the median of its duration over the ranks. The first WARM_UP steps are
left out if there are enough steps. The change is 1 − b/a, for the medians over steps and for the
means. Its 95 % interval is computed with a moving-block bootstrap: blocks of n^(1/3) steps, because
neighbouring steps are alike; percentiles of REPEATS resamples; a fixed seed, so the same files give
the same answer. A change is significant if the interval does not contain 0. The interval covers how
steps differ, not how runs differ: two runs of one program on a busy machine can differ by more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdtune.timeline import schema, words
from hvdtune.timeline.advice import accounting
from hvdtune.timeline.advice.accounting import Share
from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.answers import PARTS
from hvdtune.timeline.report.document import DOCUMENT, PART_WORDS, plain, same_setting, typical_rows
from hvdtune.timeline.report.tables import value_words

if TYPE_CHECKING:
    import pandas as pd

    from hvdtune.timeline.analysis.answers import Analysis

Statistic = Callable[..., Any]  # np.median or np.mean

WARM_UP = 3
FEWEST_STEPS = 8
REPEATS = 2000
#: Runs that have less than this share of the bytes in common are different workloads.
SAME_WORKLOAD = 0.95
#: A part explains a change if it accounts for this share of it.
EXPLAINS = 0.15
#: If the mean of all steps changed this many times as much as the median, rare steps changed.
RARE_STEPS = 3
#: A cause is gone if less than this share of its time is left.
GONE = 0.1


def compare(a: Analysis, b: Analysis, *, force: bool = False) -> schema.Comparison:
    """All numbers of the comparison, as a JSON document.

    Raises ValueError if a run has no steps, or (unless `force`) if the two do not reduce the same
    tensors.
    """
    for which, one in (("a", a), ("b", b)):
        if one.steps.empty:
            raise ValueError(
                f"{one.recording.source} ({which}) contains no training step, so there is nothing "
                "to compare: record longer, or a loop that submits the same tensors"
            )
    alike, difference = workloads(a, b)
    if not alike and not force:
        raise ValueError(
            f"{difference} These are different workloads, so their step times say nothing about "
            "settings; --force compares them anyway"
        )
    times_a, times_b = step_times(a), step_times(b)
    numbers: schema.Comparison = {
        "document": DOCUMENT,
        "kind": "diff",
        "a": _run(a),
        "b": _run(b),
        "notes": [*([] if alike else [difference]), *conditions(a, b)],
        "step": step_change(times_a, times_b, np.median),
        "mean_step": step_change(times_a, times_b, np.mean),
        "parts": [],
        "mean_parts": [],
        "causes": [],
        "mean_causes": [],
        "bandwidth": bandwidth_changes(a, b),
        "settings": setting_changes(a, b),
        "method": "medians of step times; 95 % interval by moving-block bootstrap over steps",
        "verdict": "",
    }
    if a.overlap.shows_waits and b.overlap.shows_waits:
        found_a, found_b = findings(a), findings(b)
        usual_a, usual_b = (typical_rows(one.waterfall)["step"].unique() for one in (a, b))
        numbers |= {
            "parts": part_changes(typical_rows(a.waterfall), typical_rows(b.waterfall)),
            "mean_parts": part_changes(a.waterfall, b.waterfall),
            "causes": cause_changes(
                accounting.shares(a, found_a, usual_a), accounting.shares(b, found_b, usual_b)
            ),
            "mean_causes": cause_changes(
                accounting.shares(a, found_a), accounting.shares(b, found_b)
            ),
        }
    numbers["verdict"] = verdict(numbers)
    return numbers


def step_times(analysis: Analysis) -> np.ndarray:
    """[steps] s: the median over ranks of each step, in order, without the first steps."""
    table = analysis.steps.groupby("step")["duration_s"].median().sort_index()
    times = table.to_numpy(float)
    return times[WARM_UP:] if len(times) >= WARM_UP + FEWEST_STEPS else times


def step_change(a: np.ndarray, b: np.ndarray, statistic: Statistic) -> schema.Change:
    """The statistic of both, the change 1 − b/a, its 95 % interval, and whether it is significant.

    a, b: [steps] s. With fewer than FEWEST_STEPS steps there is no interval (None).
    """
    of_a, of_b = float(statistic(a)), float(statistic(b))
    found: schema.Change = {
        "a_s": of_a,
        "b_s": of_b,
        "a_steps": len(a),
        "b_steps": len(b),
        "change": 1 - of_b / of_a,
        "low": None,
        "high": None,
        "significant": False,
    }
    if min(len(a), len(b)) >= FEWEST_STEPS:
        random = np.random.default_rng(1)
        ratios = 1 - resampled(b, statistic, random) / resampled(a, statistic, random)
        low, high = (float(value) for value in np.percentile(ratios, (2.5, 97.5)))
        found |= {"low": low, "high": high, "significant": low > 0 or high < 0}
    return found


def resampled(values: np.ndarray, statistic: Statistic, random: np.random.Generator) -> np.ndarray:
    """[REPEATS] the statistic of resamples that consist of blocks of neighbours (Künsch 1989)."""
    count = len(values)
    length = max(1, round(count ** (1 / 3)))
    blocks = -(-count // length)
    found = np.empty(REPEATS)
    stride = max(1, 2_000_000 // count)
    for begin in range(0, REPEATS, stride):
        number = min(stride, REPEATS - begin)
        starts = random.integers(0, count - length + 1, (number, blocks, 1))
        places = (starts + np.arange(length)).reshape(number, -1)[:, :count]
        found[begin : begin + number] = statistic(values[places], axis=1)
    return found


def part_changes(a: pd.DataFrame, b: pd.DataFrame) -> list[schema.PartChange]:
    """How long each part of a step takes in the mean of these rows, the largest change first."""
    mean_a, mean_b = a[list(PARTS)].mean(), b[list(PARTS)].mean()
    rows: list[schema.PartChange] = [
        {
            "name": part,
            "title": PART_WORDS[part][0],
            "a_s": float(mean_a[part]),
            "b_s": float(mean_b[part]),
            "saved_s": float(mean_a[part] - mean_b[part]),
        }
        for part in PARTS
    ]
    return sorted(rows, key=lambda one: -abs(one["saved_s"]))


def cause_changes(a: list[Share], b: list[Share]) -> list[schema.CauseChange]:
    """How much of each run's mean step each cause takes, the largest change first. `ranks`: those
    that the others wait for, as in a report."""
    shares = {one.title: one for one in [*a, *b]}
    sums = [dict.fromkeys(shares, 0.0) for _ in "ab"]
    for own, run in zip(sums, (a, b), strict=True):
        for one in run:
            own[one.title] += one.seconds
    rows: list[schema.CauseChange] = [
        {
            "title": title,
            "kind": one.kind,
            "ranks": list(one.ranks),
            "a_s": sums[0][title],
            "b_s": sums[1][title],
            "saved_s": sums[0][title] - sums[1][title],
        }
        for title, one in shares.items()
    ]
    return sorted(rows, key=lambda one: -abs(one["saved_s"]))


def bandwidth_changes(a: Analysis, b: Analysis) -> list[schema.BandwidthChange]:
    """Bus bandwidth of the operations and sizes that both runs have."""
    keys = ["op", "ranks", "bytes_from"]
    both = a.sizes.merge(b.sizes, on=keys, suffixes=("_a", "_b"))
    return [
        {
            "op": str(row.op),
            "ranks": int(row.ranks),
            "bytes_from": int(row.bytes_from),
            "a_gbps": plain(row.busbw_gbps_a),
            "b_gbps": plain(row.busbw_gbps_b),
            "change": plain(row.busbw_gbps_b / row.busbw_gbps_a - 1) if row.busbw_gbps_a else None,
            "a_count": int(row.count_a),
            "b_count": int(row.count_b),
        }
        for row in both.itertuples()
    ]


def setting_changes(a: Analysis, b: Analysis) -> list[schema.SettingChange]:
    """Settings in force at the end that differ, except those that only say where and how the job is
    recorded or watched: they do not make a job faster."""
    names = sorted({*a.settings, *b.settings} - watching())
    return [
        {"name": name, "a": a.settings.get(name), "b": b.settings.get(name)}
        for name in names
        if not same_setting(a.settings.get(name), b.settings.get(name))
    ]


def watching() -> set[str]:
    """Variables of the settings that do not affect training: timelines, metrics, logs."""
    from hvdtune.settings.knobs import KNOBS

    return {
        knob.env for knob in KNOBS.values()
        if knob.section in ("timeline", "metrics", "logging") or knob.key == "autotune_log"
    }  # fmt: skip


def workloads(a: Analysis, b: Analysis) -> tuple[bool, str]:
    """Whether both reduce the same tensors in a step; if not, a sentence that says how they differ.

    It compares operation, dtype, size and number per step, not the names: another run may number
    them differently.
    """
    in_a, in_b = _per_step(a), _per_step(b)
    bytes_a, bytes_b = _bytes(in_a), _bytes(in_b)
    common = _bytes(in_a & in_b)
    if common >= SAME_WORKLOAD * max(bytes_a, bytes_b) and bool(in_a) == bool(in_b):
        return True, ""
    return False, (
        f"a communicates {words.number(in_a.total(), 'tensor')} of {words.size(bytes_a)} a step, b "
        f"{words.number(in_b.total(), 'tensor')} of {words.size(bytes_b)}; they have "
        f"{words.size(common)} in common."
    )


def _per_step(analysis: Analysis) -> Counter[tuple[str, str, int]]:
    table = analysis.tensors
    if table.empty:
        return Counter()
    # How often the tensor of a typical call was sent: a program may send more tensors once at its
    # start (broadcasts of parameters) than a step has, but these are few calls.
    times = np.sort(table["count"].to_numpy())
    once = float(times[np.searchsorted(np.cumsum(times), times.sum() / 2)])
    counts: Counter[tuple[str, str, int]] = Counter()
    for row in table[table["count"] >= once / 2].itertuples():
        counts[str(row.op), str(row.dtype), int(row.bytes)] += row.count / once
    return Counter({key: round(value) for key, value in counts.items() if round(value)})


def _bytes(counts: Counter[tuple[str, str, int]]) -> int:
    return sum(size * count for (_, _, size), count in counts.items())


def conditions(a: Analysis, b: Analysis) -> list[str]:
    """Other differences that might be the reason: ranks, hosts, versions; and what is unknown."""
    first = [one.recording.ranks[min(one.recording.ranks)].identity for one in (a, b)]
    hosts = [
        sorted({rank.identity.host for rank in one.recording.ranks.values()}) for one in (a, b)
    ]
    found = []
    if a.recording.size != b.recording.size:
        found.append(
            f"a has {words.number(a.recording.size, 'rank')}, b {b.recording.size}: a step of b "
            "does not do the same work."
        )
    recorded = [len(one.recording.ranks) for one in (a, b)]
    if recorded[0] != recorded[1] and a.recording.size == b.recording.size:
        found.append(
            f"a has recordings of {words.number(recorded[0], 'rank')}, b of {recorded[1]}: the "
            "times cover only these."
        )
    if hosts[0] != hosts[1]:
        found.append(f"a ran on {', '.join(hosts[0])}, b on {', '.join(hosts[1])}.")
    for which, one in (("a", a), ("b", b)):
        if not one.overlap.shows_waits:
            found.append(
                f"The recording of {which} does not show when its program waits, so only whole "
                "steps are compared, not their parts."
            )
    for what in ("version", "framework"):
        values = [getattr(one, what) for one in first]
        if values[0] != values[1]:
            name = "hvdtune" if what == "version" else "the framework"
            found.append(f"{name} is {values[0] or 'unknown'} in a, {values[1] or 'unknown'} in b.")
    return found


def verdict(numbers: schema.Comparison) -> str:
    """One sentence: faster or not, by how much, and why. The median is judged before the mean."""
    step, mean = numbers["step"], numbers["mean_step"]
    if step["low"] is None:
        return (
            f"There are too few steps to tell ({step['a_steps']} and {step['b_steps']}; each run "
            f"needs at least {FEWEST_STEPS}): b takes {_times(step)} a step."
        )
    rare = mean["significant"] and abs(mean["change"]) >= RARE_STEPS * abs(step["change"])
    if step["significant"] and not rare:
        why = _because(step, numbers["parts"], numbers["causes"], numbers["settings"])
        return _sentence("b", step, "a step", why)
    if mean["significant"]:
        why = _because(mean, numbers["mean_parts"], numbers["mean_causes"], [])
        text = _sentence("the mean of all", mean, "in the mean", why)
        same = "nearly the same" if step["significant"] else "the same"
        return f"Typical steps take {same} ({_times(step)}), but {text}"
    return (
        f"The runs do not differ measurably: b takes {_times(step)} a step, which is within the "
        f"noise (± {words.percent(_margin(step))})."
    )


def _sentence(what: str, change: schema.Change, each: str, why: str) -> str:
    direction = "faster" if change["change"] > 0 else "slower"
    return (
        f"{what} is {words.percent(abs(change['change']))} ± {words.percent(_margin(change))} "
        f"{direction} ({_times(change)} {each})" + (f", because {why}." if why else ".")
    )


def _because(
    change: schema.Change,
    parts: list[schema.PartChange],
    causes: list[schema.CauseChange],
    settings: list[schema.SettingChange],
) -> str:
    """The changes in the same direction as the step's, largest first: waiting for late ranks, then
    parts of the step, then the setting."""
    saved = change["a_s"] - change["b_s"]
    ranks = [one for one in causes if _waits(one) and one["saved_s"] / saved >= EXPLAINS]
    if ranks:
        # The waiting for late ranks already includes their longer computing.
        own = {one["kind"]: one for one in causes}[accounting.COMPUTING]
        parts = [{**one, "a_s": own["a_s"], "b_s": own["b_s"], "saved_s": own["saved_s"]}
                 if one["name"] == PARTS[0] else one
                 for one in parts if one["name"] != "skew_wait_s"]  # fmt: skip
    parts = [one for one in parts if one["saved_s"] / saved >= EXPLAINS]
    texts = [_waited(one) for one in ranks] + [
        f"{one['title']} takes {words.seconds(one['b_s'])} instead of {words.seconds(one['a_s'])}"
        for one in parts
    ]
    text = " and ".join(texts[:2])
    if text and len(settings) == 1:
        one = settings[0]
        a, b = (value_words(value, one["name"]) for value in (one["a"], one["b"]))
        text += f"; {one['name']} is {b} instead of {a}"
    return text


def _waits(cause: schema.CauseChange) -> bool:
    """Waiting for ranks that the report names, or that take turns."""
    return bool(cause["ranks"]) or cause["kind"] == "ranks take turns"


def _waited(cause: schema.CauseChange) -> str:
    """`rank 1 no longer holds the others up (12.0 ms a step waiting for a late rank)`."""
    before, after = cause["a_s"], cause["b_s"]
    if min(before, after) >= GONE * max(before, after):
        took = f"{words.seconds(after)} instead of {words.seconds(before)}"
        return f"{cause['title']} takes {took}"
    took = f"({words.seconds(max(before, after))} a step waiting for a late rank)"
    when = "now" if after > before else "no longer"
    if not cause["ranks"]:
        return f"ranks {when} take turns in being late {took}"
    who = words.ranks(cause["ranks"]).replace(", ", " and ")
    hold = "hold" if len(cause["ranks"]) > 1 else "holds"
    return f"{who} {when} {hold} the others up {took}"


def _times(change: schema.Change) -> str:
    return f"{words.seconds(change['b_s'])} instead of {words.seconds(change['a_s'])}"


def _margin(change: schema.Change) -> float:
    low, high = change["low"], change["high"]
    assert low is not None  # there are enough steps
    assert high is not None
    return (high - low) / 2


def _run(analysis: Analysis) -> schema.Run:
    one = analysis.recording.ranks[min(analysis.recording.ranks)].identity
    return {
        "source": analysis.recording.source,
        "job": one.job,
        "ranks": analysis.recording.size,
        "steps": int(analysis.steps["step"].nunique()),
        "overlap": plain(analysis.overlap),
    }
