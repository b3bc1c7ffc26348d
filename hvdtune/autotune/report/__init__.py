"""The log of a tuning: its rows as they are written and read, its runs, and the page about it.

May know `search`, `statistics`.
"""
