"""What two faces would otherwise both write: collectives, arguments, the adapter between them.

A face (arrays, torch) adds what is its framework's alone. May know `core` and `settings`.
"""
