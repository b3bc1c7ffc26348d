"""Rank programs: calls of the torch collectives on which the ranks disagree.

Every mismatch in every form that can have it, with each rank in turn as the odd one. An outcome is
the type and the text of what was raised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from rank_programs import torch_forms as forms
from rank_programs.torch_cases import same

import hvdtune.torch as hvd

Outcome = tuple[str, str]


@dataclass(frozen=True)
class Disagreement:
    """What one rank does differently, and the words of the error that all ranks get."""

    forms: tuple[str, ...]
    words: tuple[str, ...]
    tensors: Callable[[], list[torch.Tensor]] = forms.ones
    odd_tensors: Callable[[], list[torch.Tensor]] = forms.ones
    arguments: dict[str, Any] = field(default_factory=dict)
    odd_arguments: dict[str, Any] = field(default_factory=dict)


def shaped(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], list[torch.Tensor]]:
    """A group whose last member, the one that single forms take, is ones of this shape."""
    return lambda: [torch.ones(6), torch.ones(shape, dtype=dtype)]


SAME_SHAPE = (*forms.ALLREDUCES, *forms.GROUPED_ALLREDUCES, *forms.BROADCASTS)
SCATTERED = (*forms.REDUCESCATTERS, *forms.GROUPED_REDUCESCATTERS)
ALLREDUCED = (*forms.ALLREDUCES, *forms.GROUPED_ALLREDUCES)
BY_ROWS = (*forms.GATHERING, *forms.ALLTOALLS)

DISAGREEMENTS: dict[str, Disagreement] = {
    "dtype": Disagreement(
        forms.FORMS,
        ("Mismatched data types", "float32", "float64"),
        shaped(6, 2),
        shaped(6, 2, dtype=torch.float64),
    ),
    "16-bit dtypes": Disagreement(
        forms.FORMS,
        ("Mismatched data types", "float16", "bfloat16"),
        shaped(6, 2, dtype=torch.float16),
        shaped(6, 2, dtype=torch.bfloat16),
    ),
    "shape": Disagreement(
        (*SAME_SHAPE, *SCATTERED),
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
        forms.GATHERING, ("tensor of rank 1", "tensor of rank 0"), shaped(4), shaped()
    ),
    "number of dimensions": Disagreement(
        BY_ROWS, ("tensor of rank 2", "tensor of rank 3"), shaped(6, 2), shaped(6, 2, 1)
    ),
    "second dimension": Disagreement(
        BY_ROWS, ("with dimension 1", "equal to 2", "equal to 5"), shaped(6, 2), shaped(6, 5)
    ),
    "prescale factor": Disagreement(
        forms.REDUCING,
        ("Mismatched prescale and/or postscale factors", "(1, 1)", "(0.5, 1)"),
        odd_arguments={"prescale_factor": 0.5},
    ),
    "postscale factor": Disagreement(
        forms.REDUCING,
        ("Mismatched prescale and/or postscale factors", "(2, 3)", "(2, 4)"),
        arguments={"prescale_factor": 2.0, "postscale_factor": 3.0},
        odd_arguments={"prescale_factor": 2.0, "postscale_factor": 4.0},
    ),
    "operator": Disagreement(
        ALLREDUCED,
        ("Mismatched reduction operation", "3", "5"),
        arguments={"op": hvd.Min},
        odd_arguments={"op": hvd.Product},
    ),
    "Sum and Average": Disagreement(
        forms.REDUCING,
        ("Mismatched reduction operation", "0", "1"),
        arguments={"op": hvd.Sum},
        odd_arguments={"op": hvd.Average},
    ),
    "root rank": Disagreement(
        forms.BROADCASTS,
        ("Mismatched BROADCAST root ranks", "0", "2"),
        arguments={"root_rank": 0},
        odd_arguments={"root_rank": 2},
    ),
    "members of the group": Disagreement(
        forms.GROUPED,
        ("Mismatched group sizes", "a group of 2 tensors", "a group of 3 tensors"),
        forms.ones,
        lambda: [*forms.ones(), torch.ones(6)],
    ),
}


def outcome(call: Callable[[], Any]) -> Outcome:
    try:
        return "", repr(call())
    except Exception as error:
        return type(error).__name__, str(error)


def check_alive(what: object) -> None:
    total = torch.full((3,), float(hvd.size()))
    same(hvd.allreduce(torch.ones(3), op=hvd.Sum, name="alive"), total, what)


def run_disagreements() -> dict[tuple[str, str, int], Outcome]:
    """Key: the disagreement, the form, and the odd rank."""
    hvd.init()
    seen = {}
    for what, case in DISAGREEMENTS.items():
        for form in case.forms:
            for odd in range(hvd.size()):
                # The name is known and cached when the ranks come to disagree about it.
                forms.complete(form, case.tensors(), name="x", **case.arguments)
                mine = hvd.rank() == odd
                tensors = case.odd_tensors() if mine else case.tensors()
                arguments = case.odd_arguments if mine else case.arguments
                seen[what, form, odd] = outcome(
                    lambda f=form, t=tensors, a=arguments: forms.complete(f, t, name="x", **a)
                )
                check_alive((what, form, odd))
                forms.complete(form, case.tensors(), name="x", **case.arguments)
    hvd.shutdown()
    return seen


def unnamed() -> dict[str, Outcome]:
    """The names that operations get by themselves, as errors show them; two rounds of each."""
    odd = hvd.rank() == 1
    seen = {}
    for turn in (1, 2):
        for form in forms.FORMS:
            tensors = shaped(6, 2, dtype=torch.float64 if odd else torch.float32)()
            seen[f"{form} {turn}"] = outcome(lambda f=form, t=tensors: forms.complete(f, t))
    return seen


def sparse() -> dict[str, Outcome]:
    """Sparse tensors on which the ranks disagree: both gathers end, and the names are free."""
    odd = hvd.rank() == hvd.size() - 1
    seen = {}

    def reduce(values: torch.Tensor, dimensions: int) -> torch.Tensor:
        indices = torch.zeros((dimensions, 1), dtype=torch.int64)
        shape = (4,) * (dimensions + values.dim() - 1)
        tensor = torch.sparse_coo_tensor(indices, values, shape)
        return hvd.sparse_allreduce_async(tensor, "s", hvd.Sum)()

    double = torch.ones(1, dtype=torch.float64)
    for what, values, dimensions in (
        ("values' dtype", double if odd else torch.ones(1), 1),
        ("indices' dimensions", torch.ones(1), 2 if odd else 1),
        ("values' dimensions", torch.ones((1, 4) if odd else 1), 1),
    ):
        seen[what] = outcome(lambda v=values, d=dimensions: reduce(v, d))
        total = reduce(torch.ones(1), 1).to_dense()
        same(total, torch.tensor([float(hvd.size()), 0.0, 0.0, 0.0]), what)
    return seen


def scalars() -> dict[str, Outcome]:
    """Scalars on all ranks where rows are needed."""
    tensors = [torch.ones(6), torch.tensor(1.0)]
    return {
        form: outcome(lambda f=form: forms.complete(f, tensors, name="s"))
        for form in forms.GATHERING
    }


def run_others() -> dict[str, dict[str, Outcome]]:
    """What needs no rank to be the odd one in turn."""
    hvd.init()
    seen = {}
    for part in (unnamed, sparse, scalars):
        seen[part.__name__] = part()
        check_alive(part.__name__)
    hvd.shutdown()
    return seen
