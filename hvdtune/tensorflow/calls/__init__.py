"""How TensorFlow calls the operations: as nodes of ours, by XLA, or through Python.

Knows no other room of the face.
"""
