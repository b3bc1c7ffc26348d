"""Why some of what horovodrun and `horovod.run` offer is refused by this version.

Each is the end of a sentence that begins with the flag or parameter.
"""

from __future__ import annotations

SSH = "this version launches on this machine only, without ssh"
ELASTIC = "this version does not run elastic jobs"
MPIRUN = "this version starts the processes itself, without mpirun"
MPI = (
    "this version is built without MPI, tensors travel through shared memory: leave it out "
    "(mpirun -np N python train.py works too)"
)
