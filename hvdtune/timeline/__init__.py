"""Timelines offline: what a recorded file says about a job's communication.

`api` is the way in; `schema` has the types of the documents. Rooms, each of which may know those
before it: `record`, `analysis`, `replay`, `advice`, `report`, `horovod`, and `viewers` (which knows
`analysis` and below).
"""
