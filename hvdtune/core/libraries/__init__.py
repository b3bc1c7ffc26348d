"""What a process finds around it, and what the engine is told of that: CUDA's, MPI's and Gloo's
libraries, GPUs, CPUs, mpi4py communicators, where the ranks of several hosts meet.

Knows `topology`; `built`, which Horovod's API asks, also knows `world`.
"""
