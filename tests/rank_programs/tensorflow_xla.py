"""Horovod's operations in functions that TensorFlow's XLA compiles, one check after the other."""

from __future__ import annotations

import os
import random
import time
import traceback
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import keras
import numpy as np
import tensorflow as tf
from rank_programs import keras_training

import hvdtune.keras
import hvdtune.tensorflow as hvd
from hvdtune import _native
from hvdtune.tensorflow import mpi_ops as ops
from hvdtune.tensorflow.calls import compiled as compiled_calls

Check = Callable[[], None]
CHECKS: dict[str, Check] = {}
DTYPES = (
    *(tf.bool, tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.int64),
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64),
)


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def run() -> dict[str, str]:
    """What each check found wrong; empty texts for those that passed."""
    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hvd.init()
    assert not compiled_calls.missing(), compiled_calls.missing()
    found = {}
    for name, function in CHECKS.items():
        try:
            function()
            found[name] = ""
            print(name, flush=True)
        except Exception:
            found[name] = traceback.format_exc()
    hvd.shutdown()
    return found


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return tf.function(function, jit_compile=True, autograph=False, **options)


def equal(got: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(np.asarray(got, "float64"), np.asarray(wanted, "float64"))


def fails(kind: type[Exception], call: Callable[[], Any], text: str) -> str:
    try:
        call()
    except kind as error:
        said = str(error)
    else:
        raise AssertionError(f"no {kind.__name__}")
    assert text in said, f"{text!r} is not in {said}"
    return said


# ---- values -------------------------------------------------------------------------------------


@check
def every_dtype() -> None:
    rank, size = hvd.rank(), hvd.size()
    base = np.arange(6).reshape(3, 2) % 3
    own = [tf.cast(tf.constant(base + rank) % 2, dtype) for dtype in DTYPES]
    every = [(base + other) % 2 for other in range(size)]

    @compiled
    def exchange(tensors: list[tf.Tensor]) -> list[tuple[tf.Tensor, ...]]:
        return [
            (
                hvd.broadcast(one, size - 1),
                hvd.allgather(one),
                ops._allreduce(one, op=ops.Max),
                ops._allreduce(one, op=ops.Sum),
            )
            for one in tensors
        ]

    for tensor, results in zip(own, exchange(own), strict=True):
        sent, gathered, most, total = results
        assert {one.dtype for one in results} == {tensor.dtype}
        equal(sent, every[-1])
        equal(gathered, np.concatenate(every))
        equal(most, np.max(every, axis=0))
        equal(total, np.max(every, axis=0) if tensor.dtype == tf.bool else np.sum(every, axis=0))


@check
def every_operator_and_shape() -> None:
    rank, size = hvd.rank(), hvd.size()
    wanted = {
        ops.Sum: sum(range(1, size + 1)),
        ops.Average: (size + 1) / 2,
        ops.Min: 1,
        ops.Max: size,
        ops.Product: float(np.prod(range(1, size + 1))),
    }
    if size == 2:
        wanted[ops.Adasum] = 2.0  # of parallel vectors: their average weighted by their lengths
    shapes = ((), (1,), (0, 3), (2, 3))

    @compiled
    def reduce(value: tf.Tensor) -> list[list[tf.Tensor]]:
        return [
            [hvd.allreduce(tf.fill(s, value), op=op) for s in shapes] for op in list(wanted)[:5]
        ]

    for results, number in zip(reduce(tf.constant(rank + 1.0)), wanted.values(), strict=False):
        for result, shape in zip(results, shapes, strict=True):
            equal(result, np.full(shape, number))

    def scaled(value: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(value, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)

    equal(compiled(scaled)(tf.fill([2], rank + 1.0)), np.full(2, 1.5 * wanted[ops.Sum]))
    if size & (size - 1) == 0:  # Adasum needs a power of two
        adasum = lambda value: hvd.allreduce(value, op=hvd.Adasum)  # noqa: E731
        given = tf.constant([1.0 + rank, 2.0])
        equal(compiled(adasum)(given), tf.function(adasum)(given))


@check
def rows_and_groups() -> None:
    rank, size = hvd.rank(), hvd.size()
    rows = 2 * size + 1
    x = tf.reshape(tf.range(rows * 2, dtype=tf.float32), [rows, 2]) * (rank + 1.0)
    even = tf.range(2 * size) + 100 * rank

    def exchange(x: tf.Tensor, even: tf.Tensor) -> Any:
        return (
            hvd.reducescatter(x, op=hvd.Sum),
            hvd.grouped_reducescatter([x, x[:size]], op=hvd.Average),
            hvd.grouped_allgather([x, even]),
            hvd.grouped_allreduce([x, tf.cast(even, tf.float64)], op=hvd.Sum),
            hvd.alltoall(even),
            hvd.alltoall(even, [2] * size),
            [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()],
        )

    plain = tf.function(exchange, autograph=False)(x, even)
    tf.nest.map_structure(equal, compiled(exchange)(x, even), plain)


@check
def process_sets() -> None:
    alone = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
    mine = alone[hvd.rank()]

    @compiled
    def reduce(x: tf.Tensor) -> Any:
        included = hvd.process_set_included_op(mine.process_set_id)
        return (
            hvd.allreduce(x, op=hvd.Sum, process_set=mine),
            hvd.allgather(x, process_set=mine),
            hvd.allreduce(x, op=hvd.Sum),
            included,
        )

    own, gathered, total, included = reduce(tf.fill([2], hvd.rank() + 1.0))
    equal(own, [hvd.rank() + 1.0] * 2)
    equal(gathered, [hvd.rank() + 1.0] * 2)
    equal(total, [sum(range(1, hvd.size() + 1))] * 2)
    equal(included, 1)
    for one in alone:
        hvd.remove_process_set(one)


# ---- order --------------------------------------------------------------------------------------


@check
def many_independent_calls() -> None:
    """That XLA may start in any order, on ranks whose processors are not equally fast."""
    rank, size = hvd.rank(), hvd.size()
    work = tf.ones([40, 40])

    @compiled
    def reduce(x: tf.Tensor) -> list[tf.Tensor]:
        results = []
        for i in range(20):
            # Some of the tensors take longer than others, and not the same ones on all ranks.
            y = x * float(i)
            for _ in range(8 * ((i + rank) % 3)):
                y = tf.linalg.matvec(work, y) / 40.0
            results.append(hvd.allreduce(y, op=hvd.Sum, name=f"tensor_{i}"))
        return results

    pauses = random.Random(rank)
    for step in range(60):
        if pauses.random() < 0.2:
            time.sleep(pauses.random() * 0.01)
        results = reduce(tf.fill([40], rank + 1.0 + step))
        total = sum(range(1, size + 1)) + size * step
        for i, result in enumerate(results):
            np.testing.assert_allclose(result, np.full(40, float(total * i)), rtol=1e-5)


@check
def branches_loops_and_inner_functions() -> None:
    """Calls in these are in the order of the program, too: all have the same name on the wire."""
    rank, size = hvd.rank(), hvd.size()
    total = sum(range(1, size + 1))

    @tf.function(autograph=False)
    def inner(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x, op=hvd.Sum, name="same")

    def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, x + hvd.allreduce(tf.ones([3]), op=hvd.Sum, name="same")

    @compiled
    def step(x: tf.Tensor) -> Any:
        branch = tf.cond(x[0] > 0, lambda: inner(x * 5.0), lambda: x)
        _, loop = tf.while_loop(lambda i, _: i < 3, body, (0, tf.zeros([3])))
        return [inner(x * float(i)) for i in range(6)], branch, loop, inner(x)

    for _ in range(20):
        inners, branch, loop, last = step(tf.fill([3], rank + 1.0))
        for i, result in enumerate(inners):
            equal(result, [total * i] * 3)
        equal(branch, [total * 5] * 3)
        equal(loop, [size * 3] * 3)
        equal(last, [total] * 3)


# ---- gradients ----------------------------------------------------------------------------------


@check
def gradients() -> None:
    """The same as where XLA compiles nothing, with the tape inside and outside."""
    rank, size = hvd.rank(), hvd.size()
    x = tf.reshape(tf.range(size * 4, dtype=tf.float32), [size * 2, 2]) + float(rank)
    weights = tf.constant([[1.0, 3.0]]) * (rank + 1)
    calls: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
        "allreduce": lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5),
        "allgather": lambda x: hvd.allgather(x),
        "broadcast": lambda x: hvd.broadcast(x, size - 1),
        "alltoall": lambda x: hvd.alltoall(x),
        "reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum),
        "groups": lambda x: tf.add_n(hvd.grouped_allreduce([x, x * x])),
        "grouped_allgather": lambda x: tf.concat(hvd.grouped_allgather([x, x[1:]]), 0),
        "twice": lambda x: hvd.allreduce(hvd.allreduce(x) ** 2),
    }
    for what, call in calls.items():

        def loss(x: tf.Tensor, call: Callable[[tf.Tensor], tf.Tensor] = call) -> tf.Tensor:
            return tf.reduce_sum(call(x) * weights)

        def gradient(x: tf.Tensor, loss: Callable[[tf.Tensor], tf.Tensor] = loss) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = loss(x)
            return tape.gradient(value, x)

        wanted = tf.function(gradient, autograph=False)(x)
        for got in (compiled(gradient)(x), gradient(x, compiled(loss))):
            np.testing.assert_allclose(got, wanted, rtol=1e-6, err_msg=what)


