"""Carrying out one call of `hvdtune.launch.function.call_site`: files, launcher, output, results.

The function and the results are in unnamed files, which launcher and workers inherit: however the
caller ends, nothing is left on the disk. Workers that cannot inherit them use an `exchange`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import IO, Any

from hvdtune.bootstrap import python_command
from hvdtune.launch.function.exchange import KEY, Exchange
from hvdtune.launch.local.endings import signal_name


class FunctionCall:
    """One call on all ranks.

    `plan` is what `job` reads, except for what this class adds. `call` is the pickled (function,
    args, kwargs), `environ` the workers', `count` the number of results. `addresses`: None if the
    workers can inherit files, otherwise where they reach this process.
    """

    def __init__(
        self,
        plan: dict[str, Any],
        call: bytes,
        environ: dict[str, str],
        count: int,
        addresses: Sequence[str] | None = None,
    ) -> None:
        self._plan = plan
        self._count = count
        self._addresses = addresses
        self._call = call
        self._environ = environ

    def results(self) -> list[Any]:
        """Start the launcher, wait for its end, and return the workers' results, by rank.

        Raises RuntimeError if the job fails or a result cannot be read. When it raises anything,
        including KeyboardInterrupt, the workers have ended.
        """
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2 + self._count)]
            call, explanation, *results = files
            pickle.dump((_search_path(), sys.argv), call)
            call.write(self._call)
            call.flush()
            if self._addresses is None:
                shared = [file.fileno() for file in (call, *results)]
                place = [str(number) for number in shared]
            else:
                exchange = stack.enter_context(contextlib.closing(Exchange(call, results)))
                self._environ[KEY] = exchange.key
                shared = []
                place = ["--at", str(exchange.port), *self._addresses]
            status = self._launch(explanation.fileno(), shared, place)
            # If this program ignores SIGCHLD, the status is 0 whatever has happened.
            if status != 0 or os.fstat(explanation.fileno()).st_size:
                raise RuntimeError(_failure(status, explanation))
            return [_result(rank, file) for rank, file in enumerate(results)]

    def _launch(self, explanation: int, shared: list[int], place: list[str]) -> int:
        """Run the launcher, which tells workers the `place` of the call; return its status."""
        plan = json.dumps(
            {
                **self._plan,
                "parent": os.getpid(),
                "explanation": explanation,
                "descriptors": shared,
                "place": place,
            }
        )
        # The launcher ignores what this program ignores, such as SIGINT after a shell's `&`.
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with _streams() as (stdout, stderr):
            process = subprocess.Popen(
                python_command("hvdtune.launch.function.job", plan),
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(explanation, *shared),
                # Ctrl-C must reach the job once: from here, and not from the terminal as well.
                start_new_session=True,
            )
            # From now on the launcher holds the other ends.
            for stream in (stdout, stderr):
                stream.close()
            try:
                return process.wait()
            except BaseException:
                _end(process, signal.SIGTERM if ignored else signal.SIGINT)
                raise


def _search_path() -> list[str]:
    """Where workers look for modules: the caller's path, with relative folders made absolute."""
    return [os.path.abspath(entry) if entry else entry for entry in sys.path]


def _end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """End the launcher as Ctrl-C does: workers may save their state, unless interrupted again."""
    while process.poll() is None:
        process.send_signal(number)
        try:
            process.wait()
        except KeyboardInterrupt:
            continue


def _failure(status: int, explanation: IO[bytes]) -> str:
    explanation.seek(0)
    text = explanation.read().decode("utf-8", "replace").rstrip()
    if text:
        return f"The job has failed: {text}"
    cause = f"was killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
    return f"The job has failed: its launcher {cause}."


def _result(rank: int, file: IO[bytes]) -> Any:
    file.seek(0)
    if not os.fstat(file.fileno()).st_size:
        raise RuntimeError(f"Rank {rank} exited with code 0 before the function returned.")
    try:
        return pickle.load(file)
    except Exception as error:
        raise RuntimeError(f"The result of rank {rank} cannot be read here: {error}") from error


# ---- output ----


@contextlib.contextmanager
def _streams() -> Iterator[list[IO[bytes]]]:
    """Files for the launcher's stdout and stderr that lead to sys.stdout and sys.stderr.

    Notebooks and test tools put objects there to which no process can write. For those, a pipe and
    a thread pass on what the workers print.
    """
    files: list[IO[bytes]] = []
    threads = []
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                with contextlib.suppress(Exception):  # it is closed, or cannot
                    stream.flush()
            descriptor = _descriptor(stream)
            if stream is None or descriptor is None:
                file, thread = _relay(stream)
                files.append(file)
                threads.append(thread)
            else:
                files.append(os.fdopen(os.dup(descriptor), "wb", buffering=0))
        yield files
    finally:
        for file in files:
            file.close()
        for thread in threads:
            thread.join()


def _descriptor(stream: Any) -> int | None:
    """The descriptor of the file that a stream writes to; None if it is no file's stream.

    Other streams may have one that leads elsewhere: a notebook's leads to its server's terminal.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return None
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError, TypeError):
        return None


def _relay(stream: IO[str] | None) -> tuple[IO[bytes], threading.Thread]:
    read_end, write_end = os.pipe()

    def pass_on() -> None:
        with open(read_end, encoding="utf-8", errors="replace", newline="") as lines:
            for line in lines:
                if stream is not None:
                    # A stream that fails must not block the workers, which need a reader.
                    with contextlib.suppress(Exception):
                        stream.write(line)

    thread = threading.Thread(target=pass_on, name="hvdtune-output", daemon=True)
    thread.start()
    return os.fdopen(write_end, "wb", buffering=0), thread
