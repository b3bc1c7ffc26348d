"""Looking at a job while it runs: finding it, asking it, showing and exporting what it says.

Knows `timeline` and `settings`; a job hands itself over.
"""
