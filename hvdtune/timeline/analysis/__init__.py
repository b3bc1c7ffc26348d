"""The questions to a recording, one a file, with formulas in docs/metrics.md; `analyse` asks all.

May know `record`.
"""
