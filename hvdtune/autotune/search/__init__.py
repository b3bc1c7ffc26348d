"""What to measure next: the space of settings, the model, the optimiser, and the tuner.

Numbers in, numbers out: no clock, no file, no engine. May know `statistics`.
"""
