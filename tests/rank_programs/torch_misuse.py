"""Rank programs: what DistributedOptimizer promises besides numbers, and what it refuses."""

from __future__ import annotations

import gc
import time
import warnings
import weakref
from typing import Any

import torch
from rank_programs.torch_cases import error_of
from rank_programs.torch_training import (
    adam,
    backward,
    batch,
    check_equal,
    distributed,
    loss_of,
    new_model,
    sgd,
    train_alone,
    train_share,
)

import hvdtune.torch as hvd


def the_class() -> None:
    class Own(torch.optim.SGD):
        def __init__(self, parameters: Any, *, needed: int) -> None:
            super().__init__(parameters, lr=0.1, momentum=0.9)
            self.needed = needed

    inner = Own(new_model().parameters(), needed=3)
    optimizer = hvd.DistributedOptimizer(inner)
    assert type(optimizer).__name__ == "Own"
    assert isinstance(optimizer, Own)
    assert optimizer.needed == 3
    inner.param_groups[0]["lr"] = 0.5
    assert optimizer.param_groups[0]["lr"] == 0.5
    inner.state[inner.param_groups[0]["params"][0]]["momentum_buffer"] = None
    assert not optimizer.state
    error_of(lambda: hvd.DistributedOptimizer(optimizer), ValueError, "already")


def a_new_one_in_its_place() -> None:
    alone, together = new_model(), new_model()
    plain = sgd(alone.parameters())
    optimizer = distributed(together)
    train_alone(alone, plain, 2)
    train_share(together, optimizer, 2)
    del optimizer  # its hooks end with it
    train_alone(alone, adam(alone.parameters()), 2)
    train_share(together, distributed(together, adam), 2)
    check_equal(together, alone, "second optimizer", 1e-9)


def memory_is_given_back() -> None:
    """Without the garbage collector, which comes at any time."""
    model = new_model()
    train_share(model, sgd(model.parameters()), 1)  # torch keeps the first optimizer of a process
    gc.collect()
    gc.disable()
    try:
        for options in ({}, {"groups": 2}, {"op": hvd.Adasum}):
            model = new_model()
            optimizer = distributed(model, **options)
            train_share(model, optimizer, 2)
            watched = [weakref.ref(parameter) for parameter in model.parameters()]
            del model, optimizer
            assert all(parameter() is None for parameter in watched), options
    finally:
        gc.enable()


def step_hooks_run_once() -> None:
    model = new_model()
    inner = sgd(model.parameters())
    calls = []
    inner.register_step_pre_hook(lambda *unused: calls.append("before"))
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    optimizer.register_step_post_hook(lambda *unused: calls.append("after"))
    train_share(model, optimizer, 2)
    assert calls == ["before", "after"] * 2
    optimizer.load_state_dict(optimizer.state_dict())  # makes torch look at the class again
    train_share(model, optimizer, 1)
    assert calls == ["before", "after"] * 3


def names() -> None:
    model = new_model()
    pairs = list(model.named_parameters())

    def wrap(named: Any) -> Any:
        return hvd.DistributedOptimizer(sgd(model.parameters()), named)

    error_of(lambda: wrap([p for _, p in pairs]), ValueError, "tuples (name, parameter)")
    error_of(lambda: wrap(dict(pairs)), ValueError, "tuples (name, parameter)", "str")
    error_of(lambda: wrap([(1, p) for _, p in pairs]), ValueError, "(int, Parameter)")
    error_of(lambda: wrap([(n, n) for n, _ in pairs]), ValueError, "(str, str)")
    twice = [("same", p) for _, p in pairs]
    error_of(lambda: wrap(twice), ValueError, "Found duplicates", "same")
    error_of(lambda: wrap(pairs[:-1]), ValueError, "were not named", "0.5", "(3,)")
    wrap([*pairs, ("elsewhere", torch.zeros(1))])  # more names than needed


