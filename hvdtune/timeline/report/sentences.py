"""The sentence or two beside each picture and table of a report."""

from __future__ import annotations

import time

from hvdtune.timeline import schema, words

#: A part of the step is named from this share on.
WORTH_NAMING = 0.03
#: Waiting for late ranks is worth a sentence from this share of the step on.
LATE = 0.02
#: The findings about ranks that the others wait for, and how many of them are mentioned.
LATE_RANKS = ("persistent straggler", "transient straggler", "recurring straggler", "stalled rank")
MOST_LATE = 3
_TOGETHER = "No rank is late by much: the ranks reach communication at about the same time."


def job(numbers: schema.Report) -> str:
    """Ranks, hosts, steps, versions, time of recording."""
    one, steps = numbers["job"], numbers["steps"]
    hosts = one["hosts"]
    where = f"on {hosts[0]}" if len(hosts) == 1 else f"on {len(hosts)} hosts"
    parts = [f"{words.number(one['ranks'], 'rank')} {where}"]
    if steps["count"]:
        parts.append(f"{words.number(steps['count'], 'step')} in {words.seconds(steps['wall_s'])}")
    if one["framework"]:
        parts.append(one["framework"])
    parts.append(f"hvdtune {one['version']}")
    if one["started_wall_us"]:
        stamp = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(one["started_wall_us"] / 1e6))
        parts.append(f"recorded {stamp}")
    return " · ".join(parts)


def warnings(numbers: schema.Report) -> list[str]:
    """What a reader must know before anything else."""
    quality, one = numbers["quality"], numbers["job"]
    found = []
    if not numbers["steps"]["count"]:
        found.append(
            "No training step was recognised in this recording, so nothing can be said about "
            "steps. Steps are recognised by the optimizer's marks, or by tensors that repeat: "
            "record longer, or record a loop that submits the same tensors."
        )
    if numbers["start"]:
        found.append(numbers["start"]["sentence"])
    missing = quality["ranks_missing"]
    if missing:
        found.append(
            f"No recording of {words.ranks(missing)} (of {one['ranks']}) was found beside this "
            "file. Give all files, or gather them and run: hvdtune timeline merge. Statements "
            "about late ranks cover only the ranks that are here."
        )
    if quality["incomplete_ranks"]:
        found.append(
            f"The recording of {words.ranks(quality['incomplete_ranks'])} is incomplete: the job "
            "is still running, or was killed. The report covers the part that was recorded."
        )
    cut_off = quality["cut_off"]
    if cut_off:
        rank, why = min(cut_off.items(), key=lambda item: int(item[0]))
        found.append(
            f"The recording of {words.ranks(sorted(map(int, cut_off)))} was cut off (rank {rank}: "
            f"{why}). The report covers the part that was recorded."
        )
    lost = sum(quality["dropped"].values())
    if lost:
        found.append(
            f"Lost from the recording: {words.number(lost, 'record')}. Statements about the steps "
            "concerned are incomplete."
        )
    return found


def spread(steps: schema.Steps) -> str:
    """From the 5th to the 95th percentile of the steps."""
    low, high = words.seconds(steps["p5_s"]), words.seconds(steps["p95_s"])
    if low.rpartition(" ")[2] == high.rpartition(" ")[2]:
        low = low.rpartition(" ")[0]
    return f"{low}\u2013{high}"


def waterfall(numbers: schema.Report) -> str:
    """What a typical step consists of."""
    found = numbers["waterfall"]
    typical, mean = found["typical"], found["mean"]
    if not typical or not mean or not typical["step_s"]:
        return "No step was found."
    step, longer = typical["step_s"], _mean(found["parts"], typical, mean)
    shares = [(part["title"], typical["parts_s"][part["name"]]) for part in found["parts"][1:]]
    large = sorted(
        (one for one in shares if one[1] >= WORTH_NAMING * step), key=lambda one: -one[1]
    )
    compute = typical["parts_s"][found["parts"][0]["name"]]
    text = (
        f"A typical step takes {words.seconds(step)}, of which {words.percent(compute / step)} is "
        "compute"
    )
    if not large:
        return f"{text}; nothing else reaches {words.percent(WORTH_NAMING)}.{longer}"
    named = [f"{words.seconds(value)} {title}" for title, value in large[:3]]
    return f"{text}. The rest is mostly {_and(named)}.{longer}"


