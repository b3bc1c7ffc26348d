"""`hvdtune.run(function)`: a Python function as a job, its arguments and results on their way.

`call_site` is the way in; each other file is one process's part. May know
`launch.start` and below.
"""
