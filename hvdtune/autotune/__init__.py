"""Finds the settings that make a training run fastest, while it runs.

`space` says what may be moved, `score` turns steps into samples, `optimiser` proposes, `tuner`
decides, `log` writes it down: all of them numbers in, numbers out. `service` runs the optimiser in
a process of its own (`client` is its other end), and `session` alone touches the engine.
"""
