"""A job's status as metrics: names, types and help texts for Prometheus.

docs/metrics-export.md lists them; tests/unit/test_live_metrics.py compares the list with `METRICS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Status = Mapping[str, Any]
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Metric:
    """One family. `kind`: counter or gauge; a counter's name has no `_total` yet."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


METRICS = (
    Metric("hvdtune_up_seconds", "gauge", "Time since the engine started."),
    Metric("hvdtune_ranks", "gauge", "Ranks of the job."),
    Metric("hvdtune_steps", "counter", "Training steps seen by the coordinator."),
    Metric("hvdtune_step_seconds", "gauge", "Duration of a step, mean of the last 32."),
    Metric("hvdtune_step_bytes", "gauge", "Bytes that each rank reduced in the last step."),
    Metric("hvdtune_step_tensors", "gauge", "Tensors reduced in the last step."),
    Metric("hvdtune_step_batches", "gauge", "Batches (fused operations) of the last step."),
    Metric(
        "hvdtune_exposed_ratio", "gauge",
        "Share of the last 32 steps in which rank 0's program waited for communication.",
    ),
    Metric("hvdtune_batches", "counter", "Batches executed."),
    Metric("hvdtune_bytes", "counter", "Bytes of tensors executed on each rank."),
    Metric("hvdtune_queue_tensors", "gauge", "Tensors submitted by some rank and not done."),
    Metric(
        "hvdtune_rank_late_seconds", "gauge",
        "Time that a step loses because this rank is last, mean of the last 40 steps.",
        ("rank", "host"),
    ),
    Metric(
        "hvdtune_rank_last_ratio", "gauge",
        "Share of the last 40 steps in which this rank was the one that the others waited for.",
        ("rank", "host"),
    ),
    Metric(
        "hvdtune_straggler", "gauge", "1 for the rank that is named in the log as late, else 0.",
        ("rank", "host"),
    ),
    Metric(
        "hvdtune_host_late_seconds", "gauge",
        "Time that a step loses because this host is last as a whole, mean of the last 40 steps.",
        ("host",),
    ),
    Metric(
        "hvdtune_straggler_host", "gauge",
        "1 for the host that is named in the log as late, else 0.", ("host",),
    ),
    Metric("hvdtune_stall_reports", "counter", "Stall reports so far."),
    Metric("hvdtune_stalled_tensors", "gauge", "Tensors that wait too long for missing ranks."),
    Metric("hvdtune_settings_epoch", "gauge", "How often settings have been changed."),
    Metric("hvdtune_fusion_threshold_bytes", "gauge", "Fusion threshold in force."),
    Metric("hvdtune_cycle_time_seconds", "gauge", "Cycle time in force."),
    Metric("hvdtune_gpu_utilization_ratio", "gauge", "NVML: share of time a kernel ran.", ("gpu",)),
    Metric("hvdtune_gpu_memory_used_bytes", "gauge", "NVML: GPU memory in use.", ("gpu",)),
    Metric("hvdtune_gpu_power_watts", "gauge", "NVML: power drawn.", ("gpu",)),
    Metric(
        "hvdtune_gpu_pcie_rx_bytes_per_second", "gauge", "NVML: to the GPU over PCIe.", ("gpu",)
    ),
    Metric(
        "hvdtune_gpu_pcie_tx_bytes_per_second", "gauge", "NVML: from the GPU over PCIe.", ("gpu",)
    ),
    Metric(
        "hvdtune_gpu_nvlink_rx_bytes_per_second", "gauge", "NVML: to the GPU over NVLink.",
        ("gpu",),
    ),
    Metric(
        "hvdtune_gpu_nvlink_tx_bytes_per_second", "gauge", "NVML: from the GPU over NVLink.",
        ("gpu",),
    ),
    Metric("hvdtune_gpu_sm_clock_hertz", "gauge", "NVML: clock of the multiprocessors.", ("gpu",)),
    Metric("hvdtune_gpu_memory_clock_hertz", "gauge", "NVML: clock of the memory.", ("gpu",)),
    Metric(
        "hvdtune_gpu_throttled_by_power", "gauge", "NVML: 1 while a power limit lowers clocks.",
        ("gpu",),
    ),
    Metric(
        "hvdtune_gpu_throttled_by_heat", "gauge", "NVML: 1 while heat lowers clocks.", ("gpu",)
    ),
    Metric(
        "hvdtune_gpu_throttled_by_hardware", "gauge",
        "NVML: 1 while the power supply or the board lowers clocks.", ("gpu",),
    ),
    Metric(
        "hvdtune_gpu_ecc_corrected_errors", "counter",
        "NVML: memory errors that were corrected, since the driver was loaded.", ("gpu",),
    ),
    Metric(
        "hvdtune_gpu_ecc_uncorrected_errors", "counter",
        "NVML: memory errors that were not corrected, since the driver was loaded.", ("gpu",),
    ),
)  # fmt: skip

