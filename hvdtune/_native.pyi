"""The native module, built from native/python. Use it through hvdtune.core.

Errors of the job (a mismatch, a dead rank, its end) raise HorovodInternalError, errors of an
argument ValueError. Every call that may wait releases the GIL.
"""

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

MAX_RANKS: int
MAX_RANKS_PER_HOST: int
MAX_PROCESS_SETS: int
gpus: bool  # whether tensors on GPUs can be submitted, given the libraries

DTYPES: dict[str, int]
"""The codes of dtypes, by name."""
OP_KINDS: dict[str, int]
"""The codes of the operations that ranks can submit: `allreduce`, …, `remove_process_set`."""
MARKS: dict[str, int]
"""The kinds of marks that Python sets: `stall`, `autotune`, `straggler`, `user`, `phase`."""

class Running:
    """The engine that runs in this process."""

    engine: Engine | None

def begin_running(engine: Engine) -> None:
    """From now on calls from frameworks' threads, without Python, use this engine."""

def end_running(absence: str) -> None:
    """From now on there is no engine: such calls fail with this sentence."""

def steps_ended() -> int:
    """How many steps of this process have ended that a graph has reported and that count."""

def leave_steps_to_program() -> None:
    """From now on the program reports its steps itself: graphs report none."""

def find_mxnet(library: int) -> None:
    """Find MXNet's functions in its library, given by dlopen()'s handle.

    Before the first `push_mxnet`. Raises ValueError with the names of missing functions.
    """

def push_mxnet(
    kind: int,
    name: str,
    inputs: Sequence[int],
    outputs: Sequence[int],
    op: int,
    prescale: float,
    postscale: float,
    root: int,
    process_set: int,
    grouped: bool,
    cacheable: bool,
    tied: Sequence[int],
    priority: int,
) -> None:
    """Push an operation from NDArrays to as many others, given by their handles, to MXNet's engine.

    If both are the same arrays, it is in place. Returns at once, or after a short wait for the
    other ranks if nothing else is in flight. Raises ValueError or HorovodInternalError for errors
    that are known at once; MXNet raises the others when an output is read. `cacheable`: whether the
    name will be used again. `tied`: further NDArrays that order operations with this name: an
    operation that shares an array with the last one, among its own or its `tied` ones, runs after
    that one.
    """

def push_mxnet_step_mark(arrays: Sequence[int]) -> None:
    """A training step ends when MXNet has computed these NDArrays, given by their handles."""

def register_tensorflow(library: str) -> None:
    """Register Horovod's operations with the TensorFlow whose framework library this is.

    Once. Raises ValueError, and registers nothing, if the library is not loaded, or, with their
    names, if it lacks functions.
    """

def register_tensorflow_xla(library: str) -> None:
    """Register custom calls for the CPU with the XLA in TensorFlow's library at this path.

    `hvdtune_collective`, `hvdtune_place` and `hvdtune_step_end`; native/faces/xla/untyped_call.h
    has their texts. Once.
    Raises ValueError, and registers nothing, if the library is not loaded or lacks something.
    """

def xla_collective_call() -> object:
    """A capsule with the handler of XLA's custom call for all collectives on the CPU.

    Its attributes: `name`, a string; `numbers`, int64: the kind, the operator, the root, the
    process set's number, whether it is a group, the set's size and this rank's place in it (0 and 0
    if the program serves any), whether all ranks have equally many rows; `factors`, float64, before
    and after a reduction; `splits`, int64.
    """

class Pending:
    """An operation whose result has not been fetched.

    `memory` must live until it is done; `finish` makes the result from the engine's outputs. If
    `finish` is None, `result` is the result.
    """

    engine: Engine
    memory: object
    finish: Callable[[Any], Any] | None
    result: Any

    def __init__(
        self, engine: Engine, memory: object, finish: Callable[[Any], Any] | None, result: object, /
    ) -> None: ...

