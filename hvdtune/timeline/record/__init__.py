"""Recordings: the layout of what a rank records, reading files, and putting ranks on one clock.

Knows nothing but `words`.
"""
