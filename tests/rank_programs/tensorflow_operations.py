"""Horovod's operations in TensorFlow, one check after the other in one job: starting it is slow."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import tensorflow as tf

from hvdtune import _native

if lacks := os.environ.get("HVDTUNE_TEST_LACKS"):  # a function of TensorFlow's C interface

    def refuse(library: str) -> None:
        raise ValueError(f"{library} lacks {lacks}")

    _native.register_tensorflow = refuse

import hvdtune.tensorflow as hvd
from hvdtune.tensorflow import mpi_ops as ops

Check = Callable[[], None]
CHECKS: dict[str, Check] = {}
DTYPES = (
    *(tf.bool, tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.int64),
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64),
)
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def run(but: Collection[str] = ()) -> dict[str, str]:
    """What each check found wrong; empty texts for those that passed."""
    hvd.init()
    found = {}
    for name, function in CHECKS.items():
        if name in but:
            continue
        try:
            function()
            found[name] = ""
            print(name, flush=True)
        except Exception:
            found[name] = traceback.format_exc()
    hvd.shutdown()
    return found


def equal(got: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(np.asarray(got, "float64"), np.asarray(wanted, "float64"))


def fails(kind: type[Exception], call: Callable[[], Any], text: str = "") -> None:
    try:
        call()
    except kind as error:
        said = str(error)
    else:
        raise AssertionError(f"no {kind.__name__}")
    assert text in said, f"{text!r} is not in {said}"


def both_modes(call: Callable[..., Any]) -> list[Callable[..., Any]]:
    return [call, tf.function(call)]


# ---- values -------------------------------------------------------------------------------------


def exchanged(tensors: list[tf.Tensor]) -> list[tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    results = []
    for tensor in tensors:
        label = f"{tensor.dtype.name}_{len(tensor.shape)}"
        sent = ops.broadcast(tensor, hvd.size() - 1, name=f"b_{label}")
        gathered = ops.allgather(tensor, name=f"g_{label}") if len(tensor.shape) else tensor
        results.append((sent, gathered, ops._allreduce(tensor, f"r_{label}", ops.Max)))
    return results


@check
def every_dtype_and_shape() -> None:
    rank, size = hvd.rank(), hvd.size()
    for shape in ((), (1,), (0, 3), (5, 2), (2, 3, 4)):
        base = np.arange(int(np.prod(shape))).reshape(shape) % 3
        own = [tf.cast(tf.constant(base) * (rank + 1) % 2, dtype) for dtype in DTYPES]
        all_of = [np.asarray(base * (other + 1) % 2) for other in range(size)]
        for call in both_modes(exchanged):
            for tensor, (sent, gathered, most) in zip(own, call(own), strict=True):
                assert sent.dtype == gathered.dtype == most.dtype == tensor.dtype
                equal(sent, all_of[-1])
                equal(gathered, np.concatenate(all_of) if shape else tensor)
                equal(most, np.max(all_of, axis=0))


@check
def every_operator() -> None:
    rank, size = hvd.rank(), hvd.size()
    wanted = {
        ops.Sum: sum(range(1, size + 1)),
        ops.Average: (size + 1) / 2,
        ops.Min: 1,
        ops.Max: size,
        ops.Product: float(np.prod(range(1, size + 1))),
    }
    for op, value in wanted.items():
        for call in both_modes(lambda x, op=op: ops._allreduce(x, op=op, name=f"op{op}")):
            equal(call(tf.fill([3], float(rank + 1))), [value] * 3)
    scaled = ops._allreduce(tf.ones([2]), op=ops.Sum, prescale_factor=2.0, postscale_factor=3.0)
    equal(scaled, [6.0 * size] * 2)


@check
def a_group_of_several_types_is_one_operation() -> None:
    size = hvd.size()
    tensors = [tf.ones([3]), tf.constant([1, 2]), tf.ones([2, 2], tf.bfloat16), tf.ones([])]
    for call in both_modes(lambda *members: ops._grouped_allreduce(list(members))):
        for before, after in zip(tensors, call(*tensors), strict=True):
            assert before.dtype == after.dtype
            equal(after, np.asarray(before, "float64") * size)
    assert ops._grouped_allreduce([]) == []


@check
def rows_may_differ() -> None:
    rank, size = hvd.rank(), hvd.size()
    own = tf.fill([rank, 2], rank)
    wanted = np.concatenate([np.full((other, 2), other) for other in range(size)])
    for call in both_modes(lambda x: (ops.allgather(x), *ops.grouped_allgather([x, x]))):
        for gathered in call(own):
            equal(gathered, wanted)


@check
def alltoall_with_and_without_splits() -> None:
    rank, size = hvd.rank(), hvd.size()
    own = tf.range(size * (size + 1) // 2) + 100 * rank
    splits = list(range(1, size + 1))
    start = sum(splits[:rank])
    wanted = np.concatenate([np.arange(start, start + rank + 1) + 100 * o for o in range(size)])
    for call in both_modes(lambda x: ops.alltoall(x, splits=splits)):
        rows, counts = call(own)
        equal(rows, wanted)
        equal(counts, [rank + 1] * size)
        assert counts.dtype == tf.int32
    equal(ops.alltoall(tf.range(2 * size)), [2 * rank, 2 * rank + 1] * size)


@check
def alltoall_of_nothing() -> None:
    rank, size = hvd.rank(), hvd.size()
    for call in both_modes(lambda x: ops.alltoall(x)):
        assert call(tf.zeros([size, 0])).shape == [size, 0]
        assert call(tf.zeros([0, 2])).shape == [0, 2]
    for call in both_modes(lambda x, splits: ops.alltoall(x, splits)):
        from_the_first = [int(rank == 0)] * size  # the others send nothing
        rows, counts = call(tf.fill([sum(from_the_first), 2], rank), tf.constant(from_the_first))
        equal(rows, [[0, 0]])
        equal(counts, [1] + [0] * (size - 1))
        to_the_last = [0] * (size - 1) + [1]  # the others receive nothing
        rows, counts = call(tf.fill([1, 2], rank), tf.constant(to_the_last))
        last = rank == size - 1
        equal(rows, [[other, other] for other in range(size)] if last else np.zeros((0, 2)))
        equal(counts, [int(last)] * size)


@check
def reducescatter_gives_everybody_a_share() -> None:
    rank, size = hvd.rank(), hvd.size()
    rows = 2 * size + 1
    own = tf.reshape(tf.range(2.0 * rows), [rows, 2])
    begin = 2 * rank + min(rank, 1)
    share = np.arange(2.0 * rows).reshape(rows, 2)[begin : begin + 2 + (rank < 1)]
    for call in both_modes(lambda x: [*ops._grouped_reducescatter([x]), ops._reducescatter(x)]):
        for got in call(own):
            equal(got, share * size)
    equal(ops._reducescatter(own, op=ops.Average), share)


@check
def numbers_are_read_when_they_are_needed() -> None:
    size = hvd.size()

    @tf.function
    def numbers() -> Any:
        return ops.size_op(), ops.rank_op(), ops.local_rank_op(), ops.local_size_op()

    wanted = [size, hvd.rank(), hvd.local_rank(), hvd.local_size()]
    assert [int(number) for number in numbers()] == wanted
    assert int(ops.process_set_included_op()) == 1
    assert int(ops.process_set_included_op(77)) == -3
    fails(tf.errors.InvalidArgumentError, lambda: ops.size_op(77), "no process set 77")


# ---- graphs -------------------------------------------------------------------------------------


@check
def many_in_flight_in_another_order_on_every_rank() -> None:
    rank, size = hvd.rank(), hvd.size()
    order = [(i * (1, 3, 7, 9)[rank % 4] + rank) % 200 for i in range(200)]

    @tf.function
    def step(x: tf.Tensor) -> Any:
        return {i: ops._allreduce(x * float(i), name=f"any{i}") for i in order}

    for _ in range(5):
        for i, total in step(tf.ones([3])).items():
            equal(total, [float(i * size)] * 3)


@check
def results_that_nobody_uses_are_exchanged() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        if hvd.rank() % 2:
            ops._allreduce(x, name="unused_on_some")
            return x
        return ops._allreduce(x, name="unused_on_some")

    step(tf.ones([2]))


@check
def what_comes_after_runs_on_tensorflows_threads() -> None:
    def thread(_: Any) -> Any:
        return np.bytes_(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text())

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        totals = [ops._allreduce(x, name=f"before{i}") for i in range(20)]
        return [tf.numpy_function(thread, [total], tf.string) for total in totals]

    names = {name.numpy().strip() for name in step(tf.ones([2]))}
    assert names
    assert b"hvdtune" not in names, names


@check
def conditions_and_loops() -> None:
    size = hvd.size()

    @tf.function
    def branch(x: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
        return tf.cond(wanted, lambda: ops._allreduce(x, name="branch"), lambda: x)

    equal(branch(tf.ones([2]), tf.constant(True)), [size, size])
    equal(branch(tf.ones([2]), tf.constant(False)), [1, 1])

    @tf.function
    def loop(x: tf.Tensor) -> tf.Tensor:
        totals = tf.TensorArray(tf.float32, size=20)
        for i in tf.range(20):
            totals = totals.write(i, ops._allreduce(x * tf.cast(i, tf.float32), name="turn"))
        return totals.stack()

    equal(loop(tf.ones([])), np.arange(20.0) * size)

    @tf.function
    def side_by_side(x: tf.Tensor) -> tf.Tensor:
        totals = tf.TensorArray(tf.float32, size=20)

        def turn(i: tf.Tensor, written: Any) -> Any:
            value = ops._allreduce(x * tf.cast(i, tf.float32), name="several")
            return i + 1, written.write(i, value)

        start = (tf.constant(0), totals)
        return tf.while_loop(lambda i, _: i < 20, turn, start, parallel_iterations=20)[1].stack()

    equal(side_by_side(tf.ones([])), np.arange(20.0) * size)


@check
def sessions_of_the_first_version() -> None:
    rank, size = hvd.rank(), hvd.size()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None])
        total = ops._allreduce(x)
        gradient = tf.gradients(tf.reduce_sum(ops._allreduce(x * 3.0)), x)[0]
        many = tf.add_n([ops._allreduce(x * float(i)) for i in range(50)])
        assert total.op.name == "HorovodAllreduce_Placeholder_0"
        fed = {x: np.full(2, rank + 1.0)}
        whole = size * (size + 1) / 2
        equal(session.run(total, fed), [whole] * 2)
        equal(session.run(gradient, fed), [3.0 * size] * 2)
        equal(session.run(many, fed), [whole * 1225.0] * 2)


@check
def what_is_an_input_elsewhere_keeps_its_value() -> None:
    @tf.function
    def step(x: tf.Tensor) -> Any:
        doubled = x * 2.0  # its buffer is free for the result, but for the second use
        return ops._allreduce(doubled, name="kept"), doubled

    for _ in range(3):
        total, doubled = step(tf.ones([1000]))
        equal(total, np.full(1000, 2.0 * hvd.size()))
        equal(doubled, np.full(1000, 2.0))


@check
def data_pipelines() -> None:
    data = tf.data.Dataset.range(3).map(lambda x: ops._allreduce(x, name="of_data"))
    equal([int(x) for x in data], np.arange(3) * hvd.size())


@check
def scopes_and_names() -> None:
    size = hvd.size()

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.name_scope("odd" if hvd.rank() % 2 else "even"):
            return ops._allreduce(x, name="same", ignore_name_scope=True)

    equal(step(tf.ones([1])), [size])


# ---- gradients ----------------------------------------------------------------------------------


def differentiable() -> list[tuple[Callable[[Any], Any], Any]]:
    """Calls on two columns of `2 * size` ones, and their gradients."""
    rank, size = hvd.rank(), hvd.size()
    rows = 2 * size
    return [
        (lambda x: ops._allreduce(x), np.full((rows, 2), size)),
        (lambda x: ops._allreduce(x, op=ops.Average), np.ones((rows, 2))),
        (lambda x: ops._allreduce(x, prescale_factor=0.5), np.full((rows, 2), size / 2)),
        (lambda x: ops._grouped_allreduce([tf.ones_like(x), x])[1], np.full((rows, 2), size)),
        (lambda x: ops.allgather(x), np.ones((rows, 2))),
        (lambda x: ops.grouped_allgather([tf.ones_like(x), x])[1], np.ones((rows, 2))),
        (lambda x: ops.broadcast(x, size - 1), np.full((rows, 2), float(rank == size - 1))),
        (lambda x: ops.alltoall(x), np.ones((rows, 2))),
        (lambda x: ops.alltoall(x, splits=[2] * size)[0], np.ones((rows, 2))),
        (lambda x: ops._reducescatter(x), np.full((rows, 2), size)),
        (lambda x: ops._reducescatter(x, op=ops.Average), np.ones((rows, 2))),
        (lambda x: ops._grouped_reducescatter([x, tf.ones_like(x)])[0], np.full((rows, 2), size)),
    ]


@check
def gradients_are_those_of_horovod() -> None:
    rows = 2 * hvd.size()
    for dtype in (tf.float32, tf.float64):
        variable = tf.Variable(tf.ones([rows, 2], dtype))
        for call, wanted in differentiable():

            def gradient(call: Any = call, variable: Any = variable) -> Any:
                with tf.GradientTape() as tape:
                    result = call(variable)
                return tape.gradient(result, variable)

            for of in both_modes(gradient):
                equal(of(), wanted)
    # Of one member of a group at a time, with given gradients of the outputs, in another type.
    members = [variable, tf.Variable(tf.ones([2], tf.float64))]

    def one_by_one() -> list[tf.Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            alone = ops._allreduce(members[0])
            together = ops._grouped_allreduce(members)
        given = [tf.fill(member.shape, 2.0) for member in members]
        by_member = zip(together, members, given, strict=True)
        return [
            tape.gradient(alone, members[0], given[0]),
            *(tape.gradient(output, member, own) for output, member, own in by_member),
        ]

    for of in both_modes(one_by_one):
        for got, member in zip(of(), (members[0], *members), strict=True):
            equal(got, np.full(member.shape, 2 * hvd.size()))


@check
def gradients_in_sessions() -> None:
    """With what comes from above in another floating type than the operation's."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.ones([2 * hvd.size(), 2], tf.float64)
        gradients = []
        for call, _ in differentiable():
            result = call(x)
            above = tf.ones(tf.shape(result), tf.float32)
            gradients.append(tf.gradients(result, x, above)[0])
        wanted = [expected for _, expected in differentiable()]
        for got, expected in zip(session.run(gradients), wanted, strict=True):
            equal(got, expected)


