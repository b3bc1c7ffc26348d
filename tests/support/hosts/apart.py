"""Makes a process of an mpirun on this machine one rank of a job whose ranks are kept apart:

    mpirun -np 4 python tests/support/hosts/apart.py PLACES command…

PLACES is a file of `write_places`: for every rank the variables that tell it its place, as if it
were on a host of its own, or with some of the others. What they share no memory for goes over the
loopback interface. Becomes the command by exec.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def write_places(path: Path, hosts: Sequence[int]) -> list[str]:
    """Write the places of ranks on hosts with so many each; the words to put before a command."""
    from support.jobs.ranks import hosts_of, new_job, rank_environment

    size, job, host_env = sum(hosts), new_job(), hosts_of(hosts)
    places = [{**job, **rank_environment(rank, size), **host_env(rank)} for rank in range(size)]
    path.write_text(json.dumps(places))
    return [sys.executable, __file__, str(path)]


def main() -> None:
    """The command line; see the module's text."""
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
    rank = next(int(os.environ[name]) for name in names if name in os.environ)
    os.environ.update(json.loads(Path(sys.argv[1]).read_text())[rank])
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
