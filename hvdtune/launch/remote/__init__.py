"""Other hosts: ssh, the agent there, what both send each other, and where ranks meet.

May know `allocation` and `local`.
"""
