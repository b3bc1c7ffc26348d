"""Collectives on memory, the base of every face.

An operation is submitted with the addresses of its tensors and gets a handle; `synchronize` waits
for it and returns the framework's result.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any

import hvdtune._native as _native
from hvdtune._native import (
    AllreducePlan,
    DeviceDone,
    HotCalls,
    Pending,
    array_address,
    xla_collective_call,
)
from hvdtune.core import reduce_ops, world
from hvdtune.core.exceptions import HorovodInternalError
from hvdtune.core.observation import call_sites
from hvdtune.core.process_sets import ProcessSet, global_process_set, id_of

#: The engine's codes of dtypes, by name.
DTYPES = _native.DTYPES
_BOOL = DTYPES["bool"]

_LARGEST_ROOT = 2**31 - 1  # the largest that the engine accepts

#: "allreduce", … by number: names on the wire begin with them.
KIND_NAMES = {code: name for name, code in _native.OP_KINDS.items()}
ALLREDUCE, _BARRIER = _native.OP_KINDS["allreduce"], _native.OP_KINDS["barrier"]
ALLGATHER, BROADCAST = _native.OP_KINDS["allgather"], _native.OP_KINDS["broadcast"]
ALLTOALL, REDUCESCATTER = _native.OP_KINDS["alltoall"], _native.OP_KINDS["reducescatter"]
_REDUCTIONS = {
    reduce_ops.Average: "Average",
    reduce_ops.Sum: "Sum",
    reduce_ops.Adasum: "Adasum",
    reduce_ops.Min: "Min",
    reduce_ops.Max: "Max",
    reduce_ops.Product: "Product",
}


__all__ = [
    "ALLGATHER",
    "ALLREDUCE",
    "ALLTOALL",
    "BROADCAST",
    "DTYPES",
    "REDUCESCATTER",
    "AllreducePlan",
    "Buffer",
    "Completed",
    "add_join_hook",
    "allgather_async",
    "allreduce_async",
    "allreduce_tensor",
    "allreduce_tensor_async",
    "alltoall_async",
    "array_address",
    "barrier",
    "broadcast_async",
    "check_adasum",
    "check_reduction",
    "check_root",
    "check_scattered",
    "exchange_at_once",
    "forget_all",
    "give_back_name",
    "join",
    "join_async",
    "name_on_wire",
    "plan_allreduces",
    "poll",
    "reducescatter_async",
    "running_engine",
    "synchronize",
    "wait_native",
    "wire_name",
    "xla_collective_call",
]


@dataclass(slots=True)
class Buffer:
    """Contiguous memory of one tensor; `owner` keeps it alive until the operation is done.

    `device` is the GPU that it is on, -1 for the host. It can be used after the work that is now in
    `streams`, CUDA's handles. `current_stream` gives the stream in which a result will be used;
    without it the host waits for the GPU.
    """

    pointer: int
    dtype: int
    shape: tuple[int, ...]
    owner: object
    device: int = -1
    streams: tuple[int, ...] = ()
    current_stream: Callable[[], int] | None = None


@dataclass(slots=True)
class Completed:
    """The engine's results: new NumPy arrays (bfloat16 as uint16 bits), and numbers.

    For tensors on a GPU the arrays are `DeviceArray`s (bfloat16 as int16 bits).
    The numbers are the received splits of an alltoall, the last rank to join of a join.
    """

    outputs: list[Any] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    gpu: DeviceDone | None = None  # if it may not be done yet

    @property
    def received_splits(self) -> list[int]:
        """How many rows came from each rank of the set; alltoall only."""
        return self.numbers


Finish = Callable[[Completed], Any]


_pending: dict[int, Pending] = {}  # by handle
_inherited: dict[int, Pending] = {}  # in a forked child: its parent's
# Automatic names are counted per process set and kind, so that an operation in a set that not all
# ranks belong to does not shift the names of the others.
_unnamed: dict[tuple[int, str], int] = {}
_unnamed_lock = threading.Lock()
_join_hooks: list[Callable[[], None]] = []

# Called for every gradient, so these bypass everything here; `_native.pyi` says what they do.
# If they return None or False, they have done nothing, and the `*_async` functions can say why.
_hot = HotCalls(world.running, _pending, global_process_set, id_of)
allreduce_tensor_async = _hot.submit_in_place
allreduce_tensor = _hot.allreduce_at_once
exchange_at_once = _hot.exchange_at_once
_collect_tensor = _hot.collect_in_place


def plan_allreduces(
    codes: dict[Any, int],
    names: tuple[str, ...],
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> AllreducePlan:
    """Allreduces in place, with these names, that will be made together repeatedly.

    ``codes`` are dtype codes by the tensors' dtype.
    """
    return AllreducePlan(_hot, codes, names, op, prescale_factor, postscale_factor, process_set)


def name_on_wire(operation: str, name: str) -> str:
    """The name that all ranks use for an `operation` named `name`.

    `operation` is "allreduce", "grouped_allreduce", …. Raises ValueError for an invalid Unicode
    text.
    """
    whole = f"{operation}.{name}"
    if not whole.isascii():
        try:
            whole.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{operation}: the name {name!r} is no valid Unicode text") from None
    return whole


def wire_name(kind: int, grouped: bool, name: str | None, set_id: int) -> tuple[str, bool]:
    """(name as all ranks know it, whether it will be used again)."""
    prefix = ("grouped_" if grouped else "") + KIND_NAMES[kind]
    if name is not None:
        return name_on_wire(prefix, name), True
    with _unnamed_lock:
        number = _unnamed.get((set_id, prefix), 0) + 1
        _unnamed[set_id, prefix] = number
    return f"{prefix}.noname.{number}", False


def give_back_name(on_wire: str, set_id: int) -> None:
    """An operation was refused on this rank: the next one gets its automatic name.

    The other ranks do not know of the refused operation, and continue counting.
    """
    prefix, _, number = on_wire.partition(".noname.")
    with _unnamed_lock:
        # Another thread may have taken the next name meanwhile: then it is too late.
        if number == str(_unnamed.get((set_id, prefix))):
            _unnamed[set_id, prefix] -= 1


def _submit(
    kind: int,
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer] | None,
    finish: Finish,
    *,
    name: str | None,
    process_set: ProcessSet,
    op: int = reduce_ops.Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    root_rank: int = 0,
    grouped: bool = False,
    splits: Sequence[int] = (),
) -> int:
    if outputs is not None and len(inputs) != len(outputs):
        raise ValueError(
            f"{KIND_NAMES[kind]}: {len(inputs)} inputs need as many outputs, not {len(outputs)}"
        )
    engine = running_engine()
    set_id = id_of(process_set)
    place = _place_of(KIND_NAMES[kind], [*inputs, *(outputs or ())])
    if place[0] >= 0:
        finish = _behind_gpu(finish, inputs[0].current_stream)
    tensors = [
        (buffer.pointer, 0 if outputs is None else outputs[i].pointer, buffer.dtype, buffer.shape)
        for i, buffer in enumerate(inputs)
    ]
    pending = Pending(engine, (inputs, outputs), finish, None)
    # A signal handler may raise whenever a call returns to the interpreter, also after the engine
    # has accepted the operation. `extend` makes the call and keeps its handle without returning.
    accepted: list[int] = []
    on_wire, cacheable = wire_name(kind, grouped, name, set_id)
    try:
        if not cacheable and call_sites.is_next() and inputs:
            call_sites.tell(on_wire.partition(".")[0], set_id, inputs[0].shape)
        arguments = (
            kind,
            on_wire,
            tensors,
            op,
            float(prescale_factor),
            float(postscale_factor),
            root_rank,
            set_id,
            grouped,
            cacheable,
            list(splits),
            *place,
        )
        accepted.extend(starmap(engine.submit, [arguments]))
    finally:
        if accepted:
            _pending[accepted[0]] = pending  # the engine uses its memory until it is done
        elif name is None:
            give_back_name(on_wire, set_id)
    return accepted[0]


def _place_of(kind: str, buffers: Sequence[Buffer]) -> tuple[int, tuple[int, ...]]:
    """(device, streams) of an operation's tensors."""
    devices = {buffer.device for buffer in buffers}
    if devices <= {-1}:
        return -1, ()
    if len(devices) > 1:
        places = " and ".join("the CPU" if d < 0 else f"GPU {d}" for d in sorted(devices))
        raise HorovodInternalError(
            f"{kind}: the tensors of one operation must be on one device; these are on {places}"
        )
    return devices.pop(), tuple({stream for buffer in buffers for stream in buffer.streams})


