"""Training jobs with one planted fault, the same jobs without it, and healthy ones.

program.py defines a program and the verdict that it must get; ranks.py, phases.py, cpus.py,
operations.py, settings.py, trends.py and healthy.py have the programs, which train with job.py and
networks.py. run.py runs them, judge.py compares the verdicts with the truth.
"""
