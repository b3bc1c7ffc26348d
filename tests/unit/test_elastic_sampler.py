"""ElasticSampler through random histories of a job: nothing of committed progress is lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import pytest

pytest.importorskip("torch")

from hvdtune.torch.elastic import sampler as module
from hvdtune.torch.elastic.sampler import ElasticSampler


class Job:
    """The ranks of a job, one after the other in this process, each with a sampler."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, samples: int, size: int, **how: Any
    ) -> None:
        self.size, self.rank = size, 0
        self.samples = samples
        self._how = how
        monkeypatch.setattr(module, "size", lambda: self.size)
        monkeypatch.setattr(module, "rank", lambda: self.rank)
        monkeypatch.setattr(module, "is_initialized", lambda: True)
        self.samplers: list[ElasticSampler] = []
        self.commits: list[dict[str, Any]] = []
        self.done: list[int] = []  # samples, when each rank committed
        self.form([], newcomers=size, done=0)

    def form(self, survivors: Sequence[int], newcomers: int, done: int) -> None:
        """These ranks survive; all go on where the new rank 0 is, as the loop has them do."""
        self.size = len(survivors) + newcomers
        self.samplers = [self.samplers[rank] for rank in survivors]
        for rank in range(self.size):
            self.rank = rank
            if rank >= len(self.samplers):
                self.samplers.append(ElasticSampler(range(self.samples), **self._how))
            self.samplers[rank].reset()
        state = self.samplers[0].state_dict()
        for rank in range(self.size):
            self.rank = rank
            self.samplers[rank].load_state_dict(dict(state))
        self.commits, self.done = [{}] * self.size, [0] * self.size
        self.commit(range(self.size), done)

    def commit(self, ranks: Iterable[int], done: int) -> None:
        for rank in ranks:
            self.commits[rank] = dict(self.samplers[rank].state_dict())
            self.done[rank] = done

    def restore(self) -> None:
        for rank, sampler in enumerate(self.samplers):
            self.rank = rank
            sampler.load_state_dict(dict(self.commits[rank]))

    def batches(self, batch_size: int) -> list[list[list[int]]]:
        """What all ranks would process from here on: by batch, by rank."""
        dealt = [list(sampler) for sampler in self.samplers]
        assert len({len(own) for own in dealt}) == 1, "every rank has equally many"
        starts = range(0, len(dealt[0]), batch_size)
        return [[own[start : start + batch_size] for own in dealt] for start in starts]


@pytest.mark.parametrize("seed", range(60))
def test_no_committed_sample_is_lost_or_repeated(monkeypatch, seed):
    dice = random.Random(seed)
    samples, batch_size = dice.randrange(1, 200), dice.randrange(1, 6)
    job = Job(monkeypatch, samples, dice.randrange(1, 6), seed=seed, shuffle=dice.random() < 0.7)
    most = job.size
    for epoch in range(2):
        done: list[int] = []  # in the order of all ranks' positions
        while (what := epoch_until(job, dice, batch_size, done)) != "end":
            survivors = dice.sample(range(job.size), dice.randrange(1, job.size + 1))
            if what == "fail":
                job.restore()
                # The first survivor is the next rank 0: what it has not committed is done again.
                del done[job.done[survivors[0]] :]
            job.form(survivors, newcomers=dice.randrange(0, 3), done=len(done))
            most = max(most, job.size)
        times = Counter(done)
        assert set(times) == set(range(samples)), "no sample is lost"
        assert len(done) - samples < most, "only the last batch of an epoch is filled up"
        for rank, sampler in enumerate(job.samplers):
            job.rank = rank
            sampler.set_epoch(epoch + 1)
        job.commit(range(job.size), 0)


def epoch_until(job: Job, dice: random.Random, batch_size: int, done: list[int]) -> str:
    """Process batches until the epoch ends, something fails, or hosts change."""
    for number, batch in enumerate(job.batches(batch_size)):
        what = dice.choices(("go on", "commit", "fail", "interrupt"), (8, 4, 2, 1))[0]
        if what == "fail" and dice.random() < 0.5:
            return "fail"
        done += [index for place in zip_longest(*batch) for index in place if index is not None]
        for sampler in job.samplers:
            sampler.record_batch(number, batch_size)
        if what == "fail":  # some have committed the batch, some have not
            job.commit(dice.sample(range(job.size), dice.randrange(job.size + 1)), len(done))
            return "fail"
        if what in ("commit", "interrupt"):
            job.commit(range(job.size), len(done))
        if what == "interrupt":
            return "interrupt"
    return "end"
