"""What does not depend on a framework's tensors, so that no face writes it a second time.

A face (arrays, torch) adds an `Adapter` and what is its framework's alone. Both have adapter,
arguments and collectives from here; the rest serves faces with gradients. May know `core` and
`settings`.
"""
