"""Programs in which one rank, some ranks, or each rank in turn holds the others up."""

from __future__ import annotations

from dataclasses import replace

from planted.job import Job, crunch, pause
from planted.networks import Net, convolutions, descend, fit, noise, played, start_torch
from planted.program import Programs
from planted.work import Work, perform

programs = Programs()

PERSISTENT, TRANSIENT = "persistent straggler", "transient straggler"
RECURRING, TURNS = "recurring straggler", "ranks take turns"


# ---- always, or for a while ----------------------------------------------------------------------


@programs.faulty("late rank", PERSISTENT, framework="torch", culprits=(1,))
def _late(job: Job) -> None:
    perform(job, replace(Work(), late_rank=1, late=0.030) if job.fault else Work())


@programs.faulty("late in steps 30-45", TRANSIENT, framework="torch", culprits=(1,))
def _late_for_a_while(job: Job) -> None:
    bad = replace(Work(), late_rank=1, late=0.040, late_from=30, late_to=45)
    perform(job, bad if job.fault else Work())


@programs.faulty("slow backward pass", PERSISTENT, framework="torch", ranks=4, culprits=(2,))
def _slow_backward(job: Job) -> None:
    start_torch(job)
    model = played()
    if job.fault and job.rank == 2:
        model.pace[1] *= 2
    fit(job, model, noise())


@programs.faulty("two slow ranks", PERSISTENT, framework="torch", ranks=4, culprits=(1, 3))
def _two_slow(job: Job) -> None:
    start_torch(job)
    slow = job.fault and job.rank in (1, 3)
    fit(job, played(), noise(), before=lambda step: pause(0.025 * slow))


@programs.faulty("one slow rank of eight", PERSISTENT, ranks=8, culprits=(5,))
def _one_of_eight(job: Job) -> None:
    descend(job, before=lambda step: pause(0.015 * (job.fault and job.rank == 5)))


@programs.faulty("one half of eight slow", PERSISTENT, ranks=8, culprits=(4, 5, 6, 7))
def _slow_half(job: Job) -> None:
    def clocked_down(_step: int) -> None:
        pause(0.018 * job.random.uniform(0.9, 1.1) * (job.fault and job.rank >= 4))

    descend(job, before=clocked_down)


@programs.faulty("slow host", PERSISTENT, ranks=4, hosts=2, culprits=(2, 3))
def _slow_host(job: Job) -> None:
    def slower(_step: int) -> None:
        pause(0.015 * job.random.uniform(0.9, 1.1) * (job.fault and job.rank >= 2))

    descend(job, Net(size=64 << 10), before=slower)


@programs.faulty("slow rank on the other host", PERSISTENT, ranks=4, hosts=2, culprits=(3,))
def _slow_elsewhere(job: Job) -> None:
    descend(
        job, Net(size=64 << 10), before=lambda step: pause(0.02 * (job.fault and job.rank == 3))
    )


@programs.faulty("uneven batches", PERSISTENT, framework="torch", culprits=(1,))
def _uneven(job: Job) -> None:
    torch = start_torch(job)
    model = convolutions(torch)
    batch = (24, 72)[job.rank] if job.fault else 48
    fit(job, model, lambda step: torch.randn(batch, 3, 24, 24))


@programs.faulty("one rank computes more", PERSISTENT, ranks=3, culprits=(0,))
def _computes_more(job: Job) -> None:
    descend(job, before=lambda step: crunch(50 * (job.fault and job.rank == 0)))


@programs.faulty("slow for a third of the time", TRANSIENT, ranks=4, culprits=(3,))
def _a_third(job: Job) -> None:
    def warm(step: int) -> None:
        pause(0.02 * (job.fault and job.rank == 3 and 30 <= step < 58))

    descend(job, before=warm)


# ---- again and again -----------------------------------------------------------------------------


@programs.faulty("next shard every 10 steps", RECURRING, framework="torch", ranks=4, culprits=(1,))
def _next_shard(job: Job) -> None:
    start_torch(job)

    def load(step: int) -> None:
        pause(0.2 * (job.fault and job.rank == 1 and step % 10 == 9))

    fit(job, played(), noise(), before=load)


@programs.faulty("checkpoint on rank 0", RECURRING, ranks=4, culprits=(0,))
def _checkpoint(job: Job) -> None:
    def save(step: int) -> None:
        pause(0.18 * (job.fault and job.rank == 0 and step % 20 == 15))

    descend(job, steps=140, after=save)


@programs.faulty("random pauses", RECURRING, ranks=4, culprits=(2,))
def _random_pauses(job: Job) -> None:
    def collect(step: int) -> None:
        collects = job.random.random() < 0.09 and step > 4
        pause(0.12 * (job.fault and job.rank == 2 and collects))

    descend(job, steps=100, before=collect)


@programs.faulty("rank 0 evaluates alone", RECURRING, framework="torch", culprits=(0,))
def _evaluates(job: Job) -> None:
    start_torch(job)

    def evaluate(step: int) -> None:
        crunch(400 * (job.fault and job.rank == 0 and step % 10 == 9))

    fit(job, played(), noise(), steps=130, after=evaluate)


@programs.faulty("stalled rank", "stalled rank", framework="torch", culprits=(1,))
def _stalled(job: Job) -> None:
    bad = replace(Work(), late_rank=1, late=1.5, late_from=50, late_to=50)
    perform(job, bad if job.fault else Work())


@programs.faulty("one long stop of four", "stalled rank", ranks=4, culprits=(2,))
def _long_stop(job: Job) -> None:
    descend(job, before=lambda step: pause(1.2 * (job.fault and job.rank == 2 and step == 40)))


# ---- each rank in turn ---------------------------------------------------------------------------


@programs.faulty("ranks in rotation", TURNS, framework="torch", ranks=4)
def _rotation(job: Job) -> None:
    start_torch(job)
    late = 0.025

    def load(step: int) -> None:
        turn = step % job.size == job.rank
        pause(late * turn if job.fault else late / job.size)

    fit(job, played(), noise(), before=load)


@programs.faulty("turns of five steps", TURNS, ranks=4)
def _turns_of_five(job: Job) -> None:
    def load(step: int) -> None:
        turn = step // 5 % job.size == job.rank
        pause(0.02 * turn if job.fault else 0.02 / job.size)

    descend(job, before=load)


@programs.faulty("jitter and a barrier", TURNS, framework="torch", ranks=4)
def _barrier(job: Job) -> None:
    start_torch(job)

    def load(_step: int) -> None:
        pause(0.03 * (job.random.random() if job.fault else 0.5))

    fit(job, played(), noise(), before=load, after=lambda step: job.hvd.barrier())


@programs.faulty("rare long samples", TURNS, ranks=8)
def _long_samples(job: Job) -> None:
    def load(_step: int) -> None:
        drawn = min(job.random.expovariate(1.0), 6.0)
        pause(0.008 * (drawn if job.fault else 1.0))

    descend(job, before=load)


@programs.faulty("jitter and an averaged loss", TURNS, framework="torch", ranks=4)
def _jitter_and_loss(job: Job) -> None:
    start_torch(job)
    model = played(forward=0.001, backward=0.001)

    def drawn() -> float:
        return job.random.random() if job.fault else 0.5

    def load(_step: int) -> None:
        pause(0.03 * drawn())
        model.pace[1] = 0.001 + 0.005 * drawn()

    fit(
        job, model, noise(), before=load,
        middle=lambda step, loss: job.hvd.allreduce(loss.detach(), name="loss"),
    )  # fmt: skip
