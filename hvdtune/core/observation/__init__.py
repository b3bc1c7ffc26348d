"""Everything that shows a running job to others: recordings and their marks, stacks, messages,
answers to other processes.

Knows `topology` and `world`.
"""