@check
def training_with_the_tape() -> None:
    """One process with the whole batch gives the same weights, sparse gradients included."""
    rank, size = hvd.rank(), hvd.size()
    values = np.random.default_rng(1).standard_normal((size * 4, 3))
    places = np.random.default_rng(2).integers(0, 5, size * 4)
    ends = []
    for alone in (True, False):
        table = tf.Variable(tf.ones([5, 3], tf.float64))
        weights = tf.Variable(tf.ones([3], tf.float64))

        @compiled
        def step(values: tf.Tensor, places: tf.Tensor, alone: bool, state: Any) -> None:
            table, weights = state
            with tf.GradientTape() as tape:
                rows = tf.gather(table, places) * values
                loss = tf.reduce_mean(tf.linalg.matvec(rows, weights) ** 2)
            wrapped = tape if alone else hvd.DistributedGradientTape(tape, sparse_as_dense=True)
            for variable, slope in zip(state, wrapped.gradient(loss, state), strict=True):
                variable.assign_sub(0.1 * tf.convert_to_tensor(slope))

        mine = slice(None) if alone else slice(rank * 4, rank * 4 + 4)
        for _ in range(5):
            step(tf.constant(values[mine]), tf.constant(places[mine]), alone, (table, weights))
        ends.append((table.numpy(), weights.numpy()))
    for one, other in zip(*ends, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


@check
def ends_of_steps() -> None:
    """Each run of a compiled step counts; of all owners of steps, one's do."""
    weight = tf.Variable([2.0])

    @compiled
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * weight)
        return hvd.DistributedGradientTape(tape).gradient(loss, weight)

    begin = _native.steps_ended()
    while _native.steps_ended() == begin:  # other checks had steps of their own
        step()
    begin = _native.steps_ended()
    for _ in range(3):
        step()
    assert _native.steps_ended() == begin + 3


