"""The collectives with Horovod's names and signatures, for any framework's tensors.

A face makes one object of its adapter and takes its functions from there:

    collectives = Collectives(TorchAdapter(), __name__, "collectives")
    allreduce_async = collectives.allreduce_async

Functions with `_async` in their names return an int handle for `poll` and `synchronize`; the result
is what `synchronize` returns. Inputs are kept alive until then, and must not be changed before.
Names match tensors between ranks; calls without one match by their order. Errors of the call itself
are raised at once: ValueError and TypeError (type, layout, process set, a name already in flight),
NotImplementedError (Adasum where it is not defined), HorovodInternalError (before init, an operator
that an operation does not have, a group on two devices). Errors that only the ranks together can
find (different shapes, a dead rank, a shutdown) are raised while waiting: HorovodInternalError. The
other functions wait themselves; nothing here knows of gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic

from hvdtune.core import operations
from hvdtune.core.operations import Buffer, Completed, synchronize
from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.core.reduce_ops import Average
from hvdtune.faces.adapter import Adapter, T
from hvdtune.faces.arguments import allreduce_op


def _given(result: Any) -> Callable[[Completed], Any]:
    """A `finish` for a result that was allocated before the operation ran."""
    return lambda completed: result


class Collectives(Generic[T]):
    """All operations on one framework's tensors."""

    def __init__(self, adapter: Adapter[T], module: str, name: str) -> None:
        """`module` and `name` are those of the global variable that holds the object."""
        self._adapter = adapter
        self._codes = adapter.codes
        self._plain_output = adapter.plain_output
        self.__module__ = module
        self._name = name

    def __reduce__(self) -> str:
        # Programs that are pickled for other processes may hold one of the functions.
        return self._name

    # ---- allreduce ----

    def allreduce_async(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Start reducing `tensor` (same type and shape on all ranks) into a new tensor.

        `postscale_factor * op over ranks (prescale_factor * tensor)`; `op` is Average unless given.
        """
        op = allreduce_op(op, average)
        source = self._adapter.buffer(tensor, "allreduce")
        output = self._adapter.fresh(tensor)
        return operations.allreduce_async(
            [source],
            [self._adapter.buffer(output, "allreduce", written=True)],
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
            finish=_given(output),
        )

    def allreduce_async_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """`allreduce_async` in place: the result is `tensor` itself."""
        handle = operations.allreduce_tensor_async(
            tensor, self._codes, average, name, op, prescale_factor, postscale_factor, process_set
        )
        if handle is not None:
            return handle
        op = allreduce_op(op, average)
        buffers = [self._adapter.buffer(tensor, "allreduce", written=True)]
        return operations.allreduce_async(
            buffers,
            buffers,
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
            finish=_given(tensor),
        )

    def allreduce(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """Reduce `tensor` (same type and shape on all ranks) over the ranks into a new tensor.

        The average, unless `op` is given. `average` is the deprecated form of `op`.
        """
        output = None if name is None else self._plain_output(tensor)
        if output is not None and operations.allreduce_tensor(
            tensor,
            self._codes,
            average,
            name,
            op,
            prescale_factor,
            postscale_factor,
            process_set,
            output,
        ):
            return output
        handle = self.allreduce_async(
            tensor, average, name, op, prescale_factor, postscale_factor, process_set
        )
        return synchronize(handle)

    def allreduce_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """Reduce `tensor` over the ranks in place, and return it."""
        if operations.allreduce_tensor(
            tensor, self._codes, average, name, op, prescale_factor, postscale_factor, process_set
        ):
            return tensor
        handle = self.allreduce_async_(
            tensor, average, name, op, prescale_factor, postscale_factor, process_set
        )
        return synchronize(handle)

    def grouped_allreduce_async(
        self,
        tensors: Iterable[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Start reducing `tensors` as one: all of them are reduced together or none is.

        The result is a tuple of new tensors; types and shapes may differ between the members.
        """
        op = allreduce_op(op, average)
        members = self._adapter.members(tensors, "grouped_allreduce")
        sources = self._buffers(members, "grouped_allreduce")
        outputs = tuple(self._adapter.fresh(tensor) for tensor in members)
        return operations.allreduce_async(
            sources,
            self._buffers(outputs, "grouped_allreduce", written=True),
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
            grouped=True,
            finish=_given(outputs),
        )

    def grouped_allreduce_async_(
        self,
        tensors: Iterable[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """`grouped_allreduce_async` in place: the result is a tuple of the tensors themselves."""
        op = allreduce_op(op, average)
        members = self._adapter.members(tensors, "grouped_allreduce")
        buffers = self._buffers(members, "grouped_allreduce", written=True)
        return operations.allreduce_async(
            buffers,
            buffers,
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
            grouped=True,
            finish=_given(tuple(members)),
        )

    def grouped_allreduce(
        self,
        tensors: Iterable[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """Reduce `tensors` as one over the ranks into new tensors; an empty group gives `[]`."""
        members = self._adapter.members(tensors, "grouped_allreduce")
        if not members:
            return []
        handle = self.grouped_allreduce_async(
            members, average, name, op, prescale_factor, postscale_factor, process_set
        )
        return list(synchronize(handle))

    def grouped_allreduce_(
        self,
        tensors: Iterable[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> tuple[T, ...]:
        """Reduce `tensors` as one over the ranks in place, and return them as a tuple."""
        handle = self.grouped_allreduce_async_(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
        reduced: tuple[T, ...] = synchronize(handle)
        return reduced

    # ---- allgather ----

    def allgather_async(
        self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Start joining every rank's `tensor` along the first dimension, in the order of ranks.

        The first dimension may differ between ranks, and be 0; type and other dimensions must
        agree. A 0-d tensor has no first dimension: HorovodInternalError on all ranks.
        """
        return operations.allgather_async(
            [self._adapter.buffer(tensor, "allgather")],
            name=name,
            process_set=process_set,
            finish=self._first(tensor),
        )

    def allgather(
        self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """Join every rank's `tensor` along the first dimension (which may differ) in rank order."""
        gathered = self.at_once(operations.ALLGATHER, tensor, name, process_set)
        if gathered is not None:
            return gathered
        return synchronize(self.allgather_async(tensor, name, process_set))

    def grouped_allgather_async(
        self,
        tensors: Iterable[T],
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """`allgather_async` of all `tensors` as one; the result is a tuple."""
        members = self._adapter.members(tensors, "grouped_allgather")
        return operations.allgather_async(
            self._buffers(members, "grouped_allgather"),
            name=name,
            process_set=process_set,
            grouped=True,
            finish=self._all(members),
        )

    def grouped_allgather(
        self,
        tensors: Iterable[T],
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> tuple[T, ...]:
        """`allgather` of all `tensors` as one."""
        members = self._adapter.members(tensors, "grouped_allgather")
        if not members:
            return ()
        gathered: tuple[T, ...] = synchronize(
            self.grouped_allgather_async(members, name, process_set)
        )
        return gathered

    # ---- broadcast ----

    def broadcast_async(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Start copying the `tensor` of global rank `root_rank` into a new tensor on every rank."""
        source = self._adapter.buffer(tensor, "broadcast")
        output = self._adapter.fresh(tensor)
        return operations.broadcast_async(
            source,
            self._adapter.buffer(output, "broadcast", written=True),
            root_rank,
            name=name,
            process_set=process_set,
            finish=_given(output),
        )

    def broadcast_async_(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """`broadcast_async` in place: every rank's `tensor` becomes that of `root_rank`."""
        buffer = self._adapter.buffer(tensor, "broadcast", written=True)
        return operations.broadcast_async(
            buffer, buffer, root_rank, name=name, process_set=process_set, finish=_given(tensor)
        )

    def broadcast(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """A new tensor with the `tensor` of global rank `root_rank`, on every rank."""
        received = self.at_once(operations.BROADCAST, tensor, name, process_set, root_rank)
        if received is not None:
            return received
        return synchronize(self.broadcast_async(tensor, root_rank, name, process_set))

    def broadcast_(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """Copy the `tensor` of global rank `root_rank` into every rank's, and return it."""
        if name is not None:
            done = operations.exchange_at_once(
                operations.BROADCAST, tensor, self._codes, name, process_set, None, root_rank
            )
            if done is not None:
                return tensor
        return synchronize(self.broadcast_async_(tensor, root_rank, name, process_set))

    # ---- alltoall ----

    def alltoall_async(
        self,
        tensor: T,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Start sending `splits[r]` rows of `tensor` to rank `r` of the set, in order.

        `splits` (1-D, 32-bit integers) may sum up to less than the number of rows; without it every
        rank gets the same number. The result is `(tensor, received_splits)`: the rows received, in
        the order of senders, and an int32 tensor of how many came from each.
        """
        source = self._adapter.buffer(tensor, "alltoall")

        def finish(completed: Completed) -> tuple[T, T]:
            received = self._adapter.received(splits, completed.received_splits)
            return self._adapter.result(tensor, completed.outputs[0]), received

        return operations.alltoall_async(
            source,
            self._adapter.splits(splits),
            name=name,
            process_set=process_set,
            finish=finish,
        )

    def alltoall(
        self,
        tensor: T,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """Send `splits[r]` rows to rank `r` of the set and receive what the others send here.

        The rows received, in the order of senders; with `splits` given, a pair of them and an int32
        tensor of how many rows came from each rank.
        """
        if splits is None:
            equal = self.at_once(operations.ALLTOALL, tensor, name, process_set)
            if equal is not None:
                return equal
        received, counts = synchronize(self.alltoall_async(tensor, splits, name, process_set))
        return received if splits is None else (received, counts)

    # ---- reducescatter ----

    def reducescatter_async(
        self,
        tensor: T,
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Start reducing `tensor` (same type and shape on all ranks) and cutting it into rows.

        Rank `r` of `n` gets `rows // n` rows, and one more if `r < rows % n`.
        """
        return operations.reducescatter_async(
            [self._adapter.buffer(tensor, "reducescatter")],
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
            finish=self._first(tensor),
        )

    def reducescatter(
        self,
        tensor: T,
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> T:
        """Reduce `tensor` over the ranks (Average or Sum) and return this rank's share of its rows.

        Rank `r` of `n` gets `rows // n` rows, and one more if `r < rows % n`.
        """
        factors = (prescale_factor, postscale_factor)
        share = self.at_once(operations.REDUCESCATTER, tensor, name, process_set, 0, op, *factors)
        if share is not None:
            return share
        return synchronize(self.reducescatter_async(tensor, name, op, process_set, *factors))

    def grouped_reducescatter_async(
        self,
        tensors: Iterable[T],
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """`reducescatter_async` of all `tensors` as one; the result is a tuple."""
        members = self._adapter.members(tensors, "grouped_reducescatter")
        return operations.reducescatter_async(
            self._buffers(members, "grouped_reducescatter"),
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
            grouped=True,
            finish=self._all(members),
        )

    def grouped_reducescatter(
        self,
        tensors: Iterable[T],
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> list[T]:
        """`reducescatter` of all `tensors` as one, as a list; an empty group gives `[]`."""
        members = self._adapter.members(tensors, "grouped_reducescatter")
        if not members:
            return []
        handle = self.grouped_reducescatter_async(
            members, name, op, process_set, prescale_factor, postscale_factor
        )
        return list(synchronize(handle))

    # ---- helpers ----

    def at_once(
        self, kind: int, tensor: T, name: str | None, process_set: ProcessSet, *rest: Any
    ) -> T | None:
        """Do an operation other than allreduce without the coordinator, if it is small enough.

        `rest`: the root of a broadcast; for a reducescatter 0, the operator and both factors.
        Returns None, and submits nothing, if the `_async` function must handle the call.
        """
        if name is None:
            return None
        done = operations.exchange_at_once(
            kind, tensor, self._codes, name, process_set, self._adapter.fresh, *rest
        )
        return self._adapter.result(tensor, done[0][0]) if type(done) is tuple else done

    def _buffers(
        self, tensors: Iterable[T], operation: str, *, written: bool = False
    ) -> list[Buffer]:
        """Every member's buffer; an error names the member by its index."""
        buffers = []
        for index, tensor in enumerate(tensors):
            try:
                buffers.append(self._adapter.buffer(tensor, operation, written=written))
            except (TypeError, ValueError) as error:
                raise type(error)(f"Member {index} of the group: {error}") from None
        return buffers

    def _first(self, tensor: T) -> Callable[[Completed], T]:
        """A `finish` for the only output of an operation that allocates its result itself."""
        return lambda completed: self._adapter.result(tensor, completed.outputs[0])

    def _all(self, tensors: Sequence[T]) -> Callable[[Completed], tuple[T, ...]]:
        """The same for a group."""
        return lambda completed: tuple(map(self._adapter.result, tensors, completed.outputs))
