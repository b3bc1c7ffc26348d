"""Rank programs: graphs that sessions run, as with TensorFlow 1, and the helpers that add up."""

from __future__ import annotations

from pathlib import Path
from resource import RLIMIT_STACK, getrlimit, setrlimit
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import hvdtune.tensorflow as hvd
from hvdtune.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from hvdtune.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager

v1 = tf.compat.v1
ROWS, FEATURES, STEPS = 8, 3, 6


def data() -> tuple[np.ndarray, np.ndarray]:
    """All rows; a rank's are a run of them."""
    generator = np.random.default_rng(5)
    inputs = generator.standard_normal((ROWS, FEATURES))
    return inputs, inputs @ np.array([[1.0], [-2.0], [0.5]]) + 0.3


def own_rows() -> slice:
    rows = ROWS // hvd.size()
    return slice(hvd.rank() * rows, (hvd.rank() + 1) * rows)


def loss_of(inputs: Any, targets: Any, start: float = 0.0, resource: bool = True) -> Any:
    shape, fill = (FEATURES, 1), v1.constant_initializer(start)
    weights = v1.get_variable("w", shape, tf.float64, fill, use_resource=resource)
    bias = v1.get_variable("b", (1,), tf.float64, fill, use_resource=resource)
    return tf.reduce_mean((inputs @ weights + bias - targets) ** 2)


def alone(make: Any, steps: int = STEPS) -> list[np.ndarray]:
    """The variables after training on all rows with the plain optimizer."""
    inputs, targets = data()
    with tf.Graph().as_default(), v1.Session() as session:
        train = make().minimize(loss_of(inputs, targets))
        session.run(v1.global_variables_initializer())
        for _ in range(steps):
            session.run(train)
        return session.run(v1.trainable_variables())


def together(
    make: Any, steps: int = STEPS, resource: bool = True, start: float = 0.0, **options: Any
) -> list[np.ndarray]:
    """The same by the ranks, each with its own rows."""
    inputs, targets = (rows[own_rows()] for rows in data())
    with tf.Graph().as_default(), v1.Session() as session:
        loss = loss_of(inputs, targets, start * (1 + hvd.rank()), resource)
        optimizer = hvd.DistributedOptimizer(make(), **options)
        train = optimizer.minimize(loss)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        session.run(hvd.broadcast_global_variables(0))
        for _ in range(steps):
            session.run(train)
        return session.run(v1.trainable_variables())


def momentum() -> Any:
    return v1.train.MomentumOptimizer(0.05, 0.9)


def adam() -> Any:
    return v1.train.AdamOptimizer(0.1)


def same(got: Any, expected: Any, rtol: float = 1e-9) -> None:
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-12)


def training() -> None:
    for make in (momentum, adam):
        expected = alone(make)
        for options in ({}, {"groups": 2}, {"gradient_predivide_factor": 2.0}, {"resource": False}):
            same(together(make, **options), expected)
        same(together(make, compression=hvd.Compression.fp16), expected, 0.05)


def chains_without_threads() -> None:
    """What follows an operation runs in the call that ends it, and must not fill the stack."""
    length, usual = 800, getrlimit(RLIMIT_STACK)
    config = v1.ConfigProto(inter_op_parallelism_threads=-1)
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        begin = v1.placeholder(tf.float32, [1])
        end = begin
        for _ in range(length):
            end = hvd.allreduce(end, op=hvd.Average) + 1
        setrlimit(RLIMIT_STACK, (400 << 10, usual[1]))
        try:
            for _ in range(3):  # at first the coordinator has to hear of each
                same(session.run(end, {begin: [0.0]}), [length])
        finally:
            setrlimit(RLIMIT_STACK, usual)


def broadcasts() -> None:
    """Global variables become those of the root, of both kinds, one by one and in place."""
    last = hvd.size() - 1
    for resource in (True, False):
        for inplace in (False, True):
            with tf.Graph().as_default(), v1.Session() as session:
                made = [
                    v1.get_variable(
                        name,
                        initializer=tf.constant([1, 2], dtype) * (hvd.rank() + 1),
                        use_resource=resource,
                    )
                    for name, dtype in (("a", tf.float32), ("b", tf.int64), ("c", tf.uint32))
                ]
                done = hvd.broadcast_variables(v1.global_variables(), last, inplace=inplace)
                session.run(v1.global_variables_initializer())
                session.run(done)
                for value in session.run(made):
                    assert value.tolist() == [last + 1, 2 * (last + 1)]
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        hvd.broadcast_global_variables(0)