def _behind_gpu(finish: Finish, current_stream: Callable[[], int] | None) -> Finish:
    """`finish`, for a result that must not be used before the GPU is done."""

    def finished(completed: Completed) -> Any:
        if completed.gpu is not None and current_stream is not None:
            completed.gpu.let_wait(current_stream())
        elif completed.gpu is not None:
            completed.gpu.wait()
        return finish(completed)

    return finished


def running_engine() -> Any:
    """The engine; collectives before init fail as in Horovod, with HorovodInternalError.

    In a fork of a rank they fail with ValueError.
    """
    if not world.is_initialized():
        raise HorovodInternalError("Horovod has not been initialized; use hvd.init().")
    return world.engine()


def _dtypes_of(buffers: Sequence[Buffer]) -> list[int]:
    return [buffer.dtype for buffer in buffers]


def check_reduction(
    kind: str, dtypes: Sequence[int], op: int, prescale: float, postscale: float
) -> None:
    """Raise ValueError or TypeError for a reduction that no rank could carry out.

    `kind`: the operation, for the message; `dtypes`: the engine's codes.
    """
    if not isinstance(op, int) or op not in _REDUCTIONS:
        accepted = ", ".join(_REDUCTIONS.values())
        raise ValueError(f"{kind}: unknown reduction {op!r}; accepted: {accepted}")
    for factor, value in (("prescale_factor", prescale), ("postscale_factor", postscale)):
        if not hasattr(value, "__float__"):
            raise TypeError(f"{kind}: {factor} must be a number, not {value!r}")
        if value != value:  # the ranks could not even agree that they have the same value
            raise ValueError(f"{kind}: {factor} must be a number, not NaN")
    scaled = op == reduce_ops.Average or prescale != 1.0 or postscale != 1.0
    if scaled and _BOOL in dtypes:
        raise ValueError(f"{kind}: bool tensors can be neither averaged nor scaled")


