"""The log of a tuning: writing and reading its rows, its runs, and the page about it.

May know `search`, `statistics`.
"""
