"""Horovod's operations on NDArrays, one check after the other in one job: starting it is slow.

The table of `conformance` has every form, type, shape, operator and process set, and mistakes of
all kinds. Here is what is MXNet's own, and what Horovod's tests for MXNet look at in their way.
"""

from __future__ import annotations

import gc
import pickle
import time
import traceback
import warnings
from collections.abc import Callable, Collection
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.base import MXNetError

import hvdtune.mxnet as hvd
from hvdtune.core import world

Check = Callable[[], None]
CHECKS: dict[str, Check] = {}
TYPES = ("int32", "int64", "float32", "float64")
SHAPES = ((17,), (17, 5), (17, 5, 3))


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def run(only: Collection[str] = ()) -> dict[str, str]:
    """What each check (all, or these) found wrong; empty texts for those that passed."""
    hvd.init()
    found = {}
    for name, function in CHECKS.items():
        if only and name not in only:
            continue
        try:
            function()
            found[name] = ""
            print(name, flush=True)
        except Exception:
            found[name] = traceback.format_exc()
        hvd.mpi_ops.wait_for_all()  # the next check may use the same names
        hvd.barrier()
    hvd.shutdown()
    return found


def ones(*shape: int, dtype: str = "float32") -> Any:
    return mx.nd.ones(shape, dtype=dtype)


def random_array(shape: tuple[int, ...], dtype: str, bound: int = 100) -> Any:
    """The same on all ranks."""
    mx.random.seed(1234)
    return mx.nd.random.uniform(-bound, bound, shape).astype(dtype)


def refused(kind: type[Exception] | tuple[type[Exception], ...], call: Callable[[], Any]) -> str:
    """The text of the error, which may only be raised where a result is read."""
    try:
        result = call()
        for one in result if isinstance(result, list | tuple) else [result]:
            one.wait_to_read()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was raised")


def halves() -> tuple[Any, Any]:
    """Process sets of the even and the odd ranks."""
    sets = [hvd.ProcessSet(range(parity, hvd.size(), 2)) for parity in range(2)]
    for one in sets:
        hvd.add_process_set(one)
    return sets[0], sets[1]


def same(found: Any, wanted: Any) -> None:
    found = found.asnumpy() if isinstance(found, mx.nd.NDArray) else found
    wanted = wanted.asnumpy() if isinstance(wanted, mx.nd.NDArray) else wanted
    assert found.dtype == wanted.dtype, (found.dtype, wanted.dtype)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


# ---- allreduce ----------------------------------------------------------------------------------


@check
def sums_and_averages_of_all_types() -> None:
    for number, dtype in enumerate(TYPES):
        for shape in SHAPES:
            tensor = random_array(shape, dtype)
            same(
                hvd.allreduce(tensor, average=False, name=f"s{number}{shape}"), tensor * hvd.size()
            )
            same(hvd.allreduce(tensor, average=True, name=f"a{number}{shape}"), tensor)
            same(hvd.allreduce(tensor), tensor)
            before = tensor.copy()
            assert hvd.allreduce_(tensor, average=False, name=f"i{number}{shape}") is tensor
            same(tensor, before * hvd.size())


@check
def other_operators() -> None:
    size = hvd.size()
    for dtype in TYPES:
        mine = random_array((17, 5), dtype, 5) * (hvd.rank() + 1)
        every = np.stack([random_array((17, 5), dtype, 5).asnumpy() * (r + 1) for r in range(size)])
        same(hvd.allreduce(mine, op=hvd.Min), every.min(0))
        same(hvd.allreduce(mine, op=hvd.Max), every.max(0))
        same(hvd.allreduce(mine, op=hvd.Product), every.prod(0, dtype=dtype))


@check
def factors_before_and_after() -> None:
    for dtype in ("float32", "float64", "float16"):
        tensor = random_array((17, 5), dtype, 1)
        for before, after in ((0.5, 1.0), (1.0, 0.25), (0.5, 4.0)):
            found = hvd.allreduce(
                tensor, op=hvd.Sum, prescale_factor=before, postscale_factor=after
            ).asnumpy()
            wanted = tensor.asnumpy().astype("float64") * before * after * hvd.size()
            np.testing.assert_allclose(found, wanted, rtol=2e-3 if dtype == "float16" else 1e-5)