@check
def the_gradient_of_an_allgather_of_different_rows() -> None:
    rank, size = hvd.rank(), hvd.size()
    variable = tf.Variable(tf.ones([rank + 1, 2]))
    weights = tf.range(float(size * (size + 1) // 2))[:, tf.newaxis] * (rank + 1.0)

    def gradient() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ops.allgather(variable) * weights)
        return tape.gradient(loss, variable)

    first = rank * (rank + 1) // 2
    wanted = np.arange(first, first + rank + 1)[:, None] * np.ones((1, 2)) * (size + 1) / 2
    for of in both_modes(gradient):
        equal(of(), wanted)


@check
def rows_that_are_not_sent_have_no_gradient() -> None:
    size = hvd.size()
    variable = tf.Variable(tf.ones([size + 2]))
    with tf.GradientTape() as tape:
        received, _ = ops.alltoall(variable, splits=[1] * size)
    equal(tape.gradient(received, variable), [1.0] * size + [0.0, 0.0])


@check
def gradients_of_results_whose_rows_are_gathered() -> None:
    """They are IndexedSlices, which a function makes dense by itself."""
    variable = tf.Variable(tf.ones([2 * hvd.size(), 2]))
    for call, wanted in differentiable():

        def gradient(call: Any = call) -> Any:
            with tf.GradientTape() as tape:
                result = call(variable)
                rows = tf.gather(result, tf.range(tf.shape(result)[0]))
            return tape.gradient(rows, variable)

        for of in both_modes(gradient):
            equal(of(), wanted)


@check
def gradients_of_gradients() -> None:
    size = hvd.size()
    x = tf.Variable(3.0)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            y = ops._allreduce(x * x * x)
        first = inner.gradient(y, x)
    equal(outer.gradient(first, x), 18.0 * size)


# ---- mistakes -----------------------------------------------------------------------------------


@check
def ranks_that_disagree_hear_it() -> None:
    if hvd.size() == 1:
        return
    rank = hvd.rank()
    wrong = [
        lambda: ops._allreduce(tf.zeros([rank + 1])),
        lambda: ops._allreduce(tf.zeros([2], tf.int32 if rank else tf.float32)),
        lambda: ops._allreduce(tf.zeros([1, 2] if rank else [2])),
        lambda: ops._allreduce(tf.zeros([2]), op=ops.Sum if rank else ops.Max),
        lambda: ops.broadcast(tf.zeros([2]), min(rank, 1)),
        lambda: ops.broadcast(tf.zeros([rank + 1]), 0),
        lambda: ops.allgather(tf.zeros([2, rank + 1])),
        lambda: ops.allgather(tf.zeros([2], tf.int32 if rank else tf.float32)),
        lambda: ops.alltoall(tf.zeros([hvd.size(), rank + 1])),
        lambda: ops.alltoall(tf.zeros([hvd.size()], tf.int32 if rank else tf.float32)),
        lambda: ops._reducescatter(tf.zeros([rank + 4])),
        lambda: ops._reducescatter(tf.zeros([4, 1] if rank else [4])),
        lambda: ops._grouped_allreduce([tf.zeros([2]), tf.zeros([rank + 1])]),
    ]
    for call in wrong:
        fails(tf.errors.FailedPreconditionError, call, "ismatched")
        fails(tf.errors.FailedPreconditionError, tf.function(call), "ismatched")
    equal(ops._allreduce(tf.ones([1])), [hvd.size()])  # and the job goes on


@check
def one_rank_s_mistakes() -> None:
    size = hvd.size()
    invalid = tf.errors.InvalidArgumentError
    fails(invalid, lambda: ops.broadcast(tf.ones([2]), size), "invalid root rank")
    fails(invalid, lambda: ops.alltoall(tf.ones([size]), splits=[1] * (size + 1)))
    fails(invalid, lambda: ops.alltoall(tf.ones([size]), splits=[2] * size))
    if size > 1:
        fails(invalid, lambda: ops.alltoall(tf.ones([size + 1])), "not divisible")
    fails(invalid, lambda: ops._reducescatter(tf.constant(1.0)), "scalar")
    group = [tf.zeros([2, 1]), tf.constant(1.0)]
    fails(invalid, lambda: ops._grouped_reducescatter(group), "scalar")
    fails(tf.errors.FailedPreconditionError, lambda: ops.allgather(tf.constant(1.0)))
    for call in (ops.allgather, ops._reducescatter):
        fails(
            (ValueError, invalid),  # type: ignore[arg-type]
            lambda call=call: tf.function(call)(tf.constant(1.0)),
            "at least one dimension",
        )
    fails(ValueError, lambda: ops._allreduce(tf.constant("text")), "string is not supported")
    fails(ValueError, lambda: ops._allreduce(tf.constant([True]), op=ops.Average), "bool")
    fails(ValueError, lambda: ops._allreduce(tf.ones([1]), op=99), "unknown reduction")
    fails(ValueError, lambda: ops._grouped_allreduce(tf.ones([2])), "takes a list")
    fails(invalid, lambda: ops._allreduce(tf.ones([1]), process_set=hvd.ProcessSet([0, 99])))
    vanished = hvd.ProcessSet([0])
    vanished.process_set_id = 10
    for call in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter):
        for kind in (invalid, ValueError):  # Horovod raises one or the other
            fails(kind, lambda call=call: call(tf.ones([4]), process_set=vanished), "not exist")


