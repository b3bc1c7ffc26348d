"""join(): ranks that run out of data at different times; what is refused meanwhile."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from rank_programs import torch_forms, torch_join
from support.jobs.ranks import run_checks_on, run_once, run_ranks

SIZE = 3
REFUSED = (
    *torch_join.NOT_WITH_JOIN,
    *("barrier", "sparse_allreduce_async", "broadcast_object", "allgather_object"),
)


@pytest.mark.parametrize(
    ("np", "settings"),
    [
        (2, {}),
        (3, {"HOROVOD_CACHE_CAPACITY": "4"}),
        (4, {}),
    ],
    ids=["2", "3, small cache", "4"],
)
def test_uneven_data(np: int, settings: dict[str, str]) -> None:
    run_checks_on(np, torch_join.run_uneven, env=settings)


@pytest.mark.parametrize("when", ["new", "known"])
@pytest.mark.parametrize("form", REFUSED)
def test_operation_while_a_rank_has_joined(form: str, when: str) -> None:
    result = run_once(SIZE, torch_join.run_refused)
    for joined in range(SIZE):
        for rank, seen in enumerate(result.values):
            kind, text = seen[form, when, joined]
            if rank == joined:
                assert kind == "", text
                continue
            assert kind == "HorovodInternalError", text
            assert "is not supported with Join" in text
            assert f"rank {joined}" in text
            if form in torch_forms.FORMS:
                assert f"{torch_forms.family(form)}.{form}.{joined}" in text


def test_submissions_of_a_rank_that_has_joined(tmp_path: Path) -> None:
    result = run_ranks(2, torch_join.run_late_submissions, str(tmp_path))
    for rank, seen in enumerate(result.values):
        assert set(seen) == {rank}
        assert len(seen[rank]) == 2 * (len(torch_forms.FORMS) + 2)
        for kind, text in seen[rank]:
            assert kind == "ValueError", text
            assert "join" in text


def test_shutdown_while_others_have_joined() -> None:
    *joined, last = run_ranks(3, torch_join.run_shutdown).values
    assert last == ("", "shut down")
    for kind, text in joined:
        assert kind == "HorovodInternalError"
        assert "Horovod has been shut down" in text


def test_death_while_others_have_joined() -> None:
    result = run_ranks(3, torch_join.run_death, check=False)
    assert [rank.returncode for rank in result.ranks] == [0, 0, -signal.SIGKILL]
    for kind, text in result.values[:2]:
        assert kind == "HorovodInternalError"
        assert "rank 2" in text
        assert "died" in text


def test_timeline_of_joined_ranks(tmp_path: Path) -> None:
    """Rank 0, which writes it, takes part in tensors unknown to it. No cache and no fusion."""
    timeline = tmp_path / "timeline.json"
    settings = {"HOROVOD_CACHE_CAPACITY": "0", "HOROVOD_FUSION_THRESHOLD": "0"}
    settings |= {"HOROVOD_TIMELINE": str(timeline), "HVDTUNE_TIMELINE_FORMAT": "horovod"}
    run_ranks(2, torch_join.run_uneven, env=settings)
    events = [event for event in json.loads(timeline.read_text()) if event]
    rows = {
        event["pid"]: event["args"]["name"] for event in events if "name" in event.get("args", {})
    }
    open_spans: Counter[int] = Counter()
    for event in events:
        if event.get("ph") in ("B", "E"):
            open_spans[event["pid"]] += 1 if event["ph"] == "B" else -1
            assert open_spans[event["pid"]] >= 0, event
    assert not +open_spans, "an operation did not end"
    assert any(name.startswith("allreduce.new.0.") for name in rows.values())


@pytest.mark.long
def test_while_the_autotuner_tries_settings(tmp_path: Path) -> None:
    log = tmp_path / "autotune.csv"
    settings = {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": str(log),
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "3",
    }
    values = run_ranks(3, torch_join.run_autotuned, 40, 8, env=settings).values
    # In epoch e rank r has 8 + (e + r) % 3 steps.
    assert values == ([(2 - epoch) % 3 for epoch in range(40)],) * 3
    assert len(log.read_text().splitlines()) > 2, "the autotuner has tried nothing"
