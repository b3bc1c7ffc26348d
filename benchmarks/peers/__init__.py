"""The systems that `compare.py` measures beside hvdtune, and how.

works          what is reduced: arrays of a size, or the tensors of a training step
systems        the peers: where each comes from and how its ranks are started
environments   installs and compiles them, in folders of their own
jobs           runs one peer's ranks and reads their clocks
shared_memory  finds the files that a job which was ended by force would leave
results        all figures of a run, as JSON and back
report, plot   what a person reads

harness.h, mpi.c, oneccl.cpp               one rank of a peer without Python
rank_loop, hvdtune_rank, gloo_rank         one rank with Python (gloo_steps: its training steps)
memory_rank                                one rank of the memory's measurement
"""
