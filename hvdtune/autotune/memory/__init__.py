"""Remembers tuning: the store's file, the kind of job a profile is for, and recalling it.

May know `search` and below.
"""
