"""TensorFlow's data service, run by the ranks of one job for the training ranks of another.

Each rank of the *compute* job runs a worker of the service, which belongs to one dispatcher: the
first `workers_per_dispatcher` ranks to dispatcher 0, and so on. A single dispatcher serves all
training ranks; otherwise there is one for each training rank. Dispatchers run in the compute job
(`dispatcher_side="compute"`) or in the training job ("training"). All processes learn addresses
from a registry (`hvdtune.compute_service`) in rank 0 of the compute job.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import tensorflow as tf

from hvdtune.compute_service.client import ComputeClient
from hvdtune.core import world
from hvdtune.core.job import init
from hvdtune.core.objects import allgather_object

_SIDES = ("compute", "training")
_REMINDER = 30.0  # seconds after which a process that waits for a file says so
_log = logging.getLogger(__name__)
_service = tf.data.experimental.service


@dataclass(frozen=True)
class TfDataServiceConfig:
    """Everything a process must know to use the service or to be part of it.

    `addresses` and `key` are the registry's (see `hvdtune.compute_service.service`); `timeout` is
    how many seconds a process waits for others to register.

    Raises ValueError for numbers below 1 and an unknown `dispatcher_side`.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes
    timeout: int = 60

    def __post_init__(self) -> None:
        for name in ("dispatchers", "workers_per_dispatcher"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1")
        check_side(self.dispatcher_side)

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """A client of the registry. Raises ConnectionError if the registry does not answer."""
        return ComputeClient(self.addresses, self.key, verbose=verbose)

    def to_dict(self) -> dict[str, Any]:
        """The input of `from_dict`; the key is a hexadecimal text, so it can be written as JSON."""
        return {**asdict(self), "key": self.key.hex()}

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TfDataServiceConfig:
        """The configuration from `to_dict`.

        Raises ValueError for missing values, and for those that `TfDataServiceConfig` refuses.
        """
        try:
            return TfDataServiceConfig(
                int(config["dispatchers"]),
                int(config["workers_per_dispatcher"]),
                str(config["dispatcher_side"]),
                {
                    str(name): [(str(host), int(port)) for host, port in places]
                    for name, places in config["addresses"].items()
                },
                bytes.fromhex(config["key"]),
                int(config.get("timeout", 60)),
            )
        except KeyError as error:
            raise ValueError(f"there is no {error}") from None
        except (AttributeError, TypeError) as error:
            raise ValueError(str(error)) from None

    def write(self, filename: str) -> None:
        """Write a file that only this user may read: the key allows any request to the registry.

        The file appears, or is replaced, in one step: nobody reads half of it.
        """
        folder, name = os.path.split(os.path.abspath(filename))
        descriptor, written = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(self.to_dict(), file)
            os.replace(written, filename)
        except BaseException:
            os.unlink(written)
            raise

    @staticmethod
    def read(filename: str, wait_for_file_creation: bool = False) -> TfDataServiceConfig:
        """Read what `write` has written; `wait_for_file_creation` waits until the file exists.

        Raises OSError if the file cannot be read, and ValueError if it is not a configuration.
        """
        begin, reminded = time.monotonic(), False
        while wait_for_file_creation and not os.path.exists(filename):
            if not reminded and time.monotonic() - begin > _REMINDER:
                _log.warning("still waiting for %s, which the compute job writes", filename)
                reminded = True
            time.sleep(0.1)
        with open(filename, encoding="utf-8") as file:
            text = file.read()
        try:
            return TfDataServiceConfig.from_dict(json.loads(text))
        except ValueError as error:
            raise ValueError(
                f"{filename} is not a configuration of a compute service: {error}"
            ) from None


def check_side(side: str) -> None:
    """Raise ValueError unless a dispatcher can run on this side."""
    if side not in _SIDES:
        raise ValueError(f"dispatcher_side is {side!r}, must be 'compute' or 'training'")


@contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """The address, "grpc://HOST:PORT", of the dispatcher that a training rank must use.

    For `tf.data.experimental.service.distribute`. If the dispatcher belongs to the training job, it
    runs in this process (a single dispatcher runs in rank 0) until the block is left. Read the
    dataset inside the block, and do not leave it before all ranks have read theirs.

    Raises TimeoutException (horovod.runner.common.util.timeout) if the dispatcher, or one of its
    workers, has not registered in the configuration's time, IndexError if the rank has no
    dispatcher, and ConnectionError if the compute job cannot be reached.
    """
    client = compute_config.compute_client(verbose=2)
    number = rank if compute_config.dispatchers > 1 else 0
    server = None
    if compute_config.dispatcher_side == "training" and rank == number:
        server = _dispatcher(client, number)
    try:
        address = client.wait_for_dispatcher_registration(number, compute_config.timeout)
        client.wait_for_dispatcher_worker_registration(number, compute_config.timeout)
        yield address
    finally:
        if server is not None:
            server.stop()


def send_to_data_service(
    dataset: tf.data.Dataset,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> tf.data.Dataset:
    """A dataset whose elements the service computes; also a method of `tf.data.Dataset`.

    The service's workers run the transformations applied to `dataset`; this process runs those
    applied to the result. `rank` and, for `round_robin`, `size` are the training job's.
    `processing_mode` is that of `tf.data.experimental.service.distribute`. With `reuse_dataset`,
    ranks with the same dispatcher share its elements, otherwise each rank gets all. With both
    `reuse_dataset` and `round_robin` they take turns; the dataset must then be endless.

    Raises RuntimeError if the dispatchers run in the training job (use `tf_data_service`),
    ValueError for a round robin without `size`, and what `tf_data_service` raises.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "send_to_data_service: the dispatchers run on the training side, so they must run as "
            "long as the dataset is read: use the context manager tf_data_service instead"
        )
    take_turns = reuse_dataset and round_robin
    if take_turns and size is None:
        raise ValueError("send_to_data_service: round_robin needs size, the number of ranks")
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(
            _service.distribute(
                processing_mode,
                address,
                job_name="job" if reuse_dataset else None,
                consumer_index=rank if take_turns else None,
                num_consumers=size if take_turns else None,
            )
        )


tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """Run this rank's part of the service until `compute_client().shutdown()` is called.

    Every rank of the compute job must call it; there must be one for each worker. A worker that
    computes a dataset which nobody has read to its end may need `timeout` more seconds to stop if
    its dispatcher ran in the training job and is gone.

    Raises what `tf_data_service` raises if a dispatcher does not register in time.
    """
    init()
    rank = world.rank()
    number, place = divmod(rank, compute_config.workers_per_dispatcher)
    client = compute_config.compute_client(verbose=2)
    servers = []
    try:
        if compute_config.dispatcher_side == "compute" and place == 0:
            servers.append(_dispatcher(client, number))
        address = client.wait_for_dispatcher_registration(number, compute_config.timeout)
        worker = _service.WorkerServer(
            _service.WorkerConfig(
                dispatcher_address=address.partition("://")[2],
                worker_address=f"{_host(client)}:%port%",
                heartbeat_interval_ms=1000,
                dispatcher_timeout_ms=compute_config.timeout * 1000,
            )
        )
        servers.append(worker)
        client.register_worker_for_dispatcher(number, rank)
        client.wait_for_shutdown()
        worker.stop()
        # A worker may ask its dispatcher while it ends, so end all workers first.
        allgather_object(None, name="hvdtune.tensorflow.data.stopped")
    finally:
        for server in reversed(servers):
            server.stop()


def _dispatcher(client: ComputeClient, number: int) -> Any:
    """Run a dispatcher in this process, and register it where other hosts can reach it."""
    server = _service.DispatchServer()
    port = server.target.rpartition(":")[2]
    try:
        client.register_dispatcher(number, f"grpc://{_host(client)}:{port}")
    except BaseException:
        server.stop()
        raise
    return server


def _host(client: ComputeClient) -> str:
    return f"[{client.own_address}]" if ":" in client.own_address else client.own_address
