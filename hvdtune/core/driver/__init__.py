"""The connection between an elastic job's processes and its driver, as both ends use it.

Knows `world` and the modules below it.
"""
