"""Tensors as the recorder packs them: runs of names that are numbered one after the other.

A block of TENSOR has all its runs first, and then, for each tensor that does not begin one, how
much later it was submitted than the tensor before it. native/observe/tensor_runs.h writes them.
"""

from __future__ import annotations

import numpy as np

from hvdtune.timeline.capture import TENSOR

#: `name` and `submitted` are the first tensor's; the names of the others count on from it.
RUN = np.dtype(
    [("name", "<u4"), ("batch", "<u4"), ("submitted", "<i8"), ("tensors", "<u4"), ("pad", "<u4")]
)
LATER = np.dtype("<i4")  # ns


def unpack(data: bytes, count: int, runs: int) -> np.ndarray | None:
    """`count` records of TENSOR from `runs` runs; None if the bytes cannot be that many."""
    if not 0 < runs <= count or len(data) != runs * RUN.itemsize + (count - runs) * LATER.itemsize:
        return None
    heads = np.frombuffer(data, RUN, runs)
    later = np.frombuffer(data, LATER, offset=runs * RUN.itemsize)
    tensors = heads["tensors"].astype(np.int64)
    if (tensors == 0).any() or int(tensors.sum()) != count:
        return None
    first = np.cumsum(tensors) - tensors
    begins = np.zeros(count, bool)
    begins[first] = True
    since = np.zeros(count, np.int64)
    since[~begins] = later
    since = np.cumsum(since)
    records = np.empty(count, TENSOR)
    place = np.arange(count) - np.repeat(first, tensors)
    records["name"] = np.repeat(heads["name"], tensors) + place.astype(np.uint32)
    records["batch"] = np.repeat(heads["batch"], tensors)
    records["submitted"] = np.repeat(heads["submitted"] - since[first], tensors) + since
    return records