@check
def op_and_average_exclude_each_other() -> None:
    assert "supersedes" in refused(
        ValueError, lambda: hvd.allreduce(ones(3), average=True, op=hvd.Sum)
    )


@check
def ranks_that_disagree_hear_it_where_they_read() -> None:
    if hvd.size() == 1:
        return
    odd = hvd.rank() % 2
    calls: dict[str, Callable[[], Any]] = {
        "shape": lambda: hvd.allreduce(ones(17 + odd), name="shape"),
        "dimensions": lambda: hvd.allreduce(ones(*[17] * (1 + odd)), name="dimensions"),
        "type": lambda: hvd.allreduce(ones(17, dtype=TYPES[odd]), name="type"),
        "group": lambda: hvd.grouped_allreduce([ones(3), ones(17 + odd)], name="group"),
        "broadcast": lambda: hvd.broadcast(ones(17 + odd), 0, name="broadcast"),
        "broadcast type": lambda: hvd.broadcast(ones(17, dtype=TYPES[odd]), 0, name="b type"),
        "root": lambda: hvd.broadcast(ones(17), odd, name="root"),
        "allgather": lambda: hvd.allgather(ones(2, 3 + odd), name="allgather"),
        "allgather type": lambda: hvd.allgather(ones(2, dtype=TYPES[odd]), name="g type"),
        "alltoall": lambda: hvd.alltoall(ones(hvd.size(), dtype=TYPES[odd]), name="alltoall"),
        "scatter": lambda: hvd.reducescatter(ones(4, 3 + odd), name="scatter"),
        "scatter type": lambda: hvd.reducescatter(ones(4, dtype=TYPES[odd]), name="s type"),
    }
    for what, call in calls.items():
        text = refused(MXNetError, call)
        assert "Mismatched" in text or "rank" in text, (what, text)
    same(hvd.allreduce(ones(3), op=hvd.Sum, name="shape"), ones(3) * hvd.size())


@check
def errors_follow_the_data() -> None:
    """What is computed from a failed result fails; an array that is written anew is well again."""
    if hvd.size() == 1:
        return
    tensor = ones(3)
    wrong = hvd.allreduce(ones(2 + hvd.rank() % 2), name="wrong")
    assert "wrong" in refused(MXNetError, lambda: wrong * 2 + 1)
    same(hvd.allreduce(tensor, name="right"), tensor)


@check
def ndarrays_may_be_dropped_at_once() -> None:
    for number in range(50):
        kept = [hvd.allreduce(ones(1000) * i, name=f"dropped.{i}", op=hvd.Sum) for i in range(8)]
        hvd.allreduce_(ones(1000) * number, name="never read")
        for i, result in enumerate(kept):
            same(result, ones(1000) * i * hvd.size())
        mx.nd.waitall()


@check
def many_in_flight_in_another_order_on_every_rank() -> None:
    order = np.random.default_rng(hvd.rank()).permutation(200).tolist()
    tensors = {i: ones(i + 1) for i in order}
    for i in order:
        tensors[i] = tensors[i] + i
        hvd.allreduce_(tensors[i], name=f"many.{i}", priority=-i, op=hvd.Sum)
        tensors[i] = tensors[i] * 2
    for i in reversed(order):
        same(tensors[i], ones(i + 1) * (1 + i) * 2 * hvd.size())


