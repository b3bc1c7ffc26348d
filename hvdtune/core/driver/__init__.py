"""The driver of an elastic job, as the job's processes and the driver itself see their line.

Knows `world` and below.
"""
