"""Tuning that is remembered: the store's file, which kind of job a profile is of, and recalling it.

May know `search` and below.
"""