@check
def groups() -> None:
    for dtype in TYPES:
        tensors = [random_array(shape, dtype) + i for i, shape in enumerate(SHAPES)]
        for found, tensor in zip(hvd.grouped_allreduce(tensors, op=hvd.Sum), tensors, strict=True):
            same(found, tensor * hvd.size())
        for found, tensor in zip(hvd.grouped_allreduce(tensors, True), tensors, strict=True):
            same(found, tensor)
        copies = [tensor.copy() for tensor in tensors]
        assert all(
            a is b for a, b in zip(hvd.grouped_allreduce_(copies, False), copies, strict=True)
        )
        for found, tensor in zip(copies, tensors, strict=True):
            same(found, tensor * hvd.size())
    assert hvd.grouped_allreduce([]) == hvd.grouped_allgather([]) == []
    twice = ones(4)
    for shared in ([twice, twice], [twice[:2], twice[2:]]):
        assert "parts of one" in refused(ValueError, lambda s=shared: hvd.grouped_allreduce_(s))
    for found in hvd.grouped_allreduce([twice, twice[:2]], op=hvd.Sum):
        assert found.asnumpy().tolist() == [hvd.size()] * found.size


# ---- the others ---------------------------------------------------------------------------------


@check
def broadcasts() -> None:
    for dtype in (*TYPES, "uint8", "int8", "bool", "float16"):
        for root in range(hvd.size()):
            mine = (ones(17, 5) * (hvd.rank() + 1) % 2).astype(dtype)
            wanted = (ones(17, 5) * (root + 1) % 2).astype(dtype)
            kept = mine.copy()
            same(hvd.broadcast(mine, root, name=f"{dtype}.{root}"), wanted)
            same(mine, kept)
            assert hvd.broadcast_(mine, root_rank=root) is mine
            same(mine, wanted)
    assert "invalid root rank" in refused(ValueError, lambda: hvd.broadcast(ones(3), hvd.size()))


@check
def rows_of_all_ranks() -> None:
    rank, size = hvd.rank(), hvd.size()
    for dtype in TYPES:
        found = hvd.allgather(ones(17, 3, dtype=dtype) * rank)
        assert found.shape == (17 * size, 3)
        for other in range(size):
            same(found[17 * other : 17 * (other + 1)], ones(17, 3, dtype=dtype) * other)
        found = hvd.allgather(ones(rank + 1, 2, dtype=dtype) * rank, name=f"uneven.{dtype}")
        wanted = np.repeat(np.arange(size), np.arange(size) + 1).astype(dtype)
        same(found, np.stack([wanted, wanted], axis=1))
        group = hvd.grouped_allgather([ones(2, dtype=dtype) * rank, ones(1, 4, dtype=dtype)])
        assert [one.shape for one in group] == [(2 * size,), (size, 4)]
        same(group[0], np.repeat(np.arange(size), 2).astype(dtype))
    computed = (ones(3) * rank + 1) * 2  # waits for it
    assert hvd.allgather(computed).asnumpy().tolist() == [
        2.0 * (r + 1) for r in range(size) for _ in "123"
    ]


@check
def rows_to_all_ranks() -> None:
    rank, size = hvd.rank(), hvd.size()
    for dtype in TYPES:
        rows = mx.nd.array(np.repeat(np.arange(size), rank + 1), dtype=dtype)
        splits = [rank + 1] * size
        for given in (splits, mx.nd.array(splits, dtype="int32")):
            found, counts = hvd.alltoall(rows, splits=given, name=f"uneven.{dtype}")
            assert counts.asnumpy().tolist() == list(range(1, size + 1))
            assert counts.dtype is np.int32
            same(found, np.full(sum(range(1, size + 1)), rank, dtype))
        even = hvd.alltoall(ones(2 * size, 3, dtype=dtype) * rank)
        same(even[:, 0], np.repeat(np.arange(size), 2).astype(dtype))
    # One rank sends nothing, then one receives nothing.
    sent, counts = hvd.alltoall(ones(size if rank else 0 or size), [1 if rank else 0] * size)
    assert counts.asnumpy().tolist() == [0, *[1] * (size - 1)]
    assert size == 1 or sent.shape == (size - 1,)
    if size > 1:
        found, counts = hvd.alltoall(ones(size), [0, *[1] * (size - 1)])
        assert counts.asnumpy().tolist() == [1 if rank else 0] * size
    for splits, words in (
        (mx.nd.ones(size, dtype="float32"), "32-bit integer"),
        ([2] * (size + 1), "Number of entries in splits"),
        ([3] * size, "greater than the first dimension"),
    ):
        for kind in (ValueError, MXNetError):  # other faces', Horovod's
            assert words in refused(kind, lambda s=splits: hvd.alltoall(ones(size), s))
    if size > 1:
        for kind in (ValueError, MXNetError):
            assert "divisible" in refused(kind, lambda: hvd.alltoall(ones(size + 1)))


