"""The class of tests that every face inherits: ``class TestNumpy(FaceConformance)``.

A job of each number of ranks runs the whole table; the tests only look at what it found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from conformance import cases
from conformance.face import ALL_REDUCING, DIFFERENTIABLE, GROUPED, Face, family
from conformance.mistakes import DISAGREEMENTS, MISTAKES, NAMES_THE_MEMBER, applies
from conformance.program import EVERYTHING, Report
from support.jobs.ranks import RanksFailed, run_ranks
from support.tiers import EVERY


def ranks_of(face: Face) -> tuple[int, ...]:
    """How many ranks the jobs of its quick tables have."""
    return (1, 3) if face.narrow and not EVERY else (1, 2, 3)


_told: set[tuple[str, int, bool]] = set()  # jobs whose failure a test has shown
MISTAKEN = 3  # ranks that make mistakes
QUERIES = (
    *("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"),
    "is_homogeneous",
)


@cache
def _run(program: Callable[..., Report], np: int, blocks: tuple[str, ...], thorough: bool) -> Any:
    try:
        return run_ranks(np, program, blocks, thorough, timeout=280).values
    except RanksFailed as failure:  # kept, too: a job that hangs is not run for every test
        return failure


def reports(
    program: Callable[..., Report],
    np: int,
    thorough: bool = False,
    of_mistakes: tuple[str, ...] = Face.of_mistakes,
    blocks: tuple[str, ...] = ("down", *EVERYTHING),
) -> tuple[Report, ...]:
    """What every rank found; each job runs once in a session."""
    if np == MISTAKEN:
        first = ("automatic_names",)  # it counts what was called before
        begin = ("down", *(name for name in of_mistakes if name in first))
        blocks = (*begin, *EVERYTHING, *(name for name in of_mistakes if name not in first))
    found = _run(program, np, blocks, thorough)
    if isinstance(found, RanksFailed):
        job = (program.__module__, np, thorough)
        told = job in _told
        _told.add(job)
        raise RanksFailed("see the first test of this job" if told else str(found))
    return found


def assert_conform(found: Sequence[Report]) -> None:
    """For tests of some blocks on another way of carrying tensors: no faults, and equal bits."""
    for rank, report in enumerate(found):
        assert not report.all_faults, f"rank {rank}: " + "\n".join(report.all_faults[:20])
        assert report.cases
        assert report.same == found[0].same, f"rank {rank} has other bits than rank 0"


class FaceConformance:
    """All that a face must do. A subclass names the face and its rank program."""

    face: Face
    program: Callable[..., Report]
    """``run`` of the face's file, as a staticmethod: the ranks import that file alone."""

    def __init_subclass__(cls) -> None:
        """Take away the tests of what the face does not have."""
        if not cls.face.autodiff:
            cls.test_gradients = None  # type: ignore[assignment]
        if not cls.face.asynchronous:
            cls.test_handles = None  # type: ignore[assignment]
            cls.test_name_in_flight = None  # type: ignore[assignment]
        if not cls.face.training:
            cls.test_training = None  # type: ignore[assignment]
        if not cls.face.asynchronous:
            cls.test_handles = None  # type: ignore[assignment]
        if not cls.face.in_flight:
            cls.test_name_in_flight = None  # type: ignore[assignment]
        if "automatic_names" not in cls.face.of_mistakes:
            cls.test_automatic_names = None  # type: ignore[assignment]
            cls.test_allgather_of_scalars = None  # type: ignore[assignment]
        if "mistakes" not in cls.face.of_mistakes:
            cls.test_mistake = None  # type: ignore[assignment]
            cls.test_mistakes_have_the_words_of_the_numpy_face = None  # type: ignore[assignment]

    def reports(self, np: int, thorough: bool) -> tuple[Report, ...]:
        blocks = ("down", *EVERYTHING) if np in ranks_of(self.face) else ("down", "adasum")
        return reports(self.program, np, thorough, self.face.of_mistakes, blocks)

    def no_fault(self, np: int, thorough: bool, *key: str) -> None:
        """Fail with all that any rank found under a key, or if none has looked."""
        every = self.reports(np, thorough)
        faults = {rank: report.faults.get(key) for rank, report in enumerate(every)}
        text = [f"rank {r}: {line}" for r, lines in faults.items() for line in (lines or [])[:10]]
        assert not text, "\n".join(text)
        assert any(report.cases.get(key) for report in every), f"nothing was tested of {key}"

    def one_outcome(self, *key: str) -> tuple[str, str]:
        """What all ranks that made a mistake were told."""
        seen = {
            report.outcomes[key]
            for report in self.reports(MISTAKEN, False)
            if key in report.outcomes
        }
        assert len(seen) == 1, f"the ranks were told different things: {seen}"
        return seen.pop()

    # ---- results ----

    def test_values(self, np: int, thorough: bool, form: str, dtype: str) -> None:
        """Against NumPy."""
        self.no_fault(np, thorough, form, dtype)

    def test_same_bits_on_all_ranks(self, np: int, thorough: bool) -> None:
        every = self.reports(np, thorough)
        assert every[0].same
        assert all(report.same == every[0].same for report in every)

    def test_average_is_the_default(self, np: int, thorough: bool, reducing: str) -> None:
        self.no_fault(np, thorough, reducing, "average")

    def test_process_sets(self, np: int, thorough: bool, any_form: str) -> None:
        if np > 1:
            self.no_fault(np, thorough, any_form, "sets")

    def test_members_of_process_sets(self, np: int, thorough: bool) -> None:
        if np > 1:
            self.no_fault(np, thorough, "sets", "sets")

    def test_special_values(self, np: int, thorough: bool) -> None:
        for op in ("Min", "Max", "Sum"):
            for dtype in self.face.dtypes:
                if "float" in dtype:
                    self.no_fault(np, thorough, f"special {op}", dtype)

    def test_groups_of_any_size(self, np: int, thorough: bool) -> None:
        self.no_fault(np, thorough, "groups", "mixed")

    def test_handles(self, np: int, thorough: bool) -> None:
        self.no_fault(np, thorough, "handles", "float32")

    def test_barrier(self, np: int, thorough: bool) -> None:
        self.no_fault(np, thorough, "barrier", "late")

    def test_join(self, np: int, thorough: bool) -> None:
        self.no_fault(np, thorough, "join", "mixed")

    def test_objects(self, np: int, thorough: bool) -> None:
        self.no_fault(np, thorough, "objects", "pickled")

    def test_gradients(self, np: int, thorough: bool, differentiable: str, precision: str) -> None:
        self.no_fault(np, thorough, "gradient", differentiable, precision)

    def test_training(self, np: int, thorough: bool, trained: str, how: str) -> None:
        self.no_fault(np, thorough, trained, how)

    # ---- mistakes ----

    def test_disagreement_reaches_all_ranks(self, thorough: bool, what: str, form: str) -> None:
        kind = family(form).removeprefix("grouped_").upper()
        every = self.reports(MISTAKEN, thorough)
        found = 0
        for odd in range(MISTAKEN):
            seen = [report.outcomes.get(("disagreement", what, form, str(odd))) for report in every]
            seen = [told and (told[0], self.face.words(told[1])) for told in seen]
            assert seen == [seen[0]] * MISTAKEN, "the ranks were told different things"
            if seen[0] is None:
                continue
            found += 1
            raised, text = seen[0]
            assert raised == self.face.raised("disagreement", "HorovodInternalError"), text
            for words in DISAGREEMENTS[what].words:
                assert words.format(KIND=kind) in text
            # The tensor, and two ranks that disagree: the first, and the first that differs.
            assert f"{family(form)}.x" in text
            assert "rank 0 has" in text
            assert f"rank {odd or 1} has" in text
            if form in GROUPED and what in ("dtype", "shape", "scalar"):
                assert f"{family(form)}.x_2of2" in text
        assert found == (MISTAKEN if thorough else 1)

    def test_mistake(self, mistake: str, form: str) -> None:
        case = MISTAKES[mistake]
        members = 2 if form in GROUPED and mistake in NAMES_THE_MEMBER else 1
        for place in range(members):
            kind, text = self.one_outcome("mistake", mistake, form, str(place))
            assert kind == self.face.raised(mistake, case.kind), text
            for words in case.words:
                assert words.format(family=family(form)) in text
            if members == 2:
                assert f"Member {1 - place} of the group" in text

    def test_name_in_flight(self, pending: str) -> None:
        seen = {
            key: outcome
            for report in self.reports(MISTAKEN, False)
            for key, outcome in report.outcomes.items()
            if key[:2] == ("in flight", pending)
        }
        assert seen
        for (_, _, other), (kind, text) in seen.items():
            assert kind == "ValueError", (other, text)
            assert "same name as another tensor" in text, other
            assert f"{family(pending)}.twice" in text, other

    def test_automatic_names(self, any_form: str) -> None:
        """They count the operations of a family, in whatever form."""
        of_family = [f for f in self.face.forms if family(f) == family(any_form)]
        member = "_2of2" if any_form in GROUPED else ""
        for turn in (1, 2):
            number = (turn - 1) * len(of_family) + of_family.index(any_form) + 1
            kind, text = self.one_outcome("unnamed", any_form, str(turn))
            assert kind == self.face.raised("disagreement", "HorovodInternalError")
            assert f" {family(any_form)}.noname.{number}{member}:" in text

    def test_allgather_of_scalars(self, gathering: str) -> None:
        kind, text = self.one_outcome("scalars", gathering)
        member = "_2of2" if gathering in GROUPED else ""
        assert kind == self.face.raised("disagreement", "HorovodInternalError"), text
        assert "rank-zero tensor" in text
        assert f"{family(gathering)}.s{member}" in text

    def test_caller_outside_the_set(self, any_form: str) -> None:
        for called in (any_form, "barrier"):
            for report in self.reports(MISTAKEN, False):
                kind, text = report.outcomes["outside", called]
                assert kind == self.face.raised(f"{called} outside", "ValueError"), text
                assert "is not a member of the provided process set" in text
                if called != "barrier":
                    assert f"{family(called)}.outside" in text

    def test_root_outside_the_set(self) -> None:
        seen = {
            key: outcome
            for report in self.reports(MISTAKEN, False)
            for key, outcome in report.outcomes.items()
            if key[0] == "root outside"
        }
        assert seen
        for key, (kind, text) in seen.items():
            assert kind == self.face.raised("root outside", "ValueError"), key
            assert "invalid root rank" in text
            assert "broadcast.outside" in text

    def test_adasum_of_integers(self) -> None:
        for np in (1, 2):
            for report in self.reports(np, False):
                kind, text = report.outcomes["adasum", "int32"]
                assert kind == self.face.raised("integers", "HorovodInternalError"), text
                assert "Unsupported data type" in text
                assert not report.all_faults, "\n".join(report.all_faults[:20])

    def test_before_init_and_after_shutdown(self) -> None:
        for report in self.reports(2, False):
            for when in ("before", "after"):
                for called in (*QUERIES, *self.face.forms, "barrier"):
                    kind, text = report.outcomes["down", when, called]
                    wanted = "ValueError" if called in QUERIES else "HorovodInternalError"
                    assert kind == self.face.raised(f"{called} down", wanted), (called, text)
                    assert "has not been initialized" in text, called

    def test_mistakes_have_the_words_of_the_numpy_face(self, words_of: str) -> None:
        """Where they do not speak of the framework's tensors."""
        from conformance import numpy_face

        theirs, ours = reports(numpy_face.run, MISTAKEN), self.reports(MISTAKEN, False)
        compared = 0
        for one, other in zip(ours, theirs, strict=True):
            for key, outcome in one.outcomes.items():
                is_own = key[0] == "mistake" and MISTAKES[key[1]].own_words
                if key[0] == words_of and key in other.outcomes and not is_own:
                    compared += 1
                    kind, text = without_number(other.outcomes[key])
                    kind = self.face.raised(key[0] if key[0] == "disagreement" else key[1], kind)
                    raised, words = without_number(outcome)
                    assert (raised, self.face.words(words)) == (kind, text), key
        assert compared


