"""Training jobs with one thing wrong in them, the same jobs without it, and healthy ones.

program.py says what a program is and what its verdict has to be; ranks.py, phases.py, cpus.py,
operations.py, settings.py, trends.py and healthy.py have the programs; job.py and networks.py are
what these train with. run.py runs them, judge.py holds the verdicts against the truth.
"""
