"""Jobs that are started again and again, seen from `hvdtune tune`: agent and engine together."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator, Mapping

import pytest
from support.models.simulated_training import SimulatedStep

from hvdtune.autotune.session import agent
from hvdtune.autotune.session.agent import Agent, address_of
from hvdtune.autotune.session.offline import JobsEnded, RemoteEngine, RemoteStep
from hvdtune.settings import knobs

LONG_AGO = float("-inf")
PATIENCE_S = 120.0  # only matters if something hangs


class Stopped(Exception):
    pass


class ShortEngine:
    """The engine in a job of so many steps; a change is in force at the next step."""

    EngineStopped = Stopped

    def __init__(
        self, settings: knobs.Settings, steps: int, refuses: bool, tensors: int, gpus: bool = False,
        late: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """`late`: settings that can act from the first step on."""
        self.values = {"cycle_time": settings.cycle_time, "chunk_size": settings.chunk_size}
        self._late = {key: getattr(settings, key) for key in late}
        self.left = steps
        self.epoch = 0
        self._refuses = refuses
        self._tensors = tensors
        self._gpus = gpus
        self._go_on = threading.Event()

    def current(self) -> dict[str, float]:
        return dict(self.values)

    def uses_gpus(self) -> bool:
        return self._gpus

    def apply(self, values: Mapping[str, float]) -> int:
        if self._refuses:
            raise RuntimeError("no")
        self.values.update(values)
        self.epoch += 1
        return self.epoch

    def read_steps(self, timeout_s: float) -> list[SimulatedStep]:
        if self.left == 0:
            raise Stopped
        self._go_on.wait(0.001)  # leaves the processor to the other end
        self.left -= 1
        self.values = {**self._late, **self.values}
        # The duration tells the test what was in force.
        duration = int(1000 * self.values["cycle_time"])
        return [SimulatedStep(duration, epoch=self.epoch, tensors=self._tensors)]


class Job:
    """Stands for the launcher's process: ends when its agent has."""

    def __init__(self, environment: Mapping[str, str], steps: int, **engine: object) -> None:
        self.environment = dict(environment)
        self.settings = knobs.from_environ(environment)
        self.status = engine.pop("status", 0)
        self.engine = ShortEngine(self.settings, steps, **engine)  # type: ignore[arg-type]
        self._agent = None
        if steps >= 0:
            assert self.settings.autotune_driver is not None
            self._agent = Agent(self.engine, self.settings.autotune_driver)
            self._thread = threading.Thread(target=self._agent.run)
            self._thread.start()

    @property
    def returncode(self) -> object:
        return self.poll()

    def poll(self) -> object:
        return None if self._agent and self._thread.is_alive() else self.status

    def terminate(self) -> None:
        assert self._agent is not None
        self._agent.stop_soon()

    def wait(self, timeout: float | None = None) -> object:
        self._thread.join(60)
        return self.poll()


class Jobs:
    """Starts jobs and remembers them."""

    def __init__(
        self, steps: int = 10**9, status: int = 0, tensors: int = 10, gpus: bool = False,
        late: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.started: list[Job] = []
        self.gpus, self.late = gpus, late
        self.steps, self.status, self.tensors, self.refuses = steps, status, tensors, False

    def __call__(self, environment: Mapping[str, str]) -> Job:
        job = Job(
            environment, self.steps,
            status=self.status, refuses=self.refuses, tensors=self.tensors, gpus=self.gpus,
            late=self.late,
        )  # fmt: skip
        self.started.append(job)
        return job


@pytest.fixture
def engines() -> Iterator[list[RemoteEngine]]:
    made: list[RemoteEngine] = []
    yield made
    for engine in made:
        engine.close()


def remote(engines: list[RemoteEngine], jobs: Jobs, **options: object) -> RemoteEngine:
    engines.append(RemoteEngine(jobs, **options))  # type: ignore[arg-type]
    return engines[-1]


def steps_of(engine: RemoteEngine, epoch: int, count: int) -> list[RemoteStep]:
    """Read until `count` steps of an epoch have come."""
    found: list[RemoteStep] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} steps have come"
        found += [step for step in engine.read_steps(1.0) if step.epoch == epoch]
    return found


