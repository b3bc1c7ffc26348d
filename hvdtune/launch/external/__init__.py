"""Jobs that somebody else's launcher starts: mpirun and jsrun, and their commands.

May know `allocation`, `local`, `remote`.
"""
