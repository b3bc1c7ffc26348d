"""The systems that `compare.py` compares with hvdtune, and how it measures them.

works          the data to reduce: arrays of a size, or the tensors of a training step
systems        the peers: where each comes from and how its ranks are started
environments   installs and compiles them, in folders of their own
jobs           runs one peer's ranks and reads their clocks
shared_memory  finds the files that a killed job would leave behind
results        all figures of a run, as JSON and back
report, plot   the output for readers

harness.h, mpi.c, oneccl.cpp               one rank of a peer without Python
rank_loop, hvdtune_rank, gloo_rank         one rank with Python (gloo_steps: its training steps)
memory_rank                                one rank of the memory's measurement
"""
