"""Tensors as the recorder packs them: runs of tensors with consecutive names.

A block of TENSOR has all its runs first. Then, for each tensor that does not begin a run, it has
the time since the submission of the tensor before: first the times of all wide runs, then those of
all narrow ones. native/observe/capture/tensor_runs.h writes blocks. Up to format 2, all runs were
wide.
"""

from __future__ import annotations

import numpy as np

from hvdtune.timeline.record.layout import TENSOR

#: `name` and `submitted` are the first tensor's; the names of the others continue from it with
#: `stride`, 0 or 1. `width`: bytes of each of the other tensors' times. A 0, as in files of format
#: 2, means a width of 4 and a stride of 1.
RUN = np.dtype(
    [("name", "<u4"), ("batch", "<u4"), ("submitted", "<i8"), ("tensors", "<u4"),
     ("width", "u1"), ("stride", "u1"), ("pad", "<u2")]
)  # fmt: skip
WIDE = np.dtype("<i4")  # ns
NARROW = np.dtype("<u2")  # ns
#: The most tensors in a block; the recorder's have an eighth. Each takes 60 bytes to unpack.
MOST = 1 << 20


def unpack(data: bytes, count: int, runs: int) -> np.ndarray | None:
    """`count` records of TENSOR from `runs` runs; None if the bytes do not fit that number."""
    if not 0 < runs <= count <= MOST or len(data) < runs * RUN.itemsize:
        return None
    heads = np.frombuffer(data, RUN, runs)
    tensors = heads["tensors"].astype(np.int64)
    old, narrow = heads["width"] == 0, heads["width"] == NARROW.itemsize
    known = old | narrow | (heads["width"] == WIDE.itemsize)
    if not known.all() or (heads["stride"] > 1).any():
        return None
    if (tensors == 0).any() or int(tensors.sum()) != count:
        return None
    in_narrow = int((tensors - 1)[narrow].sum())
    in_wide = count - runs - in_narrow
    wide_at, narrow_at = runs * RUN.itemsize, runs * RUN.itemsize + in_wide * WIDE.itemsize
    if len(data) != narrow_at + in_narrow * NARROW.itemsize:
        return None
    first = np.cumsum(tensors) - tensors
    begins = np.zeros(count, bool)
    begins[first] = True
    is_narrow = np.repeat(narrow, tensors)
    since = np.zeros(count, np.int64)
    since[~begins & ~is_narrow] = np.frombuffer(data, WIDE, in_wide, wide_at)
    since[~begins & is_narrow] = np.frombuffer(data, NARROW, in_narrow, narrow_at)
    since = np.cumsum(since)
    records = np.empty(count, TENSOR)
    place = np.arange(count) - np.repeat(first, tensors)
    place *= np.repeat(np.where(old, 1, heads["stride"]), tensors)
    records["name"] = np.repeat(heads["name"], tensors) + place.astype(np.uint32)
    records["batch"] = np.repeat(heads["batch"], tensors)
    records["submitted"] = np.repeat(heads["submitted"] - since[first], tensors) + since
    return records
