"""Rank 0 as a source of metrics: a text file for node_exporter, and a port for Prometheus itself.

This is loaded only if the settings ask for it, and reads the engine only when somebody scrapes or
the file is due, so it costs training nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvdtune.live import metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

Status = Mapping[str, Any]
Gpus = Sequence[Mapping[str, float]]
_STOP_S = 2.0


class _Collector:
    """The collector that prometheus_client calls at every scrape."""

    def __init__(self, status: Callable[[], Status], gpus: Callable[[], Gpus]) -> None:
        self._status = status
        self._gpus = gpus

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        try:
            status = self._status()
        except ValueError:  # the job has ended meanwhile
            return
        for metric, values in metrics.readings(status, self._gpus()):
            kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
            family = kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
            for labels, value in values:
                family.add_metric([text for _, text in labels], value)
            yield family


class Exporter:
    """Serves and writes a job's metrics until `stop`.

    `status`: returns the job's status (docs/live.md); ValueError once it has ended. `gpus`: returns
    readings of the GPUs. `file`: replaced as a whole every `interval_s` seconds, or None. `port`
    at `address`: 0 for none. `warn`: called once with each thing that cannot be done. Raises
    ModuleNotFoundError without prometheus_client.
    """

    def __init__(
        self,
        status: Callable[[], Status],
        *,
        file: str | None = None,
        interval_s: float = 5.0,
        port: int = 0,
        address: str = "127.0.0.1",
        gpus: Callable[[], Gpus] = lambda: (),
        warn: Callable[[str], None] = print,
    ) -> None:
        from prometheus_client import CollectorRegistry

        # A registry of its own: the program may export metrics with the same library.
        self._registry: CollectorRegistry = CollectorRegistry()
        self._registry.register(_Collector(status, gpus))
        self._file = file
        self._interval_s = interval_s
        self._warn = warn
        self._warned = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._server: Any = None
        if port:
            self._listen(address, port)
        if file:
            self._thread = threading.Thread(
                target=self._write_always, name="hvdtune-metrics", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Write the file one last time and end. Idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)
            self._thread = None
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def abandon(self) -> None:
        """For a forked child, which has none of the threads: its copy would keep the port."""
        if self._server is not None:
            self._server.socket.close()
        self._server = self._thread = None

    def text(self) -> bytes:
        """The metrics now, in Prometheus' text format."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def _listen(self, address: str, port: int) -> None:
        from prometheus_client import start_http_server

        try:
            self._server, _ = start_http_server(port, address, self._registry)
        except (OSError, UnicodeError) as error:  # the latter: no possible name of a host
            self._warn(
                f"metrics: cannot listen on {address}:{port} (HVDTUNE_METRICS_PORT): "
                f"{getattr(error, 'strerror', None) or error}"
            )

    def _write_always(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._write()
        self._write()

    def _write(self) -> None:
        """Replace the file as a whole, so that readers never see half a reading."""
        assert self._file is not None
        beside = f"{self._file}.{os.getpid()}.tmp"
        try:
            text = self.text()
            if not text:
                return  # the job has ended: the last reading stays
            if not os.path.exists(folder := os.path.dirname(beside) or "."):
                os.makedirs(folder, exist_ok=True)
            with open(beside, "wb") as out:
                out.write(text)
            os.replace(beside, self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            if not self._warned:
                self._warned = True
                self._warn(
                    f"metrics: cannot write {self._file} (HVDTUNE_METRICS_FILE): {error.strerror}; "
                    "trying again, without further warnings"
                )