_BY_NAME = {metric.name: metric for metric in METRICS}


def readings(
    status: Status, gpus: Sequence[Mapping[str, float]] = ()
) -> Iterator[tuple[Metric, list[tuple[Labels, float]]]]:
    """(metric, [(labels, value)]) for every known value.

    `status`: see docs/live.md. `gpus`: one mapping per GPU; the keys are the metrics' names without
    `hvdtune_gpu_`.
    """
    for name, number in _plain(status):
        if number is not None:
            alone: list[tuple[Labels, float]] = [((), float(number))]
            yield _BY_NAME[name], alone
    yield from _of_ranks(status)
    if status["hosts"]:
        yield from _of_hosts(status)
    for metric in METRICS:
        if metric.labels != ("gpu",):
            continue
        key = metric.name.removeprefix("hvdtune_gpu_")
        values: list[tuple[Labels, float]] = [
            ((("gpu", str(place)),), float(gpu[key]))
            for place, gpu in enumerate(gpus)
            if key in gpu
        ]
        if values:
            yield metric, values


def _plain(status: Status) -> Iterator[tuple[str, Any]]:
    yield "hvdtune_up_seconds", status["uptime_s"]
    yield "hvdtune_ranks", len(status["ranks"])
    yield "hvdtune_steps", status["steps"]
    yield "hvdtune_step_seconds", status["step_s"]
    if status["steps"]:
        yield "hvdtune_step_bytes", status["step_bytes"]
        yield "hvdtune_step_tensors", status["step_tensors"]
        yield "hvdtune_step_batches", status["step_batches"]
    yield "hvdtune_exposed_ratio", status["exposed_share"]
    yield "hvdtune_batches", status["batches"]
    yield "hvdtune_bytes", status["bytes"]
    yield "hvdtune_queue_tensors", status["queue"]
    yield "hvdtune_stall_reports", status["stall_reports"]
    yield "hvdtune_stalled_tensors", status["stalled_tensors"]
    yield "hvdtune_settings_epoch", status["epoch"]
    yield "hvdtune_fusion_threshold_bytes", status["settings"]["fusion_threshold"]
    yield "hvdtune_cycle_time_seconds", status["settings"]["cycle_time_us"] / 1e6


def _of_ranks(status: Status) -> Iterator[tuple[Metric, list[tuple[Labels, float]]]]:
    labels: list[Labels] = [
        (("rank", str(rank)), ("host", str(one["host"])))
        for rank, one in enumerate(status["ranks"])
    ]
    lateness = status["lateness"]
    for name, key in (
        ("hvdtune_rank_late_seconds", "late_s"),
        ("hvdtune_rank_last_ratio", "last_share"),
    ):
        yield (
            _BY_NAME[name],
            [(label, float(one[key])) for label, one in zip(labels, lateness, strict=True)],
        )
    yield (
        _BY_NAME["hvdtune_straggler"],
        [(label, float(rank == status["straggler"])) for rank, label in enumerate(labels)],
    )


def _of_hosts(status: Status) -> Iterator[tuple[Metric, list[tuple[Labels, float]]]]:
    """Containers with the same name are one host here: the latest of them counts."""
    late: dict[str, float] = {}
    named: dict[str, float] = {}
    for number, one in enumerate(status["hosts"]):
        name = str(status["ranks"][one["ranks"][0]]["host"])
        late[name] = max(late.get(name, 0.0), float(one["late_s"]))
        named[name] = max(named.get(name, 0.0), float(number == status["straggler_host"]))
    for metric, values in (("hvdtune_host_late_seconds", late), ("hvdtune_straggler_host", named)):
        yield _BY_NAME[metric], [((("host", name),), value) for name, value in values.items()]