class HotCalls:
    """The calls that are made for every gradient, as one step from a face to the engine.

    `running` has the engine; `pending` holds operations, by handle, until their results are
    fetched; `id_of` gives the number of any process set except `whole_job`.
    """

    def __init__(
        self,
        running: Running,
        pending: dict[int, Pending],
        whole_job: object,
        id_of: Callable[[Any], int],
    ) -> None: ...
    def submit_in_place(
        self,
        tensor: Any,
        codes: dict[Any, int],
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: Any,
        /,
    ) -> int | None:
        """Allreduce one named torch tensor or array in place; returns its handle.

        `codes` are dtype codes by the tensor's dtype; the rest is what a face's `allreduce` takes.
        Returns None, and submits nothing, if the tensor cannot be submitted as it is.
        """

    def allreduce_at_once(
        self,
        tensor: Any,
        codes: dict[Any, int],
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: Any,
        output: Any = ...,
        /,
    ) -> bool:
        """`submit_in_place` and wait, in one cheaper call; False if that would return None.

        Small tensors need no coordinator if all ranks call this. With `output`, of the same type
        and shape, the result goes there and `tensor` stays as it is.
        """

    def exchange_at_once(
        self,
        kind: int,
        tensor: Any,
        codes: dict[Any, int],
        name: str | None,
        process_set: Any,
        make_output: Callable[[Any, int | None], Any] | None,
        root: Any = ...,
        op: Any = ...,
        prescale_factor: float = ...,
        postscale_factor: float = ...,
        /,
    ) -> Any:
        """One named allgather, broadcast, alltoall (of equal parts) or reducescatter, and wait.

        `make_output(tensor, rows)` gives the tensor for the result, of `tensor`'s type and shape
        except for `rows` rows (None: as many); without it a broadcast is in place. Returns that
        tensor, or (outputs, numbers) as `Engine.collect` if the ranks had unequal lengths. Returns
        None, and submits nothing, if the tensor cannot be submitted as it is, and for large results
        whose length the others decide. `root` is for broadcasts, the arguments after it for
        reducescatters.
        """

    def barrier_at_once(self, process_set: Any, /) -> bool:
        """Wait for all ranks of the set; False, without waiting, if no engine runs."""

    def collect_in_place(self, handle: int, /) -> Any:
        """Wait for a handle of `submit_in_place` and return its tensor; None for other handles."""

class AllreducePlan:
    """Allreduces in place that are made together, again and again, such as those of gradients.

    From the third time on the engine gets in one call all tensors that have the same type and
    shape as the time before.
    """

    def __init__(
        self,
        calls: HotCalls,
        codes: dict[Any, int],
        names: tuple[str, ...],
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        process_set: Any,
    ) -> None: ...
    def reduce(self, tensors: list[Any], outcomes: list[int | bool | None], /) -> bool:
        """`submit_in_place` of one tensor per name, then wait for all; whether all are reduced.

        `outcomes` gets one item for each: None if it is reduced, False if it cannot be submitted
        as it is, otherwise a handle: the operation has failed, or this call was interrupted. If one
        is refused, which raises an error, it and those after it have no item.
        """

class StepState:
    """The shared state of one optimizer's hooks: its progress in the step.

    `only_notes`: in a parameter's last backward pass of the step, as long as autograd builds no
    graph (`grad_enabled()` is false), a hook only notes the parameter. In all other cases it
    calls `otherwise(hook)`. `pending`: some hook has noted a parameter.
    """

    only_notes: bool
    pending: bool

    def __init__(
        self, grad_enabled: Callable[[], bool], otherwise: Callable[[Any], object]
    ) -> None: ...

class GradientHook:
    """A parameter's hook, called when a backward pass has left a gradient there."""

    parameter: Any
    passes_left: int  # backward passes until the gradient is final
    settled: bool  # the hook also remembers the final gradient: note_gradient()

    def __init__(self, parameter: Any, step: StepState, passes: int) -> None: ...
    def __call__(self, parameter: Any, /) -> None: ...
    def note_gradient(self) -> None:
        """Remember the parameter's gradient as it is now, for `is_changed`."""

def gather_gradients(hooks: list[Any]) -> tuple[list[Any], Any] | None:
    """The gradients of all parameters, and the first hook whose gradient is_changed(), or None.

    None if a parameter has no gradient or requires none.
    """

def is_changed(hook: GradientHook) -> bool:
    """Whether the gradient that the hook remembers has been changed since, in place."""

def begin_step(hooks: list[Any], passes: int) -> None:
    """Let hooks count `passes` backward passes again, and remember no gradient."""

