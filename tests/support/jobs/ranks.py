"""Starts rank programs as real processes and collects what each printed, returned and ended with.

``run_ranks(4, function, *args)`` is the everyday form: the function runs in 4 processes that know
their rank from the environment, its return values come back as ``result.values``. Tests that
interfere (kill a rank, stop it) use ``start_ranks`` and the ``Ranks`` object it returns.

In a pytest session, ranks that run a function are forked from a process that has imported NumPy,
and the frameworks that the function needs (``nursery`` says what that means); ``fresh=True`` asks
for interpreters of their own.
Scripts, ranks behind a command or a launcher, and all ranks outside pytest always have them.
"""

from __future__ import annotations

import inspect
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hvdtune.launch.remote import rendezvous
from support.jobs.nursery import MARK, Nurseries, Order, RankProcess, imports_of

RUNNER = Path(__file__).with_name("rank_runner.py")
DEFAULT_TIMEOUT = 120.0

# Variables by which a launcher tells a process its place; a test never passes its own on.
LAUNCHER_PREFIXES = (
    "HOROVOD_",
    "HVDTUNE_",
    "OMPI_",
    "PMI",
    "PRTE_",
    "SLURM_",
    "TORCHELASTIC_",
    "JSM_",
)
LAUNCHER_NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"),
    *("MASTER_ADDR", "MASTER_PORT", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)

# The running pytest session's (see conftest.py). Benchmarks measure fresh processes.
nurseries: Nurseries | None = None


@dataclass(frozen=True)
class RankResult:
    """How one rank ended: its exit code (negative: minus the signal) and what it printed."""

    rank: int
    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class RanksResult:
    """How all ranks ended; ``values[r]`` is what rank r's function returned, or None."""

    ranks: tuple[RankResult, ...]
    values: tuple[Any, ...]

    def __getitem__(self, rank: int) -> RankResult:
        return self.ranks[rank]

    def describe(self) -> str:
        """Exit code and output of every rank, for a failure's message."""
        parts = []
        for rank in self.ranks:
            parts.append(f"--- rank {rank.rank}: exit code {rank.returncode}")
            parts.extend(
                f"{name}:\n{text[-4000:]}"
                for name, text in (("stdout", rank.stdout), ("stderr", rank.stderr))
                if text
            )
        return "\n".join(parts)


class RanksFailed(AssertionError):
    """A rank did not exit with 0, or the ranks did not end in time."""


def clean_environment(extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This process's environment without launchers' variables, plus ``extra`` (None removes)."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name == MARK or not (name.startswith(LAUNCHER_PREFIXES) or name in LAUNCHER_NAMES)
    }
    environment.setdefault("OMP_NUM_THREADS", "1")
    # What a test tunes must not be remembered in the cache folder of whoever runs the tests.
    environment["HVDTUNE_AUTOTUNE_STORE"] = ""
    environment["PYTHONUNBUFFERED"] = "1"
    for name, text in (extra or {}).items():
        if text is None:
            environment.pop(name, None)
        else:
            environment[name] = text
    return environment


def rank_environment(rank: int, size: int) -> dict[str, str]:
    """The variables that ``hvdtune run`` gives to rank ``rank`` of ``size`` on one host."""
    return {
        "HOROVOD_HOSTNAME": socket.gethostname(),
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(size),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
    }


def hosts_of(counts: Sequence[int]) -> Callable[[int], dict[str, str]]:
    """``rank_env`` for a job whose ranks are apart as on hosts with so many ranks each.

    They share no memory: everything goes through sockets on the loopback interface.
    """
    port = rendezvous.free_port("127.0.0.1")
    places = [(host, local) for host, count in enumerate(counts) for local in range(count)]

    def environment(rank: int) -> dict[str, str]:
        host, local = places[rank]
        same = [other for other, count in enumerate(counts) if count > local]
        return {
            "HOROVOD_HOSTNAME": f"host{host}",
            "HOROVOD_LOCAL_RANK": str(local),
            "HOROVOD_LOCAL_SIZE": str(counts[host]),
            "HOROVOD_CROSS_RANK": str(same.index(host)),
            "HOROVOD_CROSS_SIZE": str(len(same)),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HVDTUNE_HOST_SALT": f"host{host}",
        }

    return environment


