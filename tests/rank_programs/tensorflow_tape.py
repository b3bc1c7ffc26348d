"""Rank programs: the tape, alone and in training; what it reduces, and what it leaves alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvdtune.tensorflow as hvd

Check = Callable[[], None]
MODES = {"eager": lambda function: function, "function": tf.function}


def ranks_of(process_set: Any = None) -> list[int]:
    return (process_set or hvd.global_process_set).ranks


def gradient_of(tape: Any, variables: Any, factor: float, **options: Any) -> Any:
    """The gradients of the sum of factor * x² for every x: 2 * factor * x."""
    with tape:
        flat = tf.nest.flatten(variables)
        loss = tf.add_n([factor * tf.reduce_sum(x * x) for x in flat])
    return tape.gradient(loss, variables, **options)


def variables(*shapes: Sequence[int], dtype: Any = tf.float64) -> list[tf.Variable]:
    return [
        tf.Variable(tf.cast(tf.reshape(tf.range(int(np.prod(shape))), shape) + 1, dtype))
        for shape in shapes
    ]


def close(got: Any, expected: Any, rtol: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=rtol, atol=0)


def everywhere(mode: Callable[[Any], Any], **options: Any) -> tuple[list[Any], list[tf.Variable]]:
    """Gradients of a tape with these options, whose factor is this rank's number and one."""
    given = variables((2, 3), (4,), (1,))

    @mode
    def compute() -> Any:
        tape = hvd.DistributedGradientTape(tf.GradientTape(), **options)
        return gradient_of(tape, given, hvd.rank() + 1.0)

    return compute(), given


def reductions() -> None:
    mean = np.mean([rank + 1.0 for rank in ranks_of()])
    size = hvd.size()
    factors = [rank + 1.0 for rank in ranks_of()]
    for name, mode in MODES.items():
        for options, expected in (
            ({}, mean),
            ({"op": hvd.Sum}, mean * size),
            ({"op": hvd.Max}, max(factors)),
            ({"op": hvd.Min}, min(factors)),
            ({"gradient_predivide_factor": 2.0}, mean),
            ({"groups": 1}, mean),
            ({"groups": 2}, mean),
            ({"groups": 7}, mean),
            ({"device_dense": "/cpu:0", "device_sparse": "/cpu:0"}, mean),
        ):
            print(name, options, flush=True)
            got, given = everywhere(mode, **options)
            for gradient, variable in zip(got, given, strict=True):
                close(gradient, 2 * expected * variable.numpy())
    with pytest.warns(DeprecationWarning, match="num_groups"):
        got, given = everywhere(MODES["eager"], num_groups=2)
    close(got[0], 2 * mean * given[0].numpy())


def compression() -> None:
    mean = np.mean([rank + 1.0 for rank in ranks_of()])
    for mode in MODES.values():
        got, given = everywhere(mode, compression=hvd.Compression.fp16)
        for gradient, variable in zip(got, given, strict=True):
            assert gradient.dtype is tf.float64
            close(gradient, 2 * mean * variable.numpy(), 1e-3)

    class Halved:
        """Not a Compressor, but with its methods."""

        @staticmethod
        def compress(tensor: Any) -> Any:
            return tensor / 2, tensor.dtype

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            return tf.cast(tensor, ctx) * 4

    got, given = everywhere(MODES["eager"], compression=Halved)
    if hvd.size() > 1:
        close(got[0], 2 * 2 * mean * given[0].numpy())


def groups_of_variables() -> None:
    mean = np.mean([rank + 1.0 for rank in ranks_of()])
    given = variables((2,), (3,), (4,), (5,))
    for groups in ([[given[2], given[0]], [given[1]]], [], [[], [given[3]]]):
        for mode in MODES.values():

            @mode
            def compute(groups: Any = groups) -> Any:
                tape = hvd.DistributedGradientTape(tf.GradientTape(), groups=groups)
                return gradient_of(tape, given, hvd.rank() + 1.0)

            for gradient, variable in zip(compute(), given, strict=True):
                close(gradient, 2 * mean * variable.numpy())
    # Keras's variables have equal names, and are told apart all the same.
    weights = [keras.Variable(np.ones(2), dtype="float64", name="kernel") for _ in range(3)]
    tape = hvd.DistributedGradientTape(tf.GradientTape(), groups=[[weights[2], weights[0]]])
    with tape:
        loss = tf.add_n([(hvd.rank() + i) * tf.reduce_sum(w.value) for i, w in enumerate(weights)])
    for i, gradient in enumerate(tape.gradient(loss, weights)):
        close(gradient, np.full(2, mean - 1 + i))
    for wrong in (0, -1, True, "a", given[0], [given[0]], [[1]], [[given[0]], [given[0]]]):
        with pytest.raises(ValueError, match="groups"):
            hvd.DistributedGradientTape(tf.GradientTape(), groups=wrong)


