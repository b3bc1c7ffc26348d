"""The table of mistakes: what every face refuses, and in which words.

``DISAGREEMENTS`` are found when the ranks compare their calls: all ranks get the same error.
``MISTAKES`` are found at the call: only the rank that makes one gets it, and the others, who wait
in the same operation, are served as soon as it has made the call rightly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from conformance.face import (
    ALL_REDUCING,
    ALLTOALLS,
    BROADCASTS,
    FORMS,
    GATHERING,
    GROUPED,
    REDUCING,
    SCATTERING,
    Face,
)

Outcome = tuple[str, str]
Arguments = dict[str, Any]
MakeTensors = Callable[[Face], list[Any]]

NOTHING: Outcome = ("", "")


def outcome(call: Callable[[], Any]) -> Outcome:
    """The type and the text of what a call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return NOTHING


def shaped(*shape: int, dtype: str = "float32") -> MakeTensors:
    """A group whose last member, the one that single forms take, is ones of this shape."""
    return lambda face: [face.ones(6), face.ones(*shape, dtype=dtype)]


@dataclass(frozen=True)
class Disagreement:
    """What one rank does differently, and the words of the error that all ranks get."""

    forms: tuple[str, ...]
    words: tuple[str, ...]
    tensors: MakeTensors = Face.group
    odd_tensors: MakeTensors = Face.group
    arguments: Arguments = field(default_factory=dict)
    odd_arguments: Arguments = field(default_factory=dict)


SAME_SHAPE = (*ALL_REDUCING, *BROADCASTS)
BY_ROWS = (*GATHERING, *ALLTOALLS)
# Operators go by their numbers.
AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT = range(6)

DISAGREEMENTS: dict[str, Disagreement] = {
    "dtype": Disagreement(
        FORMS,
        ("Mismatched data types", "float32", "float64"),
        shaped(6, 2),
        shaped(6, 2, dtype="float64"),
    ),
    "kinds of dtypes": Disagreement(
        FORMS,
        ("Mismatched data types", "float32", "int32"),
        shaped(6, 2),
        shaped(6, 2, dtype="int32"),
    ),
    "16-bit dtypes": Disagreement(
        FORMS,
        ("Mismatched data types", "float16", "bfloat16"),
        shaped(6, 2, dtype="float16"),
        shaped(6, 2, dtype="bfloat16"),
    ),
    "shape": Disagreement(
        (*SAME_SHAPE, *SCATTERING),
        ("Mismatched {KIND} tensor shapes", "[6, 2]", "[6, 3]"),
        shaped(6, 2),
        shaped(6, 3),
    ),
    "scalar": Disagreement(
        SAME_SHAPE, ("Mismatched {KIND} tensor shapes", "[1]", "[]"), shaped(1), shaped()
    ),
    "elements in another shape": Disagreement(
        SAME_SHAPE, ("Mismatched {KIND} tensor shapes", "[6, 2]", "[12]"), shaped(6, 2), shaped(12)
    ),
    "scalar among rows": Disagreement(
        GATHERING, ("tensor of rank 1", "tensor of rank 0"), shaped(4), shaped()
    ),
    "number of dimensions": Disagreement(
        BY_ROWS, ("tensor of rank 2", "tensor of rank 3"), shaped(6, 2), shaped(6, 2, 1)
    ),
    "second dimension": Disagreement(
        BY_ROWS, ("with dimension 1", "equal to 2", "equal to 5"), shaped(6, 2), shaped(6, 5)
    ),
    "prescale factor": Disagreement(
        REDUCING,
        ("Mismatched prescale and/or postscale factors", "(1, 1)", "(0.5, 1)"),
        odd_arguments={"prescale_factor": 0.5},
    ),
    "postscale factor": Disagreement(
        REDUCING,
        ("Mismatched prescale and/or postscale factors", "(2, 3)", "(2, 4)"),
        arguments={"prescale_factor": 2.0, "postscale_factor": 3.0},
        odd_arguments={"prescale_factor": 2.0, "postscale_factor": 4.0},
    ),
    "operator": Disagreement(
        ALL_REDUCING,
        ("Mismatched reduction operation", "3", "5"),
        arguments={"op": MIN},
        odd_arguments={"op": PRODUCT},
    ),
    "Sum and Average": Disagreement(
        REDUCING,
        ("Mismatched reduction operation", "0", "1"),
        arguments={"op": SUM},
        odd_arguments={"op": AVERAGE},
    ),
    "root rank": Disagreement(
        BROADCASTS,
        ("Mismatched BROADCAST root ranks", "0", "2"),
        arguments={"root_rank": 0},
        odd_arguments={"root_rank": 2},
    ),
    "members of the group": Disagreement(
        GROUPED,
        ("Mismatched group sizes", "a group of 2 tensors", "a group of 3 tensors"),
        Face.group,
        lambda face: [*face.group(), face.ones(6)],
    ),
    "a group of one": Disagreement(
        GROUPED,
        ("Mismatched group sizes", "a group of 2 tensors", "a group of 1 tensor"),
        Face.group,
        lambda face: [face.ones(6)],
    ),
}