def aggregation() -> None:
    """Two passes of half of the rows each are a step of all."""
    expected = alone(momentum)
    inputs, targets = data()
    half = ROWS // (2 * hvd.size())
    begin = own_rows().start
    halves = [slice(begin, begin + half), slice(begin + half, begin + 2 * half)]
    with tf.Graph().as_default(), v1.Session() as session:
        places = [v1.placeholder(tf.float64, (half, n)) for n in (FEATURES, 1)]
        step = v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(
            momentum(), backward_passes_per_step=2, average_aggregated_gradients=True
        )
        train = optimizer.minimize(loss_of(*places), global_step=step)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        weights = v1.trainable_variables()
        for number in range(STEPS):
            before = session.run(weights)
            for i, rows in enumerate(halves):
                session.run(train, dict(zip(places, (inputs[rows], targets[rows]), strict=True)))
                assert session.run(step) == 2 * number + i + 1, "steps are passes"
                if i == 0:
                    same(session.run(weights), before)
        same(session.run(weights), expected)
    with pytest.raises(ValueError, match="not yet supported for _LegacyOptimizer with eager"):
        hvd.DistributedOptimizer(momentum(), backward_passes_per_step=2)


def local_variables() -> None:
    """Left to the rank, with and without aggregation, and scaled."""
    size, factor = hvd.size(), hvd.rank() + 1.0
    mean = (size + 1) / 2
    for passes in (1, 2):
        for scales in (True, False):
            with tf.Graph().as_default(), v1.Session() as session:
                first = v1.get_variable("first", initializer=tf.constant([0.0, 0.0]))
                second = v1.get_variable("second", initializer=tf.constant([0.0]))
                unused = v1.get_variable("unused", initializer=tf.constant([0.0]))
                loss = factor * (tf.reduce_sum(first) + tf.reduce_sum(second))
                optimizer = hvd.DistributedOptimizer(
                    v1.train.GradientDescentOptimizer(1.0),
                    backward_passes_per_step=passes,
                    scale_local_gradients=scales,
                )
                optimizer.register_local_var(first)
                pairs = optimizer.compute_gradients(loss)
                assert [v is o for (_, v), o in zip(pairs, (first, second, unused), strict=True)]
                assert pairs[2][0] is None
                train = optimizer.apply_gradients(pairs)
                session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
                for _ in range(passes):
                    session.run(train)
                own, shared = session.run([first, second])
                own_step = factor * passes / (size if scales else 1)
                np.testing.assert_allclose(own, [-own_step] * 2, rtol=1e-6)
                np.testing.assert_allclose(shared, [-mean * passes], rtol=1e-6)


def the_wrapper() -> None:
    with tf.Graph().as_default():
        loss = loss_of(*data())
        wrapped = momentum()
        optimizer = hvd.DistributedOptimizer(wrapped)
        assert isinstance(optimizer, v1.train.Optimizer)
        assert optimizer.get_name() == "DistributedMomentumOptimizer"
        assert hvd.DistributedOptimizer(momentum(), name="mine").get_name() == "mine"
        optimizer.minimize(loss)
        weights = v1.trainable_variables()[0]
        assert optimizer.get_slot(weights, "momentum") is wrapped.get_slot(weights, "momentum")
        assert optimizer.get_slot_names() == ["momentum"]
        assert len(optimizer.variables()) == 2
        for options, words in (
            ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "not supported with op != Average"),
            ({"op": hvd.Adasum, "average_aggregated_gradients": True}, "Adasum does not support"),
            ({"backward_passes_per_step": 0}, "must be > 0"),
            ({"groups": 0}, "positive integer"),
        ):
            with pytest.raises(ValueError, match=words):
                hvd.DistributedOptimizer(momentum(), **options)
        with pytest.raises(ValueError, match="already"):
            hvd.DistributedOptimizer(optimizer)
        with pytest.raises(ValueError, match="not a str"):
            hvd.DistributedOptimizer("adam")
        if hvd.size() > 1:
            part = hvd.ProcessSet([0])
            with pytest.raises(ValueError, match="not been registered"):
                hvd.DistributedOptimizer(momentum(), process_set=part)


