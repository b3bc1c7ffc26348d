"""Timelines offline: what a recorded file says about a job's communication.

`api` is the entry point; `schema` has the types of the documents. Each of these folders may know
those before it: `record`, `analysis`, `replay`, `advice`, `report`, `horovod`, `viewers`; but
`viewers` may not know `advice`, `report` or `horovod`.
"""
