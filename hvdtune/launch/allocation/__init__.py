"""Hosts: which are ours, how many ranks fit on each, and which rank runs where.

May know no other room.
"""