def structures() -> None:
    mean = np.mean([rank + 1.0 for rank in ranks_of()])
    first, second = variables((2,), (3,))
    one = hvd.DistributedGradientTape(tf.GradientTape())
    close(gradient_of(one, first, hvd.rank() + 1.0), 2 * mean * first.numpy())
    nested = {"b": [first], "a": (second, first)}
    got = gradient_of(hvd.DistributedGradientTape(tf.GradientTape()), nested, hvd.rank() + 1.0)
    assert got.keys() == {"a", "b"}
    assert isinstance(got["a"], tuple)
    close(got["a"][0], 2 * mean * second.numpy())
    close(got["b"][0], 4 * mean * first.numpy())
    # No gradient: None, or zeros if they are asked for.
    unused = tf.Variable([1.0])
    tape = hvd.DistributedGradientTape(tf.GradientTape(persistent=True))
    with tape:
        loss = tf.reduce_sum(first) * (hvd.rank() + 1.0)
    assert tape.gradient(loss, [unused, first])[0] is None
    zeros = tf.UnconnectedGradients.ZERO
    got = tape.gradient(loss, [unused, first], unconnected_gradients=zeros)
    close(got[0], [0.0])
    close(got[1], [mean, mean])
    # Persistent: as often as one likes. With gradients of the output.
    close(tape.gradient(loss, first, output_gradients=tf.constant(3.0, tf.float64)), [3 * mean] * 2)
    close(tape.jacobian(loss, first), [hvd.rank() + 1.0] * 2)


def the_wrapped_tape() -> None:
    class Mine(tf.GradientTape):
        """A user's tape."""

        def told(self) -> str:
            return "mine"

    variable = tf.Variable([1.0, 2.0])
    wrapped = Mine(watch_accessed_variables=False)
    tape = hvd.DistributedGradientTape(wrapped)
    assert isinstance(tape, Mine)
    assert isinstance(tape, tf.GradientTape)
    assert type(tape).__name__ == "Mine"
    assert tape.told() == "mine"
    with tape:
        tape.watch(variable)
        loss = tf.reduce_sum(variable) * (hvd.rank() + 1.0)
    close(tape.gradient(loss, variable), [np.mean([rank + 1.0 for rank in ranks_of()])] * 2)
    # A tape that has recorded already, and one that still does.
    with tf.GradientTape() as recorded:
        loss = tf.reduce_sum(variable) * (hvd.rank() + 1.0)
    after = hvd.DistributedGradientTape(recorded)
    close(after.gradient(loss, [variable])[0], [np.mean([r + 1.0 for r in ranks_of()])] * 2)
    with tf.GradientTape() as recording:
        loss = tf.reduce_sum(variable) * (hvd.rank() + 1.0)
        inside = hvd.DistributedGradientTape(recording)
        got = inside.gradient(loss, [variable])[0]
    close(got, [np.mean([r + 1.0 for r in ranks_of()])] * 2)
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedGradientTape(tape)
    with pytest.raises(ValueError, match=r"wraps a tf\.GradientTape, not a str"):
        hvd.DistributedGradientTape("tape")
    with pytest.raises(ValueError, match="not supported with op != Average"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="unknown"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=17)


def local_sources() -> None:
    factor, size = hvd.rank() + 1.0, hvd.size()
    mean = np.mean([rank + 1.0 for rank in ranks_of()])
    for scales in (True, False):
        for mode in MODES.values():
            local, shared = variables((2,), (3,))

            @mode
            def compute(local: Any = local, shared: Any = shared, scales: bool = scales) -> Any:
                tape = hvd.DistributedGradientTape(tf.GradientTape(), scale_local_gradients=scales)
                tape.register_local_source(local)
                return gradient_of(tape, [local, shared], factor)

            got = compute()
            close(got[0], 2 * factor * local.numpy() / (size if scales else 1))
            close(got[1], 2 * mean * shared.numpy())
    tape = hvd.DistributedGradientTape(tf.GradientTape())
    tape.register_local_source(local)
    with tape:
        loss = factor * (tf.reduce_sum(local) + tf.reduce_sum(shared))
    own, others = tape.get_local_and_global_gradients(loss, [local, shared])
    assert [source is local for source, _ in own] == [True]
    assert [source is shared for source, _ in others] == [True]
    close(own[0][1], [factor / size] * 2)
    close(others[0][1], [mean] * 3)
    # Sparse, and local.
    table = tf.Variable(np.ones((4, 2)))
    tape = hvd.DistributedGradientTape(tf.GradientTape())
    tape.register_local_source(table)
    with tape:
        loss = factor * tf.reduce_sum(tf.gather(table, [1, 1]))
    got = tape.gradient(loss, table)
    assert isinstance(got, tf.IndexedSlices)
    close(got.values, np.full((2, 2), factor / size))


