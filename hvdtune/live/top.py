"""Following a job: on a terminal in place, elsewhere one block of text a reading."""

from __future__ import annotations

import sys
import time

from hvdtune.live import client, view


def once(endpoint: client.Endpoint) -> str:
    """One reading as text. Raises as `client.ask`."""
    return view.text(client.status(endpoint))


def follow(endpoint: client.Endpoint, interval_s: float) -> None:
    """Show the job until it ends. A reading that does not come in time is shown as such."""
    if sys.stdout.isatty():
        _follow_in_place(endpoint, interval_s)
    else:
        _follow_in_lines(endpoint, interval_s)


def _follow_in_lines(endpoint: client.Endpoint, interval_s: float) -> None:
    status = client.status(endpoint)
    before = None
    while True:
        print(view.text(status, before), end="\n\n", flush=True)
        time.sleep(interval_s)
        before = status
        try:
            status = client.status(endpoint)
        except client.JobError as error:
            print(f"{error}.", flush=True)
            return


def _follow_in_place(endpoint: client.Endpoint, interval_s: float) -> None:
    from rich.live import Live

    status = client.status(endpoint)
    before = None
    end = ""
    with Live(view.frame(status), auto_refresh=False, screen=True) as live:
        while not end:
            live.update(view.frame(status, before), refresh=True)
            time.sleep(interval_s)
            before = status
            try:
                status = client.status(endpoint)
            except client.JobError as error:
                end = f"{error}."
    print(view.text(before if before is not None else status))
    print(end)
