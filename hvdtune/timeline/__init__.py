"""Timelines offline: what a recorded file says about a job's communication."""
