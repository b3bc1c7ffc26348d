"""What a process finds around it, for itself and for the engine: CUDA's, MPI's and Gloo's
libraries, GPUs, CPUs, mpi4py communicators, and where the ranks of several hosts meet.

Knows `topology`; `built`, which Horovod's API calls, also knows `world`.
"""
