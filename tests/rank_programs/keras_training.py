"""Rank programs: training with Keras' DistributedOptimizer gives what one process gives.

On the backend that KERAS_BACKEND names. Every rank also trains a copy of the model alone, on the
batch of all ranks, with the plain optimizer. Both must end with the same weights up to float32
rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import keras
import numpy as np

import hvdtune.keras as hvd

STEPS = 6
SHARE = 4  # rows of each batch that a rank sees
TOLERANCE = 3e-6


def new_model() -> Any:
    keras.utils.set_random_seed(5)
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(3),
        ]
    )


def batches(steps: int = STEPS, seed: int = 3) -> tuple[Any, Any]:
    """(steps, ranks, SHARE, columns)."""
    generator = np.random.default_rng(seed)
    shape = (steps, hvd.size(), SHARE)
    return (
        generator.normal(size=(*shape, 6)).astype("float32"),
        generator.normal(size=(*shape, 3)).astype("float32"),
    )


def rows(data: Any, alone: bool) -> Any:
    """Of all ranks, in the order in which `fit` takes whole batches; or of this one."""
    data = data if alone else data[:, hvd.rank() : hvd.rank() + 1]
    return data.reshape(-1, data.shape[-1])


def fit(model: Any, optimizer: Any, alone: bool, steps: int = STEPS, **options: Any) -> Any:
    callbacks = options.pop("callbacks", None)
    model.compile(optimizer=optimizer, loss="mse", **options)
    inputs, targets = batches(steps)
    return model.fit(
        rows(inputs, alone),
        rows(targets, alone),
        batch_size=SHARE * (hvd.size() if alone else 1),
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )


def raises(kind: type[Exception], text: str, call: Callable[[], Any]) -> None:
    """Check that `call` raises an error whose message has `text` in it."""
    try:
        call()
    except kind as error:
        if text in str(error):
            return
        raise
    raise AssertionError(f"no {kind.__name__}: {text}")


def check_equal(got: Any, expected: Any, what: object, tolerance: float = TOLERANCE) -> None:
    for one, other in zip(got.get_weights(), expected.get_weights(), strict=True):
        difference = float(np.abs(one - other).max())
        assert difference <= tolerance, (what, difference)
    check_same(got, what)


def check_same(model: Any, what: object) -> None:
    for weights in model.get_weights():
        every = hvd.allgather_object(weights)
        assert all((one == every[0]).all() for one in every), (what, "differs between ranks")


def gradients(model: Any, inputs: Any, targets: Any, factor: float = 1.0) -> list[Any]:
    """Of the mean squared error, for the model's trainable weights; eagerly."""
    backend = keras.backend.backend()
    if backend == "torch":
        model.zero_grad()
        loss = keras.ops.mean((model(inputs) - keras.ops.convert_to_tensor(targets)) ** 2)
        (factor * loss).backward()
        return [v.value.grad for v in model.trainable_weights]
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = factor * tf.reduce_mean((model(inputs) - targets) ** 2)
        return list(tape.gradient(loss, model.trainable_weights))
    import jax

    def loss_of(weights: Any) -> Any:
        predicted, _ = model.stateless_call(
            weights, [v.value for v in model.non_trainable_variables], inputs
        )
        return factor * ((predicted - targets) ** 2).mean()

    return list(jax.grad(loss_of)([v.value for v in model.trainable_variables]))


def loop(model: Any, optimizer: Any, alone: bool, steps: int = STEPS) -> None:
    optimizer.build(model.trainable_variables)
    inputs, targets = batches(steps)
    for step in range(steps):
        share = slice(None) if alone else slice(hvd.rank(), hvd.rank() + 1)
        x, y = inputs[step, share].reshape(-1, 6), targets[step, share].reshape(-1, 3)
        grads = gradients(model, x, y)
        if keras.backend.backend() == "torch":
            import torch

            with torch.no_grad():
                optimizer.apply(grads, model.trainable_variables)
        else:
            optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))


