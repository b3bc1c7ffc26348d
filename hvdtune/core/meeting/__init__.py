"""How ranks on several hosts learn where rank 0 is, and the job's key: by what started them.

`place` is what rank 0 tells; each of `pmix`, `pmi`, `mpi`, `key_value`, `torch_store` and `munge`
is one means of telling it; `means` has their order and is the way in. Knows `libraries` and below.
"""
