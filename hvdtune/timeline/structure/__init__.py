"""What a recording consists of: all ranks' batches side by side, steps, families of operations.

May know `record`.
"""
