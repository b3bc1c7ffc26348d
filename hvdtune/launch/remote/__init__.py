"""Other hosts: ssh, the agent there, the messages between both, and where ranks meet.

May know `allocation` and `local`.
"""