class Cancellation:
    """Ends an Engine's wait for the other ranks, from any thread."""

    def cancel(self, why: str) -> None:
        """Engine() with this in its options raises HorovodInternalError, with this sentence."""

class Beats:
    """A thread that sends `line` to a socket every `seconds`, without Python's lock."""

    def __init__(self, socket: int, line: bytes, seconds: float) -> None:
        """Begin. The socket, a descriptor, may be closed: the connection stays open until `stop`.

        Raises ValueError if it is not a socket.
        """

    def keep(self) -> None:
        """Go on until the process has ended, even if this object is deleted."""

    def stop(self) -> None:
        """Return when the thread has ended. Does nothing in a fork, which has no such thread."""

class EngineOptions:
    """The parameters of an engine; every field is required."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        local_size: int,
        cancellation: Cancellation | None,
        network_host: str,
        network_port: int,
        network_secret: str,
        interfaces: Sequence[str],
        host_salt: str,
        version: str,
        host_fanout: int,
        endpoint: str,
        secret: str,
        hostname: str,
        agreement: str,
        start_timeout_s: float,
        cache_capacity: int,
        disable_group_fusion: bool,
        fusion_threshold: int,
        cycle_time_ms: float,
        chunk_size: int,
        one_shot_limit: int,
        nccl_bypass_limit: int,
        writing: str,
        reduction_threads: int,
        spin_us: int,
        affinity: int,
        process_sets: Sequence[Sequence[int]],
        timeline: str,
        timeline_mark_cycles: bool,
        timeline_format: str,
        timeline_all_ranks: bool,
        timeline_job: str,
        timeline_identity: str,
        timeline_buffer_bytes: int,
        timeline_file_limit: int,
        timeline_first_step: int,
        timeline_end_step: int,
        watch_steps: bool,
        straggler_share: float,
        stall_enabled: bool,
        stall_warning_s: float,
        stall_shutdown_s: float,
        data_plane: str,
        data_plane_library: str,
        data_plane_problem: str,
        hierarchical_allreduce: bool,
        hierarchical_allgather: bool,
        mpi_multiple: bool,
        gloo_interface: str,
        gloo_timeout_s: float,
        cuda_library: str,
        cuda_problem: str,
        nccl_library: str,
        nccl_problem: str,
        nvrtc_library: str,
        nvtx_library: str,
        nccl_streams: int,
        nccl_min_ctas: int,
        nccl_max_ctas: int,
        nccl_cga_cluster_size: int,
        nccl_cta_policy: int,
        nccl_between_hosts: bool,
        tunes_nccl_bypass: bool,
        async_completion: bool,
        share_gpu: bool,
    ) -> None: ...

class DeviceDone:
    """Waits for a GPU's part of an operation that is done for the host."""

    def let_wait(self, stream: int) -> None:
        """Work that `stream` gets from now on begins after it."""

    def wait(self) -> None:
        """Wait on the host until it is done."""

class DeviceArray:
    """An array in a GPU's memory, contiguous; bfloat16 as int16 bits."""

    __cuda_array_interface__: dict[str, Any]
    shape: tuple[int, ...]
    device: int

