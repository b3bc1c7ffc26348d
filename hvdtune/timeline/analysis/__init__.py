"""The questions about a recording, one per file; `analyse` asks all. Formulas: docs/metrics.md.

May know `structure` and below.
"""
