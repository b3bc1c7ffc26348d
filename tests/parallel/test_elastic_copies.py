"""Copies of states: whose memory they use, and commits whose copies are made beside training."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import hvdtune.torch as hvd
from hvdtune.torch.elastic import copies
from hvdtune.torch.elastic.copies import copied
from hvdtune.torch.optimizer.adasum import DeltaMixin
from hvdtune.torch.optimizer.wrapping import wrap


@pytest.fixture
def job():
    hvd.init()
    yield
    hvd.shutdown()


def training() -> tuple[Any, Any, Any]:
    """A model with buffers, its optimizer, and their state, after a step."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    step(model, optimizer)
    return model, optimizer, hvd.elastic.TorchState(model, optimizer, batch=0)


def step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 3)).square().sum().backward()
    optimizer.step()


def everything(model: Any, optimizer: Any) -> list[Any]:
    """All that is to be restored, as numbers."""
    moments = [state["exp_avg"].clone() for state in optimizer.state_dict()["state"].values()]
    tensors = [*(tensor.clone() for tensor in model.state_dict().values()), *moments]
    return [*(tensor.tolist() for tensor in tensors), optimizer.param_groups[0]["lr"]]


def test_a_copy_is_whole_and_uses_the_memory_of_the_one_before():
    class Named(dict[str, Any]):
        note = ""

    value = Named(a=torch.ones(3), b=[torch.zeros(2), {"c": 1}], d=(torch.ones(1), [2]))
    value.note = "kept"
    first = copied(value)
    places = first["a"].data_ptr(), first["b"][0].data_ptr()
    value["a"] += 1
    value["b"][1]["c"] = 5
    assert (first["a"].tolist(), first["b"][1]["c"], first.note) == ([1, 1, 1], 1, "kept")
    second = copied(value, first)
    assert (second["a"].data_ptr(), second["b"][0].data_ptr()) == places
    assert (second["a"].tolist(), second["b"][1]["c"]) == ([2, 2, 2], 5)
    value["a"] = torch.ones(4)  # of another size: memory of its own
    third = copied(value, second)
    assert third["a"].tolist() == [1, 1, 1, 1]
    assert {t.data_ptr() for t in (third["a"], third["d"][0])}.isdisjoint(
        {t.data_ptr() for t in (value["a"], value["d"][0])}
    )


@pytest.fixture
def may_copy(monkeypatch: pytest.MonkeyPatch):
    """Copies beside training wait for this event."""
    event, plain = threading.Event(), copies._copy

    def when_told(pairs: copies.Pairs) -> None:
        if threading.current_thread() is not threading.main_thread() and len(pairs) > 1:
            assert event.wait(60)
        plain(pairs)

    monkeypatch.setattr(copies, "_copy", when_told)
    yield event
    event.set()


def test_no_step_is_taken_before_the_copies_are_made(job: None, may_copy: threading.Event):
    model, optimizer, state = training()
    committed = everything(model, optimizer)
    state.batch = 1
    state.commit_async()
    state.batch = 2
    optimizer.zero_grad()
    model(torch.randn(8, 3)).square().sum().backward()  # and the buffers change
    optimizer.param_groups[0]["lr"] = 9.0
    stepping = threading.Thread(target=optimizer.step)
    stepping.start()
    stepping.join(0.2)
    assert stepping.is_alive(), "the step waits"
    may_copy.set()
    stepping.join()
    assert everything(model, optimizer) != committed
    state.restore()
    assert everything(model, optimizer) == committed
    assert state.batch == 1


def test_nor_in_the_backward_pass_of_adasum(job: None, may_copy: threading.Event):
    model, optimizer, state = training()
    committed = everything(model, optimizer)
    state.commit_async()
    adasum = wrap(torch.optim.SGD(model.parameters(), lr=0.1), DeltaMixin)
    weight, deltas = model[0].weight, []
    weight.grad = torch.ones_like(weight)
    # What the backward pass calls if there are several ranks.
    stepping = threading.Thread(target=lambda: deltas.append(adasum._delta_of(weight)))
    stepping.start()
    stepping.join(0.2)
    assert stepping.is_alive(), "the step waits"
    may_copy.set()
    stepping.join()
    assert torch.allclose(deltas[0], torch.full_like(weight, -0.1), atol=1e-6)
    state.restore()
    assert everything(model, optimizer) == committed


@pytest.mark.parametrize("then", ["restore", "save", "sync", "assign", "again"])
def test_whoever_needs_the_copies_waits_for_them(job: None, then: str):
    model, optimizer, state = training()
    committed = everything(model, optimizer)
    state.commit_async()
    if then == "assign":
        state.model = model
    elif then == "again":
        state.commit_async()
    else:
        getattr(state, then)()
    step(model, optimizer)
    state.restore()
    assert everything(model, optimizer) == committed


def test_an_error_of_copying_is_raised(job: None, monkeypatch: pytest.MonkeyPatch):
    _model, _optimizer, state = training()

    def failing(pairs: copies.Pairs) -> None:
        if len(pairs) > 1:
            raise RuntimeError("no memory")

    monkeypatch.setattr(copies, "_copy", failing)
    state.commit_async()
    with pytest.raises(RuntimeError, match="no memory"):
        state.restore()
