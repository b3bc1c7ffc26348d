"""The compute job: `hvdtune run -np 8 python -m hvdtune.tensorflow.data.compute_worker FILE`."""

from __future__ import annotations

import argparse
import secrets

from hvdtune.compute_service.service import ComputeService
from hvdtune.core import world
from hvdtune.core.job import init
from hvdtune.core.libraries.network import interface_names
from hvdtune.core.objects import broadcast_object
from hvdtune.tensorflow.data.compute_service import (
    TfDataServiceConfig,
    check_side,
    compute_worker_fn,
)

_KEY_BYTES = 32


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: int = 60) -> None:
    """Run the service in all ranks of this job until it is shut down.

    Rank 0 also runs the registry, and writes the configuration into `configfile` for the training
    job. The registry listens on the interfaces that `--network-interfaces` names, else on all.

    Raises, on every rank, ValueError if the number of ranks is not a multiple of `dispatchers` or
    `dispatcher_side` is unknown, and OSError if the file cannot be written.
    """
    init()
    check_side(dispatcher_side)
    size = world.size()
    if dispatchers < 1 or size % dispatchers:
        raise ValueError(
            f"Number of processes ({size}) must be a multiple of number of dispatchers "
            f"({dispatchers})."
        )
    service = None
    try:
        told: TfDataServiceConfig | str = ""
        if world.rank() == 0:
            try:
                service, told = _begin(dispatchers, dispatcher_side, configfile, timeout)
            except (OSError, ValueError) as error:
                told = str(error)  # the other ranks wait for an answer
        told = broadcast_object(told, 0, name="hvdtune.tensorflow.data.compute_worker")
        if isinstance(told, str):
            raise OSError(f"rank 0 could not start the compute service: {told}")
        compute_worker_fn(told)
    finally:
        if service is not None:
            service.shutdown()


def _begin(
    dispatchers: int, dispatcher_side: str, configfile: str, timeout: int
) -> tuple[ComputeService, TfDataServiceConfig]:
    key = secrets.token_bytes(_KEY_BYTES)
    workers = world.size() // dispatchers
    nics = interface_names(world.settings().gloo_iface)
    service = ComputeService(dispatchers, workers, key, nics or None)
    try:
        config = TfDataServiceConfig(
            dispatchers, workers, dispatcher_side, service.addresses(), key, timeout
        )
        config.write(configfile)
    except BaseException:
        service.shutdown()
        raise
    return service, config


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m horovod.tensorflow.data.compute_worker",
        description="Runs TensorFlow's data service in the ranks of this job.",
    )
    parser.add_argument("configfile", help="the file that tells the training job about the service")
    parser.add_argument(
        "--dispatchers", type=int, default=1, help="1 for all training ranks, or 1 for each"
    )
    parser.add_argument(
        "--dispatcher-side",
        choices=("compute", "training"),
        default="compute",
        help="the job in which the dispatchers run",
    )
    parser.add_argument(
        "--timeout", type=int, default=60, help="seconds to wait for the others (default 60)"
    )
    given = parser.parse_args()
    main(given.dispatchers, given.dispatcher_side, given.configfile, given.timeout)