def _mean(parts: list[schema.Part], typical: schema.Bar, mean: schema.Bar) -> str:
    """Why the mean of all steps is longer than the typical step, if it is."""
    longer = mean["step_s"] - typical["step_s"]
    if longer < WORTH_NAMING * typical["step_s"]:
        return ""
    more = {
        part["title"]: mean["parts_s"][part["name"]] - typical["parts_s"][part["name"]]
        for part in parts
    }
    cause = max(more, key=lambda title: more[title])
    return (
        f" The mean of all steps is {words.seconds(longer)} longer, {words.seconds(more[cause])} "
        f"of it {cause}."
    )


def gain(finding: schema.Finding) -> str:
    """The share that a finding may save, with the least and the most: `27 % (20–33 %)`."""
    return f"{words.percent(finding['gain'])} ({words.percent_between(*finding['interval'])})"


def lateness(numbers: schema.Report) -> str:
    """Which ranks are late. It names only ranks that the findings blame."""
    told = [one for one in numbers["findings"] if one["kind"] in LATE_RANKS]
    if told:
        return " ".join(dict.fromkeys(_late_ranks(one, numbers) for one in told[:MOST_LATE]))
    if not numbers["overlap"]["shows_waits"]:
        return _not_named(numbers)
    mean = numbers["waterfall"]["mean"]
    waited = mean["parts_s"]["skew_wait_s"] if mean else 0.0
    by = f"on average, ranks wait {words.seconds(waited)} of a step for the last one"
    if any(one["kind"] == "ranks take turns" for one in numbers["findings"]):
        return f"No rank in particular is late: the ranks take turns, and {by}."
    for one in numbers["findings"]:
        if ranks := str(one["evidence"].get("late_ranks", "")):
            late = words.ranks(map(int, ranks.split(","))).capitalize()
            return (
                f"{late} are late because of an operation without the others: on average, ranks "
                f"wait {words.seconds(waited)} of a step for late ranks."
            )
    real = [one for one in numbers["stragglers"] if one["kind"]]
    if real and any(one["kind"] == "CPUs taken" for one in numbers["findings"]):
        return f"Which rank is last depends on the CPUs that other programs take: {by}."
    if real:
        return f"{_straggler(real[0])} Without it the job would hardly be faster."
    if waited >= LATE * (numbers["overlap"]["step_s"] or 0.0):
        return f"No rank is late more often than chance explains: {by}."
    return _TOGETHER


def _not_named(numbers: schema.Report) -> str:
    """How late ranks are if no finding names one, and waits are not recorded."""
    if real := [one for one in numbers["stragglers"] if one["kind"]]:
        return _straggler(real[0])
    late = max(numbers["lateness"]["typical_ms"].values(), default=0.0) / 1e3
    if late < LATE * (numbers["overlap"]["step_s"] or 0.0):
        return _TOGETHER
    return (
        "No rank is late more often than chance explains: ranks are typically up to "
        f"{words.seconds(late)} later than the earliest one of a step. How long they wait for each "
        "other is not recorded."
    )


def _late_ranks(one: schema.Finding, numbers: schema.Report) -> str:
    """The sentence about one such finding."""
    evidence = one["evidence"]
    if "ranks" in evidence:
        late = words.seconds(_value(one, "late_ms") / 1e3)
        ranks = words.ranks(int(rank) for rank in str(evidence["ranks"]).split(","))
        return f"{ranks.capitalize()} are late together: {late} in a typical step."
    rank = int(_value(one, "rank"))
    if one["kind"] == "stalled rank":
        return f"Rank {rank} stopped for {words.seconds(_value(one, 'stalled_s'))}."
    row = next((row for row in numbers["stragglers"] if row["rank"] == rank), None)
    return _straggler(row) if row and row["kind"] else one["sentence"]