def partial_tapes() -> None:
    factor = hvd.rank() + 1.0
    mean = np.mean([rank + 1.0 for rank in ranks_of()])
    layers = [keras.layers.Dense(2, kernel_initializer="ones", use_bias=False) for _ in range(3)]
    model = keras.Sequential([keras.Input((2,)), *layers])
    for local in (layers[1], [layers[1]], {layers[1]}, None, []):
        tape = hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=local)
        with tape:
            loss = factor * tf.reduce_sum(model(np.ones((1, 2), np.float32)))
        got = tape.gradient(loss, model.trainable_variables)
        shared = 8 * mean
        close(got[0], np.full((2, 2), shared / 2), 1e-6)
        close(got[1], np.full((2, 2), 8 * factor / hvd.size() / 2 if local else shared / 2), 1e-6)
        close(got[2], np.full((2, 2), shared / 2), 1e-6)
    for wrong in (model.trainable_variables[0], [layers[0], "layer"], 5):
        with pytest.raises(ValueError, match=r"must be of tf\.keras\.layers\.Layer type"):
            hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=wrong)


def sparse_gradients() -> None:
    rank, size = hvd.rank(), hvd.size()
    rows = [[r % 5, 4] for r in range(size)]
    for as_dense in (False, True):
        for op, divisor in ((hvd.Average, size), (hvd.Sum, 1)):
            for name, mode in MODES.items():
                tables = [tf.Variable(np.ones((5, width))) for width in (2, 3)]
                dense = tf.Variable([1.0, 2.0])

                @mode
                def compute(
                    tables: Any = tables, dense: Any = dense, op: int = op, to: bool = as_dense
                ) -> Any:
                    tape = hvd.DistributedGradientTape(tf.GradientTape(), sparse_as_dense=to, op=op)
                    with tape:
                        looked = [tf.gather(table, rows[rank]) for table in tables]
                        parts = [tf.reduce_sum(one) * (rank + 1.0) for one in looked]
                        loss = tf.add_n(parts) + tf.cast(tf.reduce_sum(dense), tf.float64)
                    return tape.gradient(loss, [*tables, dense])

                *got, plain = compute()
                close(plain, np.full(2, size / divisor))
                for gradient, table in zip(got, tables, strict=True):
                    print(name, as_dense, op, flush=True)
                    expected = np.zeros(table.shape)
                    for other in range(size):
                        for row in rows[other]:
                            expected[row] += (other + 1.0) / divisor
                    if size > 1:
                        assert isinstance(gradient, tf.IndexedSlices) == (not as_dense)
                        if not as_dense:
                            assert gradient.values.shape[0] == 2 * size
                            assert gradient.dense_shape.numpy().tolist() == [*table.shape]
                    close(tf.convert_to_tensor(gradient), expected)


def varying_rows() -> None:
    """A step may look at any number of rows; ranks need not look at as many."""
    table = tf.Variable(np.ones((6, 2)))
    for count in (1, 3, 2, 0, 5):
        tape = hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum)
        own = [*range(count + hvd.rank())]
        with tape:
            loss = tf.reduce_sum(tf.gather(table, tf.constant(own, tf.int32) % 6))
        got = tf.convert_to_tensor(tape.gradient(loss, table)).numpy()
        expected = np.zeros((6, 2))
        for rank in range(hvd.size()):
            for row in range(count + rank):
                expected[row % 6] += 1
        close(got, expected)


