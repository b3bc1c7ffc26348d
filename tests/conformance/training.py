"""Optimizers and broadcasts of state: what training adds to the collectives."""

from __future__ import annotations

from typing import Any

import numpy as np
from conformance.face import Face

SHAPES = ((4, 3), (5,), ())
STEPS = 3
RATE = 0.25


def gradients_of(rank: int, passes: int) -> list[list[np.ndarray]]:
    """A rank's gradients, one list for every backward pass."""
    random = np.random.default_rng((rank, 7))
    return [[np.asarray(random.normal(size=shape)) for shape in SHAPES] for _ in range(passes)]


def parameters(rank: int = 0) -> list[np.ndarray]:
    """What training begins with."""
    return [np.full(shape, 1.0 + rank + i) for i, shape in enumerate(SHAPES)]


def optimizer(face: Face, report: Any) -> None:
    """Plain gradient descent, whose result is known."""
    hvd, size = face.hvd, face.hvd.size()
    cases: tuple[tuple[str, int, float, dict[str, Any]], ...] = (
        ("Average", 1, 1 / size, {}),
        ("Sum", 1, 1.0, {"op": hvd.Sum}),
        ("two passes a step", 2, 1 / size, {"backward_passes_per_step": 2}),
        ("predivided", 1, 1 / size, {"gradient_predivide_factor": 4.0}),
        ("in two groups", 1, 1 / size, {"groups": 2}),
    )
    for name, passes, scale, options in cases:
        options = {k: v for k, v in options.items() if k != "backward_passes_per_step"}
        every = [gradients_of(rank, STEPS * passes) for rank in range(size)]
        got = face.descend(parameters(), every[hvd.rank()], RATE, passes, **options)
        expected = parameters()
        for index in range(STEPS * passes):
            for value, *given in zip(expected, *(each[index] for each in every), strict=True):
                value -= RATE * scale * np.sum(given, axis=0)
        for index, (one, wanted) in enumerate(zip(got, expected, strict=True)):
            good = one.shape == wanted.shape and np.allclose(one, wanted, rtol=1e-12, atol=1e-13)
            report.expect(("optimizer", name), good, f"parameter {index}: {one}, not {wanted}")
    half = face.descend(
        parameters(), gradients_of(0, 1), RATE, compression=hvd.Compression.fp16, op=hvd.Sum
    )
    for value, start, gradient in zip(half, parameters(), gradients_of(0, 1)[0], strict=True):
        # What one process has is sent to nobody.
        sent = gradient if size == 1 else gradient.astype(np.float16).astype(np.float64) * size
        tolerance = 1e-12 if size == 1 else 4e-3
        good = np.allclose(value, start - RATE * sent, rtol=tolerance, atol=tolerance)
        report.expect(("optimizer", "fp16"), good, value)


def state(face: Face, report: Any) -> None:
    """Everybody gets what the root has."""
    rank = face.hvd.rank()
    for root in range(face.hvd.size()):
        mine = {f"p{i}": value for i, value in enumerate(parameters(rank))}
        got = face.broadcast_parameters(mine, root)
        for value, wanted in zip(got.values(), parameters(root), strict=True):
            report.expect(("state", "parameters"), np.array_equal(value, wanted), value)
        momentum, rate = face.broadcast_state(np.full((3, 2), 1.0 + rank), 0.5 + rank, root)
        good = np.array_equal(momentum, np.full((3, 2), 1.0 + root)) and rate == 0.5 + root
        report.expect(("state", "optimizer"), good, (root, momentum, rate))


def run(face: Face, report: Any) -> None:
    """Both."""
    optimizer(face, report)
    state(face, report)