# ---- sets, threads, lives -----------------------------------------------------------------------


@check
def process_sets() -> None:
    rank, size = hvd.rank(), hvd.size()
    if size == 1:
        return
    even = hvd.add_process_set(range(0, size, 2))
    odd = hvd.add_process_set(range(1, size, 2))
    mine, other = (odd, even) if rank % 2 else (even, odd)
    members = mine.size()
    known = {0: list(range(size)), even.process_set_id: even.ranks, odd.process_set_id: odd.ranks}
    assert ops._basics._get_process_set_ids_and_ranks() == known, "as Horovod's own tests ask"
    for call in both_modes(lambda x: ops._allreduce(x, name="of_a_set", process_set=mine)):
        equal(call(tf.ones([2])), [members] * 2)
    equal(ops.allgather(tf.fill([1], rank), process_set=mine), mine.ranks)
    assert int(ops.size_op(mine.process_set_id)) == members
    assert int(ops.process_set_included_op(other.process_set_id)) == 0
    refused = tf.errors.InvalidArgumentError
    fails(refused, lambda: ops._allreduce(tf.ones([2]), process_set=other))
    fails(refused, lambda: ops.broadcast(tf.ones([2]), 1 - rank % 2, process_set=mine))
    variable = tf.Variable(tf.ones([2, 2]))
    with tf.GradientTape() as tape:
        gathered = ops.allgather(variable, process_set=mine)
    equal(tape.gradient(gathered, variable), np.ones((2, 2)))
    hvd.remove_process_set(even)
    hvd.remove_process_set(odd)
    assert list(ops._basics._get_process_set_ids_and_ranks()) == [0]
    fails(refused, lambda: ops._allreduce(tf.ones([2]), process_set=mine))