def compare(
    make: Callable[[], Any],
    train: Callable[..., Any] = fit,
    tolerance: float = TOLERANCE,
    **options: Any,
) -> Any:
    model, alone = new_model(), new_model()
    distributed = hvd.DistributedOptimizer(make(), **options)
    train(model, distributed, alone=False)
    train(alone, make(), alone=True)
    check_equal(model, alone, (make, options), tolerance)
    return distributed


def variants(*every: Any) -> tuple[Any, ...]:
    """All on PyTorch, which compiles nothing; the last on the others: what is above is the same."""
    return every if keras.backend.backend() == "torch" else every[-1:]


# ---- checks: each is a function without arguments; `run` calls them all --------------------------


def fit_and_loop() -> None:
    for train in (fit, loop):
        for make in variants(
            lambda: keras.optimizers.SGD(0.1, momentum=0.9),
            lambda: keras.optimizers.Adam(0.01, epsilon=1e-3),
        ):
            compare(make, train)
    compare(lambda: keras.optimizers.SGD(0.1), num_groups=3, gradient_predivide_factor=4.0)
    compare(lambda: keras.optimizers.SGD(0.1), compression=hvd.Compression.fp16, tolerance=2e-3)


def the_sum() -> None:
    model, alone = new_model(), new_model()
    fit(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), op=hvd.Sum), alone=False)
    fit(alone, keras.optimizers.SGD(0.1 * hvd.size()), alone=True)
    check_equal(model, alone, "sum")


def clipping() -> None:
    # Gradients of single ranks are longer than their mean: clipped before, they would differ.
    for arguments in variants({"clipnorm": 0.05}, {"clipvalue": 0.01}, {"global_clipnorm": 0.1}):
        compare(lambda arguments=arguments: keras.optimizers.SGD(0.5, **arguments))


def accumulation() -> None:
    every = 3
    accumulating = lambda: keras.optimizers.Adam(  # noqa: E731
        0.01, epsilon=1e-3, clipnorm=0.1, gradient_accumulation_steps=every
    )
    calls = counted_reductions(lambda: compare(accumulating))
    assert calls == (STEPS // every) * (hvd.size() > 1), calls

    # The same from backward_passes_per_step, which adds up unless it is told to average.
    plain = lambda: keras.optimizers.Adam(0.01, epsilon=1e-3, clipnorm=0.1)  # noqa: E731
    model, alone = new_model(), new_model()
    distributed = hvd.DistributedOptimizer(
        plain(), backward_passes_per_step=every, average_aggregated_gradients=True
    )
    fit(model, distributed, alone=False)
    fit(alone, accumulating(), alone=True)
    check_equal(model, alone, "backward_passes_per_step")
    assert distributed.get_config() == plain().get_config() | {"name": distributed.name}

    model, alone = new_model(), new_model()
    distributed = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1), backward_passes_per_step=every
    )
    assert distributed._agg_helper.counter == 0
    for steps in (1, 2, 3, 4):
        loop(model, distributed, alone=False, steps=1)
        assert int(distributed.iterations.numpy()) == steps
        assert distributed._agg_helper.counter == steps % every
        if keras.backend.backend() == "tensorflow":  # scripts for Horovod read it so
            assert distributed._agg_helper.counter.numpy() == steps % every
        untouched = all(
            (one == other).all()
            for one, other in zip(model.get_weights(), alone.get_weights(), strict=True)
        )
        assert untouched == (steps < every), steps


def counted_reductions(call: Callable[[], Any]) -> int:
    """How many groups of gradients are reduced while `call` runs."""
    from hvdtune.keras import backends

    backend, calls = backends.current(), 0
    original = backend.grouped_allreduce

    def count() -> None:
        nonlocal calls
        calls += 1

    def counting(*args: Any, **kwargs: Any) -> Any:
        at_run_time(count)
        return original(*args, **kwargs)

    backend.grouped_allreduce = counting  # type: ignore[method-assign]
    try:
        call()
    finally:
        backend.grouped_allreduce = original  # type: ignore[method-assign]
    return calls


