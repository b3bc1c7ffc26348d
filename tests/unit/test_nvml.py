"""The GPU counters, against a pynvml of our own."""

from __future__ import annotations

import sys
import threading
import time
import types

import pytest

from hvdtune.timeline.record import nvml


class Error(Exception):
    pass


STATE = {
    "sm_clock_hertz": 1e9,
    "memory_clock_hertz": 2e9,
    "throttled_by_power": 0.0,
    "throttled_by_heat": 0.0,
    "throttled_by_hardware": 0.0,
    "ecc_corrected_errors": 5.0,
    "ecc_uncorrected_errors": 0.0,
}


def fake(gpus: int = 2, **changes) -> types.ModuleType:
    """A module with the functions of pynvml that we call; GPU 1 supports no power reading."""
    module = types.ModuleType("pynvml")
    sent = {"count": 0}

    def power(gpu):
        if gpu == 1:
            raise Error("Not Supported")
        return 250_000

    def fields(gpu, asked):
        sent["count"] += 1000
        value = types.SimpleNamespace(ullVal=sent["count"])
        return [types.SimpleNamespace(nvmlReturn=0, value=value)]

    members = {
        "NVMLError": Error,
        "NVML_SUCCESS": 0,
        "NVML_PCIE_UTIL_TX_BYTES": 0,
        "NVML_PCIE_UTIL_RX_BYTES": 1,
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": 138,
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": 139,
        "closed": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: gpus,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUtilizationRates": lambda gpu: types.SimpleNamespace(gpu=40 + gpu),
        "nvmlDeviceGetMemoryInfo": lambda gpu: types.SimpleNamespace(used=10**9),
        "nvmlDeviceGetPowerUsage": power,
        "nvmlDeviceGetPcieThroughput": lambda gpu, counter: 7 + counter,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "nvmlDeviceGetClockInfo": lambda gpu, clock: 1000 * clock,
        "NVML_VOLATILE_ECC": 0,
        "NVML_MEMORY_ERROR_TYPE_CORRECTED": 0,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "nvmlDeviceGetTotalEccErrors": lambda gpu, kind, counter: 5 - 5 * kind,
        "nvmlClocksThrottleReasonSwPowerCap": 0x4,
        "nvmlClocksThrottleReasonHwSlowdown": 0x8,
        "nvmlClocksThrottleReasonSwThermalSlowdown": 0x20,
        "nvmlClocksThrottleReasonHwThermalSlowdown": 0x40,
        "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": 0x80,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: 0x1,
        "nvmlDeviceGetFieldValues": fields,
        **changes,
    }

    def shutdown():
        module.closed += 1

    vars(module).update(members, nvmlShutdown=shutdown)
    return module


def failing(*_):
    raise Error("Driver Not Loaded")


def test_readings_are_in_si_units_and_leave_out_what_is_not_supported():
    reader = nvml.Reader(fake())
    first, second = reader.read()
    assert first == {
        "utilization_ratio": 0.4,
        "memory_used_bytes": 1e9,
        "power_watts": 250.0,
        "pcie_rx_bytes_per_second": 8e3,
        "pcie_tx_bytes_per_second": 7e3,
        **STATE,
    }
    assert "power_watts" not in second
    assert second["utilization_ratio"] == 0.41
    again = reader.read()[0]
    assert again["nvlink_rx_bytes_per_second"] > 0
    assert set(again) == set(nvml.COUNTERS)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (fake(nvmlInit=failing), "NVML does not start: Driver Not Loaded"),
        (fake(nvmlDeviceGetCount=failing), "NVML lists no GPUs: Driver Not Loaded"),
        (fake(gpus=0), "the driver knows no GPU"),
    ],
)
def test_why_there_are_no_counters(module, why):
    with pytest.raises(nvml.NoGpu, match=why):
        nvml.Reader(module)


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(nvml.NoGpu, match="nvidia-ml-py is missing"):
        nvml.Reader()


def test_nvml_without_nvlink_and_pcie():
    without = fake(
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX=None,
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX=None,
        nvmlDeviceGetPcieThroughput=failing,
    )
    reader = nvml.Reader(without)
    reader.read()
    expected = {"utilization_ratio", "memory_used_bytes", "power_watts", *STATE}
    assert set(reader.read()[0]) == expected
    assert set(nvml.Reader(fake()).read_state(0)) == expected


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x1 | 0x2 | 0x10, set()),  # idle, clocks that a user has set, sync boost
        (0x4, {"power"}),
        (0x80 | 0x8, {"power"}),
        (0x20, {"heat"}),
        (0x40 | 0x8, {"heat"}),
        (0x4 | 0x20, {"power", "heat"}),
        (0x8, {"hardware"}),
    ],
)
def test_why_a_gpu_is_throttled(bits, reasons):
    reading = nvml.Reader(fake(nvmlDeviceGetCurrentClocksEventReasons=lambda gpu: bits)).read()[0]
    assert {name for name in ("power", "heat", "hardware") if reading[f"throttled_by_{name}"]} == (
        reasons
    )