def adasum() -> None:
    """What is combined are the ranks' steps."""
    size = hvd.size()
    make = momentum
    if size & (size - 1):
        with tf.Graph().as_default(), pytest.raises(NotImplementedError, match="power of two"):
            hvd.DistributedOptimizer(make(), op=hvd.Adasum)
        return
    for passes in (1, 3):
        with tf.Graph().as_default(), v1.Session() as session:
            inputs, targets = data()
            loss = loss_of(inputs, targets)  # equal on all ranks: so is the combined step
            optimizer = hvd.DistributedOptimizer(
                make(), op=hvd.Adasum, backward_passes_per_step=passes
            )
            assert optimizer.get_name() == "DistributedDeltaMomentumOptimizer"
            step = v1.train.get_or_create_global_step()
            train = optimizer.minimize(loss, global_step=step)
            session.run(v1.global_variables_initializer())
            session.run(hvd.broadcast_global_variables(0))
            for _ in range(STEPS):
                session.run(train)
            same(session.run(v1.trainable_variables()), alone(make))
            assert session.run(step) == STEPS
            assert "delta_start" in optimizer.get_slot_names()
    # Orthogonal steps add, and only when it is time to.
    with tf.Graph().as_default(), v1.Session() as session:
        place = v1.get_variable("place", initializer=tf.zeros(size))
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum, backward_passes_per_step=2
        )
        train = optimizer.minimize(-place[hvd.rank()] * 3.0)
        session.run(v1.global_variables_initializer())
        session.run(train)
        assert session.run(place).tolist() == [3.0 * (i == hvd.rank()) for i in range(size)]
        session.run(train)
        np.testing.assert_allclose(session.run(place), np.full(size, 6.0), rtol=1e-6)


def monitored_sessions(folder: str) -> None:
    """Train, save a checkpoint on rank 0, go on from it; the hook makes the ranks equal."""
    inputs, targets = (rows[own_rows()] for rows in data())
    directory = str(Path(folder) / f"checkpoints-{hvd.size()}")
    reached = []

    def read(step_context: Any) -> Any:
        return step_context.session.run(v1.trainable_variables())

    for start, until in ((1.0, 3), (7.0, STEPS)):
        with tf.Graph().as_default():
            step = v1.train.get_or_create_global_step()
            # Only rank 0 begins with what the others are to have.
            loss = loss_of(inputs, targets, start if hvd.rank() else 0.0)
            train = hvd.DistributedOptimizer(momentum()).minimize(loss, global_step=step)
            hooks = [
                hvd.BroadcastGlobalVariablesHook(0),
                v1.train.StopAtStepHook(last_step=until),
            ]
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=directory if hvd.rank() == 0 else None,
                hooks=hooks,
                save_checkpoint_steps=1,
                log_step_count_steps=None,
                save_summaries_steps=None,
                save_summaries_secs=None,
            ) as session:
                while not session.should_stop():
                    session.run(train)
                    values = session.run_step_fn(read)
            reached.append(values)
    same(reached[0], alone(momentum, 3))
    same(reached[1], alone(momentum))


def objects_in_graphs() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        mine = {"rank": hvd.rank()}
        last = hvd.size() - 1
        assert hvd.broadcast_object(mine, last, session=session) == {"rank": last}
        assert hvd.broadcast_object_fn(last, session)(mine) == {"rank": last}
        every = hvd.allgather_object(mine, session=session, name="every")
        assert every == [{"rank": rank} for rank in range(hvd.size())]


def states() -> None:
    """TensorFlowState of what a session has."""
    with tf.Graph().as_default(), v1.Session().as_default() as session:
        made = v1.get_variable("made", initializer=tf.constant([1.0, 2.0]) * (hvd.rank() + 1))
        old = v1.get_variable("old", initializer=tf.constant(3), use_resource=False)
        session.run(v1.global_variables_initializer())
        session.graph.finalize()
        state = hvd.elastic.TensorFlowState(session=session, epoch=hvd.rank())
        state.sync()
        assert session.run([made, old])[0].tolist() == [1.0, 2.0]
        assert state.epoch == 0
        made.load([5.0, 6.0], session)
        state.epoch = 4
        state.restore()
        assert session.run(made).tolist() == [1.0, 2.0]
        assert state.epoch == 0
        made.load([5.0, 6.0], session)
        state.commit()
        made.load([7.0, 8.0], session)
        state.restore()
        assert session.run(made).tolist() == [5.0, 6.0]
        assert hvd.elastic.TensorFlowState().session is session
    # Made from one tensor: each still has its own value.
    with tf.Graph().as_default(), v1.Session().as_default() as session:
        initial = tf.zeros(2)
        made = [v1.Variable(initial, use_resource=resource) for resource in (True, True, False)]
        session.run(v1.global_variables_initializer())
        values = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
        for variable, value in zip(made, values, strict=True):
            variable.load(value, session)
        session.graph.finalize()
        state = hvd.elastic.TensorFlowState(session=session)
        session.run(v1.get_collection(v1.GraphKeys.GLOBAL_VARIABLES)[0].initializer)
        state.restore()
        assert [value.tolist() for value in session.run(made)] == values
    with tf.Graph().as_default(), pytest.raises(ValueError, match="session="):
        hvd.elastic.TensorFlowState()


class Counted:
    """Stands for an optimizer of Keras."""

    def __init__(self) -> None:
        self.iterations = tf.Variable(0, dtype=tf.int64)
        self.applied = 0


