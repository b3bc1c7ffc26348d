"""What the ranks agree on before they reduce the gradient of a parameter for the first time.

They agree on the number that its name gets (see wire_names), and on whether its gradient is dense
or sparse. A rank that did not compute the gradient still participates in the reduction, and must do
what the others do: an allreduce of zeros if theirs is dense, two allgathers of nothing if it is
sparse. It cannot tell which from the parameter.

They also agree on whether gradients are reduced during the backward pass: a rank that starts such a
reduction and gives it up must not be matched with a rank that has not started it.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from hvdtune.core import tables
from hvdtune.core.exceptions import HorovodInternalError
from hvdtune.core.objects import allgather_object
from hvdtune.core.process_sets import ProcessSet, id_of
from hvdtune.core.reduce_ops import Max
from hvdtune.faces.gradients import Layout
from hvdtune.faces.wire_names import WireNames

_MOST = 2**30 - 1  # a digest; the next bit is a flag


class Member(Protocol):
    """A parameter of an optimizer; the agreement sets `wire_name` and `layout`."""

    name: str
    wire_name: str
    layout: Layout

    @property
    def parameter(self) -> Any:
        """The framework's tensor."""


def agree(
    members: Sequence[Member],
    seen: Sequence[Layout],
    names: WireNames,
    label: str,
    process_set: ProcessSet,
    *,
    overlaps: bool,
    tries: bool,
) -> tuple[bool, bool]:
    """Set the `wire_name` and `layout` of the members, all of one optimizer.

    Returns two flags: whether all ranks want `overlaps` (gradients are reduced during the backward
    pass), and whether all want `tries` (they try whether that pays). `seen[i]`: this rank's
    gradient of `members[i]`. The members must be in the order of their names. Collective. Raises
    HorovodInternalError on all ranks, naming the parameters, if they do not have the same ones.

    In the main thread optimizers agree one after another, in the program's order, under one name,
    so that the calls match even if the ranks have different parameters. Other threads may agree at
    the same time, in any order; there `label` tells optimizers apart.
    """
    set_id = id_of(process_set)
    numbers = [names.number_to_ask_for(m.parameter, m.name, set_id) for m in members]
    digest = _digest_of(members)
    # If the digests are equal, the largest of all ranks' last column are _MOST together. If they
    # are not, that is seen unless the ranks also differ in a flag. Ranks that have joined send
    # zeros, which change no maximum.
    table = np.array(
        [
            [*numbers, (not overlaps) * (_MOST + 1) + digest],
            [*(layout.dense for layout in seen), (not tries) * (_MOST + 1) + digest],
            [*(layout.sparse_dims for layout in seen), _MOST - digest],
        ],
        dtype=np.int32,
    )
    main = threading.current_thread() is threading.main_thread()
    name = f"{'optimizer' if main else label}.agreement"
    try:
        tables.reduce({name: table}, Max, process_set)
    except HorovodInternalError as error:
        # A mismatch is reported to all ranks; after any other error no rank can communicate.
        if "Mismatched" not in str(error):
            raise
        raise HorovodInternalError(_difference(members, name, process_set)) from error
    *columns, (busy, untried, rest) = table.T.tolist()
    if {busy & _MOST, untried & _MOST} != {_MOST - rest}:
        raise HorovodInternalError(_difference(members, name, process_set))
    for member, (number, dense, dims) in zip(members, columns, strict=True):
        member.wire_name = names.take_number(member.parameter, member.name, set_id, number)
        member.layout = Layout(bool(dense), dims)
    return busy <= _MOST, untried <= _MOST


def _digest_of(members: Sequence[Member]) -> int:
    """A number from 0 to _MOST that stands for the members' names."""
    text = "\n".join(member.name for member in members)
    return zlib.crc32(text.encode(errors="surrogatepass")) >> 2


def _difference(members: Sequence[Member], name: str, process_set: ProcessSet) -> str:
    own = [member.name for member in members]
    every = allgather_object(own, name=name, process_set=process_set)
    everybody, anybody = set.intersection(*map(set, every)), set.union(*map(set, every))
    assert process_set.ranks
    lines = [
        f"{name} (rank {', '.join(str(rank) for rank in having)} only)"
        for name in sorted(anybody - everybody)[:5]
        if (having := [r for r, have in zip(process_set.ranks, every, strict=True) if name in have])
    ]
    return (
        "The ranks have different parameters that require gradients, but every rank of "
        f"DistributedOptimizer must have the same: {'; '.join(lines)}."
    )
