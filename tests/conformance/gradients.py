"""Gradients: what arrives at an operation's output comes back through its adjoint.

What arrives differs by rank and element, so that a wrong operator, order or slice shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from conformance.face import Face
from conformance.reference import FUNCTIONS, rows_of_place

DTYPES = ("float32", "float64")


def arriving(rank: int, shape: Sequence[int]) -> np.ndarray:
    """The gradient that arrives at an output on ``rank``."""
    count = int(np.prod(shape))
    return (np.arange(count, dtype=np.float64) + 10.0 * rank + 1.0).reshape(shape)


class Gradients:
    """Checks the gradients of a face's operations in one process set."""

    def __init__(self, face: Face, report: Any, process_set: Any, dtype: str) -> None:
        self.face, self.hvd, self.report = face, face.hvd, report
        self.process_set, self.dtype = process_set, dtype
        self.ranks: list[int] = process_set.ranks
        self.place = self.ranks.index(face.hvd.rank())
        self.size = len(self.ranks)

    def check(
        self,
        form: str,
        shapes: Sequence[tuple[int, ...]],
        expected: Sequence[np.ndarray],
        **arguments: Any,
    ) -> None:
        """Pull back through a form. A group's inputs are all ``shapes``, a single form's one."""
        face = self.face
        grouped = form.startswith("grouped_")
        rank = self.hvd.rank()
        inputs = [face.tensor(arriving(rank, shape) / 4, self.dtype) for shape in shapes]

        def call(leaves: list[Any]) -> Sequence[Any]:
            out = getattr(self.hvd, form)(
                leaves if grouped else leaves[0], process_set=self.process_set, **arguments
            )
            if form == "alltoall" and "splits" in arguments:
                out = out[0]
            return out if grouped else [out]

        key = ("gradient", form, self.dtype)
        what = f"shapes {shapes}, {arguments}, ranks {self.ranks}"
        self.report.cases[key] += 1
        try:
            got = face.pull_back(
                call, inputs, lambda i, shape: np.asarray(arriving(rank, shape) + i)
            )
        except Exception as error:
            self.report.fault(key, f"{what}: {type(error).__name__}: {error}")
            return
        tolerance = 4 * np.finfo(self.dtype).eps
        for index, (one, wanted) in enumerate(zip(got, expected, strict=True)):
            good = one.shape == wanted.shape and np.allclose(one, wanted, rtol=tolerance, atol=0)
            self.report.expect(key, good and one.dtype == self.dtype, f"{what}, {index}: {one}")

    def everyone(self, shape: tuple[int, ...], output: int = 0) -> np.ndarray:
        """What arrives at an output on all ranks, stacked."""
        return np.stack([arriving(rank, shape) + output for rank in self.ranks])

    def allreduce(self) -> None:
        for shape in ((3, 2), (), (0, 2)):
            stacked = self.everyone(shape)
            for op, scale in (
                ("Sum", 1.0),
                ("Average", 1 / self.size),
                *((o, 1.0) for o in FUNCTIONS),
            ):
                reduced = FUNCTIONS.get(op, np.add).reduce(stacked, axis=0) * scale
                self.check("allreduce", [shape], [reduced], op=getattr(self.hvd, op), name="g")
        reduced = self.everyone((3, 2)).sum(0) * 1.5
        self.check(
            *("allreduce", [(3, 2)], [reduced]),
            op=self.hvd.Sum, prescale_factor=0.5, postscale_factor=3.0,
        )  # fmt: skip
        shapes = [(2, 2), (3,), ()]
        sums = [self.everyone(shape, i).sum(0) for i, shape in enumerate(shapes)]
        self.check("grouped_allreduce", shapes, sums, op=self.hvd.Sum)
        self.check("grouped_allreduce", shapes, [x / self.size for x in sums])

    def allgather(self) -> None:
        def of(rows: list[int], tail: tuple[int, ...], output: int = 0) -> np.ndarray:
            mean = self.everyone((sum(rows), *tail), output).mean(0)
            start = sum(rows[: self.place])
            return mean[start : start + rows[self.place]]

        some = [2 * place for place in range(self.size)]  # none on the first
        self.check("allgather", [(some[self.place], 2)], [of(some, (2,))])
        more = [place + 1 for place in range(self.size)]
        self.check(
            "grouped_allgather",
            [(more[self.place], 2), (some[self.place],)],
            [of(more, (2,)), of(some, (), 1)],
        )

    def broadcast(self) -> None:
        for root in self.ranks:
            mean = self.everyone((2, 3)).mean(0)
            expected = mean if self.hvd.rank() == root else np.zeros_like(mean)
            self.check("broadcast", [(2, 3)], [expected], root_rank=root)

    def alltoall(self) -> None:
        size, place = self.size, self.place
        counts = [[(s + 2 * r) % 3 for r in range(size)] for s in range(size)]
        parts = []
        for receiver, rank in enumerate(self.ranks):
            arrived = arriving(rank, (sum(counts[s][receiver] for s in range(size)), 2))
            start = sum(counts[s][receiver] for s in range(place))
            parts.append(arrived[start : start + counts[place][receiver]])
        # The last row is not sent.
        shape = (sum(counts[place]) + 1, 2)
        self.check("alltoall", [shape], [np.concatenate([*parts, np.zeros((1, 2))])],
                   splits=counts[place])  # fmt: skip
        even = np.stack([arriving(rank, (size, 2))[place] for rank in self.ranks])
        self.check("alltoall", [(size, 2)], [even])

    def reducescatter(self) -> None:
        def of(rows: int, tail: tuple[int, ...], scale: float, output: int = 0) -> np.ndarray:
            cuts = [rows_of_place(rows, place, self.size) for place in range(self.size)]
            parts = [
                arriving(rank, (cut.stop - cut.start, *tail)) + output
                for rank, cut in zip(self.ranks, cuts, strict=True)
            ]
            return np.concatenate(parts) * scale

        rows, total = 2 * self.size + 1, float(self.size)
        hvd = self.hvd
        self.check("reducescatter", [(rows, 2)], [of(rows, (2,), 1.0)])
        self.check("reducescatter", [(rows, 2)], [of(rows, (2,), total)], op=hvd.Sum)
        self.check(
            *("reducescatter", [(rows, 2)], [of(rows, (2,), 1.5 * total)]),
            op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0,
        )  # fmt: skip
        self.check(
            *("grouped_reducescatter", [(rows, 2), (self.size,)]),
            [of(rows, (2,), total), of(self.size, (), total, 1)],
            op=hvd.Sum,
        )


BLOCKS: tuple[Callable[[Gradients], None], ...] = (
    Gradients.allreduce,
    Gradients.allgather,
    Gradients.broadcast,
    Gradients.alltoall,
    Gradients.reducescatter,
)


def run(face: Face, report: Any, process_sets: Sequence[Any]) -> None:
    """All operations, in all ranks and in process sets."""
    for one in [face.hvd.global_process_set, *process_sets[:2]]:
        if one.included():
            for dtype in DTYPES:
                gradients = Gradients(face, report, one, dtype)
                for block in BLOCKS:
                    block(gradients)
