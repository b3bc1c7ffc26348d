"""Looking at a job while it runs: finding it, asking it, showing and exporting its answers.

Knows `timeline` and `settings`; a job passes itself as an argument.
"""
