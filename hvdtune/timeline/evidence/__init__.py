"""What a cause of lost time is judged by: the case, when it costs time, what its cure would save.

May know `replay` and below.
"""
