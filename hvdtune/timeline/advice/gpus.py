"""GPUs that lower their clocks or find errors in their memory, by the counters of a recording.

They are reported beside the causes of lost time, without an expected gain: the cost of a lowered
clock depends on what the GPU computes, and no counter shows that.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hvdtune.timeline import words
from hvdtune.timeline.evidence.finding import Finding
from hvdtune.timeline.record import nvml

if TYPE_CHECKING:
    from hvdtune.timeline.record.layout import RankRecording, Recording

#: Lowered clocks are reported from this share of the readings on.
THROTTLED_SHARE = 0.1

_NAME = re.compile(r"GPU (\d+) (.+)")
_KEYS = {name.partition("} ")[2]: key for key, name in nvml.COUNTERS.items()}
_REASONS = {
    "throttled_by_power": (
        "a power limit",
        "See nvidia-smi -q -d POWER,PERFORMANCE: raise the limit (nvidia-smi -pl) if the "
        "machine allows it, equally for all GPUs of the job: the others wait for the slowest.",
    ),
    "throttled_by_heat": (
        "heat",
        "See nvidia-smi -q -d TEMPERATURE,PERFORMANCE, and check the cooling: the job's other "
        "GPUs wait for the slowest.",
    ),
    "throttled_by_hardware": (
        "its power supply or its board",
        "See nvidia-smi -q -d PERFORMANCE, and check the power supply and its cables.",
    ),
}


@dataclass(frozen=True)
class Gpu:
    """One GPU's readings. `values`: by key of `nvml.COUNTERS`, in the order of time."""

    host: str
    number: int
    values: dict[str, np.ndarray]

    def last(self, key: str) -> float:
        """The latest reading; 0 if there is none."""
        return float(self.values[key][-1]) if len(self.values.get(key, ())) else 0.0

    def growth(self, key: str) -> float:
        """The growth of a count during the recording."""
        values = self.values.get(key, np.zeros(0))
        return max(float(values[-1] - values[0]), 0.0) if len(values) else 0.0


def gpus(recording: Recording) -> list[Gpu]:
    """All GPUs that were read, by host and number."""
    found = [gpu for _, one in sorted(recording.ranks.items()) for gpu in _of_rank(one)]
    return sorted(found, key=lambda gpu: (gpu.host, gpu.number))


def _of_rank(one: RankRecording) -> list[Gpu]:
    values: dict[int, dict[str, np.ndarray]] = defaultdict(dict)
    for identifier in np.unique(one.counters["counter"]):
        name = _NAME.fullmatch(one.texts[identifier]) if identifier < len(one.texts) else None
        key = _KEYS.get(name[2]) if name else None
        if name and key:
            own = one.counters[one.counters["counter"] == identifier]
            values[int(name[1])][key] = own["value"]
    return [Gpu(one.identity.host, number, found) for number, found in values.items()]


def errors(recording: Recording) -> list[Finding]:
    """Uncorrected memory errors: results may be wrong, so these findings are first."""
    found = []
    for gpu in gpus(recording):
        total, new = (f("ecc_uncorrected_errors") for f in (gpu.last, gpu.growth))
        if total:
            when = f"{new:.0f} of them during the recording" if new else "all before the recording"
            found.append(
                Finding(
                    "GPU memory errors",
                    f"GPU {gpu.number} of host {gpu.host} has had {_times(total)} in its memory "
                    f"that could not be corrected since its driver was loaded, {when}.",
                    "Take the GPU out of the job and see nvidia-smi -q -d ECC,ROW_REMAPPER: it "
                    "must be reset or replaced.",
                    0.0,
                    {"gpu": float(gpu.number), "host": gpu.host, "errors": total},
                )
            )
    return found


def warnings(recording: Recording) -> list[Finding]:
    """Lowered clocks, one finding per host and reason, and corrected memory errors."""
    every = gpus(recording)
    found = []
    for host in dict.fromkeys(gpu.host for gpu in every):
        for key in _REASONS:
            found += _throttled([gpu for gpu in every if gpu.host == host], key)
    for gpu in every:
        new = gpu.growth("ecc_corrected_errors")
        if new:
            found.append(
                Finding(
                    "GPU memory errors corrected",
                    f"GPU {gpu.number} of host {gpu.host} corrected {_times(new)} in its memory "
                    "during the recording.",
                    "Results are correct. See nvidia-smi -q -d ECC,ROW_REMAPPER: a GPU with more "
                    "and more of these errors will fail.",
                    0.0,
                    {"gpu": float(gpu.number), "host": gpu.host, "errors": new},
                )
            )
    return found


def _throttled(own: list[Gpu], key: str) -> list[Finding]:
    shares = {}
    for gpu in own:
        readings = gpu.values.get(key, np.zeros(0))
        if len(readings) and float(np.mean(readings > 0)) >= THROTTLED_SHARE:
            shares[gpu.number] = float(np.mean(readings > 0))
    if not shares:
        return []
    worst = max(shares, key=lambda number: shares[number])
    gpu = next(gpu for gpu in own if gpu.number == worst)
    reason, action = _REASONS[key]
    evidence: dict[str, float | str] = {
        "host": gpu.host, "gpu": float(worst), "gpus": float(len(shares)),
        "throttled_share": shares[worst],
    }  # fmt: skip
    names = ", ".join(map(str, shares))
    many = len(shares) > 1
    most = f", GPU {worst} most" if many else ""
    clocks = _clocks(gpu, key)
    if clocks:
        evidence.update(low_mhz=clocks[0], high_mhz=clocks[1])
    lowered = f" (SM clock {clocks[0]:.0f} MHz then, {clocks[1]:.0f} MHz at best)" if clocks else ""
    return [
        Finding(
            "GPU slowed down",
            f"GPU{'s' if many else ''} {names} of host {gpu.host} had lowered clocks because of "
            f"{reason}{most}: in {words.percent(shares[worst])} of the readings{lowered}.",
            action,
            0.0,
            evidence,
        )
    ]


def _clocks(gpu: Gpu, key: str) -> tuple[float, float] | None:
    """MHz: the mean SM clock in the readings with lowered clocks, and the highest in all."""
    clocks, lowered = gpu.values.get("sm_clock_hertz"), gpu.values[key] > 0
    if clocks is None or len(clocks) != len(lowered):
        return None  # a reading was lost
    return float(clocks[lowered].mean()) / 1e6, float(clocks.max()) / 1e6


def _times(count: float) -> str:
    return "1 error" if count == 1 else f"{count:.0f} errors"
