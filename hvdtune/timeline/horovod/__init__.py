"""Timelines in Horovod's layout: reading them, their analysis, summary and limited report.

May know all folders of `timeline` except `viewers`.
"""