def at_run_time(call: Callable[[], None]) -> None:
    """Call it whenever the step that is being traced here runs."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        jax.debug.callback(call)
    elif backend == "tensorflow":
        import tensorflow as tf

        tf.py_function(call, [], [])
    else:
        call()


def infinite_gradients_do_not_stay() -> None:
    model = new_model()
    distributed = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2)
    x, y = (data[0, hvd.rank()] for data in batches(1))
    distributed.build(model.trainable_variables)
    apply = distributed.apply
    good = gradients(model, x, y)
    infinite = [gradient * math.inf for gradient in gradients(model, x * 0 + 1, y * 0 + 9)]
    for grads in (infinite, infinite, good, good):
        no_grad(apply, grads, model.trainable_variables)
    for accumulator in distributed._accumulated_gradients:
        assert np.isfinite(np.asarray(keras.ops.convert_to_numpy(accumulator))).all()


def no_grad(call: Callable[..., Any], *args: Any) -> Any:
    if keras.backend.backend() != "torch":
        return call(*args)
    import torch

    with torch.no_grad():
        return call(*args)


def half_precision() -> None:
    """A float16 model whose gradients overflow on one rank: all leave out the step."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        for arguments in ({}, {"gradient_accumulation_steps": 2}):
            model = new_model()
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, **arguments))
            model.compile(optimizer=optimizer, loss="mse")
            assert type(model.optimizer).__name__ == "LossScaleOptimizer"
            check_skipped_steps(model)
        # Wrapped the other way round.
        model = new_model()
        scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01))
        model.compile(optimizer=hvd.DistributedOptimizer(scaling), loss="mse")
        check_skipped_steps(model)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def check_skipped_steps(model: Any) -> None:
    inputs, targets = batches(4)
    x, y = rows(inputs, alone=False).copy(), rows(targets, alone=False).copy()
    if hvd.rank() == hvd.size() - 1:
        x[SHARE : 2 * SHARE] = np.inf  # the second batch
    before = model.get_weights()
    model.fit(x, y, batch_size=SHARE, shuffle=False, verbose=0)
    check_same(model, "half precision")
    scale = float(keras.ops.convert_to_numpy(model.optimizer.dynamic_scale))
    assert scale == 2.0**14, scale  # halved once, everywhere
    assert int(model.optimizer.inner_optimizer._iterations.numpy()) == 3
    assert all(np.isfinite(weights).all() for weights in model.get_weights())
    assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))


def local_variables() -> None:
    model, alone = new_model(), new_model()
    layer = model.layers[-1]
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=layer)
    x, y = (data[0, hvd.rank()] for data in batches(1))
    own = [np.asarray(keras.ops.convert_to_numpy(g)) for g in gradients(model, x, y)]
    no_grad(optimizer.apply, gradients(model, x, y), model.trainable_variables)
    every = hvd.allgather_object(own)
    for index, (new, old) in enumerate(zip(model.get_weights(), alone.get_weights(), strict=True)):
        mean = sum(grads[index] for grads in every) / hvd.size()
        gradient = own[index] / hvd.size() if index >= 2 else mean
        assert np.allclose(new, old - 0.1 * gradient, atol=TOLERANCE), index
    known = optimizer._reduction._local
    if keras.backend.backend() == "jax":  # whose arrays come and go: their ids say nothing
        assert set(known) == {id(variable) for variable in layer.trainable_variables}
    else:
        kept = {id(thing) for things in known.values() for thing in things}
        assert set(known) <= kept, "what an id is of may be freed"
    raises(
        ValueError,
        "must be of tf.keras.layers.Layer type",
        lambda: hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=3),
    )


