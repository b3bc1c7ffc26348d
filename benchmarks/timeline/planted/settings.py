"""Programs in which a setting, an order of tensors or their names cost time."""

from __future__ import annotations

from dataclasses import replace

from planted.job import Job, pause
from planted.networks import KIB, MIB, Net, descend, fit, noise, played, start_torch
from planted.program import Programs
from planted.work import Work, perform

programs = Programs()

THRESHOLD, CYCLE = "fusion threshold too small", "cycle time too long"
NO_FUSION = {"HOROVOD_FUSION_THRESHOLD": "0"}
#: Freed gradients stay with the process, so new ones cause no page faults, which differ by rank.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * MIB), "MALLOC_TRIM_THRESHOLD_": str(1 << 31)}
MANY_NAMES = {"HOROVOD_CACHE_CAPACITY": "4096"}
#: Starting an operation for each of these tensors takes more than computing can hide.
SMALL = replace(
    Work(), steps=100, layers=10, per_layer=300, size=KIB, forward=0.001, layer=0.0001
)  # fmt: skip
HEAVY = replace(Work(), size=8 * MIB, steps=60)


@programs.faulty(
    "threshold 0", THRESHOLD, framework="torch",
    environment=MANY_NAMES, faulty_environment=NO_FUSION,
)  # fmt: skip
def _no_fusion(job: Job) -> None:
    perform(job, SMALL)


@programs.faulty(
    "threshold 0, four ranks", THRESHOLD, framework="torch", ranks=4,
    environment=MANY_NAMES, faulty_environment=NO_FUSION,
)  # fmt: skip
def _no_fusion_of_four(job: Job) -> None:
    perform(job, replace(SMALL, per_layer=50))


@programs.faulty(
    "threshold 0, thin layers", THRESHOLD, environment=MANY_NAMES, faulty_environment=NO_FUSION
)
def _thin_layers(job: Job) -> None:
    descend(job, Net(layers=800, size=KIB, forward=0.005, layer=0.0), steps=100)


@programs.faulty("cycle time 50 ms", CYCLE, framework="torch",
    faulty_environment={"HOROVOD_CYCLE_TIME": "50"})  # fmt: skip
def _cycle(job: Job) -> None:
    perform(job, HEAVY)


@programs.faulty("cycle time 60 ms, four ranks", CYCLE, ranks=4,
    faulty_environment={"HOROVOD_CYCLE_TIME": "60"})  # fmt: skip
def _cycle_of_four(job: Job) -> None:
    descend(job, Net(layers=6, size=4 * MIB, forward=0.004, layer=0.008), steps=60)


@programs.faulty("huge tensor last", "huge tensor last", framework="torch")
def _huge_last(job: Job) -> None:
    perform(job, replace(Work(), steps=60, huge=96 * MIB, huge_first=not job.fault))


@programs.faulty("embedding last", "huge tensor last")
def _embedding_last(job: Job) -> None:
    import numpy as np

    job.start()
    sizes = [256 * KIB] * 6 + [48 * MIB]
    if not job.fault:
        sizes.reverse()
    gradients = [np.ones(size // 4, np.float32) for size in sizes]
    for _ in job.steps(50):
        pause(0.005)
        handles = []
        for number, gradient in enumerate(gradients):
            pause(0.006)
            handles.append(job.hvd.allreduce_async(gradient, name=f"weight{number}"))
        for handle in handles:
            job.hvd.synchronize(handle)


@programs.faulty("no overlap", "no overlap", framework="torch")
def _no_overlap(job: Job) -> None:
    perform(job, replace(HEAVY, overlap=not job.fault))


@programs.faulty(
    "overlap off", "no overlap", framework="torch",
    environment=KEEP_MEMORY | {"HVDTUNE_OVERLAP": "on"},
    faulty_environment={"HVDTUNE_OVERLAP": "off"},
)  # fmt: skip
def _overlap_off(job: Job) -> None:
    start_torch(job)
    fit(job, played(layers=6, width=2048, forward=0.0005, backward=0.010), noise(2048), steps=50)


@programs.faulty("gradients all at the end", "no overlap", ranks=4)
def _at_the_end(job: Job) -> None:
    import numpy as np

    job.start()
    gradients = [np.ones(MIB, np.float32) for _ in range(5)]
    for _ in job.steps(60):
        pause(0.010)
        handles = []
        for number, gradient in enumerate(gradients):
            pause(0.005)
            if not job.fault:
                handles.append(job.hvd.allreduce_async(gradient, name=f"weight{number}"))
        if job.fault:
            for number, gradient in enumerate(gradients):
                handles.append(job.hvd.allreduce_async(gradient, name=f"weight{number}"))
        for handle in handles:
            job.hvd.synchronize(handle)


@programs.faulty("small tensors one by one", "small tensors one by one", framework="torch")
def _one_by_one(job: Job) -> None:
    small = replace(Work(), layers=6, per_layer=40, size=16 * KIB)
    perform(job, replace(small, one_by_one=True) if job.fault else small)


@programs.faulty("names made up", "cache misses")
def _made_up(job: Job) -> None:
    import numpy as np

    job.start()
    gradients = [np.ones(256, np.float32) for _ in range(300)]
    for step in job.steps(60):
        pause(0.015)
        handles = [
            job.hvd.allreduce_async(one, name=f"weight{number}.{step if job.fault else 0}")
            for number, one in enumerate(gradients)
        ]
        for handle in handles:
            job.hvd.synchronize(handle)


@programs.faulty(
    "cache too small", "cache misses", framework="torch", ranks=4,
    environment=MANY_NAMES, faulty_environment={"HOROVOD_CACHE_CAPACITY": "8"},
)  # fmt: skip
def _small_cache(job: Job) -> None:
    perform(job, replace(SMALL, steps=60, per_layer=60, forward=0.002, layer=0.0002))


@programs.faulty("opposite orders", "orders differ", ranks=4, culprits=None)
def _opposite(job: Job) -> None:
    def order(_step: int) -> list[int]:
        back = job.fault and job.rank % 2
        return list(range(6))[:: -1 if back else 1]

    descend(job, Net(layers=6, size=12 * MIB, forward=0.004, layer=0.010), steps=50, order=order)


@programs.faulty("orders of a set", "orders differ", culprits=None)
def _shuffled(job: Job) -> None:
    def order(_step: int) -> list[int]:
        layers = list(range(6))
        if job.fault:
            job.random.shuffle(layers)
        return layers

    descend(job, Net(layers=6, size=24 * MIB, forward=0.004, layer=0.011), steps=50, order=order)