def _value(finding: schema.Finding, name: str) -> float:
    """A number from the finding's evidence."""
    return float(finding["evidence"][name] or 0.0)


def _straggler(row: schema.Straggler) -> str:
    """The sentence about a row of the stragglers."""
    where = f" ({row['host']})" if row["host"] else ""
    late = words.seconds(row["typical_late_s"])
    if row["kind"] == "persistent":
        return f"Rank {row['rank']}{where} is late throughout: {late} in a typical step."
    if row["kind"] == "recurring":
        often = f"every {row['period']} steps" if row["period"] else "repeatedly"
        return f"Rank {row['rank']}{where} is late {often}, by {late}."
    if row["from_step"] == row["to_step"]:
        return f"Rank {row['rank']}{where} is late in step {row['from_step']}: {late}."
    return (
        f"Rank {row['rank']}{where} is late from step {row['from_step']} to "
        f"{row['to_step']}: {late} in a typical one of these steps."
    )


def cells(found: schema.Lateness) -> str:
    """How to read the heat map."""
    text = "How much later than the earliest rank each rank was ready to communicate."
    widest = max(last - first + 1 for first, last in found["steps"])
    if widest > 1:
        text += f" A cell is the mean of up to {widest} steps."
    if any(first != last for first, last in found["ranks"]):
        text += " A row is the latest of several ranks."
    return text


def strip(one: schema.Strip, numbers: schema.Report) -> str:
    """How this step compares with the median."""
    duration, median = one["duration_s"], numbers["steps"]["median_s"]
    if one["kind"] == "typical":
        return f"Step {one['step']} took {words.seconds(duration)}, the median of all steps."
    times = words.count(duration / median)
    return (
        f"Step {one['step']} took {words.seconds(duration)}, {times} times the median: the slowest "
        "of this recording"
        + (", not counting its first steps." if numbers["steps"]["count"] > 12 else ".")
    )


def phases(numbers: schema.Report) -> str:
    """The heading of the phases."""
    if numbers["overlap"]["shows_waits"]:
        return "What computing consists of"
    return "What a step consists of, waits included"


def lanes(numbers: schema.Report) -> str:
    """How to read the lanes of a step."""
    if numbers["overlap"]["shows_waits"]:
        return (
            "Three lanes per rank: it computes, it is blocked in communication, and its engine "
            "communicates. Communication below compute is hidden."
        )
    return (
        "What the engine of each rank communicates. When the program computes, and when it waits, "
        "is not recorded."
    )


def steps(numbers: schema.Report) -> str:
    """How steady the steps are."""
    one = numbers["steps"]
    swing = (one["p95_s"] - one["p5_s"]) / one["median_s"] if one["median_s"] else 0.0
    how = "steady" if swing < 0.1 else "uneven" if swing > 0.4 else "fairly steady"
    return (
        f"The steps are {how}: nine of ten take {spread(one)}, the median "
        f"{words.seconds(one['median_s'])}."
    )


def fusion(numbers: schema.Report) -> str:
    """How many batches, and why they closed."""
    found = numbers["fusion"]
    reasons = found["reasons"]
    total = sum(reasons.values())
    tensors, batches = found["tensors_per_batch"], found["batches_per_step"]
    text = (
        f"{words.count(batches)} {'batch' if batches == 1 else 'batches'} a step; the median "
        f"batch has {words.count(tensors)} {'tensor' if tensors == 1 else 'tensors'} and "
        f"{words.size(found['bytes_per_batch'])}"
    )
    if found["fill"] is not None:
        text += f" ({words.percent(found['fill'])} of the threshold)"
    if total:
        most = max(reasons, key=lambda reason: reasons[reason])
        text += f". The most frequent reason for closing one is “{most}” "
        text += f"({words.percent(reasons[most] / total)})"
    return text + "."


