"""The table of settings, the values that they accept, and the environment's other variables.

Flags, YAML, the autotuner's space and docs/knobs.md are made from it. It knows no other part of
hvdtune.
"""
