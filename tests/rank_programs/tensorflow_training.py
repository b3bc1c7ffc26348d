"""Rank programs: training in eager mode and functions, variables, objects, and elastic states."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvdtune.tensorflow as hvd
from hvdtune import _native
from hvdtune.core.observation import marks
from hvdtune.elastic import HostUpdateResult, notification_manager

ROWS, STEPS = 8, 5


def prepare() -> None:
    """Few threads: there are several ranks."""
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()


def new_model(seed: int = 1) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((4,), dtype="float64"), *layers])


class Embedded(tf.Module):
    """Has a table, whose gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        generator = np.random.default_rng(3)
        self.table = tf.Variable(generator.standard_normal((6, 4)))
        self.weights = tf.Variable(generator.standard_normal((4, 1)))

    def __call__(self, ids: Any) -> Any:
        return tf.tanh(tf.gather(self.table, ids)) @ self.weights


# ---- the same as one process with all rows ------------------------------------------------------


def train(how: str) -> list[np.ndarray]:
    """The weights after some steps; each rank takes its share of the same rows."""
    prepare()
    generator = np.random.default_rng(7)
    inputs = generator.standard_normal((ROWS, 4))
    ids = generator.integers(0, 6, ROWS)
    targets = generator.standard_normal((ROWS, 1))
    share = ROWS // hvd.size()
    own = slice(hvd.rank() * share, (hvd.rank() + 1) * share)
    options: dict[str, Any] = {}
    model: Any = Embedded()
    features: Any = ids
    if how != "sparse":
        keras.backend.set_floatx("float64")
        model, features = new_model(hvd.rank()), inputs
        hvd.broadcast_variables(model.variables, root_rank=0)
    if how == "in groups":
        options["groups"] = 2
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    weights = model.trainable_variables

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(features[own]) - targets[own]) ** 2)
        tape = hvd.DistributedGradientTape(tape, **options)
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, weights)]
        if how == "sparse":
            for gradient, weight in zip(gradients, weights, strict=True):
                weight.assign_sub(0.1 * gradient)
            return
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    if how == "function":
        step = tf.function(step)
    for _ in range(STEPS):
        step()
    values = [np.array(tf.convert_to_tensor(weight)) for weight in weights]
    hvd.shutdown()
    return values


# ---- variables and objects ----------------------------------------------------------------------


def variables() -> None:
    rank, last = hvd.rank(), hvd.size() - 1
    made = [
        tf.Variable(tf.cast(tf.constant([1, 0]) * (rank + 1), dtype))
        for dtype in (tf.float32, tf.bfloat16, tf.float16, tf.int64, tf.uint32, tf.bool)
    ]
    scalar = keras.Variable(float(rank))
    for root in (0, last):
        for inplace in (False, True):
            for variable in made:
                variable.assign(tf.cast(tf.constant([1, 0]) * (rank + 1), variable.dtype))
            scalar.assign(float(rank))
            assert hvd.broadcast_variables([*made, scalar], root, inplace=inplace) is None
            for variable in made:
                expected = tf.cast(tf.constant([1, 0]) * (root + 1), variable.dtype)
                assert variable.numpy().tolist() == expected.numpy().tolist()
            assert float(scalar) == root
    hvd.broadcast_variables([], 0)

    @tf.function
    def inside() -> None:
        hvd.broadcast_variables(made, last)

    for variable in made:
        variable.assign(tf.cast([rank, 0], variable.dtype))
    inside()
    for variable in made:
        expected = tf.cast([last, 0], variable.dtype).numpy().tolist()
        assert variable.numpy().tolist() == expected
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="equally many variables"):
            hvd.broadcast_variables(made[: 1 + (rank == 0)], 0)
        with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
            hvd.broadcast_variables([tf.Variable(tf.zeros(2 + (rank == 0)))], 0)
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        hvd.broadcast_global_variables(0)