def sizes(numbers: schema.Report) -> str:
    """The size that takes the most communication time, and its bandwidth."""
    rows = [one for one in numbers["sizes"] if one["busbw_gbps"]]
    unknown = unknown_ranks(numbers)
    if not rows:
        return f"No bandwidth can be given. {unknown}".rstrip()
    most = max(rows, key=lambda one: one["total_s"])
    text = (
        f"Most communication time goes to {most['op']} of about "
        f"{words.size(most['bytes'])}: {words.digits(most['busbw_gbps'])} GB/s bus bandwidth"
    )
    if most["peak_share"] is not None:
        than = "what this machine can do" if numbers["roof"]["measured"] else "the best size here"
        text += f", {words.percent(most['peak_share'])} of {than}"
    return f"{text}. {unknown}".rstrip()


def unknown_ranks(numbers: schema.Report) -> str:
    """Why some operations have no bus bandwidth; "" if all numbers of ranks are known."""
    if all(one["ranks"] for one in numbers["sizes"]):
        return ""
    return (
        "Rows without a number of ranks have no bus bandwidth: the recording does not say which "
        "ranks are in that process set."
    )


def roofline(numbers: schema.Report) -> str:
    """What the dashed line is."""
    text = (
        "Small dots are single batches, large ones medians by size. Small batches are bound by "
        "the fixed cost of an operation, large ones by bandwidth"
    )
    roof = numbers["roof"]
    if roof["peak_gbps"] is None:
        return text + "."
    what = "this machine's measured peak" if roof["measured"] else "the best batch seen here"
    return f"{text}: the dashed line, which ends at {words.digits(roof['peak_gbps'])} GB/s, {what}."


def settings(numbers: schema.Report) -> str:
    """How many settings differ from the default."""
    changed = sum(one["changed"] for one in numbers["settings"])
    moved = sum(one["moved"] for one in numbers["settings"])
    text = (
        f"{changed} of {len(numbers['settings'])} differ from the default."
        if changed
        else "All have their default values."
    )
    return text + (f" {moved} changed while the job ran." if moved else "")


def quality(numbers: schema.Report) -> list[str]:
    """Clock, losses, cost of recording, how steps were found."""
    one = numbers["quality"]
    found = [
        f"{one['ranks_recorded']} of {numbers['job']['ranks']} ranks recorded, "
        f"{words.grouped(one['records'])} records, "
        + (f"{words.grouped(sum(one['dropped'].values()))} lost." if any(one["dropped"].values())
           else "none lost.")
    ]  # fmt: skip
    if one["ranks_recorded"] > 1:
        text = f"Clocks of the ranks agree within {words.seconds(one['clock_bound_s'])}."
        if one["skew_below_clock_bound"]:
            text += " Typical lateness is less than that, so it does not show which rank was late."
        found.append(text)
    origin = {
        "marks": "marks of the optimizer",
        "names": "names of tensors that repeat",
        "sizes": "sizes of tensors that repeat",
    }.get(one["steps_from"])
    if origin:
        text = f"Steps were found by {origin}"
        if one["steps_from"] == "marks":
            text += ". The first step is not counted: nothing marks its beginning"
        ignored = one["steps_ignored"]
        found.append(
            f"{text}. Left out as incomplete: {words.number(ignored, 'step')}."
            if ignored
            else f"{text}."
        )
    share = one["recording_overhead_share"]
    how = f"about {words.percent(share)}" if share >= 0.001 else "less than 0.1 %"
    found.append(f"Recording itself took {how} of the time.")
    return [*found, *one["problems"]]


def left_out(count: int) -> str:
    """A remark that not all ranks are drawn."""
    return f" Not drawn: {words.number(count, 'more rank')}." if count else ""


def _and(items: list[str]) -> str:
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
