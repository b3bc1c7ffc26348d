"""Wrong use: the right exception in the right words, on the right ranks; the engine lives on."""

from __future__ import annotations

from typing import Any

import pytest
from rank_programs import mistakes
from ranks import run_once

SIZE = 3

# What the coordinator finds: words that the error must have, besides the odd rank.
MISMATCHES = {
    "allreduce dtype": ["Mismatched data types", "float32", "int32"],
    "allgather dtype": ["Mismatched data types", "float32", "int32"],
    "broadcast dtype": ["Mismatched data types", "float32", "int32"],
    "alltoall dtype": ["Mismatched data types", "float32", "int32"],
    "reducescatter dtype": ["Mismatched data types", "float32", "int32"],
    "allreduce shape": ["Mismatched ALLREDUCE tensor shapes", "[4]", "[5]"],
    "allreduce dimensions": ["Mismatched ALLREDUCE tensor shapes", "[4]", "[2, 2]"],
    "allreduce_ shape": ["Mismatched ALLREDUCE tensor shapes", "[4]", "[5]"],
    "broadcast shape": ["Mismatched BROADCAST tensor shapes", "[4]", "[5]"],
    "reducescatter shape": ["Mismatched REDUCESCATTER tensor shapes", "[4]", "[5]"],
    "prescale": ["Mismatched prescale and/or postscale factors", "(1, 1)", "(0.5, 1)"],
    "postscale": ["Mismatched prescale and/or postscale factors", "(1, 1)", "(1, 2)"],
    "reduce op": ["Mismatched reduction operation", "1", "4"],
    "reducescatter op": ["Mismatched reduction operation", "0", "1"],
    "allgather dimensions": ["tensor of rank 1", "tensor of rank 2"],
    "allgather second dimension": ["with dimension 1", "2", "3"],
    "alltoall second dimension": ["with dimension 1", "2", "3"],
    "root ranks": ["Mismatched BROADCAST root ranks", "1", "2"],
    "group sizes": ["Mismatched group sizes", "2", "3"],
    "group and single group": ["Mismatched group sizes", "1", "2"],
    "group member's shape": ["Mismatched ALLREDUCE tensor shapes", "[4]", "[5]"],
    "grouped_allgather dimensions": ["tensor of rank 1", "tensor of rank 2"],
}

LOCAL_MISTAKES = {
    "root below": ("ValueError", "invalid root rank"),
    "root above": ("ValueError", "invalid root rank"),
    "root outside the set": ("ValueError", "invalid root rank"),
    "splits missing": ("ValueError", "splits not provided"),
    "splits too large": ("ValueError", "Sum of splits entries is greater"),
    "splits too few": ("ValueError", "Number of entries in splits"),
    "splits negative": ("ValueError", "splits"),
    "splits of 64 bits": ("ValueError", "32-bit integer"),
    "splits of two dimensions": ("ValueError", "1D splits tensor"),
    "alltoall of a scalar": ("ValueError", "scalar"),
    "reducescatter of a scalar": ("ValueError", "does not support scalar"),
    "reducescatter Min": ("HorovodInternalError", "only supports AVERAGE and SUM"),
    "op and average": ("ValueError", "op parameter supersedes average"),
    "complex": ("ValueError", "is not supported"),
    "strided": ("ValueError", "required to be contiguous"),
    "strided in place": ("ValueError", "required to be contiguous"),
    "strided in a group": ("ValueError", "required to be contiguous"),
    "complex in a group": ("ValueError", "is not supported"),
    "read-only in place": ("ValueError", "must be writeable"),
    "unregistered set": ("ValueError", "has not been registered"),
    "poll an unknown handle": ("ValueError", "was not created or has been cleared"),
    "synchronize an unknown handle": ("", "None"),
}

FAMILIES = ("allreduce", "grouped_allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
QUERIES = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_homogeneous")


def outcomes(program: Any) -> tuple[dict[Any, mistakes.Outcome], ...]:
    """What every rank saw; the program runs all its cases in one job."""
    return run_once(SIZE, program).values


@pytest.mark.parametrize("odd", range(SIZE))
@pytest.mark.parametrize("case", MISMATCHES)
def test_mismatch_reaches_every_rank(case: str, odd: int) -> None:
    seen = [rank[case, odd] for rank in outcomes(mistakes.run_mismatches)]
    assert seen == [seen[0]] * SIZE, "the ranks were told different things"
    kind, text = seen[0]
    assert kind == "HorovodInternalError"
    for words in MISMATCHES[case]:
        assert words in text
    assert f"rank {odd}" in text or "rank 0" in text
    assert "x" in text


def test_every_mismatch_is_expected() -> None:
    cases = {case for case, _ in outcomes(mistakes.run_mismatches)[0]}
    assert cases == set(MISMATCHES)


def test_mismatch_after_the_description_was_cached() -> None:
    for rank in outcomes(mistakes.cached_then_mismatched):
        for kind, text in rank:
            assert kind == "HorovodInternalError"
            assert "Mismatched ALLREDUCE tensor shapes" in text
            assert "cached" in text


@pytest.mark.parametrize("guilty", range(SIZE))
@pytest.mark.parametrize("case", [*FAMILIES, "allreduce_"])
def test_name_already_in_flight(case: str, guilty: int) -> None:
    for rank, seen in enumerate(outcomes(mistakes.run_duplicates)):
        kind, text = seen[case, guilty]
        if rank == guilty:
            assert kind == "ValueError"
            assert "same name as another tensor" in text
            assert "twice" in text
        else:
            assert (kind, text) == mistakes.NOT_RUN


@pytest.mark.parametrize("case", LOCAL_MISTAKES)
def test_mistake_found_at_the_call(case: str) -> None:
    kind, words = LOCAL_MISTAKES[case]
    for rank, seen in enumerate(outcomes(mistakes.run_local_mistakes)):
        if case == "root outside the set" and rank == SIZE - 1:
            continue
        assert seen[case][0] == kind, seen[case]
        assert words in seen[case][1]


def test_every_local_mistake_is_expected() -> None:
    assert set(outcomes(mistakes.run_local_mistakes)[0]) == set(LOCAL_MISTAKES)


@pytest.mark.parametrize("case", [*FAMILIES, "barrier"])
def test_caller_is_no_member_of_the_set(case: str) -> None:
    seen = [rank[case] for rank in outcomes(mistakes.run_non_member)]
    assert [kind for kind, _ in seen] == ["", "", "ValueError"]
    assert "is not a member of the provided process set" in seen[-1][1]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("query", QUERIES)
def test_query_while_not_initialised(query: str, when: str) -> None:
    for seen in outcomes(mistakes.run_uninitialised):
        kind, text = seen[f"{query} {when}"]
        assert kind == "ValueError"
        assert "has not been initialized" in text


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", [*FAMILIES[:1], *FAMILIES[2:], "barrier"])
def test_operation_while_not_initialised(operation: str, when: str) -> None:
    for seen in outcomes(mistakes.run_uninitialised):
        kind, text = seen[f"{operation} {when}"]
        assert kind == "HorovodInternalError"
        assert "has not been initialized" in text
