"""Rank programs: TorchState, ElasticSampler and training that starts over."""

from __future__ import annotations

import copy
import os
import random
import signal
import time
from typing import Any

import torch
from rank_programs.torch_cases import error_of, run_checks
from torch import nn

import hvdtune.torch as hvd
from hvdtune.elastic import HostUpdateResult, notification_manager
from hvdtune.torch.elastic.state import (
    ModelStateHandler,
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)

Model = nn.Module


def new_model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()


def step(model: Model, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()


def weights(model: Model) -> list[torch.Tensor]:
    return [value.clone() for value in model.state_dict().values()]


def equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def steps_of(optimizer: torch.optim.Optimizer) -> set[float]:
    return {float(state["step"]) for state in optimizer.state.values()}


def commit_and_restore() -> None:
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    state: Any = hvd.elastic.TorchState(model, optimizer, epoch=0, loss=None)
    assert (state.model, state.optimizer, state.epoch, state.loss) == (model, optimizer, 0, None)
    assert isinstance(state, hvd.elastic.ObjectState)
    assert isinstance(state, hvd.elastic.State)
    fresh = weights(model)
    step(model, optimizer, torch.ones(5, 4).double())
    state.epoch = 1
    state.restore()
    assert equal(weights(model), fresh)
    assert not optimizer.state
    assert state.epoch == 0
    step(model, optimizer, torch.ones(5, 4).double())
    state.epoch, state.loss = 2, 0.5
    state.commit()
    committed = weights(model)
    momentum = copy.deepcopy(optimizer.state_dict())["state"][0]["exp_avg"]
    # Twice: what was restored once is trained on, and must not be the saved copy itself.
    for _ in range(2):
        step(model, optimizer, torch.full((5, 4), 2.0).double())
        optimizer.param_groups[0]["lr"] = 9.0
        state.epoch, state.loss = 7, None
        state.restore()
        assert equal(weights(model), committed)
        assert torch.equal(optimizer.state_dict()["state"][0]["exp_avg"], momentum)
        assert steps_of(optimizer) == {1.0}
        assert optimizer.param_groups[0]["lr"] == 0.1
        assert (state.epoch, state.loss) == (2, 0.5)


def gradients_are_dropped() -> None:
    """What a step that failed has left in the gradients is not in the next one."""
    for passes in (0, 1, 2):  # 0: without a DistributedOptimizer
        model = new_model()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        if passes:
            optimizer = hvd.DistributedOptimizer(
                optimizer, model.named_parameters(), backward_passes_per_step=passes
            )
        state: Any = hvd.elastic.TorchState(model, optimizer)
        rows = torch.ones(5, 4).double()
        rows[0] = hvd.rank()
        found = []
        for breaks in (False, True):
            if breaks:
                model(3 * rows).square().mean().backward()
            state.restore()
            assert all(parameter.grad is None for parameter in model.parameters())
            for _ in range(passes or 1):
                model(rows).square().mean().backward()
            optimizer.step()
            found.append(weights(model))
        assert equal(*found)


def synchronise() -> None:
    """Everybody gets what rank 0 has now (models) or committed (objects); no new copy of models."""
    rank = hvd.rank()
    model = new_model(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + rank, momentum=0.5)
    sampler = hvd.elastic.ElasticSampler(range(10))
    state: Any = hvd.elastic.TorchState(
        model=model, optimizer=optimizer, sampler=sampler, batch=rank
    )
    at_construction = weights(model)
    for _ in range(rank + 1):
        step(model, optimizer, torch.randn(5, 4).double())
    sampler.record_batch(0, rank + 1)
    state.batch = 100 + rank
    here = weights(model)
    state.sync()
    expected = hvd.broadcast_object((here, optimizer.state_dict()["state"][0]), root_rank=0)
    assert equal(weights(model), expected[0])
    buffer = optimizer.state_dict()["state"][0]["momentum_buffer"]
    assert torch.equal(buffer, expected[1]["momentum_buffer"])
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert sampler.state_dict() == {"epoch": 0, "processed_num": hvd.size()}
    assert state.batch == 0, "objects: what rank 0 saved, not what it has"
    state.restore()
    assert equal(weights(model), at_construction)
    assert sampler.processed_num == 0
    assert state.batch == 0, "synchronising objects saves them"


def assignment() -> None:
    state: Any = hvd.elastic.TorchState(new_model(), first=new_model(1), count=1)
    other = new_model(5)
    before = weights(other)
    state.first = other
    state.count = 2
    with torch.no_grad():
        other[0].weight.zero_()
    state.restore()
    assert state.first is other
    assert equal(weights(other), before), "assigning took a copy"
    assert state.count == 1, "objects are saved by commit only"
    error_of(lambda: setattr(state, "first", None), ValueError, "first", "NoneType")
    error_of(lambda: hvd.elastic.TorchState(commit=new_model()), ValueError, "commit")
    state.sync()
    assert len({str(w) for w in hvd.allgather_object(weights(other))}) == 1


class Counter:
    def __init__(self, value: int) -> None:
        self.value = value


class CounterHandler(StateHandler):
    def save(self) -> None:
        self.saved = self.value.value

    def restore(self) -> None:
        self.value.value = self.saved

    def sync(self) -> None:
        self.value.value = hvd.broadcast_object(self.value.value, 0)


class WithExtraState(nn.Linear):
    note: Any = None

    def get_extra_state(self) -> Any:
        return self.note

    def set_extra_state(self, state: Any) -> None:
        self.note = state


def other_handlers() -> None:
    standard = get_handler_registry()
    assert (nn.Module, ModelStateHandler) in standard
    set_handler_registry([*standard, (Counter, CounterHandler)])
    try:
        state: Any = hvd.elastic.TorchState(counter=Counter(hvd.rank()), plain={"a": 1})
    finally:
        set_handler_registry(standard)
    counter = state.counter
    state.sync()
    assert state.counter is counter
    assert counter.value == 0
    state.restore()
    assert counter.value == hvd.rank()
    extra = WithExtraState(2, 2)
    extra.note = {"rank": hvd.rank()}
    state = hvd.elastic.TorchState(extra)
    state.sync()
    assert extra.note == {"rank": 0}
    state.restore()
    assert extra.note == {"rank": hvd.rank()}


def order(length: int, seed: int, epoch: int, done: int, rank: int, ranks: int) -> list[int]:
    """What a rank is dealt, in the order that Horovod promises."""
    indices = list(range(length))
    random.Random(seed + epoch).shuffle(indices)
    rest = indices[done:]
    while rest and len(rest) % ranks:
        rest.append(rest[len(rest) - len(indices[done:])])
    return rest[rank::ranks]


def sampler() -> None:
    rank, ranks = hvd.rank(), hvd.size()
    for length in (0, 1, 2, 7, 100):
        data = range(length)
        dealt = hvd.elastic.ElasticSampler(data, seed=3)
        for epoch in range(2):
            dealt.set_epoch(epoch)
            for batch in range(3):
                expected = order(length, 3, epoch, 2 * ranks * batch, rank, ranks)
                assert list(dealt) == list(dealt) == expected, (length, epoch, batch)
                assert len(dealt) == len(expected)
                assert len(set(hvd.allgather_object(len(dealt)))) == 1
                state = dealt.state_dict()
                assert state == {"epoch": epoch, "processed_num": 2 * ranks * batch}
                # What was recorded is left out from the next reset on, not in the middle.
                dealt.record_batch(batch, 2)
                assert list(dealt) == expected
                dealt.load_state_dict(dealt.state_dict())
    ascending = hvd.elastic.ElasticSampler(range(2 * ranks), shuffle=False)
    assert list(ascending) == [rank, ranks + rank]
    every = torch.utils.data.DataLoader(list(range(100)), 5, sampler=ascending)
    assert [batch.tolist() for batch in every] == [[rank, ranks + rank]]


def host_changes() -> None:
    """Only rank 0's news counts, and reaches everybody at the same check."""
    state: Any = hvd.elastic.TorchState(batch=0)
    rounds = []
    last = hvd.size() - 1

    @hvd.elastic.run
    def train(state: Any) -> str:
        rounds.append((state.batch, hvd.size()))
        state.batch += 1
        if len(rounds) == 1:
            if hvd.rank() == last:
                notification_manager.handle_hosts_updated(1, HostUpdateResult.added)
            state.check_host_updates()  # not rank 0's: nothing happens
            hvd.barrier()
            if hvd.rank() == 0:
                notification_manager.handle_hosts_updated(1, HostUpdateResult.added)
            state.commit()
        if len(rounds) == 2:
            # Only removals: the loop does not synchronise, every rank keeps what it has.
            state.batch = 10 * (hvd.rank() + 1)
            if hvd.rank() == 0:
                notification_manager.handle_hosts_updated(2, HostUpdateResult.removed)
            state.check_host_updates()
        return "done"

    assert train(state) == "done"
    size = hvd.size()
    assert rounds == [(0, size), (1, size), (10 * (hvd.rank() + 1), size)]


def run() -> list[str]:
    hvd.init()
    return run_checks(
        commit_and_restore,
        gradients_are_dropped,
        synchronise,
        assignment,
        other_handlers,
        sampler,
        host_changes,
        training_goes_on,
    )


# ---- training through failures ----

DATA = 96
BATCH = 4
EPOCHS = 2
FAULTS = ("one rank raises", "ranks disagree", "one rank shuts down", "in the backward pass")


def data() -> torch.Tensor:
    return torch.randn(DATA, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def cause(fault: str | None) -> None:
    """Make this step fail, on all ranks sooner or later."""
    victim = hvd.rank() == hvd.size() - 1
    if fault == "one rank raises" and victim:
        raise hvd.HorovodInternalError("made up by a test")
    if fault == "ranks disagree":
        hvd.allreduce(torch.ones(3 if victim else 2), name="metric")
    if fault == "one rank shuts down" and victim:
        hvd.shutdown()


def train_elastically(state: Any, faults: dict[int, str], log: list[Any]) -> None:
    """Two epochs, committed every other batch; ``faults`` are by number of batches run so far."""
    everything = data()
    while state.epoch < EPOCHS:
        indices = torch.utils.data.BatchSampler(state.sampler, BATCH, drop_last=False)
        for number, batch in enumerate(indices):
            fault = faults.pop(len(log), None)
            log.append((state.epoch, state.batch))
            rows = everything[batch]
            state.optimizer.zero_grad()
            loss = state.model(rows).square().mean()
            if fault == "in the backward pass" and hvd.rank() == 0:
                fail_in_backward(state.model[0].weight, loss)
            loss.backward()
            cause(fault)
            state.optimizer.step()
            state.sampler.record_batch(number, BATCH)
            state.batch += 1
            if state.batch % 2 == 0:
                state.commit()
        state.epoch += 1
        state.batch = 0
        state.sampler.set_epoch(state.epoch)
        state.commit()


def fail_in_backward(parameter: torch.Tensor, loss: torch.Tensor) -> None:
    """The gradients of later layers are under way when this fails."""

    def fail(gradient: torch.Tensor) -> None:
        raise hvd.HorovodInternalError("made up in the backward pass")

    hook = parameter.register_hook(fail)
    try:
        loss.backward()
    finally:
        hook.remove()


def new_state() -> Any:
    torch.manual_seed(hvd.rank())  # only rank 0's weights count
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters()
    )
    sampler = hvd.elastic.ElasticSampler(range(DATA), seed=hvd.size())
    return hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)


