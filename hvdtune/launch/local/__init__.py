"""Processes of this host: starting, guarding and ending workers, their environment and output.

May know `allocation`.
"""