def arguments() -> None:
    def wrap(**options: Any) -> Any:
        return distributed(new_model(), **options)

    parameter = torch.nn.Parameter(torch.zeros(1))
    for groups in (0, -1, "ab", [parameter], [[parameter, 3]], [[parameter], [parameter]]):
        error_of(lambda groups=groups: wrap(groups=groups), ValueError, "groups")
    for passes in (0, -1, 1.5, None):
        error_of(
            lambda passes=passes: wrap(backward_passes_per_step=passes),
            ValueError,
            "backward_passes_per_step must be > 0",
        )
    error_of(lambda: wrap(gradient_predivide_factor=2.0, op=hvd.Sum), ValueError, "op != Average")
    error_of(lambda: wrap(gradient_predivide_factor=0.0), ValueError, "must be > 0")
    for op in (17, "Sum", None):
        error_of(lambda op=op: wrap(op=op), ValueError, repr(op))
    error_of(lambda: wrap(compression=None), ValueError, "compress()")
    error_of(lambda: wrap(process_set=hvd.ProcessSet([0])), ValueError, "not been registered")
    error_of(lambda: hvd.DistributedOptimizer(new_model()), ValueError, "Sequential")


def zero_grad_at_the_wrong_time() -> None:
    model = new_model()
    optimizer = distributed(model)
    optimizer.zero_grad()
    backward(model)
    error_of(optimizer.zero_grad, AssertionError, "zero_grad()")
    optimizer.synchronize()
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert all((p.grad == 0).all() for p in model.parameters())
    optimizer.zero_grad(set_to_none=True)
    assert all(p.grad is None for p in model.parameters())
    optimizer = distributed(model, backward_passes_per_step=2)
    backward(model)
    error_of(optimizer.zero_grad, AssertionError, "zero_grad()")
    optimizer.step()


def too_many_backward_passes() -> None:
    for passes in (1, 2):
        model = new_model()
        optimizer = distributed(model, backward_passes_per_step=passes)
        for _ in range(passes):
            backward(model)
        text = error_of(lambda m=model: backward(m), AssertionError, "backward_passes_per_step")
        assert any(repr(name) in text for name, _ in model.named_parameters()), text
        # Not every rank need have come equally far in the backward pass that failed.
        optimizer.synchronize()
        optimizer.zero_grad()


def too_many_backward_passes_alone() -> None:
    """With hooks the rules hold for one process too, though nothing is reduced."""
    model = new_model()
    optimizer = distributed(model)
    backward(model)
    error_of(lambda: backward(model), AssertionError, "backward_passes_per_step", "'3.")
    error_of(optimizer.zero_grad, AssertionError, "zero_grad()")
    optimizer.step()
    optimizer.zero_grad()


