"""What this installation and this machine offer: `hvdtune doctor`, `--check-build`, the GPUs.

May know `core`'s libraries.
"""