def rows_of_every_type() -> None:
    """Whole numbers, too, of which an average has TensorFlow's type of quotients."""
    rank, size = hvd.rank(), hvd.size()
    quotients = {tf.uint8: tf.float32, tf.int8: tf.float32, tf.int32: tf.float64}
    quotients[tf.int64] = tf.float64
    times = np.array([1] + [2] * (size - 1) + [1])[:, None]  # neighbours share a row
    for dtype in (*quotients, tf.float16, tf.float32, tf.float64):
        row = tf.cast([1, 0, 2], dtype)
        slices = tf.IndexedSlices(tf.stack([row, row]), tf.constant([rank, rank + 1]))
        for op, among in ((hvd.Sum, 1), (hvd.Average, size)):
            alone = hvd.allreduce(slices, op=op)
            *together, dense = hvd.grouped_allreduce([slices, slices, row], op=op)
            for got in (alone, *together):
                kept = dtype if op == hvd.Sum else quotients.get(dtype, dtype)
                assert got.values.dtype == kept, (got.values.dtype, kept)
                assert got.dense_shape is None
                assert got.indices.dtype == tf.int32
                added = tf.math.unsorted_segment_sum(got.values, got.indices, size + 1)
                close(added, times * row.numpy().astype("float64") / among, 1e-3)
            assert dense.dtype == dtype
            close(dense, row.numpy() * (size // among))


def refused_sparse() -> None:
    slices = tf.IndexedSlices(tf.ones((2, 3)), tf.constant([0, 1]), tf.constant([4, 3]))
    many = [slices, tf.ones(2)]
    # Refused before they are looked at: their values need not be those of a tensor.
    listed = [tf.IndexedSlices([tf.ones(1), tf.ones(2)], tf.constant([0]))]
    for options, words in (
        ({"op": hvd.Adasum}, "Adasum does not support sparse"),
        *(({"op": op}, "must be Average or Sum") for op in (hvd.Min, hvd.Max, hvd.Product)),
        ({"prescale_factor": 2.0}, "prescale_factor is not supported"),
        ({"postscale_factor": 2.0}, "postscale_factor is not supported"),
    ):
        with pytest.raises(NotImplementedError, match=words):
            hvd.grouped_allreduce(listed, **options)
        for call, given in ((hvd.allreduce, slices), (hvd.grouped_allreduce, many)):
            for mode in MODES.values():

                @mode
                def compute(call: Any = call, given: Any = given, options: Any = options) -> Any:
                    return call(given, **options)

                with pytest.raises(NotImplementedError, match=words):
                    compute()


def process_sets() -> None:
    if hvd.size() == 1:
        return
    pair = SETS[0]
    factor = hvd.rank() + 1.0
    for mode in MODES.values():
        got, given = everywhere(mode, process_set=pair)
        expected = np.mean([r + 1.0 for r in pair.ranks]) if pair.included() else factor
        for gradient, variable in zip(got, given, strict=True):
            close(gradient, 2 * expected * variable.numpy())
        alone = SETS[1]  # of one member: nothing to do
        got, given = everywhere(mode, process_set=alone)
        close(got[0], 2 * factor * given[0].numpy())
    local = variables((2,))[0]
    tape = hvd.DistributedGradientTape(tf.GradientTape(), process_set=pair)
    tape.register_local_source(local)
    got = gradient_of(tape, local, factor)
    close(got, 2 * factor * local.numpy() / (2 if pair.included() else 1))
    with pytest.raises(ValueError, match="not been registered"):
        hvd.DistributedGradientTape(tf.GradientTape(), process_set=hvd.ProcessSet([0]))


def generic_names() -> None:
    """Ranks whose variables have other names meet if names tell places only."""
    given = tf.Variable(np.ones(2), name=f"of_rank_{hvd.rank()}")

    @tf.function
    def compute() -> Any:
        with tf.name_scope(f"scope_{hvd.rank()}"):
            tape = hvd.DistributedGradientTape(tf.GradientTape())
            return gradient_of(tape, [given], hvd.rank() + 1.0, use_generic_names=True)

    close(compute()[0], [2 * np.mean([rank + 1.0 for rank in ranks_of()])] * 2)


def elastic_sizes() -> None:
    """In elastic jobs sizes are read when a function runs, with the same results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_ELASTIC", "1")
        reductions()
        sparse_gradients()
        local_sources()
        process_sets()


def adasum() -> None:
    """Of equal gradients it is their average; a rank's own is not enough."""
    size = hvd.size()
    if size & (size - 1):
        with pytest.raises(NotImplementedError, match="power of two"):
            everywhere(MODES["eager"], op=hvd.Adasum)
        return
    given = tf.Variable(np.zeros(size))
    tape = hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum)
    with tape:
        loss = given[hvd.rank()] * 3.0
    close(tape.gradient(loss, given), np.full(size, 3.0))  # orthogonal ones add


SETS: list[Any] = []
CHECKS = (
    *(reductions, compression, groups_of_variables, structures, the_wrapped_tape, local_sources),
    *(partial_tapes, sparse_gradients, varying_rows, rows_of_every_type, refused_sparse),
    *(process_sets, generic_names, adasum, elastic_sizes),
)


def run() -> list[str]:
    """Every check, one after the other; the names of those that ran."""
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    SETS[:] = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([1])]
    size = int(os.environ["HOROVOD_SIZE"])
    # The whole job is the global set, and is not registered again.
    hvd.init(process_sets=[one for one in SETS if size > 2 or len(one.ranks) < size])
    if size == 2:
        SETS[0] = hvd.global_process_set
    done = []
    for check in CHECKS:
        print(check.__name__, flush=True)
        check()
        hvd.barrier()
        done.append(check.__name__)
    hvd.shutdown()
    return done