def test_an_older_driver_or_package_is_asked_by_the_older_name():
    older = {"nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: 0x20}
    for newer in (failing, None):
        module = fake(nvmlDeviceGetCurrentClocksEventReasons=newer, **older)
        assert nvml.Reader(module).read()[0]["throttled_by_heat"] == 1
    module = fake(nvmlDeviceGetCurrentClocksEventReasons=failing)
    assert not any(key.startswith("throttled") for key in nvml.Reader(module).read()[0])


def test_a_gpu_without_ecc_leaves_its_errors_out():
    reading = nvml.Reader(fake(nvmlDeviceGetTotalEccErrors=failing)).read()[0]
    assert "ecc_corrected_errors" not in reading
    assert "sm_clock_hertz" in reading


def test_the_sampler_emits_counters_until_it_is_stopped():
    module = fake()
    got = []
    enough = threading.Event()

    def emit(name, value):
        got.append((name, value))
        if len(got) > 30:
            enough.set()

    sampler = nvml.Sampler(emit, 0.001, module=module)
    assert enough.wait(60)
    sampler.stop()
    sampler.stop()
    after = len(got)
    assert module.closed == 1
    names = {name for name, _ in got}
    assert "GPU 0 power (W)" in names
    assert "GPU 1 power (W)" not in names
    assert len(got) == after


def test_the_sampler_reads_and_has_nvml_open_only_while_it_is_wanted():
    module = fake()
    wanted, read = threading.Event(), threading.Event()
    sampler = nvml.Sampler(lambda *_: read.set(), 0.001, wanted=wanted.is_set, module=module)
    for times in (1, 2):
        assert not read.is_set()
        wanted.set()
        assert read.wait(60)
        wanted.clear()
        deadline = time.monotonic() + 60
        while module.closed < times:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        read.clear()
    sampler.stop()
    assert module.closed == 2


def test_no_gpu_ends_the_sampling_without_a_word():
    told = []
    sampler = nvml.Sampler(lambda *_: None, 0.001, warn=told.append, module=fake(nvmlInit=failing))
    sampler._thread.join(60)
    assert not sampler._thread.is_alive()
    sampler.stop()
    assert told == []


def test_a_gpu_that_goes_away_ends_the_sampling_with_one_warning():
    calls = []
    said = threading.Event()
    told = []

    def utilization(gpu):
        calls.append(gpu)
        if len(calls) > 6:
            raise RuntimeError("GPU is lost")
        return types.SimpleNamespace(gpu=1)

    def warn(text):
        told.append(text)
        said.set()

    module = fake(nvmlDeviceGetUtilizationRates=utilization)
    sampler = nvml.Sampler(lambda *_: None, 0.001, warn=warn, module=module)
    assert said.wait(60)
    sampler.stop()
    assert told == ["GPU counters have ended: GPU is lost"]
    assert module.closed == 1


def test_a_driver_that_hangs_gives_no_counter_after_the_stop(monkeypatch):
    monkeypatch.setattr(nvml, "_STOP_S", 0.01)
    asked, answers = threading.Event(), threading.Event()
    got = []

    def utilization(gpu):
        asked.set()
        assert answers.wait(60)
        return types.SimpleNamespace(gpu=1)

    module = fake(nvmlDeviceGetUtilizationRates=utilization)
    sampler = nvml.Sampler(lambda *counter: got.append(counter), 0.001, module=module)
    assert asked.wait(60)
    sampler.stop()
    answers.set()
    sampler._thread.join(60)
    assert not sampler._thread.is_alive()
    assert got == []
    assert module.closed == 1


def test_nvml_that_cannot_be_closed_is_let_go():
    told = []
    module = fake()
    module.nvmlShutdown = failing
    read = threading.Event()
    sampler = nvml.Sampler(lambda *_: read.set(), 0.001, warn=told.append, module=module)
    assert read.wait(60)
    sampler.stop()
    assert not sampler._thread.is_alive()
    assert told == []
    module = fake(gpus=0)
    module.nvmlShutdown = failing
    with pytest.raises(nvml.NoGpu, match="no GPU on this host"):
        nvml.Reader(module)


def test_the_package_is_loaded_only_when_it_is_needed():
    assert "pynvml" not in vars(nvml)
