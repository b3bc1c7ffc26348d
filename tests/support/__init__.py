"""What tests share: marks of long tests, the builds and runs of the native ones.

Its rooms have what serves one kind of tests.
"""
