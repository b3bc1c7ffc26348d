"""Replays of recorded steps by the engine's rules, with something changed.

May know `analysis` and below.
"""
