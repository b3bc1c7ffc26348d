"""Why some of what horovodrun and `horovod.run` offer is refused by this version.

Each is the end of a sentence that begins with the flag or parameter.
"""

from __future__ import annotations

ELASTIC = "this version does not run elastic jobs"
MPI = (
    "functions are started without mpirun: leave it out (hvdtune run --mpi, and mpirun -np N "
    "python train.py, start scripts)"
)