def check_adasum(process_set: ProcessSet) -> None:
    """Raise NotImplementedError if Adasum is not defined.

    It combines the ranks of the whole job in pairs, and pairs of pairs.
    """
    if process_set.process_set_id != 0:
        raise NotImplementedError(
            f"op=Adasum works on all ranks of the job only, not on the process set {process_set}."
        )
    if world.is_expected():
        return  # the job's later size decides
    running_engine()
    size = world.size()
    if size & (size - 1) != 0:
        raise NotImplementedError(
            f"op=Adasum needs a number of ranks that is a power of two; the job has {size}."
        )


def allreduce_async(
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
    *,
    name: str | None,
    op: int,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    grouped: bool = False,
    finish: Finish,
) -> int:
    """Reduce every input over the ranks of the set into its output (which may be the same memory).

    ``output = postscale * reduce(prescale * input)``, and divided by the set's size for Average.
    A group is reduced as a whole or not at all. Raises ValueError at once for a name in flight or
    a dtype that the reduction is not defined for, NotImplementedError if Adasum is impossible.
    """
    if op == reduce_ops.Adasum:
        check_adasum(process_set)
    check_reduction("allreduce", _dtypes_of(inputs), op, prescale_factor, postscale_factor)
    return _submit(
        ALLREDUCE,
        inputs,
        outputs,
        finish,
        name=name,
        process_set=process_set,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        grouped=grouped,
    )


def allgather_async(
    inputs: Sequence[Buffer],
    *,
    name: str | None,
    process_set: ProcessSet = global_process_set,
    grouped: bool = False,
    finish: Finish,
) -> int:
    """Concatenate the inputs of all ranks of the set along dimension 0, which may differ."""
    return _submit(
        ALLGATHER, inputs, None, finish, name=name, process_set=process_set, grouped=grouped
    )


def check_root(root_rank: Any) -> None:
    """Raise TypeError if `root_rank` is no integer, ValueError if it cannot be a rank."""
    if not hasattr(root_rank, "__index__"):
        raise TypeError(f"broadcast: root_rank must be the number of a rank, not {root_rank!r}")
    if abs(root_rank) > _LARGEST_ROOT:
        raise ValueError(f"broadcast: invalid root rank {root_rank}: there is no such rank")


def broadcast_async(
    input: Buffer,
    output: Buffer,
    root_rank: int,
    *,
    name: str | None,
    process_set: ProcessSet = global_process_set,
    finish: Finish,
) -> int:
    """Copy the input of `root_rank` (a global rank) into every rank's output."""
    check_root(root_rank)
    return _submit(
        BROADCAST,
        [input],
        [output],
        finish,
        name=name,
        process_set=process_set,
        root_rank=root_rank,
    )


