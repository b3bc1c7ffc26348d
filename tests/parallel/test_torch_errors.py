"""Ranks that disagree about a torch collective: all get the same error, and the engine lives on."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from rank_programs import torch_errors, torch_forms
from rank_programs.torch_errors import DISAGREEMENTS
from ranks import run_once

SIZE = 3
CASES = [(what, form) for what, case in DISAGREEMENTS.items() for form in case.forms]


def outcomes(program: Any) -> tuple[dict[Any, torch_errors.Outcome], ...]:
    """What every rank saw; the program runs all its cases in one job."""
    return run_once(SIZE, program).values


@pytest.mark.parametrize(("what", "form"), CASES)
def test_disagreement_reaches_every_rank(what: str, form: str) -> None:
    family = torch_forms.family(form)
    kind = family.removeprefix("grouped_").upper()
    for odd in range(SIZE):
        seen = [rank[what, form, odd] for rank in outcomes(torch_errors.run_disagreements)]
        assert seen == [seen[0]] * SIZE, "the ranks were told different things"
        raised, text = seen[0]
        assert raised == "HorovodInternalError", text
        for words in DISAGREEMENTS[what].words:
            assert words.format(KIND=kind) in text
        # The tensor, and two ranks that disagree: the first, and the first that differs from it.
        assert f"{family}.x" in text
        assert "rank 0 has" in text
        assert f"rank {odd or 1} has" in text


@pytest.mark.parametrize("what", ["dtype", "shape", "scalar"])
def test_member_of_a_group_is_named(what: str) -> None:
    seen = outcomes(torch_errors.run_disagreements)[0]
    for (case, form, _), (_, text) in seen.items():
        if case == what and form in torch_forms.GROUPED:
            assert f"{torch_forms.family(form)}.x_2of2" in text


@pytest.mark.parametrize("form", torch_forms.FORMS)
def test_automatic_names(form: str) -> None:
    """They count the operations of a family, in whatever form."""
    family = torch_forms.family(form)
    of_family = [other for other in torch_forms.FORMS if torch_forms.family(other) == family]
    member = "_2of2" if form in torch_forms.GROUPED else ""
    for turn in (1, 2):
        number = (turn - 1) * len(of_family) + of_family.index(form) + 1
        for seen in outcomes(torch_errors.run_others):
            kind, text = seen["unnamed"][f"{form} {turn}"]
            assert kind == "HorovodInternalError"
            assert f" {family}.noname.{number}{member}:" in text


def test_sparse_tensors() -> None:
    seen = [rank["sparse"] for rank in outcomes(torch_errors.run_others)]
    for what, words in (
        ("values' dtype", ("Mismatched data types", "allgather.s.values", "float64")),
        ("indices' dimensions", ("with dimension 1", "allgather.s.indices")),
        ("values' dimensions", ("tensor of rank", "allgather.s.values")),
    ):
        assert all(rank[what] == seen[0][what] for rank in seen)
        kind, text = seen[0][what]
        assert kind == "HorovodInternalError"
        for part in (*words, f"rank {SIZE - 1} has"):
            assert part in text


def test_scalars_where_rows_are_needed() -> None:
    for seen in outcomes(torch_errors.run_others):
        for form, (kind, text) in seen["scalars"].items():
            assert kind == "HorovodInternalError", (form, text)
            assert "rank-zero tensor" in text
            member = "_2of2" if form in torch_forms.GROUPED else ""
            assert f"{torch_forms.family(form)}.s{member}" in text