@check
def shares_of_a_reduction() -> None:
    rank, size = hvd.rank(), hvd.size()
    for dtype in (*TYPES, "float16"):
        rows = (mx.nd.arange(4 * size).reshape((2 * size, 2)) + 1).astype(dtype)
        mine = slice(2 * rank, 2 * rank + 2)
        same(hvd.reducescatter(rows, op=hvd.Sum), (rows * size)[mine])
        same(hvd.reducescatter(rows, name=f"mean.{dtype}"), rows[mine])
        if "float" in dtype:
            found = hvd.reducescatter(rows, hvd.Sum, prescale_factor=0.5)
            same(found, (rows * size)[mine] * 0.5)
        same(hvd.reducescatter(rows, hvd.Sum, postscale_factor=2.0), (rows * size)[mine] * 2)
        for found in hvd.grouped_reducescatter([rows, rows], op=hvd.Sum, postscale_factor=2.0):
            same(found, (rows * size)[mine] * 2)
        for found in hvd.grouped_reducescatter([rows, rows]):
            same(found, rows[mine])
    uneven = hvd.reducescatter(ones(2 * size + 1, 3), op=hvd.Sum)
    assert uneven.shape == (3 if rank == 0 else 2, 3)
    with mx.util.np_shape(True):
        for call in (hvd.reducescatter, lambda one: hvd.grouped_reducescatter([one])):
            assert "scalar" in refused(ValueError, lambda c=call: c(mx.nd.ones(())))
    assert "SUM" in refused(ValueError, lambda: hvd.reducescatter(ones(4), op=hvd.Adasum))


@check
def process_sets() -> None:
    if hvd.size() == 1:
        return
    for one in (sets := halves()):
        ranks = one.ranks
        mine = ones(4, 2) * hvd.rank()
        if not one.included():
            for call in (
                lambda s=one, x=mine: hvd.allreduce(x, process_set=s),
                lambda s=one, x=mine: hvd.broadcast_(x, s.ranks[0], process_set=s),
                lambda s=one, x=mine: hvd.allgather(x, process_set=s),
            ):
                assert "not a member" in refused(ValueError, call)
            continue
        place, total = ranks.index(hvd.rank()), float(sum(ranks))
        found = hvd.allreduce(mine, op=hvd.Sum, name="of a set", process_set=one)
        same(found, ones(4, 2) * total)
        [found] = hvd.grouped_allreduce([mine], op=hvd.Sum, process_set=one)
        same(found, ones(4, 2) * total)
        same(hvd.broadcast(mine, ranks[-1], process_set=one), ones(4, 2) * ranks[-1])
        found = hvd.allgather(mine, process_set=one)
        same(found[:, 0], np.repeat(ranks, 4).astype("float32"))
        [found] = hvd.grouped_allgather([mine], process_set=one)
        assert found.shape == (4 * len(ranks), 2)
        rows = ones(len(ranks)) * hvd.rank()
        same(hvd.alltoall(rows, process_set=one), np.array(ranks, "float32"))
        found = hvd.reducescatter(rows, op=hvd.Sum, process_set=one)
        assert found.asnumpy().tolist() == [total], place
        [found] = hvd.grouped_reducescatter([rows], op=hvd.Sum, process_set=one)
        assert found.asnumpy().tolist() == [total]
    for one in sets:
        hvd.remove_process_set(one)


@check
def objects() -> None:
    wanted = {"rank": 0, "list": [1, 2], "array": "x" * 1000}
    assert hvd.broadcast_object(wanted if hvd.rank() == 0 else {}, name="object") == wanted
    every = hvd.allgather_object({"rank": hvd.rank()}, name="objects")
    assert every == [{"rank": rank} for rank in range(hvd.size())]