def alltoall_async(
    input: Buffer,
    splits: Sequence[int] | None,
    *,
    name: str | None,
    process_set: ProcessSet = global_process_set,
    finish: Finish,
) -> int:
    """Send `splits[k]` rows to the k-th rank of the set; None sends equal parts.

    Raises ValueError for a scalar, and for splits that do not fit the tensor or the set.
    """
    if not input.shape:
        raise ValueError("alltoall does not support scalar tensors")
    if splits is None:
        running_engine()
        id_of(process_set)
        members = process_set.size() or 1
        if input.shape[0] % members != 0:
            raise ValueError(
                f"alltoall: splits not provided, and the first dimension ({input.shape[0]}) is not "
                f"divisible by the number of processes ({members})"
            )
        splits = [input.shape[0] // members] * members
    return _submit(
        ALLTOALL, [input], None, finish, name=name, process_set=process_set, splits=splits
    )


def check_scattered(op: int) -> None:
    """Raise HorovodInternalError for an operator that a reducescatter does not have."""
    if op not in (reduce_ops.Average, reduce_ops.Sum):
        raise HorovodInternalError("reducescatter only supports AVERAGE and SUM")


def reducescatter_async(
    inputs: Sequence[Buffer],
    *,
    name: str | None,
    op: int = reduce_ops.Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    grouped: bool = False,
    finish: Finish,
) -> int:
    """Reduce every input over the set and give each rank its share of the rows.

    With R rows and n ranks the k-th rank gets R // n rows, and one more if k < R % n. Raises
    HorovodInternalError for reductions other than Average and Sum, ValueError for scalars.
    """
    for buffer in inputs:
        if not buffer.shape:
            raise ValueError("reducescatter does not support scalar tensors")
    check_scattered(op)
    check_reduction("reducescatter", _dtypes_of(inputs), op, prescale_factor, postscale_factor)
    return _submit(
        REDUCESCATTER,
        inputs,
        None,
        finish,
        name=name,
        process_set=process_set,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        grouped=grouped,
    )


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have called it."""
    if _hot.barrier_at_once(process_set):
        return
    handle = _submit(
        _BARRIER, [], None, lambda completed: None, name="noname", process_set=process_set
    )
    synchronize(handle)


def join_async(device: int = -1) -> int:
    """Contribute zeros to the whole job's allreduces until all ranks have joined.

    `synchronize` waits for that, and returns the global rank that joined last. Until then this
    process can submit nothing to the whole job (ValueError); the other ranks can run only
    allreduces there.
    """
    engine = running_engine()
    handle: int = engine.join(device)
    _pending[handle] = Pending(engine, None, _last_to_join, None)
    return handle


def _last_to_join(completed: Completed) -> int:
    # The job's operations are all done, and the ranks may have called unequal numbers of unnamed
    # operations: the names would never match again.
    forget_names(0)
    for hook in _join_hooks:
        hook()
    return completed.numbers[0]


def add_join_hook(hook: Callable[[], None]) -> None:
    """Call `hook` on every rank when all ranks have joined, before `synchronize` returns."""
    _join_hooks.append(hook)


def join(device: int = -1) -> int:
    """`join_async`, and wait.

    `device` is the GPU on which this process makes zeros for tensors on GPUs, if it has had no
    tensors on a GPU yet; it is ignored if there is no GPU.
    """
    return int(synchronize(join_async(device)))


def poll(handle: int) -> bool:
    """Whether an operation is done. Raises ValueError for an unknown or fetched handle.

    In a fork of a rank, it also raises it for that rank's handles.
    """
    if handle not in _pending:
        _refuse_inherited(handle)
        raise ValueError(f"handle {handle} was not created or has been cleared")
    return bool(_pending[handle].engine.poll(handle))


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result, once; None for an unknown handle.

    Raises HorovodInternalError if it failed, on every rank of the set; ValueError in a fork of
    the rank that submitted it.
    """
    tensor = _collect_tensor(handle)
    if tensor is not None:
        return tensor
    pending = _pending.get(handle)
    if pending is None:
        _refuse_inherited(handle)
        return None
    try:
        taken = pending.engine.collect(handle)
    except BaseException:
        # If the operation has not ended, a signal handler has raised; its memory is still in use.
        if _has_ended(pending.engine, handle):
            _pending.pop(handle, None)
        raise
    if _pending.pop(handle, None) is None:  # another thread has fetched it meanwhile
        return None
    if pending.finish is None:
        return pending.result
    return pending.finish(Completed() if taken is None else Completed(*taken))


def _refuse_inherited(handle: int) -> None:
    if handle in _inherited:
        running_engine()


def _leave_to_parent() -> None:
    """After a fork: the parent waits for operations in progress; their memory is never freed."""
    global _unnamed_lock
    _unnamed_lock = threading.Lock()
    _inherited.update(_pending)
    _pending.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def _has_ended(engine: Any, handle: int) -> bool:
    try:
        return bool(engine.poll(handle))
    except ValueError:  # it was fetched and has raised its error
        return True


def wait_native(engine: Any, native: int) -> tuple[list[Any], list[int]]:
    """Wait for an operation of the engine that has no handle here; return outputs and numbers.

    Raises the operation's error.
    """
    engine.wait(native)
    outputs, numbers = engine.take(native)
    return outputs, numbers


def forget_all() -> None:
    """After a shutdown: unfetched handles become invalid, and automatic names start over."""
    _pending.clear()
    _unnamed.clear()


def forget_names(set_id: int) -> None:
    """The automatic names of a process set start over.

    Called when the set is new, whichever set had its number before, and for the whole job when all
    ranks have joined.
    """
    with _unnamed_lock:
        for key in [key for key in _unnamed if key[0] == set_id]:
            del _unnamed[key]