def without_number(outcome: tuple[str, str]) -> tuple[str, str]:
    """An outcome without the number in an automatic name: other calls have been made before."""
    return outcome[0], re.sub(r"noname\.\d+", "noname", outcome[1])


def parameters(face: Face) -> dict[str, list[Any]]:
    """The values of the parameters that tests ask for, by the names of the first of them."""
    forms = face.forms
    optimizers = ("Average", "Sum", "two passes a step", "predivided", "in two groups", "fp16")
    trained = [("optimizer", how) for how in optimizers]
    return {
        "form, dtype": cases.keys(face),
        "what, form": [
            (what, form)
            for what, case in DISAGREEMENTS.items()
            for form in case.forms
            if applies(case, face, form)
        ],
        "mistake, form": [
            (what, form)
            for what, case in MISTAKES.items()
            for form in forms
            if applies(case, face, form)
        ],
        "any_form": list(forms),
        "reducing": [form for form in forms if form in ALL_REDUCING],
        "pending": list(face.in_flight),
        "gathering": [form for form in forms if "allgather" in form],
        "differentiable": list(DIFFERENTIABLE) if face.autodiff else [],
        "precision": ["float32", "float64"],
        "trained, how": [*trained, ("state", "parameters"), ("state", "optimizer")]
        if face.training
        else [],
        "words_of": [
            *("disagreement", "mistake", "outside", "down"),
            *(["in flight"] if face.asynchronous else []),
        ],
    }