def read_forever(engine: RemoteEngine, starts: bool = True) -> None:
    if starts:
        engine.start(time.monotonic() + PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        engine.read_steps(0.1)
    pytest.fail("the jobs have not ended")


def test_a_change_reaches_the_running_job(engines) -> None:
    jobs = Jobs()
    engine = remote(engines, jobs)
    engine.start(time.monotonic() + PATIENCE_S)
    assert engine.current() == {"cycle_time": 1.0, "chunk_size": 0}
    number = engine.apply({"cycle_time": 5.0})
    assert {step.duration_ns for step in steps_of(engine, number, 3)} == {5000}
    assert engine.current() == {"cycle_time": 5.0, "chunk_size": 0}
    assert len(jobs.started) == 1


def test_a_job_that_ends_is_started_again_with_what_was_in_force(engines) -> None:
    jobs = Jobs(steps=40)
    engine = remote(engines, jobs, skip=5)
    engine.start(time.monotonic() + PATIENCE_S)
    number = engine.apply({"cycle_time": 5.0})
    assert {step.duration_ns for step in steps_of(engine, number, 100)} == {5000}
    assert len(jobs.started) >= 3
    assert jobs.started[1].settings.cycle_time == 5.0
    assert not jobs.started[1].settings.is_fixed("cycle_time")


def test_some_settings_need_a_new_start(engines) -> None:
    jobs = Jobs(tensors=3000)
    engine = remote(engines, jobs, restart={"cache_capacity": 1024})
    engine.start(time.monotonic() + PATIENCE_S)
    assert engine.current()["cache_capacity"] == 1024
    number = engine.apply({"cycle_time": 2.0, "cache_capacity": 4096})
    assert {step.duration_ns for step in steps_of(engine, number, 3)} == {2000}
    assert len(jobs.started) == 2
    assert jobs.started[1].settings.cache_capacity == 4096
    engine.apply({"cycle_time": 3.0, "cache_capacity": 4096})
    assert len(jobs.started) == 2


def test_settings_of_nccl_are_searched_only_where_gpus_are_used(engines) -> None:
    nccl = {"nccl_min_ctas": 0, "nccl_max_ctas": 0}
    assert all(knobs.KNOBS[key].on_gpus and knobs.KNOBS[key].restart for key in nccl)
    engine = remote(engines, Jobs(), restart=nccl)
    engine.start(time.monotonic() + PATIENCE_S)
    assert not set(nccl) & set(engine.current())
    jobs = Jobs(gpus=True)
    engine = remote(engines, jobs, restart=nccl)
    engine.start(time.monotonic() + PATIENCE_S)
    assert {key: engine.current()[key] for key in nccl} == nccl
    number = engine.apply({"nccl_min_ctas": 2, "nccl_max_ctas": 8})
    steps_of(engine, number, 1)
    assert jobs.started[1].environment["NCCL_MIN_CTAS"] == "2"
    assert jobs.started[1].environment["NCCL_MAX_CTAS"] == "8"


def test_what_can_act_only_once_there_are_batches_is_searched_too(engines) -> None:
    jobs = Jobs(late=("nccl_bypass_limit",), tensors=3000)
    engine = remote(engines, jobs, restart={"cache_capacity": 1024})
    engine.start(time.monotonic() + PATIENCE_S)
    assert engine.current()["nccl_bypass_limit"] == 0
    number = engine.apply({"nccl_bypass_limit": 8192})
    steps_of(engine, number, 1)
    assert jobs.started[0].engine.values["nccl_bypass_limit"] == 8192
    assert len(jobs.started) == 1
    # The next start begins with it, though its engine does not know at first that it can act.
    number = engine.apply({"nccl_bypass_limit": 8192, "cache_capacity": 4096})
    steps_of(engine, number, 1)
    assert jobs.started[1].settings.nccl_bypass_limit == 8192
    assert engine.current()["nccl_bypass_limit"] == 8192


def test_what_can_act_only_by_and_by_is_searched_too(engines) -> None:
    """Whether batches go by NCCL a job knows with its first steps."""
    jobs = Jobs(steps=60, late=("num_nccl_streams",))
    engine = remote(engines, jobs)
    engine.start(time.monotonic() + PATIENCE_S)
    assert engine.current() == {"cycle_time": 1.0, "chunk_size": 0, "num_nccl_streams": 1}
    number = engine.apply({"cycle_time": 5.0, "num_nccl_streams": 3})
    steps_of(engine, number, 100)
    assert len(jobs.started) >= 2
    assert jobs.started[0].engine.values["num_nccl_streams"] == 3
    # The next start begins with it.
    assert jobs.started[1].settings.num_nccl_streams == 3
    assert not jobs.started[1].settings.is_fixed("num_nccl_streams")


def test_a_cache_that_all_tensors_fit_into_is_left_alone(engines) -> None:
    engine = remote(engines, Jobs(), restart={"cache_capacity": 1024})
    engine.start(time.monotonic() + PATIENCE_S)
    assert "cache_capacity" not in engine.current()


@pytest.mark.parametrize(
    ("steps", "status", "words"),
    [
        (30, 3, "the program ended with exit status 3"),
        (0, 0, "ended 2 times without a training step to measure"),
        (3, 0, "the first 3 of every start are left out"),
        (-1, 0, "ended 2 times without a training step"),  # init() was never called
    ],
)
def test_a_program_that_cannot_be_tuned(engines, steps, status, words) -> None:
    engine = remote(engines, Jobs(steps, status))
    with pytest.raises(JobsEnded, match=words) as caught:
        read_forever(engine)
    assert engine.failure == str(caught.value)


def test_the_deadline_ends_the_wait_for_the_first_step(engines) -> None:
    class Silent(Jobs):
        def __call__(self, environment: Mapping[str, str]) -> Job:
            job = Job(environment, -1, refuses=False, tensors=1)
            job.status = None
            job.terminate = lambda: None  # type: ignore[method-assign]
            job.wait = lambda timeout=None: 0  # type: ignore[method-assign]
            return job

    engine = remote(engines, Silent())
    with pytest.raises(JobsEnded, match=r"had not called init\(\) when the time was over"):
        engine.start(LONG_AGO)


def test_an_engine_that_refuses_ends_it(engines) -> None:
    jobs = Jobs()
    jobs.refuses = True
    engine = remote(engines, jobs)
    engine.start(time.monotonic() + PATIENCE_S)
    engine.apply({"cycle_time": 5.0})
    with pytest.raises(JobsEnded, match="refused settings: RuntimeError: no"):
        read_forever(engine, starts=False)


@pytest.mark.parametrize(("at_once", "looks"), [(True, 1), (False, 20)])
def test_short_steps_do_not_look_for_gpus_each(monkeypatch, at_once, looks):
    """A look reads the process's whole memory map."""

    class Clock:
        now = 1000.0

        def monotonic(self) -> float:
            self.now += 0.0 if at_once else 2 * agent.BETWEEN_LOOKS_S
            return self.now

    class Counting(ShortEngine):
        looks = 0

        def uses_gpus(self) -> bool:
            self.looks += 1
            return super().uses_gpus()

    monkeypatch.setattr(agent, "time", Clock())
    engine = Counting(knobs.from_environ({}), steps=20, refuses=False, tensors=1)
    name = f"@hvdtune-test-{os.getpid()}-{looks}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address_of(name))
        listener.listen()
        served = Agent(engine, name)
        driver, _ = listener.accept()
        with driver, driver.makefile() as lines:
            served.run()
            told = [json.loads(line) for line in lines]
    assert engine.looks == looks
    assert [one["gpus"] for one in told[1:]] == [False] * 20


def test_who_has_come_to_use_gpus_is_not_asked_again(monkeypatch):
    engine = ShortEngine(knobs.from_environ({}), steps=0, refuses=False, tensors=1, gpus=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        name = f"@hvdtune-test-{os.getpid()}-gpus"
        listener.bind(address_of(name))
        listener.listen()
        served = Agent(engine, name)
        assert served._uses_gpus()
        monkeypatch.setattr(engine, "uses_gpus", lambda: pytest.fail("asked again"))
        assert served._uses_gpus()
        served.run()


def test_a_socket_of_a_program_with_many_open_files() -> None:
    """select() only knows numbers below 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2100:
        pytest.skip("this system permits too few files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2100), hard))
    try:
        near, far = socket.socketpair()
        number = fcntl.fcntl(near.fileno(), fcntl.F_DUPFD_CLOEXEC, 2000)
        with near, far, socket.socket(fileno=number) as high:
            lines = agent.Lines(high)
            assert lines.received() == []
            far.sendall(b'{"apply": {}, "number": 1}\n')
            assert lines.received() == [{"apply": {}, "number": 1}]
            far.close()
            with pytest.raises(EOFError):
                lines.received()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_cache_that_is_left_alone_is_as_large_in_every_start(engines) -> None:
    jobs = Jobs(steps=40, tensors=2000)
    engine = remote(engines, jobs, restart={"cache_capacity": 4096})
    engine.start(time.monotonic() + PATIENCE_S)
    assert "cache_capacity" not in engine.current()
    steps_of(engine, 0, 60)
    assert len(jobs.started) >= 2
    assert {job.settings.cache_capacity for job in jobs.started} == {4096}
