"""Draw the course of a tuning from bad settings, hvdtune's and Horovod's: step time over steps.

    python benchmarks/autotune/course.py docs/autotune.svg

Both tune the same simulated job: a measured surface (surfaces/) with the step times of the real job
that it was measured with (wanders/), from a cycle of 100 ms and a fusion threshold of 0. Every
point is the mean of SHOWN steps. Prints how many steps each of them took, and after how many it had
made up most of the loss.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean

import job
import methods
import simulate
from surfaces import DEFAULTS, Surface, load_all

SURFACE = "tiny-np2-compute10"
TITLE = "1000 gradients of 256 numbers in 10 ms of computing, 2 ranks"
START = "both"
SEED = 1
SHOWN = 10  # steps of a point
COLOURS = {"Horovod": "#1f77b4", "hvdtune": "#d62728"}
AFTER = 400  # steps shown with the settings that a method has ended with
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 260, 64, 56, 20, 76
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #222 } .title { font-weight: 600 }
.grid { stroke: #ddd } .frame { stroke: #999; fill: none } .back { fill: #fff }
.usual { stroke: #555; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
text { fill: #ddd } .grid { stroke: #333 } .frame { stroke: #777 } .back { fill: #14171c }
.usual { stroke: #aaa } }
"""


@dataclass(frozen=True)
class Course:
    """The steps of a tuning in order, ms, then steps with the settings that it ended with."""

    method: str
    times_ms: Sequence[float]
    tuned_after: int

    def left_after(self, usual_ms: float) -> int | None:
        """Steps until most of the start's loss against `usual_ms` was gone for good.

        None: not before tuning was over.
        """
        limit = (fmean(self.times_ms[:SHOWN]) + usual_ms) / 2
        last = max(
            (at for at in range(0, self.tuned_after, SHOWN) if self._mean(at) > limit), default=0
        )
        return last + SHOWN if last + SHOWN < self.tuned_after else None

    def points(self) -> list[tuple[int, float]]:
        """(step, ms) of the line."""
        return [(at, self._mean(at)) for at in range(0, len(self.times_ms) - SHOWN + 1, SHOWN)]

    def _mean(self, at: int) -> float:
        return fmean(self.times_ms[at : at + SHOWN])


class Watched(job.Job):
    """A job that keeps the times of its steps, ms."""

    def __init__(self, surface: Surface) -> None:
        super().__init__(
            surface, simulate.STARTS[START], 0.0, SEED, step_bytes=surface.step_bytes,
            wander=simulate.WANDERS[surface.name],
        )  # fmt: skip
        self.times_ms: list[float] = []

    def step(self, values: Mapping[str, float], epoch: int = 0) -> job.Step:
        """Do one step with these settings."""
        done = super().step(values, epoch)
        self.times_ms.append(done.duration_ns / 1e6)
        return done


def follow(method: str, surface: Surface) -> Course:
    """Let a method tune the job."""
    training = Watched(surface)
    kept = methods.METHODS[method](training, dict(simulate.STARTS[START]), SEED)
    tuned_after = training.steps
    for _ in range(AFTER):
        training.step(kept.values)
    return Course(method, training.times_ms, tuned_after)


def svg(courses: Sequence[Course], usual_ms: float) -> str:
    """The picture; `usual_ms` is the step time with the shipped defaults."""
    longest = max(len(one.times_ms) for one in courses)
    drawn = [ms for one in courses for _, ms in one.points()]
    low, high = math.log(min([*drawn, usual_ms]) * 0.95), math.log(max(drawn) * 1.05)

    def x(step: float) -> float:
        return LEFT + WIDTH * step / longest

    def y(ms: float) -> float:
        return TOP + HEIGHT * (high - math.log(ms)) / (high - low)

    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        "<title>Step time while tuning</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{width}" height="{height}"/>',
        f'<text class="title" x="{LEFT}" y="20">Step time while tuning, ms</text>',
        f'<text x="{LEFT}" y="38">{escape(TITLE)}; from a cycle of 100 ms, no fusion</text>',
    ]
    for ms in ticks(math.exp(low), math.exp(high)):
        parts.append(f'<path class="grid" d="M{LEFT} {y(ms):.1f}h{WIDTH}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(ms) + 4:.1f}" text-anchor="end">{ms:g}</text>')
    for step in range(0, longest + 1, 1000):
        parts.append(f'<path class="grid" d="M{x(step):.1f} {TOP}v{HEIGHT}"/>')
        parts.append(
            f'<text x="{x(step):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{step}</text>'
        )
    for one in courses:
        line = " ".join(f"{x(step + SHOWN / 2):.1f},{y(ms):.1f}" for step, ms in one.points())
        colour = COLOURS[one.method]
        parts.append(f'<polyline fill="none" stroke="{colour}" points="{line}"/>')
        end = x(one.tuned_after)
        parts.append(f'<path stroke="{colour}" stroke-width="2" d="M{end:.1f} {TOP}v{HEIGHT}"/>')
    parts.append(f'<path class="usual" d="M{LEFT} {y(usual_ms):.1f}h{WIDTH}"/>')
    parts.append(f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}"/>')
    parts += legend(courses)
    return "\n".join([*parts, "</svg>"]) + "\n"


def legend(courses: Sequence[Course]) -> list[str]:
    """Below the frame: the axis, then a word for each line."""
    below = TOP + HEIGHT + 36
    middle = LEFT + WIDTH / 2
    parts = [f'<text x="{middle}" y="{below}" text-anchor="middle">steps</text>']
    at = LEFT
    for one in reversed(courses):
        words = f"{one.method}, over after {one.tuned_after} steps"
        parts.append(
            f'<path stroke="{COLOURS[one.method]}" stroke-width="3" d="M{at} {below + 20}h18"/>'
        )
        parts.append(f'<text x="{at + 24}" y="{below + 24}">{escape(words)}</text>')
        at += 40 + 7 * len(words)
    parts.append(f'<path class="usual" d="M{at} {below + 20}h18"/>')
    parts.append(f'<text x="{at + 24}" y="{below + 24}">the shipped defaults</text>')
    return parts


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between two limits of a logarithmic axis."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = [m * 10.0**power for power in range(first, last + 1) for m in (1, 1.5, 2, 3, 5, 7)]
    return [one for one in every if low <= one <= high]


def main() -> int:
    """Follow both, write the picture, and print its figures."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("picture", type=Path, metavar="FILE.svg")
    args = made.parse_args()
    [surface] = load_all(SURFACE)
    usual_ms = simulate.WANDERS[SURFACE].step_ms * math.exp(surface(DEFAULTS))
    courses = [follow(method, surface) for method in COLOURS]
    args.picture.write_text(svg(courses, usual_ms))
    for one in courses:
        left = one.left_after(usual_ms)
        print(
            f"{one.method}: over after {one.tuned_after} steps, "
            f"{'slow to the end' if left is None else f'never slow again after {left}'}; "
            f"{fmean(one.times_ms[: one.tuned_after]):.1f} ms a step until it was over, "
            f"{fmean(one.times_ms[one.tuned_after :]):.1f} ms afterwards "
            f"(the shipped defaults: {usual_ms:.1f} ms)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
