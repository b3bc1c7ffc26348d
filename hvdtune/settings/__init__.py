"""The table of settings, what values they take, and the environment's other variables.

Flags, YAML, the autotuner's space and docs/knobs.md are made from it. Knows nothing of hvdtune.
"""
