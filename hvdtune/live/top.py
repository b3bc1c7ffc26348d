"""Following a job: in place on a terminal, elsewhere one block of text per reading.

This process reads the GPUs itself: it runs on rank 0's host.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from hvdtune.live import client, gpu_counters, view


def once(endpoint: client.Endpoint) -> str:
    """One reading as text. Raises as `client.ask`."""
    return view.text(_Job(endpoint).status())


class _Job:
    """A job (an elastic one through all its generations) and the GPUs of its host."""

    def __init__(
        self, endpoint: client.Endpoint, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._endpoint = endpoint
        self._tell = tell
        self._elastic = ""
        self._gpus = gpu_counters.reader(state_only=True)

    def status(self) -> view.Status:
        """One reading. Raises as `client.ask`."""
        try:
            found = client.status(self._endpoint)
        except client.SilentJobError:
            raise
        except client.JobError:
            following = self._elastic and client.next_generation(
                self._endpoint, self._elastic, self._tell
            )
            if not following:
                raise
            self._endpoint = following
            found = client.status(following)
        self._elastic = str(found.get("elastic", ""))
        return {**found, "gpus": self._gpus()}


def follow(endpoint: client.Endpoint, interval_s: float) -> None:
    """Show the job until it ends or no longer answers."""
    if sys.stdout.isatty():
        _follow_in_place(endpoint, interval_s)
    else:
        _follow_in_lines(_Job(endpoint, lambda text: print(text, flush=True)), interval_s)


def _follow_in_lines(job: _Job, interval_s: float) -> None:
    status = job.status()
    before = None
    while True:
        print(view.text(status, before), end="\n\n", flush=True)
        time.sleep(interval_s)
        before = status
        try:
            status = job.status()
            before = before if before.get("job") == status.get("job") else None
        except client.JobError as error:
            print(f"{error}.", flush=True)
            return


def _follow_in_place(endpoint: client.Endpoint, interval_s: float) -> None:
    from rich.live import Live
    from rich.text import Text

    job = _Job(endpoint, lambda text: live.update(Text(text), refresh=True))
    status = job.status()
    before = None
    end = ""
    with Live(view.frame(status), auto_refresh=False, screen=True) as live:
        while not end:
            live.update(view.frame(status, before), refresh=True)
            time.sleep(interval_s)
            before = status
            try:
                status = job.status()
                before = before if before.get("job") == status.get("job") else None
            except client.JobError as error:
                end = f"{error}."
    print(view.text(before if before is not None else status))
    print(end)
