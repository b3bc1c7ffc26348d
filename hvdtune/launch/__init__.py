"""Starting a job here and on other hosts, passing on its output, and leaving nothing behind.

`start` is the entry point, `job` runs one job from start to end. The rooms, each of which may know
those before it: `allocation`, `local`, `remote`, `external`, `elastic`, `function`, `kubernetes`;
and `doctor`.
"""