def arrays_and_lists() -> None:
    """What stands for a tensor is taken as one."""
    size, total = hvd.size(), sum(range(1, hvd.size() + 1))
    one = np.full(3, hvd.rank() + 1.0)
    for given in (one, one.tolist(), tf.Variable(one), keras.Variable(one)):
        got = hvd.allreduce(given, op=hvd.Sum, name="given")
        assert got.numpy().tolist() == [total] * 3
        got = hvd.grouped_allreduce([given, given], op=hvd.Sum)
        assert [x.numpy().tolist() for x in got] == [[total] * 3] * 2
    with pytest.warns(DeprecationWarning, match="average"):
        assert hvd.allreduce(one, average=False).numpy().tolist() == [total] * 3
    with pytest.raises(ValueError, match="op parameter supersedes average"):
        hvd.allreduce(one, average=True, op=hvd.Average)
    with pytest.raises(ValueError, match="not one tensor"):
        hvd.grouped_allreduce(one)
    assert hvd.grouped_allreduce([]) == hvd.grouped_reducescatter([]) == []
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        got = hvd.allreduce(one, compression=compression, device_dense="/cpu:0")
        assert got.dtype is tf.float64
        np.testing.assert_allclose(got, [total / size] * 3, 1e-3)
        rows = hvd.reducescatter(np.ones((size, 2)), compression=compression, op=hvd.Sum)
        assert rows.numpy().tolist() == [[size, size]]
        rows = hvd.grouped_reducescatter([np.ones((size, 2))] * 2, compression=compression)
        assert [x.numpy().tolist() for x in rows] == [[[1, 1]]] * 2
    whole = hvd.allreduce(np.array([hvd.rank() + 1]), op=hvd.Sum, compression=hvd.Compression.fp16)
    assert whole.dtype is tf.int64, "integers are not compressed"
    # A group of several types, some members sparse.
    rank = hvd.rank()
    slices = [
        tf.IndexedSlices(tf.ones((1, width)), tf.constant([rank]), tf.constant([size, width]))
        for width in (2, 3)
    ]
    mixed = [slices[0], tf.constant([rank]), slices[1], tf.constant([1.0])]
    first, whole, second, real = hvd.grouped_allreduce(mixed, op=hvd.Sum, name="mixed")
    assert tf.convert_to_tensor(first).numpy().tolist() == [[1, 1]] * size
    assert tf.convert_to_tensor(second).numpy().tolist() == [[1, 1, 1]] * size
    assert whole.numpy().tolist() == [sum(range(size))]
    assert real.numpy().tolist() == [size]


def objects() -> None:
    rank, last = hvd.rank(), hvd.size() - 1
    assert hvd.broadcast_object({"rank": rank}, last) == {"rank": last}
    assert hvd.broadcast_object("a" if rank else 5) == 5, "ranks may hold other types"
    assert hvd.broadcast_object_fn(last)([rank]) == [last]
    assert hvd.allgather_object([rank]) == [[other] for other in range(hvd.size())]


def names() -> None:
    """What Horovod's modules have, where it has it."""
    import importlib

    for name in ("mpi_ops", "functions", "compression", "elastic", "gradient_aggregation", "util"):
        importlib.import_module(f"hvdtune.tensorflow.{name}")
    assert hvd._executing_eagerly()
    assert hvd.util._executing_eagerly()
    assert not tf.function(hvd._executing_eagerly)()
    assert hvd.split_list([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4, 5]]
    assert hvd.handle_average_backwards_compatibility(None, None) == hvd.Average
    assert hvd.handle_average_backwards_compatibility(hvd.Max, None) == hvd.Max
    hvd.check_num_rank_power_of_2(8)
    with pytest.raises(NotImplementedError, match="power of two, not 6"):
        hvd.check_num_rank_power_of_2(6)
    assert hvd.gpu_available("tensorflow") in (True, False)
    assert all(hasattr(hvd, name) for name in hvd.__all__ if name != "SyncBatchNormalization")


# ---- ends of steps ------------------------------------------------------------------------------


def steps() -> None:
    """Reducing gradients ends a step, which recordings count, wherever that runs."""
    weight, other = tf.Variable([2.0]), tf.Variable([3.0])

    def step(variable: Any = weight) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * variable)
        return hvd.DistributedGradientTape(tape).gradient(loss, [variable])[0]

    @tf.function
    def several(times: Any) -> None:
        for _ in tf.range(times):
            step()

    @tf.function
    def of_another() -> Any:
        return step(other)

    def counted(call: Any, *arguments: Any) -> int:
        before = _native.steps_ended()
        call(*arguments)
        return _native.steps_ended() - before

    traced = tf.function(step)
    assert [counted(traced) for _ in range(3)] == [1, 1, 1]
    assert counted(several, tf.constant(4)) == 4
    assert counted(of_another) == 0, "one owner's count"
    heard: list[int] = []
    marks.after_each_step(lambda: heard.append(1))
    step()  # the same step as those of the graph, of which Python has heard nothing
    heard.clear()
    step()
    assert (len(heard), counted(step)) == (1, 0), "told by Python"
    # Whose turn it is may change.
    assert [counted(of_another) for _ in range(40)][-8:] == [1] * 8
    hvd.mark_step()
    assert counted(of_another) == 0, "the program tells"


# ---- elastic ------------------------------------------------------------------------------------


