"""The launcher's process of a function job; see `hvdtune.launch.function.call_site`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from typing import Any

from hvdtune.bootstrap import python_command
from hvdtune.launch import start
from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.elastic import options
from hvdtune.launch.elastic.limits import Limits
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.local import processes
from hvdtune.launch.remote.interfaces import Interfaces
from hvdtune.launch.remote.ssh import Ssh

_ARGUMENTS = {
    "--network-interfaces": "network_interfaces",
    "--mpi-args": "mpi_args",
    "--mpi": "use_mpi",
    " (--gloo)": "",
}


def main(words: Sequence[str]) -> int:
    """Run the job described by words[0], a JSON text; return the launcher's exit status.

    The environment is the workers'. `explanation` is a file for the reason of a failure. Workers
    are given the words `place`, which say where the call is; if it is in open files, those are
    `descriptors`.
    """
    plan = json.loads(words[0])
    # If the caller is killed, nobody waits for the results.
    processes.die_with_parent(signal.SIGTERM, plan["parent"])
    reasons: list[str] = []

    def explain(text: str) -> None:
        reasons.append(text)
        os.pwrite(plan["explanation"], text.encode("utf-8", "replace"), 0)

    request = start.Request(
        command=python_command(
            "hvdtune.launch.function.worker", *plan["place"], executable=plan["executable"]
        ),
        hosts=[Host(*host) for host in plan["hosts"]],
        processes=plan["processes"],
        environment=dict(os.environ),
        inherited=dict(os.environ),
        method=start.Method(plan["method"]),
        interfaces=Interfaces(*plan["interfaces"]),
        ssh=Ssh(*plan["ssh"]),
        start_timeout=plan["start_timeout"],
        use_cache=plan["use_cache"],
        tcp=plan["tcp"],
        output_directory=plan["output_directory"],
        output_setting="output_filename",
        verbose=plan["verbose"],
        mpi_args=plan["mpi_args"],
        elastic=_elastic(plan.get("elastic")),
        descriptors=plan["descriptors"],
        explain=explain,
    )
    try:
        status = start.start(request)
    except LaunchError as error:
        explain(_in_arguments(str(error)))
        return 2
    if status and not reasons and request.method is not start.Method.OWN:
        explain(f"{request.method.value} failed with exit code {status}; its output says why.")
    return status


def _in_arguments(text: str) -> str:
    """A sentence about flags, for who has called a function."""
    for flag, argument in _ARGUMENTS.items():
        text = text.replace(flag, argument)
    return text


def _elastic(plan: dict[str, Any] | None) -> start.Elastic | None:
    if plan is None:
        return None
    found = options.Options(**plan["options"])
    return start.Elastic(found, Limits(**plan["limits"]), plan["heartbeat"])
