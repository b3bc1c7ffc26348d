"""The lines that call operations without giving them a name, for the recording: a sample."""

from __future__ import annotations

import itertools
import math
import os
import sys

from hvdtune.core.observation import marks

#: One of this many unnamed operations is sampled; prime, so that in time each line of a loop is.
EVERY = 61
_turns = itertools.cycle([True] + [False] * (EVERY - 1))
_PACKAGE = os.path.abspath(__file__).rsplit(os.sep, 3)[0] + os.sep  # hvdtune/


def is_next() -> bool:
    """Whether the next unnamed operation is sampled."""
    return next(_turns)


def tell(operation: str, process_set: int, shape: tuple[int, ...]) -> None:
    """Tell the recording which line has called an operation on a tensor of that shape."""
    if not marks.are_recorded():
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    code = frame.f_code
    where = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
    marks.record(marks.CALL_SITE, math.prod(shape), f"{operation}|{process_set}|{where}")
