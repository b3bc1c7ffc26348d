"""The findings of a benchmark: the data, and from it table, page, files and advice.

Knows `memory`, `metrics` and `sizes`.
"""
