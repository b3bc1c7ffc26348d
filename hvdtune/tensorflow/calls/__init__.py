"""How TensorFlow calls the operations: as nodes of ours, by XLA, or through Python."""
