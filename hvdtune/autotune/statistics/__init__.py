"""Step times as numbers: samples, what they scatter by, comparisons, changes, limits of harm.

Knows nothing else of hvdtune.
"""
