"""The findings of a benchmark: the data, and the table, page, files and advice made from them.

Knows `memory`, `metrics` and `sizes`.
"""
