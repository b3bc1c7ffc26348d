"""Jobs of real processes: ranks and what they are forked from, the launcher, what disturbs them,
what they leave behind.
"""