@check
def half_precision_on_the_way() -> None:
    for dtype in ("float16", "float32", "float64"):
        tensor = random_array((5, 5), dtype, 1)
        sent, context = hvd.Compression.fp16.compress(tensor)
        assert sent.dtype is np.float16
        back = hvd.Compression.fp16.decompress(sent, context)
        assert back.dtype is tensor.dtype
        np.testing.assert_allclose(back.asnumpy(), tensor.asnumpy(), atol=1e-3)
    for dtype in ("int32", "uint8"):
        tensor = ones(3, dtype=dtype)
        assert hvd.Compression.fp16.compress(tensor) == (tensor, None)
    assert hvd.Compression.none.compress(tensor)[0] is tensor


# ---- MXNet's own --------------------------------------------------------------------------------


@check
def arrays_of_its_numpy() -> None:
    with mx.util.np_shape(True):
        mine = mx.np.ones((3, 2)) * hvd.rank()
        for found in (
            hvd.allreduce(mine),
            hvd.broadcast(mine, 0),
            hvd.allgather(mine),
            hvd.reducescatter(mx.np.ones((hvd.size(), 2))),
            hvd.alltoall(mx.np.ones(hvd.size()), mx.np.ones(hvd.size(), dtype="int32"))[1],
        ):
            assert type(found) is mx.np.ndarray, type(found)
        assert hvd.allreduce(mx.np.array(2.0), op=hvd.Sum).item() == 2.0 * hvd.size()
        assert hvd.allgather(mx.np.zeros((0, 3))).shape == (0, 3)


@check
def layouts_of_convolutions() -> None:
    """Results, and weights that an inference has rearranged, have layouts of oneDNN's."""
    total = sum(range(1, hvd.size() + 1))

    def convolution() -> tuple[Any, Any]:
        net = gluon.nn.Conv2D(16, 3, in_channels=8)
        net.initialize(mx.init.Constant(hvd.rank() + 1.0))
        return net, net(mx.nd.ones((2, 8, 12, 12)))

    net, result = convolution()
    found = hvd.allreduce(result, op=hvd.Sum, name="convolution")
    assert (found.asnumpy() == 72 * total).all()
    assert (result.asnumpy() == 72 * (hvd.rank() + 1)).all()
    _, result = convolution()
    hvd.allreduce_(result, op=hvd.Sum, name="convolution")
    assert (result.asnumpy() == 72 * total).all()
    _, result = convolution()
    assert hvd.allgather(result).shape == (2 * hvd.size(), 16, 10, 10)
    hvd.broadcast_parameters(net.collect_params(), hvd.size() - 1)
    assert (net.weight.data().asnumpy() == hvd.size()).all()
    assert (net(mx.nd.ones((1, 8, 12, 12))).asnumpy() == 72 * hvd.size()).all()


@check
def what_cannot_be_exchanged() -> None:
    sparse = ones(4, 2).tostype("row_sparse")
    for call in (hvd.allreduce_, hvd.allgather, lambda one: hvd.grouped_allreduce([one])):
        assert "tostype('default')" in refused(ValueError, lambda c=call: c(sparse))
    assert "takes an NDArray" in refused(TypeError, lambda: hvd.allreduce(np.ones(3)))
    same(hvd.allreduce(ones(2), name="after mistakes"), ones(2))


@check
def a_name_in_flight_is_for_the_same_arrays() -> None:
    """MXNet computes what uses one array in the order of the calls; others it may mix up."""
    if hvd.size() == 1:
        return
    array, other = ones(3), ones(3)
    if hvd.rank() > 0:
        hvd.barrier()
    for _ in range(2):
        hvd.allreduce_(array, name="twice", op=hvd.Sum)
    if hvd.rank() == 0:
        text = refused(ValueError, lambda: hvd.allreduce_(other, name="twice"))
        assert "allreduce.twice was submitted with the same name as another tensor" in text
        hvd.barrier()
    same(array, ones(3) * hvd.size() ** 2)
    same(hvd.allreduce_(other, name="twice", op=hvd.Sum), ones(3) * hvd.size())


