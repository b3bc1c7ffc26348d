"""`hvdtune bench`: how fast collectives are here, and how fast this machine's memory allows.

`runner` starts the ranks, `worker` is one. Knows `core`, `launch`, `pages` and `torch`.
"""
