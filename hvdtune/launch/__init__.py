"""Starting a job here and on other hosts, passing on its output, and leaving nothing behind.

`start` is the way in, `job` a job's course. Rooms, each of which may know those before it:
`allocation`, `local`, `remote`, `external`, `elastic`, `function`, `kubernetes`; and `doctor`.
"""