@check
def steps_that_nobody_reads() -> None:
    """The names of one step's gradients come again before they are reduced."""
    weights = [ones(1000), ones(20)]
    optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=0.5))
    for _ in range(20):
        for index, weight in enumerate(weights):  # each time a new NDArray
            optimizer.update(index, weight, weight * (hvd.rank() + 1), None)
    mean = (hvd.size() + 1) / 2
    for weight in weights:
        np.testing.assert_allclose(weight.asnumpy(), (1 - 0.5 * mean) ** 20, rtol=1e-4)
    for options in ({}, {"num_groups": 1}):
        net = network(1)
        net(ones(2, 6))
        trainer = hvd.DistributedTrainer(
            net.collect_params(), "sgd", compression=hvd.Compression.fp16, **options
        )
        for _ in range(20):
            with autograd.record():
                loss = net(ones(2, 6)).sum()
            loss.backward()
            trainer.step(2)
        equal_on_all(net)


@check
def gradients_of_a_recorded_program() -> None:
    """Operations are not recorded: what comes of them has no gradient."""
    x = mx.nd.array([1.0, 2.0])
    x.attach_grad()
    with autograd.record():
        loss = (x * x).sum()
    loss.backward()
    hvd.allreduce_(x.grad, op=hvd.Sum)
    same(x.grad, mx.nd.array([2.0, 4.0]) * hvd.size())


# ---- parameters, optimizers, trainers -----------------------------------------------------------


def network(seed: int) -> Any:
    """A net whose second layer does not know its shape."""
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Dense(8, in_units=6, activation="relu"), gluon.nn.BatchNorm(), gluon.nn.Dense(3)
    )
    net.initialize(mx.init.Xavier())
    return net


