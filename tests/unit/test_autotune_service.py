"""The optimiser in its own process: what is said over the pipes, and every way it can fail."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.models.simulated_training import answer, full_space, scattered

from hvdtune.autotune.search import space
from hvdtune.autotune.search.question import Answer, Request
from hvdtune.autotune.session import client, service
from hvdtune.autotune.session.client import ServiceClient, ServiceError

SPACE = full_space()
DEFAULTS = space.shipped_defaults(SPACE)
PATIENCE_S = 120


def request(seed: int = 0) -> Request:
    points = [SPACE.encode(values) for values in [DEFAULTS, *scattered(SPACE, 5, 1)]]
    rows = [{"point": point, "y": 0.01 * at, "error": 0.002} for at, point in enumerate(points)]
    return Request(SPACE.to_json(), rows, seed, 0.0)


def wait_for(client: ServiceClient) -> Answer:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = client.poll()
        if found is not None:
            return found
        time.sleep(0.01)
    raise AssertionError("no answer")


def speaking(program: str) -> list[str]:
    return [sys.executable, "-c", program]


@pytest.fixture
def start() -> Iterator[Callable[..., ServiceClient]]:
    clients: list[ServiceClient] = []

    def starter(*args: object, **kwargs: object) -> ServiceClient:
        clients.append(ServiceClient(SPACE, *args, **kwargs))  # type: ignore[arg-type]
        return clients[-1]

    yield starter
    for each in clients:
        each.close()


def test_it_loads_quickly_because_it_loads_little() -> None:
    heavy = {"pandas", "sklearn", "skopt.space", "torch"}
    code = "import hvdtune.autotune.search.optimiser, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "hvdtune.autotune.search.model" in loaded
    assert not heavy & set(loaded)


def test_the_protocol_over_text() -> None:
    lines = [json.dumps(request(seed).to_json()) for seed in (0, 1)]
    answers = io.StringIO()
    assert service.serve(io.StringIO("\n".join([lines[0], "nonsense", lines[1]])), answers) == 0
    ready, first, error, second = (json.loads(line) for line in answers.getvalue().splitlines())
    assert ready == {"ready": True}
    assert len(first["points"][0]) == len(second["points"][0]) == SPACE.width
    assert len(first["means"]) == 6
    assert first["computing_ms"] > 0
    assert error["error"].startswith("JSONDecodeError: ")


def test_the_process_answers_what_the_function_answers(start: Callable[..., ServiceClient]) -> None:
    process = start()
    assert process.started_s is None
    for seed in (0, 1):
        process.ask(request(seed))
        assert wait_for(process) == answer(request(seed))
    assert process.computing_ms > 0
    assert process.started_s > 0
    assert process.poll() is None


def test_the_process_has_the_lowest_priority(start: Callable[..., ServiceClient]) -> None:
    process = start()
    process.ask(request())
    wait_for(process)
    assert os.getpriority(os.PRIO_PROCESS, process._process.pid) == 19


def test_closing_ends_the_process(start: Callable[..., ServiceClient]) -> None:
    process = start()
    process.close()
    process.close()
    assert process._process.returncode == -signal.SIGKILL


def test_the_process_dies_with_its_parent() -> None:
    parent = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, signal, sys\n"
            "from hvdtune.autotune.session.client import ServiceClient\n"
            "from hvdtune.autotune.search.space import Dimension, Space\n"
            "client = ServiceClient(Space((Dimension('cycle_time', 'log', 0.1, 25.0),)))\n"
            "print(client._process.pid, flush=True)\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n",
        ],
        stdout=subprocess.PIPE,
        check=False,
    )
    assert parent.returncode == -signal.SIGKILL
    pid = int(parent.stdout)
    deadline = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}/stat").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z":
            return
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()


def test_a_service_that_cannot_be_started(start: Callable[..., ServiceClient]) -> None:
    with pytest.raises(ServiceError, match=r"cannot be started: .*No such file"):
        start(["/no/such/python"])


def test_a_service_that_crashes(start: Callable[..., ServiceClient]) -> None:
    process = start(speaking("import sys; sys.exit(3)"))
    with pytest.raises(ServiceError, match="ended with exit status 3"):
        wait_for(process)


def test_a_service_that_is_killed(start: Callable[..., ServiceClient]) -> None:
    process = start()
    process._process.kill()
    with pytest.raises(ServiceError, match="ended by SIGKILL"):
        wait_for(process)


def test_asking_a_dead_service(start: Callable[..., ServiceClient]) -> None:
    process = start(speaking("pass"))
    process._process.wait()
    with pytest.raises(ServiceError, match="ended with exit status 0"):
        process.ask(request())


def test_a_service_that_fails(start: Callable[..., ServiceClient]) -> None:
    process = start(speaking("""print('{"error": "ModuleNotFoundError: no skopt"}')"""))
    with pytest.raises(ServiceError, match="the optimiser failed: ModuleNotFoundError: no skopt"):
        wait_for(process)


@pytest.mark.parametrize("text", ["nonsense", "[1]", '{"points": [[0.5]]}'])
def test_a_service_that_talks_nonsense(start: Callable[..., ServiceClient], text: str) -> None:
    process = start(speaking(f"print({text!r}); input()"))
    with pytest.raises(ServiceError, match="answer cannot be understood"):
        wait_for(process)


def test_a_service_that_never_answers(start: Callable[..., ServiceClient]) -> None:
    now = [0.0]
    process = start(speaking("import time; time.sleep(600)"), clock=lambda: now[0])
    process.ask(request())
    assert process.poll() is None
    now[0] = client.PATIENCE_S + 1
    with pytest.raises(ServiceError, match="did not answer within 120 s"):
        process.poll()
