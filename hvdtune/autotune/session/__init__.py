"""Tuning of a job: connects the engine, the optimiser's process, and messages for people.

Only `online` knows this process's engine; `offline` tunes a job of another process.
"""
