"""`hvdtune.run(function)`: a Python function as a job, and how its arguments and results travel.

`call_site` is the entry point; each other file is one process's part. May know `launch.start` and
the modules below it.
"""