def gradient_of_a_gradient() -> None:
    model = new_model()
    optimizer = distributed(model)
    loss = loss_of(model, *batch(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's own, about reference cycles
        error_of(lambda: loss.backward(create_graph=True), AssertionError, "create_graph", "'")
    for parameter in model.parameters():
        parameter.grad = None
    optimizer.synchronize()


def synchronize_without_skipping() -> None:
    alone, together = new_model(), new_model()
    train_alone(alone, sgd(alone.parameters()), 1)
    optimizer = distributed(together)
    backward(together)
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer.step()
    assert any("skip_synchronize" in str(w.message) for w in seen)
    check_equal(together, alone, "reduced twice")
    optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backward(together)
        optimizer.step()
        optimizer.zero_grad()
        backward(together)
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
        backward(together)
        optimizer.step()


def skipping_without_synchronizing() -> None:
    alone, together = new_model(), new_model()
    optimizer = distributed(together)
    backward(together)
    with optimizer.skip_synchronize():
        error_of(optimizer.step, AssertionError, "synchronize()")
    optimizer.step()
    train_alone(alone, sgd(alone.parameters()), 1)
    check_equal(together, alone, "skipped, then not")
    # Nothing is being reduced after the first of two passes: a step of this rank's own.
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(2)
    backward(together)
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.synchronize()


def load_state_dict_forgets_what_is_under_way() -> None:
    alone, together = new_model(), new_model()
    plain, optimizer = adam(alone.parameters()), distributed(together, adam)
    train_alone(alone, plain, 2)
    train_share(together, optimizer, 2)
    saved = optimizer.state_dict()
    backward(together)
    hvd.barrier()
    optimizer.load_state_dict(saved)
    optimizer.zero_grad()
    hvd.barrier()
    train_alone(alone, plain, 2)
    train_share(together, optimizer, 2)
    check_equal(together, alone, "after load_state_dict", 1e-9)


def zero_grad_drops_what_load_state_dict_gave_up() -> None:
    """A step without a backward pass takes no gradients from before."""
    model = new_model()
    optimizer = distributed(model, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    train_share(model, optimizer, 1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    backward(model)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    optimizer.step()
    for parameter, weights in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, weights)


def load_state_dict_leaves_nothing_to_the_engine() -> None:
    """When it returns, the gradients are final, however late the other ranks are."""
    model = new_model()
    optimizer = distributed(model)
    train_share(model, optimizer, 1)
    if hvd.rank() == hvd.size() - 1:
        time.sleep(0.3)
    backward(model)
    optimizer.load_state_dict(optimizer.state_dict())
    before = [parameter.grad.clone() for parameter in model.parameters()]
    hvd.barrier()
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.grad, gradient)


def ranks_that_disagree() -> None:
    odd = hvd.rank() == hvd.size() - 1
    for groups in (None, 1):
        torch.manual_seed(0)
        model = torch.nn.ModuleDict(
            {"first": torch.nn.Linear(2, 2), "second": torch.nn.Linear(2, 3 if odd else 2)}
        )
        optimizer = distributed(model, groups=groups)
        (
            model["first"](torch.ones(1, 2)).sum() + model["second"](torch.ones(1, 2)).sum()
        ).backward()
        error_of(
            optimizer.step,
            hvd.HorovodInternalError,
            "Mismatched ALLREDUCE tensor shapes",
            "first." if groups else "second.",
        )
        optimizer.zero_grad()  # nothing is under way any more
        model["first"](torch.full((1, 2), float(hvd.rank()))).sum().backward()
        for parameter in model["second"].parameters():
            parameter.requires_grad_(False)
        optimizer.step()
        mean = (hvd.size() - 1) / 2
        assert torch.allclose(model["first"].weight.grad, torch.full((2, 2), mean))


def gradient_that_cannot_be_sent() -> None:
    model = torch.nn.ParameterDict(
        {"odd": torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))}
    )
    optimizer = distributed(model)
    model["odd"].abs().sum().backward()
    error_of(optimizer.step, ValueError, "'odd'", "ComplexFloatTensor is not supported")
    for having in (0, 1, None):  # the ranks that lack the gradient learn of it too
        embedding = torch.nn.Embedding(4, 2, sparse=True)
        optimizer = distributed(embedding, groups=1)
        if having in (None, hvd.rank()):
            embedding(torch.tensor([1])).sum().backward()
        error_of(optimizer.step, ValueError, "'weight'", "sparse_as_dense")


def groups_differ_between_ranks() -> None:
    model = new_model()
    if hvd.rank() == 0:
        model[0].requires_grad_(False)
    error_of(lambda: distributed(model, groups=2), ValueError, "0.bias, 0.weight", "ranks 0 and 1")


CHECKS = (
    the_class,
    a_new_one_in_its_place,
    memory_is_given_back,
    step_hooks_run_once,
    names,
    arguments,
    zero_grad_at_the_wrong_time,
    too_many_backward_passes,
    gradient_of_a_gradient,
    synchronize_without_skipping,
    skipping_without_synchronizing,
    load_state_dict_forgets_what_is_under_way,
    zero_grad_drops_what_load_state_dict_gave_up,
    load_state_dict_leaves_nothing_to_the_engine,
    ranks_that_disagree,
    gradient_that_cannot_be_sent,
    groups_differ_between_ranks,
)
