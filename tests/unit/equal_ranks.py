"""Simulated recordings of ranks that are alike, whatever their jitter."""

from __future__ import annotations

import numpy as np
from support.recordings.synthetic_capture import Job, Late, recording, tensors

from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse

KINDS = (
    *("normal", "lognormal", "pareto", "pauses", "wandering", "slowly wandering"),
    *("bursts on all ranks", "exponential"),
)


def wandering(random: np.random.Generator, phi: float, shape: tuple[int, int]) -> np.ndarray:
    """An AR(1) series of standard deviation 1 for each rank."""
    own = random.normal(0, 1, (shape[0], shape[1] + 100))
    for at in range(1, own.shape[1]):
        own[:, at] += phi * own[:, at - 1]
    series: np.ndarray = own[:, 100:] * np.sqrt(1 - phi**2)
    return series


def jitter(random: np.random.Generator, kind: str, shape: tuple[int, int]) -> np.ndarray:
    """[ranks, S] s that the ranks compute longer; all alike."""
    if kind == "normal":
        return np.abs(random.normal(0, 0.004, shape))
    if kind == "lognormal":
        return 0.002 * random.lognormal(0, 1.2, shape)
    if kind == "pareto":
        return np.minimum(0.001 * random.pareto(1.5, shape), 0.4)
    if kind == "pauses":
        paused = random.random(shape) < 0.06
        return np.where(paused, random.exponential(0.1, shape), 0.0005 * random.random(shape))
    if kind == "exponential":
        return random.exponential(0.01, shape)
    if kind == "bursts on all ranks":
        burst = (random.random(shape[1]) < 0.1) * random.exponential(0.05, shape[1])
        return 0.002 * random.random(shape) + burst * (0.5 + random.random(shape))
    phi = 0.6 if kind == "wandering" else 0.9
    return np.maximum(0.0, 0.02 + 0.005 * wandering(random, phi, shape))


def named(seed: int) -> list[str]:
    """What is said of ranks in the recording number `seed`."""
    random = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    ranks, steps = int(random.choice([2, 3, 4, 8])), int(random.choice([40, 60, 100]))
    late = jitter(random, kind, (ranks, steps))
    job = Job(ranks=ranks, steps=steps, tensors=tensors(3), late=tuple(
        Late(rank, float(late[rank, step]), step + 1, step + 1)
        for rank in range(ranks)
        for step in range(steps)
    ))  # fmt: skip
    return [
        f"{kind}, {ranks} ranks, {steps} steps, seed {seed}: {one.kind}: {one.sentence}"
        for one in findings(analyse(recording(job)))
        if "straggler" in one.kind or one.kind == "stalled rank" or "ranks" in one.evidence
    ]
