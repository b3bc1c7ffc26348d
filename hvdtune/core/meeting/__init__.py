"""How ranks on several hosts learn where rank 0 is, and the job's key, from their launcher.

`place` is rank 0's message. Each of `pmix`, `pmi`, `mpi`, `key_value`, `torch_store` and `munge`
is one means of sending it. `means` has their order and is the entry point. Knows `libraries` and
the rooms below it.
"""
