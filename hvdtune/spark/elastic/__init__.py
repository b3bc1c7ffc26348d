"""Elastic jobs in Spark: each attempt of a task is a host with one slot.

Knows the driver of `launch.elastic`, and `course` and `link` of `hvdtune.spark`.
"""
