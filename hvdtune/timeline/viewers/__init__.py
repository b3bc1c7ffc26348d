"""What trace viewers show, and the files they open: events, lanes, joined and merged recordings.

May know `analysis` and below.
"""
