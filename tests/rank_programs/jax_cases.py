"""Rank programs: JAX's face inside `jax.jit` and outside, against what one process computes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hvdtune.jax as hvd
from hvdtune.jax import primitive
from hvdtune.jax.call import Call

ALL = hvd.global_process_set


def close(got: Any, wanted: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(wanted), rtol, atol)


def values_in_jit() -> None:
    r, n = hvd.rank(), hvd.size()
    rows = np.arange(2 * n * 3, dtype=np.float32).reshape(2 * n, 3)
    every = np.stack([rows + k for k in range(n)])

    @jax.jit
    def all_kinds(x: Any) -> Any:
        return {
            "average": hvd.allreduce(x),
            "scaled": hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
            "max": hvd.allreduce(x, op=hvd.Max, name="named"),
            "gather": hvd.allgather(x),
            "root": hvd.broadcast(x, n - 1),
            "exchange": hvd.alltoall(x),
            "share": hvd.reducescatter(x, op=hvd.Sum),
        }

    for _ in range(2):
        got = all_kinds(jnp.asarray(rows + r))
        close(got["average"], every.mean(0))
        close(got["scaled"], every.sum(0) * 1.5)
        close(got["max"], every.max(0))
        close(got["gather"], every.reshape(-1, 3))
        close(got["root"], every[-1])
        close(got["exchange"], every[:, 2 * r : 2 * r + 2].reshape(-1, 3))
        close(got["share"], every.sum(0)[2 * r : 2 * r + 2])
    # Other shapes: traced again, under the same names.
    close(all_kinds(jnp.ones((n, 2)))["average"], np.ones((n, 2)))


def unequal_rows() -> None:
    r, n = hvd.rank(), hvd.size()
    sizes = [k + 1 for k in range(n)]
    wanted = np.concatenate([np.full((k + 1, 2), k) for k in range(n)])
    mine = jnp.full((r + 1, 2), r, jnp.float32)
    close(hvd.allgather(mine), wanted)
    close(jax.jit(lambda x: hvd.allgather(x, sizes=sizes))(mine), wanted)
    pair = jax.jit(lambda x: hvd.grouped_allgather([x, -x], sizes=sizes))(mine)
    close(pair[1], -wanted)
    # Rank k sends k + 1 rows to everybody; one more row stays.
    rows = jnp.arange((r + 1) * n + 1, dtype=jnp.int32)
    splits = [r + 1] * n
    got, counts = hvd.alltoall(rows, splits)
    assert counts.tolist() == sizes

    def send(x: Any) -> Any:
        return hvd.alltoall(x, splits, received_splits=sizes)[0]

    assert jax.jit(send)(rows).tolist() == got.tolist()
    gradient = jax.jit(jax.grad(lambda x: send(x).sum()))(rows.astype(jnp.float32))
    close(gradient, [1.0] * (r + 1) * n + [0.0])
    shares = jax.jit(lambda x: hvd.reducescatter(x, op=hvd.Sum))(jnp.ones((n + 1, 2)))
    assert shares.shape == (2 if r == 0 else 1, 2)
    close(shares, np.full(shares.shape, n))


def dtypes() -> None:
    n = hvd.size()
    for name in ("uint8", "int8", "uint16", "int16", "int32", "float16", "bfloat16", "float32"):
        x = jnp.arange(4).astype(name)
        for reduce in (hvd.allreduce, jax.jit(hvd.allreduce, static_argnames="op")):
            got = reduce(x, op=hvd.Sum)
            assert got.dtype == x.dtype
            close(got.astype(jnp.float32), np.arange(4) * n)
        for gather in (hvd.allgather, jax.jit(hvd.allgather)):
            assert gather(x).dtype == x.dtype
            close(gather(x).astype(jnp.float32), list(range(4)) * n)
    truth = jnp.asarray([True, False, hvd.rank() == 0])
    for reduce in (hvd.allreduce, jax.jit(hvd.allreduce, static_argnames="op")):
        assert reduce(truth, op=hvd.Max).tolist() == [True, False, True]
        assert reduce(truth, op=hvd.Min).tolist() == [True, False, n == 1]


def results_are_the_callers() -> None:
    """JAX takes the memory of large results as it is, and hvdtune uses such memory again."""
    count, n = 1 << 20, hvd.size()
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    given = np.full(count, 7, np.float32)
    kept, donated = [], []
    for turn in range(4):
        kept.append(hvd.allreduce(jnp.full(count, turn, jnp.float32), op=hvd.Sum))
        donated.append(add(hvd.allreduce(jnp.full(count, turn, jnp.float32), op=hvd.Sum)))
        from_numpy = hvd.allreduce(given, op=hvd.Sum)
        given[:] = 9
        close(from_numpy, np.full(count, 7 * n))
        given[:] = 7
    for turn in range(4):
        close(kept[turn], np.full(count, turn * n))
        close(donated[turn], np.full(count, turn * n + 1))


def pytrees() -> None:
    r, n = hvd.rank(), hvd.size()
    tree = {"w": jnp.full((3, 2), r, jnp.float32), "n": (jnp.asarray(r), [jnp.ones(0)]), "no": None}
    for reduce in (hvd.allreduce, jax.jit(hvd.allreduce, static_argnames="op")):
        got = reduce(tree, op=hvd.Sum)
        assert jax.tree.structure(got) == jax.tree.structure(tree)
        close(got["w"], np.full((3, 2), sum(range(n))))
        assert int(got["n"][0]) == sum(range(n))
    for broadcast in (hvd.broadcast, jax.jit(hvd.broadcast, static_argnums=1)):
        assert int(broadcast(tree, n - 1)["n"][0]) == n - 1
    assert hvd.allreduce({}) == {}
    assert jax.jit(hvd.grouped_allreduce)([]) == []


def control_flow() -> None:
    r, n = hvd.rank(), hvd.size()

    @jax.jit
    def loop(x: Any) -> Any:
        def body(carry: Any, step: Any) -> Any:
            carry = hvd.allreduce(carry) * 2
            extra = jax.lax.cond(
                step % 2 == 0, hvd.allreduce, lambda y: hvd.allreduce(y, op=hvd.Max), carry
            )
            return carry, extra

        return jax.lax.scan(body, x, jnp.arange(4))

    last, extra = loop(jnp.full(2, float(r)))
    mean = sum(range(n)) / n
    close(last, np.full(2, mean * 16))
    close(extra[:, 0], [mean * 2**k for k in range(1, 5)])
    through = jax.jit(jax.grad(lambda x: loop(x)[0].sum()))(jnp.full(2, float(r)))
    close(through, np.full(2, 16.0))
    repeated = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: hvd.allreduce(y) + 1, x))
    close(repeated(jnp.full(2, float(r))), np.full(2, mean + 3))


def gradients() -> None:
    """Of a loss that weighs the results differently on every rank, as the table says."""
    r, n = hvd.rank(), hvd.size()
    x = jnp.arange(2 * n, dtype=jnp.float32) + r
    weights = [np.arange(1, 2 * n * n + 1, dtype=np.float32) * (k + 1) for k in range(n)]
    mean = np.mean(weights, 0)
    wanted = {
        "average": np.mean([w[: 2 * n] for w in weights], 0),
        "sum": np.sum([w[: 2 * n] for w in weights], 0) * 6,
        "gather": mean[2 * n * r : 2 * n * (r + 1)],
        "root": mean[: 2 * n] if r == n - 1 else np.zeros(2 * n),
        "exchange": np.concatenate([w[2 * r : 2 * r + 2] for w in weights]),
        "share": np.concatenate([w[:2] for w in weights]) * n,
        "shares": np.concatenate([w[:2] for w in weights]),
    }
    calls: dict[str, Callable[[Any], Any]] = {
        "average": hvd.allreduce,
        "sum": lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0),
        "gather": hvd.allgather,
        "root": lambda x: hvd.broadcast(x, n - 1),
        "exchange": hvd.alltoall,
        "share": lambda x: hvd.reducescatter(x, op=hvd.Sum),
        "shares": lambda x: hvd.grouped_reducescatter([x, x])[0],
    }
    for what, call in calls.items():

        def loss(x: Any, call: Callable[[Any], Any] = call) -> Any:
            y = call(x)
            return (y * weights[r][: y.shape[0]]).sum()

        close(jax.grad(loss)(x), wanted[what])
        close(jax.jit(jax.grad(loss))(x), wanted[what])
    # Integers pass through, and have no gradient.
    mixed = jax.grad(lambda x: hvd.allreduce({"x": x, "i": jnp.arange(3)}, op=hvd.Sum)["x"].sum())
    close(mixed(x), np.full(2 * n, n))
    close(jax.jit(mixed)(x), np.full(2 * n, n))


def many_calls() -> None:
    """Independent calls, which XLA might run in any order, in two functions in flight at once."""
    r, n = hvd.rank(), hvd.size()

    def program(x: Any) -> Any:
        return [(hvd.allreduce(x * k, op=hvd.Sum) @ x) for k in range(40)]

    one = jax.jit(program)

    @jax.jit
    def other(x: Any) -> Any:
        return [hvd.allreduce(x + k, op=hvd.Max) for k in range(40)]

    x = jnp.full(20_000, 1.0 + r)
    for _ in range(25):
        first, second = one(x), other(x)
    close(second, [np.full(20_000, n + k) for k in range(40)])
    total = sum(range(1, n + 1))
    close(first, [total * k * (1 + r) * 20_000 for k in range(40)], 1e-3)


def errors_in_jit() -> None:
    r, n = hvd.rank(), hvd.size()
    if n == 1:
        return
    differ = jax.jit(lambda x: hvd.allreduce(x, name="differs"))
    for _ in range(2):
        with_text(lambda: differ(jnp.ones(2 + (r == 1))), "rank 1 has [3]", "allreduce.differs")
    with_text(lambda: jax.jit(hvd.allgather)(jnp.ones((1 + (r == 1), 2))), "given as sizes")
    wrong = [9] * n
    with_text(
        lambda: jax.jit(lambda x: hvd.alltoall(x, [1] * n, received_splits=wrong)[0])(jnp.ones(n)),
        "received_splits",
    )
    close(jax.jit(hvd.allreduce)(jnp.full(2, float(r))), np.full(2, sum(range(n)) / n))
    # After other work of JAX's, whose end nobody waits for: the error stays until the next job.
    slow = jax.jit(lambda x: hvd.allreduce((x @ x @ x)[: 3 + (r == 1)]))
    with_text(lambda: slow(jnp.ones((700, 700))), "Mismatched ALLREDUCE")
    hvd.shutdown()
    hvd.init()
    close(jax.jit(hvd.allreduce)(jnp.full(2, float(r))), np.full(2, sum(range(n)) / n))


def raised(call: Callable[[], Any]) -> tuple[str, str]:
    """The type and the text of what a call raises, at the latest when its result is there."""
    try:
        jax.block_until_ready(call())
    except jax.errors.JaxRuntimeError as error:  # XlaRuntimeError in older versions
        return "JaxRuntimeError", str(error)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def with_text(call: Callable[[], Any], *words: str) -> None:
    kind, text = raised(call)
    assert kind == "JaxRuntimeError", (kind, text)
    assert all(word in text for word in words), text


def mistakes_of_arguments() -> None:
    n = hvd.size()
    x = jnp.ones((n + 1, 2))
    scalar = jnp.ones(())
    for error, words, call in (
        (ValueError, "unknown reduction 9", lambda: jax.jit(lambda x: hvd.allreduce(x, op=9))(x)),
        (ValueError, "provide only one", lambda: hvd.allreduce(x, average=True, op=hvd.Sum)),
        (ValueError, "complex64", lambda: hvd.allreduce(jnp.ones(2, jnp.complex64))),
        (TypeError, "not a str", lambda: hvd.allreduce({"a": "text"})),
        (ValueError, "scalar tensors", lambda: jax.jit(hvd.allgather)(scalar)),
        (
            ValueError,
            "needs received_splits",
            lambda: jax.jit(lambda x: hvd.alltoall(x, [1] * n))(x),
        ),
        (ValueError, "known numbers", lambda: jax.jit(hvd.alltoall)(x, jnp.ones(n, jnp.int32))),
        (
            ValueError,
            "sizes has the rows",
            lambda: jax.jit(lambda x: hvd.allgather(x, sizes=[7] * n))(x),
        ),
        (NotImplementedError, "jax.vmap", lambda: jax.vmap(hvd.allreduce)(x)),
        (NotImplementedError, "jax.vmap", lambda: jax.jit(jax.vmap(hvd.allreduce))(x)),
        (
            ValueError,
            "has not been registered",
            lambda: hvd.allreduce(x, process_set=hvd.ProcessSet([0])),
        ),
        (ValueError, "Average or Sum", lambda: hvd.grad(lambda x: x.sum(), op=hvd.Max)),
    ):
        kind, text = raised(call)
        assert kind == error.__name__, (kind, text)
        assert words in text, text


def process_sets() -> None:
    r, n = hvd.rank(), hvd.size()
    if n < 3:
        return
    pair = hvd.add_process_set([0, n - 1])
    if r in (0, n - 1):
        got = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=pair))(
            jnp.full(2, r + 1.0)
        )
        close(got, np.full(2, n + 1))
        rows = jax.jit(lambda x: hvd.allgather(x, process_set=pair))(jnp.full(1, float(r)))
        close(rows, [0, n - 1])
    hvd.barrier()
    hvd.remove_process_set(pair)
    # Messages name ranks, not places in the set.
    late = hvd.add_process_set([1, 2])
    if r in (1, 2):
        for last, words in (
            (jnp.ones(2 if r == 1 else 3), "ranks 1 and 2 have different arrays"),
            (jnp.ones(2, jnp.float32 if r == 1 else jnp.complex64), "complex64"),
        ):
            kind, text = raised(lambda last=last: hvd.broadcast_parameters(last, 1, late))
            assert kind == "ValueError"
            assert words in text, text
        assert r == 2 or "on rank 2: " in text, text
    hvd.barrier()
    hvd.remove_process_set(late)


def training() -> None:
    """Data in parts on N ranks, and all of it on one process: the same parameters."""
    optax = __import__("optax")
    r, n = hvd.rank(), hvd.size()
    random = np.random.default_rng(3)
    x = jnp.asarray(random.normal(size=(8 * n, 5)), jnp.float32)
    y = jnp.asarray(random.normal(size=(8 * n, 1)), jnp.float32)
    start = {"w": jnp.asarray(random.normal(size=(5, 1)), jnp.float32), "b": jnp.zeros(1)}
    mine = slice(8 * r, 8 * r + 8)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return ((x @ params["w"] + params["b"] - y) ** 2).mean()

    def train(optimizer: Any, gradient: Any, x: Any, y: Any, passes: int = 1) -> Any:
        @jax.jit
        def step(params: Any, state: Any, x: Any, y: Any) -> Any:
            updates, state = optimizer.update(gradient(params, x, y), state, params)
            return optax.apply_updates(params, updates), state

        params, state = start, optimizer.init(start)
        size = x.shape[0] // passes
        for index in range(6 * passes):
            part = slice(index % passes * size, (index % passes + 1) * size)
            params, state = step(params, state, x[part], y[part])
        return params

    adam = optax.adam(0.1)
    alone = train(adam, jax.grad(loss), x, y)
    for found in (
        train(hvd.DistributedOptimizer(adam), jax.grad(loss), x[mine], y[mine]),
        train(
            hvd.DistributedOptimizer(adam, gradient_predivide_factor=2.0),
            jax.grad(loss),
            x[mine],
            y[mine],
        ),
        train(adam, hvd.grad(loss), x[mine], y[mine]),
        train(
            hvd.DistributedOptimizer(adam, backward_passes_per_step=2),
            jax.grad(loss),
            x[mine],
            y[mine],
            2,
        ),
    ):
        jax.tree.map(lambda a, b: close(a, b, 1e-3), found, alone)
    half = train(
        hvd.DistributedOptimizer(optax.sgd(0.1), compression=hvd.Compression.fp16),
        jax.grad(loss),
        x[mine],
        y[mine],
    )
    whole = train(optax.sgd(0.1), jax.grad(loss), x, y)
    jax.tree.map(lambda a, b: close(a, b, 1e-2, 2e-3), half, whole)  # float16's rounding
    (value, aux), gradients = hvd.value_and_grad(
        lambda p: (loss(p, x[mine], y[mine]), r), has_aux=True
    )(start)
    close(value, loss(start, x[mine], y[mine]))
    assert aux == r
    jax.tree.map(close, gradients, jax.grad(loss)(start, x, y))
    reductions_of_passes(adam, start)


def reductions_of_passes(optimizer: Any, params: Any) -> None:
    """Of three passes a step, only the last communicates, counted where calls go by Python."""
    counted: list[Call] = []
    run = Call.run

    def count(call: Call, arrays: Any) -> Any:
        counted.append(call)
        return run(call, arrays)

    distributed = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=3)
    gradients = jax.tree.map(lambda one: jnp.full_like(one, hvd.rank()), params)
    primitive.native = False
    Call.run = count  # type: ignore[method-assign]
    try:
        for update in (distributed.update, jax.jit(distributed.update)):
            jax.clear_caches()
            state = distributed.init(params)
            for number in range(1, 8):
                counted.clear()
                updates, state = jax.block_until_ready(update(gradients, state, params))
                assert len(counted) == (number % 3 == 0), (number, counted)
                moved = [bool(jnp.any(one != 0)) for one in jax.tree.leaves(updates)]
                assert all(moved) if hvd.size() > 1 and number % 3 == 0 else not any(moved)
            assert int(state.gradient_step) == 2
    finally:
        Call.run = run  # type: ignore[method-assign]
        primitive.native = True
        jax.clear_caches()


def equal_parameters() -> None:
    r, n = hvd.rank(), hvd.size()
    params = {
        "w": jnp.full((2, 2), r, jnp.bfloat16),
        "key": jax.random.key(r),
        "plain": np.full(2, r),
        "text": "left alone",
    }
    got = hvd.broadcast_parameters(params, n - 1)
    close(got["w"].astype(jnp.float32), np.full((2, 2), n - 1))
    assert got["text"] == "left alone"
    assert (
        jax.random.key_data(got["key"]).tolist()
        == jax.random.key_data(jax.random.key(n - 1)).tolist()
    )
    assert got["plain"].tolist() == [n - 1] * 2
    assert hvd.broadcast_object({"epoch": r}, 0) == {"epoch": 0}
    assert hvd.allgather_object(r) == list(range(n))
    if n > 1:
        kind, text = raised(lambda: hvd.broadcast_parameters({"w": jnp.ones(2 + (r == 1))}))
        assert kind == "ValueError"
        assert "['w'] of type float32 and shape [3]" in text


def callbacks() -> None:
    """The way by Python, which XLA takes where it has no custom call of ours."""
    primitive.native = False
    try:
        for block in (values_in_jit, unequal_rows, dtypes, pytrees, control_flow, gradients):
            jax.clear_caches()
            block()
    finally:
        primitive.native = True
        jax.clear_caches()


def rejoin(ranks: list[int] | None = None) -> None:
    """Begin another job of the same processes: the k-th of `ranks` becomes its rank k."""
    hvd.shutdown()
    hvd.init(ranks)


def in_both_ways(check: Callable[[], None]) -> None:
    """Check custom calls of XLA, and callbacks into Python."""
    try:
        for native in (True, False):
            primitive.native = native
            jax.clear_caches()
            check()
    finally:
        primitive.native = True
        jax.clear_caches()


def texts_of_errors() -> None:
    """Elastic training with Keras recognises the end of a job, and no mistake, by the text."""
    r, n = hvd.rank(), hvd.size()
    if n == 1:
        return

    def check() -> None:
        step = jax.jit(lambda x: hvd.allreduce(x, name="step"))
        kind, text = raised(lambda: step(jnp.ones(2 + (r == 1))))
        assert kind == "JaxRuntimeError", (kind, text)
        assert "Mismatched" in text, text
        assert "hvdtune: " not in text, text
        rejoin()
        close(step(jnp.ones(2)), np.ones(2))
        if r != 0:  # which ends the job
            with_text(lambda: step(jnp.ones(2)), "hvdtune: ")
        rejoin()

    in_both_ways(check)


def places_that_change() -> None:
    """What was traced for a place is refused in another; what serves any place is not."""
    n = hvd.size()
    if n == 1:
        return
    x = jnp.ones(2)

    def check() -> None:
        total = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
        to_root = jax.jit(jax.grad(lambda x: hvd.broadcast(x, 0, name="root").sum()))
        rows = jax.jit(lambda x: hvd.allgather(x, name="plain"))
        for program in (total, to_root, rows):
            jax.block_until_ready(program(x))
        for program, name in ((to_root, "allreduce.root.grad"), (rows, "allgather.plain")):
            # Another function takes what it calls as it was traced.
            for call in (program, jax.jit(lambda x, program=program: program(x) + 1)):
                rejoin([*range(1, n), 0])
                close(total(x), np.full(2, n))
                now = f"and this is rank {hvd.rank()} of {n}, for which its results may differ"
                with_text(lambda call=call: call(x), name, now)
        rejoin([*range(1, n), 0])
        jax.clear_caches()
        close(to_root(x), np.full(2, float(hvd.rank() == 0)))
        rejoin()

    in_both_ways(check)


BLOCKS = (
    *(values_in_jit, unequal_rows, dtypes, results_are_the_callers, pytrees, control_flow),
    *(gradients, many_calls),
    *(errors_in_jit, mistakes_of_arguments, process_sets, equal_parameters, callbacks),
    *(texts_of_errors, places_that_change),
)


def everything(with_optax: bool) -> list[str]:
    """The names of what was right; an exception says what was not."""
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    before = jax.jit(hvd.allreduce)
    hvd.init()
    passed = []
    for block in (*BLOCKS, *((training,) if with_optax else ())):
        print(block.__name__, flush=True)
        block()
        hvd.barrier()
        passed.append(block.__name__)
    jax.block_until_ready(before(jnp.ones(3)))
    # Nobody waits for the last call of a program: the end of the job does.
    last = jax.jit(lambda x: hvd.allreduce(x @ x @ x @ x))(jnp.ones((800, 800)))
    hvd.shutdown()
    close(last[0, 0], 800.0**3)
    with_text(lambda: before(jnp.ones(3)), "has not been initialized")
    return passed


def dies_in_jit() -> str:
    """Rank 1 is killed while the others wait for it within a compiled function."""
    hvd.init()
    step = jax.jit(lambda x: hvd.allreduce(x, name="step"))
    jax.block_until_ready(step(jnp.ones(3)))
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return raised(lambda: [jax.block_until_ready(step(jnp.ones(3))) for _ in range(3)])[1]


def in_any_order(rounds: int) -> None:
    """`many_calls`, so many times, where XLA has one thread."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    hvd.init()
    for _ in range(rounds):
        many_calls()
    hvd.shutdown()
