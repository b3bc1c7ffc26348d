"""The tensors that a training step of a real model reduces, and endless steps of one model.

Knows no other room of `hvdtune.bench`.
"""
