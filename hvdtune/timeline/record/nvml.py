"""Counters of a host's GPUs, read from NVIDIA's management library (NVML).

`nvidia-ml-py` (the extra `gpu`) is loaded only when a reader is opened. NVML's units are converted
to SI: bytes, watts, bytes per second, shares of 1.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

Reading = dict[str, float]
#: emit(name with unit, value), at the moment of the reading
Emit = Callable[[str, float], None]

#: Names of counters in a capture, by the key of a reading.
COUNTERS = {
    "utilization_ratio": "GPU {gpu} utilization (ratio)",
    "memory_used_bytes": "GPU {gpu} memory (bytes)",
    "power_watts": "GPU {gpu} power (W)",
    "pcie_rx_bytes_per_second": "GPU {gpu} PCIe received (bytes/s)",
    "pcie_tx_bytes_per_second": "GPU {gpu} PCIe sent (bytes/s)",
    "nvlink_rx_bytes_per_second": "GPU {gpu} NVLink received (bytes/s)",
    "nvlink_tx_bytes_per_second": "GPU {gpu} NVLink sent (bytes/s)",
    "sm_clock_hertz": "GPU {gpu} SM clock (Hz)",
    "memory_clock_hertz": "GPU {gpu} memory clock (Hz)",
    "throttled_by_power": "GPU {gpu} throttled by power (0 or 1)",
    "throttled_by_heat": "GPU {gpu} throttled by heat (0 or 1)",
    "throttled_by_hardware": "GPU {gpu} throttled by hardware (0 or 1)",
    "ecc_corrected_errors": "GPU {gpu} ECC errors, corrected (count)",
    "ecc_uncorrected_errors": "GPU {gpu} ECC errors, uncorrected (count)",
}
#: Why a GPU lowers its clocks, by the names of nvml.h's bits without "nvmlClocksThrottleReason"
#: (reasons that a user sets, or that an idle GPU has, do not count). HwSlowdown without either of
#: the two more exact bits means a power supply or a board in trouble.
_THROTTLING = {
    "throttled_by_power": ("SwPowerCap", "HwPowerBrakeSlowdown"),
    "throttled_by_heat": ("SwThermalSlowdown", "HwThermalSlowdown"),
    "throttled_by_hardware": ("HwSlowdown",),
}
_STOP_S = 2.0


class NoGpu(RuntimeError):
    """No GPU can be read here; the text says why."""


class Reader:
    """An open NVML; `close` it after use. Only one thread at a time may use it.

    Raises NoGpu with the reason: no package, no driver, no GPU.
    """

    def __init__(self, module: ModuleType | None = None) -> None:
        self._nvml: Any = module if module is not None else _load()
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise NoGpu(f"no GPU counters: NVML does not start: {error}") from None
        try:
            count = self._nvml.nvmlDeviceGetCount()
            self._gpus = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except self._nvml.NVMLError as error:
            self.close()
            raise NoGpu(f"no GPU counters: NVML lists no GPUs: {error}") from None
        if not self._gpus:
            self.close()
            raise NoGpu("no GPU counters: the driver knows no GPU on this host")
        # NVLink only counts bytes; rates are differences.
        self._links: list[dict[str, tuple[float, float]]] = [{} for _ in self._gpus]

    def read(self) -> list[Reading]:
        """One reading per GPU, in NVML's order, without values that the GPU does not support.

        NVLink's rates cover the time since the last call: the first call has none.
        """
        return [self.read_gpu(number) for number in range(self.count)]

    @property
    def count(self) -> int:
        """The number of GPUs of the host, whether or not this program may use them."""
        return len(self._gpus)

    def read_gpu(self, number: int) -> Reading:
        """One GPU's reading. It sleeps for 40 ms if PCIe is counted."""
        return {**self.read_state(number), **self._traffic(number, self._gpus[number])}

    def read_state(self, number: int) -> Reading:
        """The same without PCIe and NVLink, and without sleeping."""
        return self._state(self._gpus[number])

    def close(self) -> None:
        """Close NVML; errors are ignored (the driver may be gone)."""
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _take(
        self, reading: Reading, key: str, ask: Callable[[], float], factor: float = 1
    ) -> None:
        with contextlib.suppress(self._nvml.NVMLError):  # not supported by this GPU, or not allowed
            reading[key] = float(ask()) * factor

    def _state(self, gpu: Any) -> Reading:
        nvml = self._nvml
        reading: Reading = {}
        take = partial(self._take, reading)
        take("utilization_ratio", lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100)
        take("memory_used_bytes", lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).used)
        take("power_watts", lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3)  # from mW
        for key, clock in (
            ("sm_clock_hertz", nvml.NVML_CLOCK_SM),
            ("memory_clock_hertz", nvml.NVML_CLOCK_MEM),
        ):
            take(key, partial(nvml.nvmlDeviceGetClockInfo, gpu, clock), 1e6)  # from MHz
        for key, kind in (
            ("ecc_corrected_errors", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ("ecc_uncorrected_errors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        ):
            # Since the driver was loaded.
            take(key, partial(nvml.nvmlDeviceGetTotalEccErrors, gpu, kind, nvml.NVML_VOLATILE_ECC))
        reading.update(self._throttling(gpu))
        return reading

    def _throttling(self, gpu: Any) -> Reading:
        """1 for each kind of reason that lowers the clocks now, else 0; nothing if unknown."""
        nvml = self._nvml
        # The first name is the newer one; drivers from before 2023 have only the second.
        for name in ("EventReasons", "ThrottleReasons"):
            ask = getattr(nvml, f"nvmlDeviceGetCurrentClocks{name}", None)
            if ask is None:
                continue
            with contextlib.suppress(nvml.NVMLError):
                reasons = int(ask(gpu))
                found = {
                    key: any(
                        reasons & getattr(nvml, f"nvmlClocksThrottleReason{bit}") for bit in bits
                    )
                    for key, bits in _THROTTLING.items()
                }
                if found["throttled_by_power"] or found["throttled_by_heat"]:
                    found["throttled_by_hardware"] = False
                return {key: float(now) for key, now in found.items()}
        return {}

    def _traffic(self, number: int, gpu: Any) -> Reading:
        nvml = self._nvml
        reading: Reading = {}
        for key, counter in (
            ("pcie_rx_bytes_per_second", nvml.NVML_PCIE_UTIL_RX_BYTES),
            ("pcie_tx_bytes_per_second", nvml.NVML_PCIE_UTIL_TX_BYTES),
        ):
            # NVML counts for 20 ms and gives kB/s.
            self._take(reading, key, partial(nvml.nvmlDeviceGetPcieThroughput, gpu, counter), 1e3)
        for key, field in (
            ("nvlink_rx_bytes_per_second", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX"),
            ("nvlink_tx_bytes_per_second", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX"),
        ):
            rate = self._link_rate(number, gpu, key, getattr(nvml, field, None))
            if rate is not None:
                reading[key] = rate
        return reading

    def _link_rate(self, number: int, gpu: Any, key: str, field: int | None) -> float | None:
        """Bytes per second over all links since the last call; None if unknown."""
        if field is None:
            return None
        try:
            (value,) = self._nvml.nvmlDeviceGetFieldValues(gpu, [(field, 0xFFFFFFFF)])
        except self._nvml.NVMLError:
            return None
        if value.nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        now, count = time.monotonic(), float(value.value.ullVal) * 1024  # KiB
        before = self._links[number].get(key)
        self._links[number][key] = now, count
        if before is None or now <= before[0] or count < before[1]:
            return None
        return (count - before[1]) / (now - before[0])


class Sampler:
    """Reads all GPUs every `period_s` seconds while `wanted()`, on its own thread, until `stop`.

    NVML is open only while the thread runs. `emit` is called for each counter as soon as its GPU
    has been read. The thread ends if there is nothing to read. If something else ends it (a GPU
    that falls off the bus, for example), `warn` is called once.
    """

    def __init__(
        self,
        emit: Emit,
        period_s: float = 0.25,
        *,
        wanted: Callable[[], bool] = lambda: True,
        warn: Callable[[str], None] = print,
        module: ModuleType | None = None,
    ) -> None:
        self._emit = emit
        self._period_s = period_s
        self._wanted = wanted
        self._warn = warn
        self._module = module
        self._reader: Reader | None = None
        self._stop = threading.Event()
        self._emitting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="hvdtune-nvml", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No further counter is emitted after this returns. It waits 2 s for the thread, which may
        hang in the driver. Idempotent. `emit` must not call it."""
        with self._emitting:
            self._stop.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self._wanted():
                    self._read()
                else:
                    self._close()
                self._stop.wait(self._period_s)
        except NoGpu:
            return  # and none will come
        except Exception as error:
            self._warn(f"GPU counters have ended: {error}")
        finally:
            self._close()

    def _read(self) -> None:
        if self._reader is None:
            self._reader = Reader(self._module)
        for gpu in range(self._reader.count):
            reading = self._reader.read_gpu(gpu)
            with self._emitting:
                if self._stop.is_set():
                    return
                for key, value in reading.items():
                    self._emit(COUNTERS[key].format(gpu=gpu), value)

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def _load() -> ModuleType:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        raise NoGpu(
            "no GPU counters: the package nvidia-ml-py is missing; pip install 'hvdtune[gpu]'"
        ) from None
