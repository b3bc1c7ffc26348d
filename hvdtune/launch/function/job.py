"""The launcher's process of a function job; see `hvdtune.launch.function.call_site`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence

from hvdtune.bootstrap import python_command
from hvdtune.launch.allocation.hosts import Host, assign_ranks
from hvdtune.launch.elastic.job import ElasticSpec, run_elastic_job
from hvdtune.launch.elastic.limits import Limits
from hvdtune.launch.job import JobSpec, run_job
from hvdtune.launch.local import processes
from hvdtune.launch.local.environment import without_place


def main(words: Sequence[str]) -> int:
    """Run the job described by words[0], a JSON text; return the launcher's exit status.

    The environment is the workers'. `descriptors` are files: the call to make, one for the reason
    of a failure, and one for each rank's result.
    """
    plan = json.loads(words[0])
    # If the caller is killed, nobody waits for the results.
    processes.die_with_parent(signal.SIGTERM, plan["parent"])
    call, explanation, *results = plan["descriptors"]

    def explain(text: str) -> None:
        os.pwrite(explanation, text.encode("utf-8", "replace"), 0)

    command = python_command(
        "hvdtune.launch.function.worker",
        *map(str, (call, *results)),
        executable=plan["executable"],
    )
    hosts = [Host(*host) for host in plan["hosts"]]
    elastic = plan.get("elastic")
    if elastic is not None:
        return run_elastic_job(
            ElasticSpec(
                command=command,
                environment=without_place(os.environ),
                limits=Limits(**elastic["limits"]),
                hosts=hosts,
                script=elastic["script"],
                slots=elastic["slots"],
                cooldown=elastic["cooldown"],
                heartbeat=elastic["heartbeat"],
                output_directory=plan["output_directory"],
                output_setting="output_filename",
                verbose=plan["verbose"],
                descriptors=(call, *results),
                explain=explain,
            )
        )
    spec = JobSpec(
        command=command,
        slots=assign_ranks(hosts, plan["count"]),
        environment=without_place(os.environ),
        output_directory=plan["output_directory"],
        output_setting="output_filename",
        verbose=plan["verbose"],
        descriptors=(call, *results),
        explain=explain,
    )
    return run_job(spec)
