"""The JSON documents have exactly the keys of hvdtune/timeline/schema.py, and values of its types.

Each class of the schema must occur in one of these documents, so that none of them goes stale.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np
import pytest
from support.recordings.cpu_readings import crowded
from support.recordings.synthetic_capture import Job, Late, Stall, recording, tensors

from hvdtune.timeline import api, schema
from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.horovod import starts
from hvdtune.timeline.record.layout import MARK, Mark, Recording
from hvdtune.timeline.report import comparison, document

HOROVOD = Path(__file__).parents[1] / "data" / "horovod-timeline.json"
JOB = Job(ranks=2, steps=30, tensors=tensors(5))
CLASSES = [one for one in vars(schema).values() if is_typeddict(one)]


def faults(value: Any, kind: Any, seen: set[Any], where: str = "") -> Iterator[str]:
    """One sentence for everything in which the value is not of that kind. `seen`: gets the classes
    and keys that were there."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        seen.add(kind)
        seen |= {(kind, key) for key in value}
        lacks = kind.__required_keys__ - value.keys()
        yield from (f"{where} has no {key}" for key in lacks)
        hints = get_type_hints(kind)
        for key, one in value.items():
            if key in hints:
                yield from faults(one, hints[key], seen, f"{where}.{key}")
            else:
                yield f"{where}.{key} is not in {kind.__name__}"
    elif origin in (Union, types.UnionType):
        found = [list(faults(value, one, seen, where)) for one in inner if fits(value, one)]
        yield from min(found, key=len, default=[f"{where} is {value!r}, not {kind}"])
    elif not fits(value, kind):
        yield f"{where} is {value!r}, not {kind}"
    elif origin is list:
        for at, one in enumerate(value):
            yield from faults(one, inner[0], seen, f"{where}[{at}]")
    elif origin is dict:
        for key, one in value.items():
            yield from faults(one, inner[1], seen, f"{where}.{key}")


def fits(value: Any, kind: Any) -> bool:
    """On the outside; whole numbers may stand for others, true and false for no number."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if isinstance(value, bool) and kind in (int, float):
        return False
    outside = dict if is_typeddict(kind) else get_origin(kind) or kind
    return isinstance(value, int | float if outside is float else outside)


def written(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


def report_of(whole: Recording) -> Any:
    analysis = analyse(whole)
    return written(document.numbers_of(analysis, findings(analysis)))


def tuned(whole: Recording) -> Recording:
    """The autotuner is said to have done something in the fifth step."""
    one = whole.ranks[0]
    time = one.marks["time"][one.marks["kind"] == int(Mark.STEP)][4] - 10
    row = np.array([(time, 0, int(Mark.AUTOTUNE), len(one.texts))], MARK)
    one.texts.append("sample 2")
    one.streams["marks"] = np.sort(np.concatenate([one.marks, row]), order="time")
    return whole


@pytest.fixture(scope="module")
def documents() -> dict[str, tuple[Any, Any]]:
    """Name → (a document, its class)."""
    busy = replace(JOB, phases=True, noise=0.01, stall=Stall(1, 20, 65.0))
    first = replace(JOB, late=(Late(1, 3.2, 1, 1),))
    crowd = crowded(JOB, others=1.9, cpus=2, work=0.001, kept=[0.0] * 2, wait=0.2)
    a, b = (analyse(recording(replace(JOB, cycle=cycle))) for cycle in (0.001, 0.05))
    unseen = recording(replace(JOB, late=(Late(1, 0.03),), framework="tensorflow 2.21.0"))
    for one in unseen.ranks.values():
        one.streams["waits"] = one.waits[:0]
    once = starts.numbers([starts.Start(0, 300_000, 200_000, ("first operation",))])
    return {
        "busy": (report_of(tuned(recording(busy))), schema.Report),
        "start": (report_of(recording(first)), schema.Report),
        "CPUs": (report_of(crowd), schema.Report),
        "waits not recorded": (report_of(unseen), schema.Report),
        "run without waits": (
            written(comparison.compare(analyse(unseen), analyse(recording(JOB)))),
            schema.Comparison,
        ),
        "no steps": (report_of(recording(replace(JOB, steps=0))), schema.Report),
        "Horovod's": (written(api.document([HOROVOD])), schema.HorovodReport),
        "Horovod's start": (written(once), schema.HorovodStart),
        "two runs": (written(comparison.compare(a, b)), schema.Comparison),
        "few steps": (
            written(comparison.compare(*[analyse(recording(replace(JOB, steps=5)))] * 2)),
            schema.Comparison,
        ),
    }


def test_documents_have_the_keys_of_the_schema_and_no_others(
    documents: dict[str, tuple[Any, Any]],
) -> None:
    seen: set[Any] = set()
    found = [one for name, (value, kind) in documents.items()
             for one in faults(value, kind, seen, name)]  # fmt: skip
    assert not found, "\n".join(found)
    stale = [
        f"{kind.__name__}.{key}"
        for kind in CLASSES
        for key in get_type_hints(kind)
        if (kind, key) not in seen and kind is not schema.StepCount
    ]
    assert not stale, f"in no document: {', '.join(stale)}"


def test_a_missing_and_an_additional_key_and_another_type_are_found(
    documents: dict[str, tuple[Any, Any]],
) -> None:
    whole = documents["busy"][0]
    rank = whole["waterfall"]["ranks"][0]
    job = {key: value for key, value in whole["job"].items() if key != "hosts"}
    bad = whole | {
        "more": 1,
        "job": job | {"ranks": 2.5, "complete": 1},
        "waterfall": whole["waterfall"] | {"ranks": [rank | {"rnak": 0}]},
        "accounting": {"step_s": True},
    }
    assert sorted(faults(bad, schema.Report, set())) == sorted(
        [
            ".more is not in Report",
            ".job has no hosts",
            ".job.ranks is 2.5, not <class 'int'>",
            ".job.complete is 1, not <class 'bool'>",
            ".waterfall.ranks[0].rnak is not in RankBar",
            ".accounting has no sentence",
            ".accounting has no shares",
            ".accounting.step_s is True, not <class 'float'>",
        ]
    )