def in_threads(count: int, work: Callable[[int], None]) -> None:
    wrong: list[str] = []

    def run_one(number: int) -> None:
        try:
            work(number)
        except Exception:
            wrong.append(traceback.format_exc())

    threads = [threading.Thread(target=run_one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


@check
def threads_in_eager_mode() -> None:
    size = hvd.size()

    def with_names(number: int) -> None:
        for _ in range(30):
            total = ops._allreduce(tf.fill([number + 1], float(number)), name=f"of{number}")
            equal(total, [number * size] * (number + 1))

    in_threads(3, with_names)

    # One thread after the other, on another number of threads on each rank.
    turn = threading.Lock()
    for _ in range(6):

        def in_turn(number: int) -> None:
            with turn:
                if number == 0:
                    equal(ops._allreduce(tf.ones([3])), [size] * 3)

        in_threads(1 + hvd.rank(), in_turn)


@check
def a_name_in_flight_is_not_given_twice() -> None:
    """Which of the two another rank means, nobody could know."""
    if hvd.size() == 1:
        return
    step = tf.function(lambda x: ops._allreduce(x, name="shared"))
    step(tf.ones([2]))
    refused: list[str] = []
    first = threading.Event()

    def work(_: int) -> None:
        try:
            equal(step(tf.ones([2])), [hvd.size()] * 2)
        except tf.errors.InvalidArgumentError as error:
            refused.append(str(error))
            first.set()

    if hvd.rank() == 0:
        both = threading.Thread(target=in_threads, args=(2, work))
        both.start()
        assert first.wait(60)
    hvd.broadcast_object(None, 0, name="one is refused")
    if hvd.rank() > 0:
        step(tf.ones([2]))
    else:
        both.join()
        assert len(refused) == 1
        assert "names in flight must be different" in refused[0]


@check
def large_tensors() -> None:
    size = hvd.size()
    own = tf.fill([1 << 20], 1.5)
    for call in both_modes(lambda x: (ops._allreduce(x), ops.allgather(x), ops._reducescatter(x))):
        total, gathered, share = call(own)
        assert float(tf.reduce_min(total)) == float(tf.reduce_max(total)) == 1.5 * size
        assert gathered.shape == [size << 20]
        assert float(tf.reduce_sum(gathered)) == 1.5 * (size << 20)
        assert float(tf.reduce_min(share)) == 1.5 * size


@check
def joining() -> None:
    rank, size = hvd.rank(), hvd.size()
    for step in range(rank + 1):
        total = ops._allreduce(tf.ones([1]), name="uneven")
        equal(total, [size - step])
    last = int(ops.join())
    assert last == size - 1, last


@check
def variables_get_the_roots_values() -> None:
    rank = hvd.rank()
    variables = [tf.Variable(tf.fill([2], float(rank))), tf.Variable(rank)]
    for value, variable in zip(ops.broadcast_(variables, 0), variables, strict=True):
        equal(value, np.zeros(variable.shape))
        equal(variable, np.zeros(variable.shape))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        old = tf.compat.v1.get_variable("old", initializer=float(rank), use_resource=False)
        new = tf.compat.v1.get_variable("new", initializer=float(rank), use_resource=True)
        fails(ValueError, lambda: ops.broadcast_([old, new], 0), "not both")
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(ops.broadcast_([old], 0))
        equal(session.run(old), 0.0)
    for resource in (True, False):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            made = [
                tf.compat.v1.get_variable(
                    name, initializer=tf.fill([2], float(rank)), use_resource=resource
                )
                for name in ("a", "b", "c")
            ]
            values = ops.broadcast_(made, hvd.size() - 1)
            session.run(tf.compat.v1.global_variables_initializer())
            equal(session.run(values[1]), [hvd.size() - 1] * 2)  # which gives all of them theirs
            equal(session.run(made), [[hvd.size() - 1] * 2] * 3)


@check
def functions_outlive_a_job() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return ops._allreduce(x, name="again")

    equal(step(tf.ones([1])), [hvd.size()])
    hvd.shutdown()
    fails(tf.errors.FailedPreconditionError, lambda: step(tf.ones([1])), "use hvd.init()")
    fails(tf.errors.FailedPreconditionError, lambda: ops._allreduce(tf.ones([1])), "hvd.init()")
    assert int(ops.process_set_included_op()) == -1
    hvd.init()
    equal(step(tf.ones([1])), [hvd.size()])


def wait_for_the_dead(place: str) -> tuple[str, str]:
    """Rank 1 never reduces, and is killed; what rank 0 hears of it."""
    hvd.init()
    call: Any = lambda: ops._allreduce(tf.ones([2]))  # noqa: E731
    print("started", flush=True)
    if hvd.rank() == 1:
        threading.Event().wait()
    try:
        (tf.function(call) if place == "graph" else call)()
    except tf.errors.OpError as error:
        return type(error).__name__, error.message
    return "", "no error"