def keras_states() -> None:
    model = new_model(hvd.rank())
    model.add(keras.layers.Dropout(0.5))
    optimizer = keras.optimizers.Adam(0.1)
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=hvd.rank(), batch=0)
    assert isinstance(state, hvd.elastic.ObjectState)
    assert state.model is model
    assert len(optimizer.variables) > len(model.trainable_variables), "the slots are there"
    state.sync()
    everyone = hvd.allgather_object([v.numpy() for v in model.weights])
    for values in everyone:
        assert all(map(np.array_equal, values, everyone[0]))
    seeds = hvd.allgather_object(model.layers[-1].seed_generator.state.numpy().tolist())
    assert len({*map(tuple, seeds)}) == hvd.size(), "ranks drop different units"
    assert state.epoch == 0
    before = [v.numpy() for v in [*model.weights, *optimizer.variables]]
    ones = [tf.ones_like(v) for v in model.trainable_variables]
    optimizer.apply_gradients(zip(ones, model.trainable_variables, strict=True))
    state.epoch = 5
    assert int(optimizer.iterations) == 1
    state.restore()
    for value, old in zip([*model.weights, *optimizer.variables], before, strict=True):
        np.testing.assert_array_equal(value.numpy(), old)
    assert state.epoch == 0
    optimizer.apply_gradients(zip(ones, model.trainable_variables, strict=True))
    state.epoch = 6
    state.commit()
    after = [v.numpy() for v in model.variables]
    optimizer.apply_gradients(zip(ones, model.trainable_variables, strict=True))
    state.restore()
    assert all(map(np.array_equal, [v.numpy() for v in model.variables], after))
    assert (state.epoch, int(optimizer.iterations)) == (6, 1)
    model.compile("sgd", "mse")
    assert hvd.elastic.TensorFlowKerasState(model).optimizer is model.optimizer
    with pytest.raises(ValueError, match="Model must be built first"):
        hvd.elastic.TensorFlowKerasState(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match="commit"):
        hvd.elastic.TensorFlowKerasState(model, commit=1)


def plain_states() -> None:
    variable = tf.Variable([float(hvd.rank())])
    state = hvd.elastic.TensorFlowState([variable], step=hvd.rank())
    for _ in range(2):  # every time, not only the first
        variable.assign([hvd.rank() + 1.0])
        state.sync()
        assert variable.numpy().tolist() == [1.0]
        assert state.step == 0
    variable.assign([9.0])
    state.restore()
    assert variable.numpy().tolist() == [1.0]
    with pytest.raises(ValueError, match="pass the variables"):
        hvd.elastic.TensorFlowState()


def starting_over() -> None:
    """Training goes back to its last commit after an error of an operation, and no other."""
    variable = tf.Variable([0.0])
    state = hvd.elastic.TensorFlowState([variable], step=0)
    resets, rounds = [], []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @tf.function
    def step() -> Any:
        return hvd.allreduce(variable + 1.0, op=hvd.Average, name="HorovodAllreduce_step")

    def fail(node: str) -> None:
        raise tf.errors.UnknownError(None, None, f"gone [[{{{{node {node}}}}}]]")

    @hvd.elastic.run
    def training(state: Any) -> str:
        rounds.append(state.step)
        while state.step < 4:
            variable.assign(step())
            state.step += 1
            if state.step == 2:
                state.commit()
            if state.step == 3 and len(rounds) < 3:
                fail("scope/HorovodGroupedReducescatter_3" if len(rounds) == 1 else HOROVOD)
        return "trained"

    assert training(state) == "trained"
    assert rounds == [0, 2, 2]
    assert resets == [hvd.size()] * 2
    assert variable.numpy().tolist() == [4.0]

    @hvd.elastic.run
    def changed(state: Any) -> int:
        if len(resets) == 2:
            state.step = 7
            notification_manager.handle_hosts_updated(1, HostUpdateResult.added)
            state.check_host_updates()
        return state.step

    assert changed(state) == 7
    for error in (
        tf.errors.UnknownError(None, None, "a disk is full"),
        tf.errors.FailedPreconditionError(None, None, "HorovodAllreduce: Mismatched data types"),
        ValueError("HorovodAllreduce"),
    ):

        @hvd.elastic.run
        def broken(state: Any, error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):
            broken(state)


HOROVOD = "HorovodAllreduce_x"
CHECKS = (
    *(names, variables, arrays_and_lists, objects, keras_states, plain_states, starting_over),
    steps,
)


def run() -> list[str]:
    """Every check, one after the other; the names of those that ran."""
    prepare()
    done = []
    for check in CHECKS:
        print(check.__name__, flush=True)
        check()
        hvd.barrier()
        done.append(check.__name__)
    hvd.shutdown()
    return done


def one_dies(dying: int) -> str:
    """A rank is killed while the others reduce; what they get, and what their loop makes of it.

    They reduce by an operation of a function, whose name does not tell that it is Horovod's.
    """
    prepare()
    os.environ["HOROVOD_START_TIMEOUT"] = "1"  # of the next start, in which a rank is missing
    variable = tf.Variable([1.0])

    @tf.function
    def step() -> Any:
        tape = hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum)
        with tape:
            loss = variable[0] * 2.0
        return tape.gradient(loss, variable)

    @tf.function
    def named() -> Any:
        return hvd.allreduce(variable, name="mine")

    seen = ""
    state = hvd.elastic.TensorFlowState([variable], step=0)

    @hvd.elastic.run
    def training(state: Any) -> None:
        nonlocal seen
        while True:
            variable.assign_add(step())
            state.step += 1
            if state.step == 3 and hvd.rank() == dying:
                time.sleep(0.5)  # until the others wait in what follows
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                named()
            except tf.errors.OpError as error:
                seen = f"{type(error).__name__} of mine, then "
                raise

    try:
        training(state)
    except Exception as error:
        return f"{seen}{type(error).__name__}: {error}"
    return "no error"
