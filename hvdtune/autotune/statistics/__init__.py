"""Statistics of step times: samples, their scatter, comparisons, changes, limits of harm.

Knows nothing else of hvdtune.
"""