def _layout(np: int) -> Sequence[int] | None:
    """How HVDTUNE_TEST_HOSTS wants ranks spread: "2" over two hosts, as evenly as can be."""
    hosts = min(int(os.environ.get("HVDTUNE_TEST_HOSTS", "1")), np)
    return [np // hosts + (host < np % hosts) for host in range(hosts)] if hosts > 1 else None


class Ranks:
    """Running ranks. Use as a context manager: leaving it kills whatever still runs."""

    def __init__(self, directory: Path, values: Path) -> None:
        self.directory = directory
        self.values_directory = values
        self.processes: list[subprocess.Popen[bytes] | RankProcess] = []

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill_all()

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], module: str | None = None
    ) -> None:
        """Start the next rank; by a fork, if that is possible, where it is a ``module``'s function.

        None asks for a fresh interpreter.
        """
        rank = len(self.processes)
        with (
            open(self._path(rank, "stdout"), "wb") as out,
            open(self._path(rank, "stderr"), "wb") as err,
        ):
            modules = imports_of(module) if module is not None and nurseries is not None else ()
            if modules and nurseries.suit(environment, modules):
                order = Order(
                    list(command), dict(environment), str(self.directory), out.name, err.name
                )
                self.processes.append(nurseries.fork(rank, order, modules))
                return
            # A session of its own: killing the group reaches what the rank itself started.
            process = subprocess.Popen(
                command,
                env=dict(environment),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.processes.append(process)

    def pid(self, rank: int) -> int:
        """Process id of a rank."""
        return self.processes[rank].pid

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to one rank (the process alone, not what it started)."""
        os.kill(self.pid(rank), number)

    def stdout(self, rank: int) -> str:
        """What a rank has printed until now."""
        return self._path(rank, "stdout").read_text(errors="replace")

    def stderr(self, rank: int) -> str:
        """What a rank has written to stderr until now."""
        return self._path(rank, "stderr").read_text(errors="replace")

    def wait_for_output(self, rank: int, text: str, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Return once a rank has printed ``text`` on either stream; fail if it ends before."""
        self.wait_for_any([rank], text, timeout)

    def wait_for_any(
        self, ranks: Sequence[int], text: str, timeout: float = DEFAULT_TIMEOUT
    ) -> int:
        """As ``wait_for_output``, of whichever of ``ranks`` is first; returns that rank."""
        deadline = time.monotonic() + timeout
        while True:
            ended = all(self.processes[rank].poll() is not None for rank in ranks)
            for rank in ranks:
                if text in self.stdout(rank) or text in self.stderr(rank):
                    return rank
            if ended or time.monotonic() > deadline:
                what = "ended without" if ended else "did not print"
                raise RanksFailed(f"ranks {ranks} {what} {text!r}\n{self._stop().describe()}")
            time.sleep(0.01)

    def wait(self, timeout: float = DEFAULT_TIMEOUT, check: bool = True) -> RanksResult:
        """Wait for all ranks. Raises RanksFailed at the timeout or (``check``) a failed rank."""
        deadline = time.monotonic() + timeout
        for process in self.processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                result = self._stop()
                message = f"the ranks did not end within {timeout:g} s\n{result.describe()}"
                raise RanksFailed(message) from None
        result = self._collect()
        if check and any(rank.returncode != 0 for rank in result.ranks):
            raise RanksFailed(f"a rank failed\n{result.describe()}")
        return result

    def kill_all(self) -> None:
        """End every rank and what it started, at once."""
        for process in self.processes:
            # The group may outlive its leader (a forked child): kill it even when the rank ended.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.processes:
            process.wait()

    def _stop(self) -> RanksResult:
        """Ask the ranks that still run where they are, then kill them."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGUSR2)
                process.send_signal(signal.SIGCONT)
        time.sleep(1.0)
        self.kill_all()
        return self._collect()

    def _collect(self) -> RanksResult:
        ranks = []
        values = []
        for rank, process in enumerate(self.processes):
            code = process.poll()
            assert code is not None
            ranks.append(RankResult(rank, code, self.stdout(rank), self.stderr(rank)))
        size = max([len(ranks), *(int(f.stem) + 1 for f in self.values_directory.glob("*.pickle"))])
        for rank in range(size):
            path = self.values_directory / f"{rank}.pickle"
            values.append(pickle.loads(path.read_bytes()) if path.exists() else None)
        return RanksResult(tuple(ranks), tuple(values))

    def _path(self, rank: int, stream: str) -> Path:
        return self.directory / f"{rank}.{stream}"


Program = Callable[..., Any] | str | Path


def program_command(program: Program, args: Sequence[Any], directory: Path) -> list[str]:
    """The command that runs a script (``args`` as text) or a module's function (``args`` pickled).

    A function's return value is pickled to ``directory/values/<rank>.pickle``.
    """
    values = directory / "values"
    values.mkdir(exist_ok=True)
    if isinstance(program, str | Path):
        return [sys.executable, str(program), *map(str, args)]
    path = inspect.getsourcefile(program)
    assert path is not None
    # Loading the main script in a rank would start ranks again, and those their own, without end.
    assert program.__module__ != "__main__", "a rank program must not be in the main script"
    call_file = directory / "call.pickle"
    call = {
        "module": program.__module__,
        "path": str(Path(path).resolve()),
        "function": program.__name__,
        "args": args,
        "values": str(values),
    }
    call_file.write_bytes(pickle.dumps(call))
    return [sys.executable, str(RUNNER), str(call_file)]


def new_directory() -> Path:
    """A new directory for one job's files, inside the running test's own when there is one."""
    return Path(tempfile.mkdtemp(prefix="ranks-", dir=os.environ.get("HVDTUNE_TEST_DIRECTORY")))


def new_job() -> dict[str, str]:
    """A job id and a secret that no other job has."""
    return {"HVDTUNE_JOB_ID": secrets.token_hex(8), "HVDTUNE_SECRET": secrets.token_hex(16)}


def start_ranks(
    np: int,
    program: Program,
    *args: Any,
    env: Mapping[str, str | None] | None = None,
    rank_env: Callable[[int], Mapping[str, str | None]] | None = None,
    only: Sequence[int] | None = None,
    prefix: Callable[[int], Sequence[str]] | None = None,
    hosts: Sequence[int] | None = None,
    fresh: bool = False,
) -> Ranks:
    """Start ``program`` as ``np`` ranks, each told its place directly, without a launcher.

    ``env`` is for every rank, ``rank_env(rank)`` for one; None as a value removes the variable.
    ``only`` starts just these ranks of the job (``Ranks`` then counts the started ones from 0).
    ``prefix(rank)`` is put in front of a rank's command; what it runs must become the rank by
    exec, as ``nice`` does. ``hosts`` keeps the ranks apart as if so many each were on hosts of
    their own (see ``hosts_of``); HVDTUNE_TEST_HOSTS=2 in the environment does it for every job that
    does not say. ``fresh``: every rank is an interpreter that has just been started.
    """
    hosts = hosts or _layout(np)
    host_env = hosts_of(hosts) if hosts else None
    directory = new_directory()
    command = program_command(program, args, directory)
    job = new_job()
    ranks = Ranks(directory, directory / "values")
    try:
        for rank in only if only is not None else range(np):
            own = {**rank_environment(rank, np), **(host_env(rank) if host_env else {})}
            environment = clean_environment({**job, **own, **(env or {})})
            for name, value in (rank_env(rank) if rank_env else {}).items():
                if value is None:
                    environment.pop(name, None)
                else:
                    environment[name] = value
            before = prefix(rank) if prefix else ()
            is_fresh = fresh or before or isinstance(program, str | Path)
            ranks.start([*before, *command], environment, None if is_fresh else program.__module__)
    except BaseException:
        ranks.kill_all()
        raise
    return ranks


def run_ranks(
    np: int,
    program: Program,
    *args: Any,
    env: Mapping[str, str | None] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    check: bool = True,
    hosts: Sequence[int] | None = None,
    fresh: bool = False,
) -> RanksResult:
    """Run ``program`` (a script's path, or a function of a module) as ``np`` ranks to its end.

    Raises RanksFailed, with everything that every rank printed, at the timeout (seconds) and, if
    ``check``, when a rank does not exit with 0.
    """
    with start_ranks(np, program, *args, env=env, hosts=hosts, fresh=fresh) as ranks:
        return ranks.wait(timeout, check)


@cache
def _kept(np: int, program: Program) -> RanksResult | RanksFailed:
    try:
        return run_ranks(np, program)
    except RanksFailed as failure:
        return failure


def run_once(np: int, program: Program) -> RanksResult:
    """``run_ranks`` for tests that look at one job's result: only the first call starts the job.

    A failure is kept, too: a job that hangs is not run again for every test.
    """
    result = _kept(np, program)
    if isinstance(result, RanksFailed):
        raise result
    return result


def run_checks_on(
    np: int,
    program: Callable[..., list[str]],
    *,
    env: Mapping[str, str | None] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    hosts: Sequence[int] | None = None,
) -> None:
    """Run a ``program`` that returns the names of its checks; fail if the ranks ran others."""
    names = run_ranks(np, program, env=env, timeout=timeout, hosts=hosts).values
    assert names[0]
    assert all(other == names[0] for other in names), "the ranks ran different checks"


def start_under(
    launcher: Sequence[str],
    program: Program,
    *args: Any,
    env: Mapping[str, str | None] | None = None,
) -> Ranks:
    """Start ``launcher`` (say ``["mpirun", "-np", "4"]``) on ``program``.

    The launcher is the only process of the ``Ranks`` returned; the values are its ranks'.
    """
    directory = new_directory()
    command = [*launcher, *program_command(program, args, directory)]
    ranks = Ranks(directory, directory / "values")
    ranks.start(command, clean_environment(env))
    return ranks


def run_under(
    launcher: Sequence[str],
    program: Program,
    *args: Any,
    env: Mapping[str, str | None] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    check: bool = True,
) -> RanksResult:
    """Run ``program`` under ``launcher`` to its end; see ``start_under`` and ``run_ranks``."""
    with start_under(launcher, program, *args, env=env) as ranks:
        return ranks.wait(timeout, check)


def tool(name: str) -> str:
    """A command installed beside the Python that runs the tests."""
    path = Path(sys.executable).with_name(name)
    assert path.exists(), f"{name} is not installed beside {sys.executable}"
    return str(path)


def mpirun_command(np: int) -> list[str]:
    """Open MPI's launcher for ``np`` ranks: also for root, and on fewer cores than ranks."""
    return [tool("mpirun"), "-np", str(np), "--allow-run-as-root", "--oversubscribe"]


def hvdtune_command(*arguments: str) -> list[str]:
    """The ``hvdtune`` command line tool of the Python that runs the tests."""
    tool = Path(sys.executable).with_name("hvdtune")
    if tool.exists():
        return [str(tool), *arguments]
    # By its name, without the entry that stands for the working directory: as an installed tool.
    start = (
        "import sys; sys.path.remove(''); sys.argv[0] = 'hvdtune'; "
        "from hvdtune.cli.main import main; sys.exit(main())"
    )
    return [sys.executable, "-c", start, *arguments]
