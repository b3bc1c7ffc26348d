"""Elastic jobs in Spark: each attempt of a task is a host with one slot."""