@dataclass(frozen=True)
class Mistake:
    """A call that is refused where it is made."""

    forms: tuple[str, ...]
    kind: str
    words: tuple[str, ...]
    tensors: MakeTensors = Face.group
    arguments: Arguments | Callable[[Face], Arguments] = field(default_factory=dict)
    own_words: bool = False
    """Whether a face may say the rest in words of its own: it speaks of its framework's tensors."""


def _last(tensor: Callable[[Face], Any]) -> MakeTensors:
    """A group whose last member is this tensor."""
    return lambda face: [face.ones(6), tensor(face)]


def _strided(face: Face) -> Any:
    return face.strided(np.ones((6, 2), np.float32))


def _splits(splits: Any, kind: str, *words: str) -> Mistake:
    return Mistake(ALLTOALLS, kind, words, shaped(7, 2), {"splits": splits})


IN_PLACE = tuple(form for form in FORMS if form.endswith("_"))
ROWS_NEEDED = (*ALLTOALLS, *SCATTERING)

# For 3 ranks.
MISTAKES: dict[str, Mistake] = {
    "not contiguous": Mistake(
        FORMS, "ValueError", ("required to be contiguous",), _last(_strided), own_words=True
    ),
    "read-only": Mistake(
        IN_PLACE,
        "ValueError",
        ("must be writeable",),
        _last(lambda face: face.read_only(np.ones((6, 2), np.float32))),
        own_words=True,
    ),
    "complex": Mistake(
        FORMS,
        "ValueError",
        ("Tensor type", "is not supported"),
        _last(lambda face: face.ones(6, dtype="complex64")),
        own_words=True,
    ),
    "no tensor": Mistake(
        FORMS, "TypeError", ("{family}", "not a list"), _last(lambda face: [1.0]), own_words=True
    ),
    "one tensor as a group": Mistake(
        GROUPED,
        "ValueError",
        ("{family} takes a list of tensors, not one tensor",),
        lambda face: face.ones(4, 2),  # type: ignore[arg-type,return-value]
    ),
    "a number as a group": Mistake(
        GROUPED,
        "TypeError",
        ("{family} takes a list of tensors, not 5",),
        lambda face: 5,  # type: ignore[arg-type,return-value]
    ),
    "scalar without rows": Mistake(ROWS_NEEDED, "ValueError", ("scalar",), shaped()),
    "average of bools": Mistake(
        ALL_REDUCING, "ValueError", ("bool",), shaped(6, dtype="bool"), {"op": AVERAGE}
    ),
    "prescale of bools": Mistake(
        ALL_REDUCING, "ValueError", ("bool",), shaped(6, dtype="bool"), {"prescale_factor": 0.5}
    ),
    "postscale of bools": Mistake(
        ALL_REDUCING,
        "ValueError",
        ("bool",),
        shaped(6, dtype="bool"),
        {"op": MAX, "postscale_factor": 2.0},
    ),
    "unknown operator": Mistake(
        ALL_REDUCING, "ValueError", ("17", "Average"), arguments={"op": 17}
    ),
    "unknown operator of reducescatter": Mistake(
        SCATTERING,
        "HorovodInternalError",
        ("only supports AVERAGE and SUM",),
        arguments={"op": 17},
    ),
    "op and average": Mistake(
        ALL_REDUCING,
        "ValueError",
        ("op parameter supersedes average",),
        arguments={"average": True, "op": AVERAGE},
    ),
    "Adasum of 3 ranks": Mistake(
        ALL_REDUCING,
        "NotImplementedError",
        ("Adasum", "power of two; the job has 3"),
        arguments={"op": ADASUM},
    ),
    **{
        f"reducescatter {name}": Mistake(
            SCATTERING,
            "HorovodInternalError",
            ("only supports AVERAGE and SUM",),
            arguments={"op": op},
        )
        for name, op in (("Min", MIN), ("Max", MAX), ("Product", PRODUCT), ("Adasum", ADASUM))
    },
    **{
        f"splits {name}": _splits(splits, "ValueError", words)
        for name, splits, words in (
            ("missing", None, "splits not provided"),
            ("too large", [3] * 3, "Sum of splits entries is greater"),
            ("too few", [1], "Number of entries in splits"),
            ("none", [], "Number of entries in splits"),
            ("too many", [2, 2, 2, 0], "Number of entries in splits"),
            ("of 64 bits", np.array([2, 2, 2], np.int64), "32-bit integer"),
            ("of floats", np.array([2, 2, 2], np.float32), "32-bit integer"),
            ("of fractions", [2.5] * 3, "32-bit integer"),
            ("beyond 32 bits", [2**40] * 3, "32-bit integer"),
            ("of two dimensions", np.array([[2, 2, 2]], np.int32), "1D splits tensor"),
            ("of no dimension", np.array(2, np.int32), "1D splits tensor"),
            ("negative", [-1, 2, 2], "splits"),
            ("of words", "2 2 2", "32-bit integer"),
            ("of nothing", [None], "32-bit integer"),
        )
    },
    **{
        f"root {root}": Mistake(
            BROADCASTS,
            "ValueError",
            (f"invalid root rank {root}", "broadcast."),
            arguments={"root_rank": root},
        )
        for root in (-1, 3, 1000)
    },
    **{
        f"root {root!r}": Mistake(
            BROADCASTS,
            "TypeError",
            (f"root_rank must be the number of a rank, not {root!r}",),
            arguments={"root_rank": root},
        )
        for root in ("0", None, 1.0)
    },
    **{
        f"{factor} {wrong!r}": Mistake(
            REDUCING,
            "TypeError",
            (f"{factor} must be a number, not {wrong!r}",),
            arguments={factor: wrong},
        )
        for factor in ("prescale_factor", "postscale_factor")
        for wrong in ("1", None, [1.0])
    },
    "postscale_factor NaN": Mistake(
        REDUCING,
        "ValueError",
        ("postscale_factor must be a number, not NaN",),
        arguments={"postscale_factor": float("nan")},
    ),
    **{
        f"process set {wrong!r}": Mistake(
            FORMS,
            "TypeError",
            (f"must be a ProcessSet, not {wrong!r}",),
            arguments={"process_set": wrong, "root_rank": 0},
        )
        for wrong in ([0], None, "global")
    },
    "unregistered process set": Mistake(
        FORMS,
        "ValueError",
        ("ranks=[0, 1]", "has not been registered"),
        arguments=lambda face: {"process_set": face.hvd.ProcessSet([1, 0])},
    ),
    "name too long": Mistake(FORMS, "ValueError", (), arguments={"name": "x" * 5000}),
}
# Of a group, the member that is refused is named by its index.
NAMES_THE_MEMBER = ("not contiguous", "read-only", "complex", "no tensor")


def arguments_of(mistake: Mistake, face: Face, form: str) -> Arguments:
    """The arguments of a form's call; a root only where there is one."""
    made = mistake.arguments
    arguments = dict(made(face) if callable(made) else made)
    if form not in BROADCASTS:
        arguments.pop("root_rank", None)
    splits = arguments.get("splits")
    if isinstance(splits, np.ndarray):
        arguments["splits"] = face.tensor(splits, str(splits.dtype))
    return arguments


def applies(case: Disagreement | Mistake, face: Face, form: str) -> bool:
    """Whether a face can make a mistake."""
    if form not in case.forms or form not in face.forms:
        return False
    if any(case is MISTAKES[what] for what in face.takes):
        return False
    if case is DISAGREEMENTS["16-bit dtypes"]:
        return "bfloat16" in face.dtypes
    if case is MISTAKES["not contiguous"]:
        return _strided(face) is not None
    if case is MISTAKES["read-only"]:
        return face.read_only(np.ones(1)) is not None
    return True