def helpers() -> None:
    """The one for eager mode and functions: its counter, its sums, infinities, None."""
    size, factor = hvd.size(), hvd.rank() + 1.0
    mean = (size + 1) / 2

    def reduce(gradients: list[Any], variables: list[Any]) -> list[Any]:
        return [g if g is None else hvd.allreduce(g, name=f"g{i}") for i, g in enumerate(gradients)]

    for mode in (lambda function: function, tf.function):
        for passes in (1, 2, 3):
            for averages in (True, False):
                helper = LocalGradientAggregationHelperEager(passes, reduce, False, averages)
                weights = [tf.Variable([1.0, 2.0]), tf.Variable(1.0), tf.Variable([3.0])]
                helper.register_local_var(weights[1])
                optimizer = Counted()

                @mode
                def compute(scale: Any, helper: Any = helper, weights: Any = weights) -> Any:
                    given = [factor * scale * w for w in weights[:2]]
                    return helper.compute_gradients([*given, None], weights)[:2]

                @mode
                def apply(helper: Any = helper, optimizer: Any = optimizer) -> Any:
                    def closure() -> None:
                        optimizer.iterations.assign_add(1)

                    helper.apply_gradients(closure, optimizer)

                for call in range(1, 2 * passes + 1):
                    first, local = compute(tf.constant(1.0))
                    if call % passes == 0:
                        total = 1.0 if averages else float(passes)
                        np.testing.assert_allclose(first, mean * total * np.array([1, 2]), 1e-6)
                        np.testing.assert_allclose(local, factor * total / size, 1e-6)
                    apply()
                    assert int(optimizer.iterations) == call
                    if passes > 1:
                        assert int(helper.counter) == call % passes
                # An infinity is not in the next sum.
                for _ in range(passes):
                    first, _ = compute(tf.constant(np.inf, tf.float32))
                assert np.isinf(first).all()
                for _ in range(passes):
                    first, _ = compute(tf.constant(1.0))
                assert np.isfinite(first).all()
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="must be > 0"):
            LocalGradientAggregationHelperEager(wrong, reduce, False, False)
        with pytest.raises(ValueError, match="must be > 0"):
            LocalGradientAggregationHelper(wrong, reduce, False, False, 0, "optimizer_type_legacy")
    slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([1]), tf.constant([3, 2]))
    table = tf.Variable(tf.zeros((3, 2)))
    helper = LocalGradientAggregationHelperEager(2, reduce, False, False)
    with pytest.raises(ValueError, match="not supported when"):
        helper.compute_gradients([slices], [table])
    helper = LocalGradientAggregationHelperEager(2, reduce, True, False)
    for _ in range(2):
        got = helper.compute_gradients([slices], [table])[0]
    assert got.numpy().tolist() == [[0, 0], [2, 2], [0, 0]]
    with pytest.raises(ValueError, match="equally many gradients"):
        helper.compute_gradients([slices, slices], [table, table])


def helpers_in_graphs() -> None:
    """The one for sessions, with a graph's own variables."""
    passes, mean = 3, (hvd.size() + 1) / 2

    def reduce(gradients: list[Any], variables: list[Any]) -> list[Any]:
        return [g if g is None else hvd.allreduce(g) for g in gradients]

    for averages in (True, False):
        with tf.Graph().as_default(), v1.Session() as session:
            helper = hvd.LocalGradientAggregationHelper(
                passes, reduce, True, averages, hvd.rank(), "optimizer_type_legacy"
            )
            scale = v1.placeholder(tf.float32, ())
            weights = [v1.get_variable("w", initializer=tf.ones(2)), v1.get_variable("v", (2,))]
            given = (hvd.rank() + 1.0) * scale * tf.ones(2)
            got = helper.compute_gradients([given, None], weights)
            assert got[1] is None
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            assert all("aggregation_variables_" in v.name for v in v1.local_variables())
            assert f"{hvd.rank()}/" in v1.local_variables()[0].name
            for scaled, total in ((1.0, passes), (np.inf, np.inf), (2.0, 2.0 * passes)):
                for call in range(1, passes + 1):
                    value = session.run(got[0], {scale: scaled})
                    assert session.run(helper.counter) == call % passes
                expected = mean * total / (passes if averages else 1)
                np.testing.assert_allclose(value, [expected] * 2, 1e-6)


CHECKS = (
    *(training, broadcasts, aggregation, local_variables, the_wrapper, adasum),
    *(objects_in_graphs, states, helpers, helpers_in_graphs, chains_without_threads),
)


def run(folder: str) -> list[str]:
    """Every check, one after the other; the names of those that ran."""
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    done = []
    for check in CHECKS:
        print(check.__name__, flush=True)
        check()
        hvd.barrier()
        done.append(check.__name__)
    print("monitored sessions", flush=True)
    monitored_sessions(folder)
    hvd.shutdown()
    return done
