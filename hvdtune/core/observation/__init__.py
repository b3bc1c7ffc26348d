"""What others learn of a running job: recordings and the marks in them, stacks, messages, answers
to other processes.

Knows `topology` and `world`.
"""
