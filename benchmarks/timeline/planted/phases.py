"""Programs in which input or update takes long, on all ranks or on one."""

from __future__ import annotations

from typing import Any

from planted.job import Job, crunch, pause
from planted.networks import fit, noise, played, start_torch
from planted.program import Programs

programs = Programs()

INPUT, UPDATE = "slow input", "slow update"


def _loaded(job: Job, seconds: float, work: int = 0, width: int = 256) -> Any:
    """Batches of a DataLoader whose dataset takes `seconds` for each batch of four samples."""
    import torch

    class Samples(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 1 << 12

        def __getitem__(self, index: int) -> Any:
            pause(seconds / 4)
            crunch(work)
            return torch.full((width,), 1e-3 * index)

    batches = iter(torch.utils.data.DataLoader(Samples(), batch_size=4))
    return lambda step: next(batches)


@programs.faulty("slow loader", INPUT, framework="torch")
def _slow_loader(job: Job) -> None:
    start_torch(job)
    fit(job, played(), _loaded(job, 0.030 if job.fault else 0.001))


@programs.faulty("loader that computes", INPUT, framework="torch")
def _decoding(job: Job) -> None:
    start_torch(job)
    fit(job, played(), _loaded(job, 0.0, 20 if job.fault else 0))


@programs.faulty(
    "slow loader of one rank", (INPUT, "persistent straggler"),
    framework="torch", ranks=4, culprits=(3,),
)  # fmt: skip
def _slow_loader_of_one(job: Job) -> None:
    start_torch(job)
    slow = job.fault and job.rank == 3
    fit(job, played(), _loaded(job, 0.025 if slow else 0.001))


# Nothing marks where input begins: it may be any time before the forward pass.
@programs.faulty(
    "weights looked at in each step", ("work beside training", "slow input"), framework="torch"
)
def _looked_at(job: Job) -> None:
    torch = start_torch(job)
    model = played()

    def look(step: int) -> None:
        if job.fault or step % 40 == 39:
            for weight in model.parameters():
                torch.histc(weight.detach().flatten().repeat(12), 64)
            pause(0.012)  # written to a slow file system

    fit(job, model, noise(), after=look)


def _slowly(seconds: float, work: int = 0) -> Any:
    """SGD whose step takes longer."""
    import torch

    class Slowly(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            pause(seconds)
            crunch(work)
            return super().step(closure)

    return lambda weights: Slowly(weights, lr=1e-4)


@programs.faulty("slow update", UPDATE, framework="torch", ranks=4)
def _slow_update(job: Job) -> None:
    start_torch(job)
    fit(job, played(), noise(), optimizer=_slowly(0.025 if job.fault else 0.001))


@programs.faulty("update that computes", UPDATE, framework="torch")
def _computing_update(job: Job) -> None:
    start_torch(job)
    fit(job, played(), noise(), optimizer=_slowly(0.0, 70 if job.fault else 0))


@programs.faulty("update weight by weight", UPDATE, framework="torch")
def _weight_by_weight(job: Job) -> None:
    torch = start_torch(job)
    model = played(layers=4, width=512, forward=0.001, backward=0.002)

    class Averaging(torch.optim.SGD):
        """Averages of the weights over several times, as for an ensemble."""

        def step(self, closure: Any = None) -> Any:
            found = super().step(closure)
            with torch.no_grad():
                for weight in self.param_groups[0]["params"]:
                    kept = self.state[weight].setdefault(
                        "averages", [weight.clone() for _ in range(10)]
                    )
                    for number, average in enumerate(kept):
                        average.lerp_(weight, 0.5**number)
            return found

    fit(
        job, model, noise(512),
        optimizer=(lambda weights: Averaging(weights, lr=1e-4)) if job.fault else None,
    )  # fmt: skip