@check
def training_with_keras() -> None:
    alone, shared = keras_training.new_model(), keras_training.new_model()
    keras_training.fit(alone, keras.optimizers.SGD(0.1, momentum=0.9), alone=True)
    keras_training.fit(
        shared,
        hvdtune.keras.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)),
        alone=False,
        jit_compile=True,
        callbacks=[
            hvdtune.keras.callbacks.BroadcastGlobalVariablesCallback(0),
            hvdtune.keras.callbacks.MetricAverageCallback(),
        ],
    )
    assert shared.jit_compile
    keras_training.check_equal(shared, alone, "jit_compile")

    # Several steps in one call of what Keras compiles: each ends.
    optimizer = hvdtune.keras.DistributedOptimizer(keras.optimizers.SGD(0.01))
    options = {"steps_per_execution": 3, "jit_compile": True}
    for _ in range(8):
        before = _native.steps_ended()
        keras_training.fit(shared, optimizer, alone=False, **options)
    assert _native.steps_ended() - before == keras_training.STEPS


# ---- mistakes and ends --------------------------------------------------------------------------


@check
def errors_arrive() -> None:
    rank, size = hvd.rank(), hvd.size()
    x = tf.ones([2])

    @compiled
    def reduce(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x, op=hvd.Sum, name="tensor")

    if size > 1:
        text = "Mismatched ALLREDUCE tensor shapes for tensor xla.reduce/tensor: rank 0 has [2]"
        for _ in range(2):
            said = fails(tf.errors.InternalError, lambda: reduce(tf.ones([2 + rank])), text)
            assert "hvdtune: " not in said, said  # nothing to start training over for
        gather = compiled(lambda x: hvd.allgather(x))
        fails(tf.errors.InternalError, lambda: gather(tf.ones([1 + rank])), "must be equal")
        fails(
            tf.errors.InternalError,
            lambda: compiled(lambda x: hvd.broadcast(x, size))(x),
            f"invalid root rank {size}",
        )
    equal(reduce(x), [size] * 2)
    fails(
        ValueError,
        lambda: compiled(hvd.allreduce, input_signature=[tf.TensorSpec([None])])(x),
        "allreduce of a tensor of shape (None,) in what XLA compiles: its shape must be known",
    )
    splits = tf.ones([size], tf.int32)
    unequal = compiled(lambda x, splits: hvd.alltoall(x, splits))
    fails(ValueError, lambda: unequal(tf.ones([size]), splits), "equally many rows")
    fails(NotImplementedError, compiled(lambda: hvd.join()), "join is not possible")
    hvd.shutdown()
    fails(tf.errors.InternalError, lambda: reduce(x), "init")
    hvd.init()
    equal(reduce(x), [size] * 2)
    # Where XLA lacks what calls need, TensorFlow's own error stays.
    known, compiled_calls._missing_in_process = compiled_calls._missing_in_process, lambda: "no"
    try:
        fails(
            (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError),
            lambda: compiled(lambda x: hvd.allreduce(x))(x),
            "HorovodAllreduce",
        )
    finally:
        compiled_calls._missing_in_process = known


def wait_for_the_dead() -> tuple[str, str]:
    """Rank 1 never reduces, and is killed; what rank 0 hears of it, and an elastic loop."""
    hvd.init()
    reduce = compiled(lambda x: hvd.allreduce(x))
    print("started", flush=True)
    if hvd.rank() == 1:
        time.sleep(600)
    try:
        reduce(tf.ones([2]))
    except tf.errors.OpError as error:
        of_job = hvd.elastic.is_of_collective(error)
        return type(error).__name__, f"{of_job} {error.message}"
    return "", "no error"
