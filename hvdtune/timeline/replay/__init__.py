"""Recorded steps played again by the engine's rules, with something changed.

May know `analysis` and below.
"""