def equal_on_all(net: Any) -> None:
    every = net.collect_params().values()
    weights = [one.data().asnumpy() for one in every if one.grad_req != "null"]
    for other in hvd.allgather_object(weights):
        for mine, theirs in zip(weights, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@check
def parameters() -> None:
    root = hvd.size() - 1
    mine = {f"p{i}": ones(*shape) * hvd.rank() for i, shape in enumerate(SHAPES)}
    hvd.broadcast_parameters(mine, root_rank=root, prefix="of a dict.")
    for shape, value in zip(SHAPES, mine.values(), strict=True):
        same(value, ones(*shape) * root)
    if hvd.size() > 1:
        assert "invalid params of type" in refused(
            ValueError, lambda: hvd.broadcast_parameters([1, 2])
        )
        named = {"x": ones(2), **({"y": ones(2)} if hvd.rank() else {})}
        assert "'y'" in refused(ValueError, lambda: hvd.broadcast_parameters(named))
        wrong = {"x": 5}
        assert "'x' is a int" in refused(ValueError, lambda: hvd.broadcast_parameters(wrong))


@check
def parameters_that_are_initialised_later() -> None:
    net = network(hvd.rank() + 1)
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    net(ones(2, 6))
    equal_on_all(net)
    # Once they have values, initialising them is each rank's own business.
    net.initialize(mx.init.Constant(hvd.rank() + 1.0), force_reinit=True)
    net(ones(2, 6))
    assert (net[2].weight.data().asnumpy() == hvd.rank() + 1).all()


def trained(make: Callable[[Any], Any], rows: slice, batch: int, seed: int = 7) -> list[Any]:
    """A net's weights after three steps with these rows of every batch of 8."""
    net = network(seed)
    net(ones(2, 6))
    trainer = make(net)
    loss_of = gluon.loss.L2Loss()
    random = np.random.default_rng(3)
    for _ in range(3):
        inputs, wanted = random.normal(size=(8, 6)), random.normal(size=(8, 3))
        with autograd.record(
            train_mode=False
        ):  # batches of different sizes have the same statistics
            loss = loss_of(net(mx.nd.array(inputs[rows])), mx.nd.array(wanted[rows]))
        loss.backward(train_mode=False)
        trainer.step(batch)
    return [one.data().asnumpy() for one in net.collect_params().values()]


def close(found: list[Any], wanted: list[Any], tolerance: float = 2e-5) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@check
def trainers_see_the_whole_batch() -> None:
    own = 8 // hvd.size()
    rows = slice(hvd.rank() * own, (hvd.rank() + 1) * own)
    for name in ("sgd", "adam", "nag"):
        options = {"learning_rate": 0.05, "wd": 0.01}

        def alone(net: Any, name: str = name, options: Any = options) -> Any:
            return gluon.Trainer(net.collect_params(), name, options)

        wanted = trained(alone, slice(None), 8)
        for extra, tolerance in (
            ({}, 2e-5),
            ({"gradient_predivide_factor": 2.0, "prefix": "p."}, 2e-5),
            ({"num_groups": 2}, 2e-5),
            ({"compression": hvd.Compression.fp16}, 2e-2),
            ({"compression": hvd.Compression.fp16, "num_groups": 3}, 2e-2),
        ):
            if name != "sgd" and tolerance > 1e-2:
                continue  # Adam divides by what half precision rounds

            def together(
                net: Any, name: str = name, options: Any = options, extra: Any = extra
            ) -> Any:
                return hvd.DistributedTrainer(net.collect_params(), name, options, **extra)

            close(trained(together, rows, own), wanted, tolerance)

        def wrapped(net: Any, name: str = name, options: Any = options) -> Any:
            optimizer = hvd.DistributedOptimizer(mx.optimizer.create(name, **options), num_groups=2)
            return gluon.Trainer(net.collect_params(), optimizer, kvstore=None)

        close(trained(wrapped, rows, own), wanted)


@check
def the_optimizer_is_the_one_that_was_given() -> None:
    inner = mx.optimizer.create("sgd", learning_rate=0.5, rescale_grad=0.25, momentum=0.5)
    outer = hvd.DistributedOptimizer(inner, gradient_predivide_factor=2.0)
    assert isinstance(outer, mx.optimizer.Optimizer)
    assert (outer.rescale_grad, outer.learning_rate, outer.momentum) == (0.25, 0.5, 0.5)
    outer.set_learning_rate(0.1)
    outer.rescale_grad = 0.125
    outer.set_lr_mult({0: 2.0})
    outer.set_wd_mult({0: 3.0})
    assert (inner.learning_rate, inner.rescale_grad) == (0.1, 0.125)
    assert (inner.lr_mult, inner.wd_mult) == ({0: 2.0}, {0: 3.0})
    again = pickle.loads(pickle.dumps(outer))
    assert type(again) is hvd.DistributedOptimizer
    assert again.learning_rate == 0.1
    weight, gradient = ones(2), ones(2) * (hvd.rank() + 1)
    outer.momentum = 0.0
    outer.update(3, weight, gradient, outer.create_state(3, weight))
    mean = (hvd.size() + 1) / 2
    np.testing.assert_allclose(weight.asnumpy(), 1 - 0.1 * 0.125 * mean, rtol=1e-6)
    for wrong in ({"gradient_predivide_factor": 0}, {"num_groups": -1}):
        refused(ValueError, lambda w=wrong: hvd.DistributedOptimizer(inner, **w))
    net = network(1)
    for store in (mx.kv.create("local"),):
        trainer = gluon.Trainer(net.collect_params(), outer, kvstore=store)
        net(ones(2, 6))
        assert "kvstore=None" in refused(ValueError, lambda t=trainer: t.step(1))


@check
def trainers_say_what_they_do() -> None:
    net = network(1)
    net(ones(2, 6))
    inner = mx.optimizer.create("sgd")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trainer = hvd.DistributedTrainer(net.collect_params(), hvd.DistributedOptimizer(inner))
    assert trainer.optimizer is inner
    assert any("unwrapped" in str(one.message) for one in seen)
    listed = hvd.DistributedTrainer(list(net.collect_params().values()), "sgd")
    assert listed.learning_rate == 0.01
    wide = gluon.nn.Dense(2, in_units=2)
    wide.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    text = refused(ValueError, lambda: hvd.DistributedTrainer(wide.collect_params(), "sgd"))
    assert "on one device, not on 2" in text


@check
def steps_are_told() -> None:
    """Recordings and the autotuner know them by this."""
    gc.collect()  # the trainers of other checks, whose steps would count instead
    engine = world.engine()
    before = engine.steps_ended()
    optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd"))
    weights, gradients = [ones(2), ones(2)], [ones(2), ones(2)]
    for _ in range(4):  # where one step ends, only the next one shows
        for index in range(2):
            optimizer.update(index, weights[index], gradients[index], None)
    mx.nd.waitall()  # steps end when they are computed
    assert engine.steps_ended() == before + 3
    del optimizer
    net = network(1)
    net(ones(2, 6))
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    for _ in range(3):
        with autograd.record():
            loss = net(ones(2, 6)).sum()
        loss.backward()
        trainer.step(2)
    mx.nd.waitall()
    assert engine.steps_ended() == before + 3 + 3


@check
def two_trainers() -> None:
    nets = [network(hvd.rank() * 2 + i) for i in range(2)]
    for i, net in enumerate(nets):
        hvd.broadcast_parameters(net.collect_params(), prefix=f"net{i}")
        net(ones(2, 6))
    trainers = [
        hvd.DistributedTrainer(net.collect_params(), "sgd", prefix=f"net{i}")
        for i, net in enumerate(nets)
    ]
    for _ in range(4):
        with autograd.record():
            loss = sum(net(ones(2, 6) * (hvd.rank() + 1)).sum() for net in nets)
        loss.backward()
        for trainer in trainers:
            trainer.step(2)
    for net in nets:
        equal_on_all(net)


@check
def ranks_that_are_not_in_the_set_train_alone() -> None:
    if hvd.size() == 1:
        return
    some = hvd.add_process_set([0])
    weight, gradient = ones(2), ones(2) * (hvd.rank() + 1)
    optimizer = hvd.DistributedOptimizer(
        mx.optimizer.create("sgd", learning_rate=1.0), process_set=some
    )
    optimizer.update(0, weight, gradient, None)
    assert weight.asnumpy().tolist() == [-float(hvd.rank())] * 2
    hvd.remove_process_set(some)


@check
def join_waits_for_what_was_pushed() -> None:
    for number in range(1 + hvd.rank()):
        hvd.allreduce_(ones(3), name=f"before.{number}", op=hvd.Sum)
    assert hvd.join() in range(hvd.size())


# ---- recordings ----------------------------------------------------------------------------------


def steps_ahead(steps: int) -> int:
    """Rank 0 has called for all its steps before any can be computed; gradients of a step."""
    hvd.init()
    net = network(1)
    net(ones(2, 6))
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    if hvd.rank() > 0:
        hvd.barrier()
    for _ in range(steps):
        with autograd.record():
            loss = net(ones(2, 6)).sum()
        loss.backward()
        trainer.step(2)
    if hvd.rank() == 0:
        hvd.barrier()
    mx.nd.waitall()
    hvd.shutdown()
    return sum(one.grad_req != "null" for one in net.collect_params().values())


# ---- ends ---------------------------------------------------------------------------------------


def last_step_is_not_read() -> None:
    """Rank 0 reads what the others have only pushed before they end."""
    hvd.init()
    weight = ones(1000)
    for step in range(20):
        weight = weight + hvd.rank()
        hvd.allreduce_(weight, name=f"step {step}")
    if hvd.rank() == 0:
        mean = (hvd.size() - 1) / 2
        np.testing.assert_allclose(weight.asnumpy(), 1 + 20 * mean, rtol=1e-5)


def wait_for_another(name: str) -> tuple[str, str]:
    """What an operation ends with that rank 1, which is killed or sleeps, has no part in."""
    hvd.init()
    print("started", flush=True)
    if hvd.rank() == 1:
        time.sleep(60)  # until the signal
    tensor = hvd.allreduce_(ones(3), name=name)
    try:
        tensor.wait_to_read()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""