def groups_and_a_process_set() -> None:
    if hvd.size() < 2:
        return
    half = hvd.add_process_set(list(range(hvd.size() // 2)))
    model = new_model()
    first = [model.trainable_variables[0], model.trainable_variables[3]]
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1), process_set=half, groups=[first]
    )
    x, y = (data[0, hvd.rank()] for data in batches(1))
    own = [np.asarray(keras.ops.convert_to_numpy(g)) for g in gradients(model, x, y)]
    no_grad(optimizer.apply, gradients(model, x, y), model.trainable_variables)
    every = hvd.allgather_object(own)
    members = every[: hvd.size() // 2] if half.included() else [own]
    for index, (new, old) in enumerate(
        zip(model.get_weights(), new_model().get_weights(), strict=True)
    ):
        mean = sum(grads[index] for grads in members) / len(members)
        assert np.allclose(new, old - 0.1 * mean, atol=TOLERANCE), index
    hvd.remove_process_set(half)


def names_on_the_wire() -> None:
    """They are counted in each process set, and anew in each job, which may have new processes."""

    def new(**options: Any) -> Any:
        return hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), name="counted", **options)

    first, second = new(), new()
    assert first._reduction.wire_name == "counted"
    assert second._reduction.wire_name == first._reduction.wire_name + "#2"
    if hvd.size() > 1:
        of_one = new(process_set=hvd.add_process_set([0]))
        assert of_one._reduction.wire_name == "counted"
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    assert new()._reduction.wire_name == "counted"
    assert second._reduction.wire_name == "counted#2"


def values() -> None:
    """The collectives on tensors of the backend."""
    ranks, rank = hvd.size(), hvd.rank()
    number = keras.ops.convert_to_numpy
    assert np.allclose(number(hvd.allreduce([1.0 + rank, 2.0])), [(ranks + 1) / 2, 2.0])
    assert np.allclose(number(hvd.allreduce(np.ones(3, "float32"), op=hvd.Sum)), ranks)
    halved = hvd.allreduce(
        np.full(3, 4.0, "float32"), name="a", prescale_factor=0.5, compression=hvd.Compression.fp16
    )
    assert keras.backend.standardize_dtype(halved.dtype) == "float32"
    assert np.allclose(number(halved), 2.0)
    gathered = number(hvd.allgather(np.full((rank + 1, 2), rank, "int32")))
    assert gathered.shape == (ranks * (ranks + 1) // 2, 2)
    assert (gathered[-1] == ranks - 1).all()
    assert (number(hvd.broadcast(np.full(2, rank, "float32"), 0)) == 0).all()
    share = number(hvd.reducescatter(np.ones((ranks, 2), "float32"), op=hvd.Sum))
    assert share.shape == (1, 2)
    assert (share == ranks).all()
    for call in (
        lambda: hvd.allreduce(1.0, average=True, op=hvd.Sum),
        lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Max),
        lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=0),
        lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), groups=0),
        lambda: hvd.DistributedOptimizer(
            keras.optimizers.SGD(), op=hvd.Sum, gradient_predivide_factor=2.0
        ),
        lambda: hvd.DistributedOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD())),
    ):
        raises(ValueError, "", call)


def sync_batch_normalization() -> None:
    """Uneven batches are normalised, and differentiated, as their union is by one process."""
    if hvd.size() == 1:
        return
    rows_of = [3 + 2 * rank for rank in range(hvd.size())]
    whole = np.random.default_rng(0).normal(5.0, 2.0, (sum(rows_of), 4)).astype("float32")
    own = np.split(whole, np.cumsum(rows_of)[:-1])[hvd.rank()]
    layer, alone = hvd.SyncBatchNormalization(), keras.layers.BatchNormalization()
    assert layer.name.startswith("sync_batch_normalization")
    outputs, gradient = normalised(layer, own)
    expected, expected_gradient = normalised(alone, whole)
    mine = slice(sum(rows_of[: hvd.rank()]), sum(rows_of[: hvd.rank() + 1]))
    assert np.allclose(outputs, expected[mine], atol=1e-5)
    assert np.allclose(gradient, expected_gradient[mine], atol=1e-4)
    for got, want in zip(layer.get_weights(), alone.get_weights(), strict=True):
        assert np.allclose(got, want, atol=1e-4)
    for fused in (True, None):
        raises(ValueError, "fused", lambda fused=fused: hvd.SyncBatchNormalization(fused=fused))
    model = keras.Sequential(
        [keras.Input((6,)), hvd.SyncBatchNormalization(), keras.layers.Dense(3)]
    )
    fit(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), alone=False)
    # Weights follow the joined moments, which are rounded alike everywhere.
    check_same(model, "sync batch normalization")


