"""Rank program: tf-keras, with the names of Keras 2 that old scripts use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import hvdtune.tensorflow.keras as hvd
from hvdtune.tensorflow import DistributedOptimizer
from hvdtune.tensorflow.elastic import TensorFlowKerasState

keras = tf.keras
STEPS, SHARE = 6, 4


def new_model() -> Any:
    keras.utils.set_random_seed(5)
    return keras.Sequential(
        [
            keras.layers.InputLayer((6,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(3),
        ]
    )


def batches(steps: int = STEPS) -> tuple[Any, Any]:
    generator = np.random.default_rng(3)
    shape = (steps, hvd.size(), SHARE)
    return (
        generator.normal(size=(*shape, 6)).astype("float32"),
        generator.normal(size=(*shape, 3)).astype("float32"),
    )


def rows(data: Any, alone: bool) -> Any:
    data = data if alone else data[:, hvd.rank() : hvd.rank() + 1]
    return data.reshape(-1, data.shape[-1])


def fit(model: Any, optimizer: Any, alone: bool) -> None:
    model.compile(optimizer=optimizer, loss="mse", experimental_run_tf_function=False)
    inputs, targets = batches()
    size = SHARE * (hvd.size() if alone else 1)
    model.fit(rows(inputs, alone), rows(targets, alone), size, shuffle=False, verbose=0)


def check_equal(got: Any, expected: Any, what: object) -> None:
    for one, other in zip(got.get_weights(), expected.get_weights(), strict=True):
        assert np.abs(one - other).max() < 3e-6, what
        every = hvd.allgather_object(one)
        assert all((value == every[0]).all() for value in every), what


def training() -> None:
    legacy = keras.optimizers.legacy
    makers: tuple[Callable[[], Any], ...] = (
        lambda: legacy.Adam(lr=0.01, epsilon=1e-3),
        lambda: legacy.SGD(lr=0.5, momentum=0.9, clipnorm=0.05),
        lambda: keras.optimizers.Adam(0.01, epsilon=1e-3),
        lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.1),
    )
    for make in makers:
        model, alone = new_model(), new_model()
        distributed = hvd.DistributedOptimizer(make())
        distributed = type(distributed).from_config(distributed.get_config())
        assert type(distributed).__name__ == type(make()).__name__
        assert abs(float(distributed.lr.numpy()) - float(make().lr.numpy())) < 1e-7
        fit(model, distributed, alone=False)
        fit(alone, make(), alone=True)
        check_equal(model, alone, make())
        assert len(distributed.variables()) > 1


def tensorflows_face_passes_optimizers_on() -> None:
    for make in (keras.optimizers.legacy.SGD, keras.optimizers.SGD):
        variable = tf.Variable([0.0])
        optimizer = DistributedOptimizer(make(1.0))
        optimizer.apply_gradients([(tf.constant([float(hvd.rank())]), variable)])
        assert np.allclose(variable.numpy(), (1 - hvd.size()) / 2), make


def the_sum_is_reduced_once() -> None:
    for make in (keras.optimizers.legacy.SGD, keras.optimizers.SGD):
        model, alone = new_model(), new_model()
        optimizer = hvd.DistributedOptimizer(make(0.1 / hvd.size()), op=hvd.Sum)
        x, y = (data[0, hvd.rank()] for data in batches(1))

        @tf.function
        def step(x: Any, y: Any, model: Any = model, optimizer: Any = optimizer) -> None:
            pairs = optimizer._compute_gradients(
                lambda: tf.reduce_mean((model(x) - y) ** 2), model.trainable_variables
            )
            optimizer.apply_gradients(pairs)

        if hasattr(optimizer, "build"):
            optimizer.build(model.trainable_variables)
        step(x, y)
        inputs, targets = batches(1)
        alone.compile(make(0.1), "mse")
        alone.fit(rows(inputs, True), rows(targets, True), SHARE * hvd.size(), verbose=0)
        check_equal(model, alone, make)


def accumulation() -> None:
    for make in (keras.optimizers.legacy.SGD, keras.optimizers.SGD):
        variable = tf.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(make(1.0), backward_passes_per_step=3)
        optimizer = type(optimizer).from_config(optimizer.get_config())

        # Gradients of batches of any size may be traced without a shape.
        @tf.function(input_signature=[tf.TensorSpec([None])])
        def step(gradient: Any, optimizer: Any = optimizer, variable: Any = variable) -> None:
            optimizer.apply_gradients([(gradient, variable)])

        if hasattr(optimizer, "build"):
            optimizer.build([variable])
        mean, expected = (hvd.size() - 1) / 2, 0.0
        for number in range(1, 8):
            # The other kind multiplies infinities by a momentum of zero, whoever makes the step.
            infinite = number == 2 and make is keras.optimizers.legacy.SGD
            step(tf.constant([np.inf if infinite else float(hvd.rank())]))
            if number == 3 and make is keras.optimizers.legacy.SGD:
                assert not np.isfinite(variable.numpy()).all()
                variable.assign([0.0])
            elif number % 3 == 0:
                expected -= 3 * mean
            assert np.allclose(variable.numpy(), expected), (number, variable.numpy())
            assert optimizer.iterations.numpy() == number
            assert optimizer._agg_helper.counter == number % 3

        # One that the first pass has no gradient for.
        used, late = tf.Variable([0.0]), tf.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(make(1.0), backward_passes_per_step=2)
        for gradient in (None, tf.constant([float(hvd.rank())])):
            optimizer.apply_gradients([(tf.constant([1.0]), used), (gradient, late)])
        assert used.numpy() == [-2.0]
        assert late.numpy() == [-mean]

        # Lists of variables in lists.
        pairs = optimizer._compute_gradients(lambda u=used, v=late: u * v, [[used], [late]])
        assert [v is w for (_, v), w in zip(pairs, (used, late), strict=True)] == [True, True]


def what_has_added_up_is_dropped() -> None:
    """A process that is new in an elastic job has nothing that waits for the next pass."""
    for make in (keras.optimizers.legacy.SGD, keras.optimizers.SGD):
        for kind in (hvd.elastic.KerasState, TensorFlowKerasState):
            model = new_model()
            optimizer = hvd.DistributedOptimizer(make(1.0), backward_passes_per_step=2)
            state, before = kind(model, optimizer), model.get_weights()
            for number in range(3):
                gradients = [10.0**number * tf.ones_like(v) for v in model.trainable_variables]
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
                if number == 0:
                    state.on_reset()
                    assert optimizer._agg_helper.counter == 0
            for old, new in zip(before, model.get_weights(), strict=True):
                assert np.allclose(new, old - 110.0)


def half_precision() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        for make in (keras.optimizers.legacy.SGD, keras.optimizers.SGD):
            model = new_model()
            model.compile(hvd.DistributedOptimizer(make(0.01)), "mse")
            inputs, targets = batches(4)
            x, y = rows(inputs, False).copy(), rows(targets, False)
            if hvd.rank() == hvd.size() - 1:
                x[SHARE : 2 * SHARE] = np.inf
            model.fit(x, y, SHARE, shuffle=False, verbose=0)
            assert model.optimizer.loss_scale.numpy() == 2.0**14
            assert all(np.isfinite(weights).all() for weights in model.get_weights())
            check_equal(model, model, "half precision")
            gradients_are_reduced_once(make)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def what_loss_scaling_refuses() -> None:
    """Wherever it comes from: sums over ranks, and accumulation."""
    for make in (keras.optimizers.legacy.SGD, keras.optimizers.SGD):
        scaling = type(keras.mixed_precision.LossScaleOptimizer(make(1.0)))
        for options in ({"op": hvd.Sum}, {"backward_passes_per_step": 2}):
            refused(lambda: hvd.DistributedOptimizer(scaling(make(1.0)), **options))  # noqa: B023
            optimizer = scaling(hvd.DistributedOptimizer(make(1.0), **options))
            variable = tf.Variable([0.0])
            pairs = [(tf.constant([1.0]), variable)]
            refused(lambda: optimizer.apply_gradients(pairs))  # noqa: B023
            assert variable.numpy() == [0.0]

            distributed = hvd.DistributedOptimizer(make(1.0), **options)
            keras.mixed_precision.set_global_policy("mixed_float16")
            try:
                model = new_model()
                model.compile(distributed, "mse")
                inputs, targets = (rows(data, False) for data in batches(1))
                refused(lambda: model.fit(inputs, targets, verbose=0))  # noqa: B023
            finally:
                keras.mixed_precision.set_global_policy("float32")


def refused(call: Callable[[], Any]) -> None:
    try:
        call()
    except ValueError as error:
        if "takes only op=Average" in str(error):
            return
        raise
    raise AssertionError("not refused")


def gradients_are_reduced_once(make: Any) -> None:
    """With loss scaling, whoever computes them; those of local variables are divided once."""
    from hvdtune.keras import backends

    backend, calls = backends.current(), 0
    original = backend.grouped_allreduce

    def counting(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(*args, **options)

    ready = hvd.DistributedOptimizer(make(1.0))
    scaling = type(keras.mixed_precision.LossScaleOptimizer(make(1.0)))
    outside = hvd.DistributedOptimizer(scaling(make(1.0), initial_scale=8.0))
    backend.grouped_allreduce = counting  # type: ignore[method-assign]
    try:
        for optimizer in (scaling(ready, initial_scale=8.0), outside):
            shared, local = tf.Variable([0.0]), tf.Variable([0.0])
            optimizer.inner_optimizer.register_local_var(local)
            factor, calls = float(hvd.rank() + 1), 0

            def loss(shared: Any = shared, local: Any = local, factor: float = factor) -> Any:
                return tf.reduce_sum(factor * shared + factor * local)

            optimizer.minimize(loss, [shared, local])
            assert calls == (hvd.size() > 1), calls
            assert np.allclose(shared.numpy(), [-(hvd.size() + 1) / 2])
            assert np.allclose(local.numpy(), [-factor / hvd.size()])
    finally:
        backend.grouped_allreduce = original  # type: ignore[method-assign]


def sync_batch_normalization() -> None:
    """Uneven batches are normalised as their union is by one process, also in a session."""
    whole = np.random.default_rng(0).normal(5.0, 2.0, (3 * hvd.size() + 2, 4)).astype("float32")
    mine = slice(3 * hvd.rank(), 3 * (hvd.rank() + 1) + (2 if hvd.rank() == hvd.size() - 1 else 0))

    def layers_and_outputs() -> tuple[Any, Any]:
        layers = hvd.SyncBatchNormalization(), keras.layers.BatchNormalization(fused=False)
        pairs = zip(layers, (whole[mine], whole), strict=True)
        return layers, [one(tf.constant(inputs), training=True) for one, inputs in pairs]

    (layer, alone), (outputs, expected) = layers_and_outputs()
    assert layer.name.startswith("sync_batch_normalization")
    assert hvd.SyncBatchNormalization().name != layer.name
    assert hvd.SyncBatchNormalization.from_config(layer.get_config()).name == layer.name
    assert np.allclose(outputs, expected[mine], atol=1e-5)
    for got, want in zip(layer.get_weights(), alone.get_weights(), strict=True):
        assert np.allclose(got, want, atol=1e-4)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        _, tensors = layers_and_outputs()
        session.run(tf.compat.v1.global_variables_initializer())
        outputs, expected = session.run(tensors)
    assert np.allclose(outputs, expected[mine], atol=1e-5)


CHECKS = (
    training,
    tensorflows_face_passes_optimizers_on,
    the_sum_is_reduced_once,
    accumulation,
    what_has_added_up_is_dropped,
    half_precision,
    what_loss_scaling_refuses,
    sync_batch_normalization,
)


def run(*names: str) -> list[str]:
    """The names of the checks that passed."""
    hvd.init()
    passed = []
    for check in CHECKS:
        if not names or check.__name__ in names:
            check()
            passed.append(check.__name__)
    hvd.shutdown()
    return passed