def training_goes_on() -> None:
    """Four failures: training ends with the weights of training without any."""
    undisturbed = new_state()
    hvd.elastic.run(train_elastically)(undisturbed, {}, [])
    state = new_state()
    # A step has as many rows as there are ranks: the faults fall into both epochs.
    per_epoch = -(-DATA // (BATCH * hvd.size()))
    numbers = (3, per_epoch, per_epoch + 4, 2 * per_epoch)
    log: list[Any] = []
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    faults = dict(zip(numbers, FAULTS, strict=True))
    if hvd.rank() > 0:
        with torch.no_grad():
            state.model[0].weight.fill_(float("nan"))
    hvd.elastic.run(train_elastically)(state, faults, log)
    assert not faults, "every failure has happened"
    assert resets == [hvd.size()] * len(FAULTS)
    # What was not committed is done again, and nothing else.
    repeated = [place for i, place in enumerate(log) if place in log[:i]]
    assert 0 < len(repeated) <= 2 * len(FAULTS), log
    assert len(set(log)) == EPOCHS * per_epoch
    for value, expected in zip(weights(state.model), weights(undisturbed.model), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    assert steps_of(state.optimizer) == {float(EPOCHS * per_epoch)}


def one_dies(victim: int) -> str:
    """A rank is killed: the others restore their state, and the job cannot come together again."""
    hvd.init()
    os.environ["HOROVOD_START_TIMEOUT"] = "1"  # of the next start, in which a rank is missing
    state: Any = hvd.elastic.TorchState(batch=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        while True:
            hvd.allreduce(torch.ones(10), name="gradient")
            state.batch += 1
            if state.batch == 20:
                state.commit()
            if state.batch == 30 and hvd.rank() == victim:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)

    text = error_of(lambda: train(state), ValueError)
    assert state.batch == 20
    assert not hvd.is_initialized()
    return text
