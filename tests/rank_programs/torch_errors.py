"""Rank programs: sparse tensors on which the ranks disagree.

What all faces have, dense tensors and their names, is in tests/conformance.
"""

from __future__ import annotations

import torch
from rank_programs.mistakes import Outcome, outcome
from rank_programs.torch_cases import same

import hvdtune.torch as hvd


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


def run() -> dict[str, Outcome]:
    """All of them in one job."""
    hvd.init()
    seen = sparse()
    hvd.shutdown()
    return seen