def normalised(layer: Any, inputs: Any) -> tuple[Any, Any]:
    """Outputs in training, and the gradient of the sum of their cubes for the inputs."""
    layer.build(inputs.shape)
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        x = torch.tensor(inputs, requires_grad=True)
        y = layer(x, training=True)
        (y**3).sum().backward()
        return y.detach().numpy(), x.grad.numpy()
    if backend == "tensorflow":
        import tensorflow as tf

        x = tf.constant(inputs)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            loss = tf.reduce_sum(y**3)
        return y.numpy(), tape.gradient(loss, x).numpy()
    import jax

    def loss_of(x: Any) -> Any:
        y, state = layer.stateless_call(
            [v.value for v in layer.trainable_variables],
            [v.value for v in layer.non_trainable_variables],
            x,
            training=True,
        )
        return (y**3).sum(), (y, state)

    gradient, (y, state) = jax.grad(loss_of, has_aux=True)(inputs)
    for variable, value in zip(layer.non_trainable_variables, state, strict=True):
        variable.assign(value)
    return np.asarray(y), np.asarray(gradient)


def variables_are_a_list_and_a_call() -> None:
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, name="named"))
    assert [v.path for v in optimizer.variables] == [v.path for v in optimizer.variables()]
    assert len(optimizer.variables) == 2
    assert type(optimizer).__name__ == "SGD"
    assert isinstance(optimizer, keras.optimizers.SGD)
    assert optimizer.name == "named"


def copies_from_configurations() -> None:
    """They reduce, with the settings that the optimizer was made with."""

    def copy(optimizer: Any) -> Any:
        return type(optimizer).from_config(optimizer.get_config())

    model, alone = new_model(), new_model()
    fit(model, copy(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), op=hvd.Sum)), alone=False)
    fit(alone, keras.optimizers.SGD(0.1 * hvd.size()), alone=True)
    check_equal(model, alone, "copy")

    model = new_model()
    first = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1), local_layers=model.layers[-1], backward_passes_per_step=2
    )
    second = copy(first)
    assert type(second).__name__ == "SGD"
    assert second._agg_helper.backward_passes_per_step == second.gradient_accumulation_steps == 2
    assert second._agg_helper is not first._agg_helper
    assert second._reduction.wire_name != first._reduction.wire_name
    assert second._reduction.is_local(model.trainable_variables[-1])
    assert not second._reduction.is_local(model.trainable_variables[0])
    assert second.get_config() == first.get_config()


