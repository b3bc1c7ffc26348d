"""`horovod.data`: loaders of batches, and a thread that reads them ahead."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hvdtune.data import AsyncDataLoaderMixin, BaseDataLoader

READER = "hvdtune-data-loader"


class Numbers(BaseDataLoader):
    """Epoch k has the numbers from 10 k on; `wrong`: the one in whose place an error comes."""

    def __init__(self, count: int = 3, *, wrong: int | None = None) -> None:
        self.count, self.wrong = count, wrong
        self.epochs = 0
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.count

    def _iterate(self) -> Iterator[int]:
        first = 10 * self.epochs
        self.epochs += 1
        for number in range(first, first + self.count):
            if number == self.wrong:
                raise OSError(f"{number} cannot be read")
            self.read.append(number)
            yield number

    def _process_batch(self, batch: int) -> str:
        assert threading.current_thread().name != READER
        return f"<{batch}>"


class NumbersAhead(AsyncDataLoaderMixin, Numbers):
    pass


@pytest.fixture
def make() -> Iterator[Any]:
    made: list[NumbersAhead] = []

    def make_one(*args: Any, **kwargs: Any) -> NumbersAhead:
        made.append(NumbersAhead(*args, **kwargs))
        return made[-1]

    yield make_one
    for one in made:
        one.close_async_loader()
    assert not [thread for thread in threading.enumerate() if thread.name == READER]


def test_a_loader_without_a_thread() -> None:
    loader = Numbers()
    assert list(loader) == ["<0>", "<1>", "<2>"]
    assert list(loader) == ["<10>", "<11>", "<12>"]
    assert len(loader) == 3


@pytest.mark.parametrize("size", [0, 1, 2, 64])
def test_epochs_are_the_same_with_a_thread(make: Any, size: int) -> None:
    loader = make(size, False, 4)
    for epoch in range(3):
        assert list(loader) == [f"<{10 * epoch + at}>" for at in range(4)]


def test_it_reads_ahead_into_the_next_epoch_but_no_further_than_the_queue(make: Any) -> None:
    loader = make(async_loader_queue_size=3, count=2)
    assert list(loader) == ["<0>", "<1>"]
    give_up = time.monotonic() + 60
    while len(loader.read) < 5 and time.monotonic() < give_up:
        time.sleep(0.01)  # the thread goes on by itself
    time.sleep(0.3)  # and no further
    # In the queue: 10, 11 and the end of their epoch; the first of the third waits for room.
    assert loader.read == [0, 1, 10, 11, 20]


def test_without_a_queue_nothing_is_read_ahead(make: Any) -> None:
    loader = make(0)
    batches = iter(loader)
    assert next(batches) == "<0>"
    assert loader.read == [0]


def test_an_error_comes_in_its_batch_s_place_and_the_next_iteration_begins_anew(make: Any) -> None:
    loader = make(wrong=1)
    batches = iter(loader)
    assert next(batches) == "<0>"
    with pytest.raises(OSError, match="1 cannot be read"):
        next(batches)
    assert list(loader) == ["<10>", "<11>", "<12>"]


def test_who_breaks_off_gets_the_rest_next_time(make: Any) -> None:
    loader = make()
    for batch in loader:
        assert batch == "<0>"
        break
    assert list(loader) == ["<1>", "<2>"]


def test_closing_forgets_what_was_read(make: Any) -> None:
    loader = make(1, count=1000)
    batches = iter(loader)
    next(batches)
    loader.close_async_loader()
    loader.close_async_loader()
    assert len(list(batches)) <= 2  # what was in the queue
    assert next(iter(loader)) == "<10>"


def test_a_forked_process_reads_for_itself(make: Any) -> None:
    loader = make(1)
    assert next(iter(loader)) == "<0>"
    child = os.fork()
    if child == 0:
        try:
            read = list(loader)
            loader.close_async_loader()
            os._exit(0 if len(read) == 3 else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_what_an_epoch_has_ahead_is_told_on_request(
    make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    list(make(debug_data_loader=True))
    assert " of 64 batches ahead" in capsys.readouterr().err


def test_mistakes() -> None:
    with pytest.raises(ValueError, match=r"async_loader_queue_size .* not -1"):
        NumbersAhead(-1)
    with pytest.raises(NotImplementedError, match="_iterate"):
        next(iter(BaseDataLoader()))
    with pytest.raises(NotImplementedError, match="how many"):
        len(BaseDataLoader())
