"""Ranks that run TensorFlow's data service in one thread, and train from it in another."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf

from hvdtune.arrays import barrier
from hvdtune.core import world
from hvdtune.core.job import init
from hvdtune.tensorflow.data import compute_worker
from hvdtune.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service

NUMBERS = 40
BATCH = 4
SECONDS = 60


def dataset() -> tf.data.Dataset:
    """The numbers 0 to 39, times ten, by fours."""
    return tf.data.Dataset.range(NUMBERS).map(lambda number: number * 10).batch(BATCH)


def read(batches: Any) -> list[list[int]]:
    """All batches that a rank gets."""
    return [batch.tolist() for batch in batches.as_numpy_iterator()]


def served(
    configfile: str, dispatchers: int, side: str, train: Callable[[TfDataServiceConfig], Any]
) -> Any:
    """What `train` returns while all ranks also run the service."""
    failed: list[BaseException] = []

    def serve() -> None:
        try:
            compute_worker.main(dispatchers, side, configfile, SECONDS)
        except BaseException as error:
            failed.append(error)
            raise

    worker = threading.Thread(target=serve, daemon=True)
    worker.start()
    config = TfDataServiceConfig.read(configfile, wait_for_file_creation=True)
    try:
        result = train(config)
        barrier()
    finally:
        if world.rank() == 0:
            config.compute_client().shutdown()
    worker.join(SECONDS)
    assert not worker.is_alive()
    assert not failed
    return result


def send(config: TfDataServiceConfig, **options: Any) -> list[list[int]]:
    """The batches that reach this rank by `send_to_data_service`."""
    sent = dataset().send_to_data_service(config, world.rank(), world.size(), **options)
    barrier()  # who shares a dataset begins with the others
    return read(sent)


def take_turns(config: TfDataServiceConfig) -> list[list[int]]:
    """The first five batches that reach this rank; the dataset has no end, each worker has all."""
    endless = tf.data.Dataset.counter(step=10).batch(BATCH)
    sent = endless.send_to_data_service(
        config, world.rank(), world.size(), reuse_dataset=True, round_robin=True
    )
    return read(sent.take(5))


def distribute(config: TfDataServiceConfig) -> list[list[int]]:
    """The batches of a dispatcher that runs in the training ranks."""
    with tf_data_service(config, world.rank()) as address:
        distribution = tf.data.experimental.service.distribute(
            "distributed_epoch", address, job_name="job"
        )
        numbers = read(dataset().apply(distribution))
        barrier()  # rank 0's dispatcher may be the others'
    return numbers


def refusals(folder: str) -> list[str]:
    """What a job is told that cannot run the service."""
    said = []
    for dispatchers, side, configfile in (
        (3, "compute", "never.json"),
        (1, "left", "never.json"),
        (1, "compute", "no/such/folder.json"),
    ):
        try:
            compute_worker.main(dispatchers, side, os.path.join(folder, configfile), SECONDS)
        except (ValueError, OSError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def all_ways(folder: str) -> dict[str, Any]:
    """What a rank reads in each way to run the service."""
    init()
    found: dict[str, Any] = {"refusals": refusals(folder)}

    def way(name: str, dispatchers: int, side: str, train: Any) -> None:
        found[name] = served(f"{folder}/{name}.json", dispatchers, side, train)

    way("each", 1, "compute", send)
    way("shared", 1, "compute", lambda config: send(config, reuse_dataset=True))
    way("turns", 1, "compute", take_turns)
    way("own", 2, "compute", send)
    way("own_shared", 2, "compute", lambda config: send(config, reuse_dataset=True))
    way("training", 1, "training", distribute)
    way("training_own", 2, "training", distribute)
    return found
