"""Jobs that another launcher starts, mpirun or jsrun, and the commands for that.

May know `allocation`, `local`, `remote`.
"""