def tensorflow_api() -> None:
    """What scripts call on TensorFlow: each reduces, and nothing is reduced twice."""
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    for op, rate in ((hvd.Average, 0.1), (hvd.Sum, 0.1 / hvd.size())):
        methods = ("minimize", "tape", "_compute_gradients", "function", "get_gradients")
        for method in methods if op == hvd.Average else methods[:2]:
            model, alone = new_model(), new_model()
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate), op=op)
            optimizer.build(model.trainable_variables)
            tensorflow_step(model, optimizer, method, op)
            loop(alone, keras.optimizers.SGD(0.1), alone=True, steps=1)
            check_equal(model, alone, (method, op))

    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    plain = tf.Variable([2.0])
    assert tf.function(lambda: optimizer.get_gradients(plain * float(hvd.rank()), [plain]))()[
        0
    ].numpy() == [(hvd.size() - 1) / 2]

    # Methods of these names that an optimizer has itself say what the gradients are.
    class Own(keras.optimizers.SGD):  # type: ignore[misc]
        def get_gradients(self, loss: Any, params: Any) -> list[Any]:
            return [tf.constant([float(hvd.rank())]) for _ in params]

        def compute_gradients(
            self, loss: Any, var_list: Any, tape: Any = None, grad_loss: float = 1.0
        ) -> list[Any]:
            return [(tf.constant([grad_loss * hvd.rank()]), variable) for variable in var_list]

    optimizer, mean = hvd.DistributedOptimizer(Own(1.0)), (hvd.size() - 1) / 2
    optimizer.apply_gradients([(*optimizer.get_gradients(None, [plain]), plain)])
    assert plain.numpy() == [2.0 - mean]
    optimizer.minimize(None, [plain])
    assert plain.numpy() == [2.0 - 2 * mean]
    assert optimizer.compute_gradients(None, [plain], grad_loss=3.0)[0][0].numpy() == [3 * mean]
    assert optimizer.compute_gradients(None, []) == []

    # Rows of an embedding that each rank has used.
    for dense in (False, True):
        keras.utils.set_random_seed(2)
        model = keras.Sequential([keras.layers.Embedding(7, 3), keras.layers.Flatten()])
        model(np.zeros((1, 2), "int32"))
        before = model.get_weights()[0]
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=dense)
        model.compile(optimizer=optimizer, loss=lambda y, p: tf.reduce_sum(p, -1))
        model.fit(np.array([[hvd.rank(), 6]]), np.zeros((1, 1)), verbose=0)
        expected = before.copy()
        expected[: hvd.size()] -= 1.0 / hvd.size()
        expected[6] -= 1.0
        assert np.allclose(model.get_weights()[0], expected, atol=1e-5)

    # Those of a local variable stay as sparse as they are.
    table = keras.Variable(np.zeros((7, 3), "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.register_local_var(table)
    rows_of_rank = tf.IndexedSlices(tf.ones((1, 3)), tf.constant([hvd.rank()]), (7, 3))
    (got,) = optimizer._reduction([rows_of_rank], [table])
    assert isinstance(got, tf.IndexedSlices)
    assert (got.values.numpy() == 1.0 / hvd.size()).all()
    assert got.indices.numpy() == [hvd.rank()]

    # As if XLA could not compile collectives.
    missing = "hvdtune.tensorflow.calls.compiled._missing_in_process"
    with mock.patch(missing, return_value="no way"):
        if hvd.size() > 1:
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
            raises(
                ValueError,
                "no way. Call model.compile(..., jit_compile=False)",
                lambda: fit(new_model(), optimizer, alone=False, jit_compile=True),
            )
        fit(
            new_model(),
            optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
            alone=False,
            jit_compile=True,
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        )


def tensorflow_step(model: Any, optimizer: Any, method: str, op: int) -> None:
    import tensorflow as tf

    import hvdtune.tensorflow

    x, y = (data[0, hvd.rank()] for data in batches(1))
    variables = model.trainable_variables

    def loss() -> Any:
        return tf.reduce_mean((model(x) - y) ** 2)

    def step() -> None:
        if method == "minimize":
            optimizer.minimize(loss, variables)
        elif method == "tape":
            with tf.GradientTape() as tape:
                value = loss()
            tape = hvdtune.tensorflow.DistributedGradientTape(tape, op=op)
            gradients = tape.gradient(value, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        elif method == "get_gradients":
            optimizer.apply(optimizer.get_gradients(loss(), variables), variables)
        else:
            optimizer.apply_gradients(optimizer._compute_gradients(loss, variables))

    traced = method in ("function", "get_gradients")
    (tf.function(step) if traced else step)()


CHECKS = (
    fit_and_loop,
    the_sum,
    clipping,
    accumulation,
    infinite_gradients_do_not_stay,
    half_precision,
    local_variables,
    groups_and_a_process_set,
    names_on_the_wire,
    values,
    sync_batch_normalization,
    variables_are_a_list_and_a_call,
    copies_from_configurations,
    tensorflow_api,
)


def run(*names: str) -> list[str]:
    """The names of the checks that passed; those named, or all."""
    hvd.init(process_sets="dynamic")
    passed = []
    for check in CHECKS:
        if not names or check.__name__ in names:
            check()
            passed.append(check.__name__)
    hvd.shutdown()
    return passed


def loaded_backends() -> list[str]:
    """Which backends the face has loaded, of those that Keras had not."""
    import sys

    hvd.init()
    hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    hvd.allreduce(1.0)
    hvd.shutdown()
    names = ("torch", "jax", "tensorflow")
    return [name for name in names if f"hvdtune.keras.backends.{name}" in sys.modules]
