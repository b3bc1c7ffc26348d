"""Tuning of a job: between the engine, the optimiser's process, and what people are told.

Only `online` knows this process's engine; `offline` tunes a job of another process.
"""
