"""How TensorFlow calls the operations: as our own nodes, via XLA, or through Python.

Knows no other part of the face.
"""