class SharedBlock:
    """Bytes that all ranks can read and write, as a writable buffer; its views keep it alive."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Engine:
    """One rank's communication engine: submit operations, wait for them."""

    def __init__(self, options: EngineOptions) -> None:
        """Meet the other ranks; blocks until all have come or the start timeout is over."""

    def submit(
        self,
        kind: int,
        name: str,
        tensors: Sequence[tuple[int, int, int, Sequence[int]]],
        reduce_op: int,
        prescale: float,
        postscale: float,
        root: int,
        process_set: int,
        grouped: bool,
        cacheable: bool,
        splits: Sequence[int],
        device: int = ...,
        streams: Sequence[int] = ...,
    ) -> int:
        """Submit an operation; returns its handle.

        A tensor is (input address, output address or 0, dtype code, shape); its memory must live
        until the operation is done. An output address of 0 lets the engine allocate the result.
        Addresses are those of GPU `device`, or -1 for the host; the tensors can be used after the
        work that `streams` have now.
        """

    def device_of(self, pointer: int) -> int:
        """The GPU whose memory contains an address; for 0, the current one.

        Raises ValueError if no GPU's does.
        """

    def device_memory(self, shape: Sequence[int], dtype: int, device: int) -> DeviceArray:
        """A new array on a GPU, uninitialised. `dtype` is a code."""

    def allocate_shared(self, bytes: int) -> SharedBlock:
        """Zeroed memory for tensors that are reduced often.

        Tensors of all ranks in such memory are reduced in place, without packing, from the second
        use of their name on. Raises ValueError if there is no such memory, or not enough.
        """

    def poll(self, handle: int) -> bool:
        """Whether the operation is done."""

    def wait(self, handle: int) -> None:
        """Wait until the operation is done; Ctrl-C interrupts."""

    def take(self, handle: int) -> tuple[list[NDArray[Any]], list[int]] | None:
        """The results of a finished operation, which is then forgotten; None if it is unknown.

        The results are the arrays that the engine allocated (bfloat16 as uint16 bits), and numbers.
        The numbers are how many rows came from each member (alltoall), the last rank to join
        (join), or the new set's number (process set).
        """

    def collect(self, handle: int, /) -> tuple[Any, ...] | None:
        """`wait` and `take`; None as well when there are no results.

        For tensors on a GPU the arrays are DeviceArrays, and a DeviceDone follows if the GPU may
        not be done.
        """

    def join(self, device: int = ...) -> int:
        """Contribute zeros until all ranks have joined; returns a handle, done then.

        `device`: the GPU on which zeros for tensors on GPUs are made, if this rank has had no
        tensors on a GPU.
        """

    def add_process_set(self, ranks: Sequence[int]) -> int:
        """Ask for a new process set, as all ranks must; a handle, done when all have.

        `take` raises ValueError on every rank if the ranks differ or the set is impossible.
        """

    def remove_process_set(self, process_set: int) -> int:
        """Ask for the end of a process set, as all ranks must; a handle, done when all have."""

    def process_set_ranks(self, process_set: int) -> list[int]:
        """Global ranks of a process set; empty if no set has that number."""

    def shutdown(self) -> None:
        """End the job for all ranks; returns when this engine has stopped."""

    def cancel(self, why: str) -> None:
        """End the job at once, for all ranks, with this reason; from any thread."""

    def abandon(self) -> None:
        """After a fork, in the child: release the engine without touching the job."""

    def peers(self) -> list[tuple[str, int]]:
        """Host name and process id of every rank."""

    def hosts(self) -> list[int]:
        """By rank: the number of its host; all 0 on one host."""

    def host_cpus(self) -> int:
        """CPUs that all ranks on this host may use together; the same on all of them."""

    def start_timeline(
        self, path: str, mark_cycles: bool, first_step: int, end_step: int, waits: bool
    ) -> str:
        """Ask for a recording of all ranks; if the call waits, returns "" or why there is none.

        It records from this place in the schedule on, or, if they are not 0, the steps from
        `first_step` to before `end_step`.
        """

    def stop_timeline(self, waits: bool) -> None:
        """Ask for the recording's end; a call that waits returns once this rank's file is whole."""

    def toggle_timeline(self, path: str, mark_cycles: bool) -> None:
        """End the recording, or begin one if there is none. Does not wait.

        Requests of several ranks within seconds count as one.
        """

    def is_recorded(self) -> bool:
        """Whether a recording runs, or waits for its first step."""

    def recorded_file(self) -> str:
        """Rank 0: the name that the file of that recording will have when finished, or ""."""

    def takes_records(self) -> bool:
        """Whether events are recorded now: a recording has begun."""

    def mark_step(self) -> None:
        """A training step ends here; counted even if nobody records."""

    def steps_ended(self) -> int:
        """How many steps have ended."""

    def mark(self, kind: int, value: int, text: str) -> None:
        """A moment, for the recording; see hvdtune.timeline.record.layout.Mark."""

    def counter(self, name: str, value: float) -> None:
        """A reading of a counter, for the recording."""

    def await_recordings(self, timeout_s: float) -> bool:
        """After shutdown: wait until all ranks have closed their files; False at the timeout."""

    def recorded(self) -> list[str]:
        """Rank 0, after shutdown: the recordings that were begun."""

    def set_stack_source(self, source: Callable[[], str]) -> None:
        """Set the function that answers when another rank asks where this one is."""

    def serve(self, name: str, identity: str, command: Callable[[str], str]) -> None:
        """Rank 0: answer other processes of this user at the abstract socket `name`.

        `identity` is the inside of a JSON object, put before `status()`. Requests that the engine
        does not know are passed to `command`, on a separate thread; its exceptions become text.
        """

    def status(self) -> str:
        """Rank 0: what is known of the running job, as a JSON object; other ranks: an empty one."""

    def note(self, key: str, text: str) -> None:
        """Add a line to `status()`; an empty text removes it."""

    def start_clock(self) -> None:
        """Compare this rank's clock with rank 0's, at once and every 10 s."""

    def stop_clock(self, timeout_s: float) -> bool:
        """Compare once more, then stop; whether the answer arrived in time."""

    def clock_readings(self, skip: int = 0) -> list[tuple[int, int, int]]:
        """(local time, offset to rank 0's clock, bound of its error) in ns, oldest first."""

    def read_steps(self, timeout_s: float) -> list[tuple[int, int, int, int, int, int, int, bool]]:
        """Rank 0: training steps since the last call; waits for one until the timeout.

        A step is (index, end in ns, duration in ns, bytes, batches, tensors, epoch,
        whether some of the tensors have names of their own).
        """

    def stop_watching_steps(self) -> None:
        """Nobody will call `read_steps` any more: the coordinator need not see the traffic."""

    def steps_closed(self) -> bool:
        """Whether no further step will come."""

    def interrupt(self, number: int) -> None:
        """Rank 0: notify all ranks, after the same operation on each, that something is waiting.

        Does nothing on other ranks. A number has an effect if it is higher than the one before.
        """

    def interrupted(self) -> int:
        """The last `interrupt` before an operation that this rank has completed.

        The same on ranks that have completed the same operations; 0 if there is none.
        """

    def change_settings(
        self,
        fusion_threshold: int | None = None,
        cycle_time_ms: float | None = None,
        chunk_size: int | None = None,
        one_shot_limit: int | None = None,
        hierarchical_allreduce: bool | None = None,
        hierarchical_allgather: bool | None = None,
        nccl_streams: int | None = None,
        nccl_bypass_limit: int | None = None,
    ) -> int:
        """Rank 0: change settings for all ranks from one batch on; returns their epoch's number.

        A setting that is None keeps its latest requested value, even if that is not yet in force.
        """

    def can_bypass_nccl(self) -> bool:
        """Whether short batches on GPUs can bypass NCCL: known once some have used NCCL, in a job
        whose limit is not 0 or is tuned."""

    def settings(self) -> tuple[int, int, float, int, int, bool, bool, int, int]:
        """The settings in force: epoch, fusion threshold, cycle time in ms, chunk size, one-shot
        limit, whether allreduces and allgathers work within each host first, NCCL streams, the
        limit for bypassing NCCL in bytes."""

    def uses_nccl(self) -> bool:
        """Whether a batch of this rank's has used NCCL."""

def configure_logging(level: str, hide_time: bool) -> None:
    """Set the lowest level of messages that are printed, and whether they omit the time."""

def array_address(array: Any) -> int:
    """Address of a NumPy array's first element; much cheaper than ctypes."""

def result_memory(bytes: int) -> Any:
    """Uninitialised memory for a result, as an array of uint8.

    The memory of a large result is reused afterwards.
    """

def log(level: str, file: str, line: int, rank: int, message: str) -> None:
    """Print a message in the engine's format; rank -1 leaves the rank out."""

def finish_mpi(finalizes: bool, hydra: int) -> None:
    """Call MPI_Finalize if `finalizes` is true, an engine of this process has initialised MPI, and
    no job was aborted. No thread of the engine calls MPI any more. hydra: the descriptor of this
    process's connection to MPICH's mpirun; -1: none."""

def mpi_threads_multiple() -> bool:
    """Whether MPI allows calls from several threads at a time; False if no engine uses it."""

def usable_cpus() -> int:
    """CPUs this process may use: its affinity mask, limited by the container's quota."""
