"""What a benchmark has found: the data, and from it table, page, files and advice.

Knows `memory`, `metrics` and `sizes`.
"""
