"""Slurm's munge: credentials that only one user of the cluster can read, and no other can forge.

Rank 0 listens on the first node of the step, at a port computed from the job's number. It sends
every client its text in a munge credential, encrypted with the cluster's key. munge decrypts it
only for processes of this user, and names its author. So strangers who connect learn nothing. If a
stranger listens in rank 0's place, its credential is not accepted, and neither is one of an earlier
job, because the credential contains the job's name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time

from hvdtune.core.libraries import network
from hvdtune.core.meeting.seeker import Failed, Seeker, TooLate
from hvdtune.core.topology import slurm_step

NAME = "munge"
_PAUSE = 0.01
_LONGEST = 16384  # of a credential
_MOST_SECONDS = 5.0  # of one request


def absence(seeker: Seeker) -> str:
    """Why this process cannot use munge; "" if it can."""
    environ, topology = seeker.environ, seeker.topology
    # Hydra may also run inside a Slurm allocation; it sets MPI_LOCALRANKID.
    by_srun = slurm_step(environ) and "MPI_LOCALRANKID" not in environ
    if (
        topology.launcher not in ("slurm", "pmi")
        or not by_srun
        or not network.first_of_slurm(environ)
    ):
        return "no srun has started the processes"
    if seeker.root != 0:
        return "init() got a list whose first rank is not on the first node"
    for program in ("munge", "unmunge"):
        if shutil.which(program, path=environ.get("PATH")) is None:
            return f"{program} is not on PATH"
    return ""


def exchange(seeker: Seeker, text: str) -> str:
    """Rank 0's text, given as `text` on rank 0."""
    # Every rank notices here if munge does not work, for this user or in general.
    user, _ = _open(seeker, _run(seeker, _making(), "probe"))
    if user != str(os.getuid()):
        raise Failed(f"it takes user {os.getuid()} for {user}")
    place = network.first_of_slurm(seeker.environ), network.port_of(seeker.topology.job_id)
    if not seeker.tells:
        return _learn(seeker, place)
    both = socket.has_dualstack_ipv6()
    try:
        # Listen at all addresses: on the node itself, its name may mean the loopback interface.
        listener = socket.create_server(
            ("", place[1]),
            family=socket.AF_INET6 if both else socket.AF_INET,
            backlog=1024,
            dualstack_ipv6=both,
        )
    except OSError as error:
        raise Failed(f"port {place[1]}: {error.strerror}") from None
    threading.Thread(
        target=_serve, args=(seeker, listener, text), name="hvdtune munge", daemon=True
    ).start()
    return text


def _serve(seeker: Seeker, listener: socket.socket, text: str) -> None:
    """Give every client a credential until the deadline; each can be read only once."""
    with listener:
        while seeker.seconds_left() > 0:
            listener.settimeout(seeker.seconds_left() + _PAUSE)
            with contextlib.suppress(OSError, Failed):
                comer, _ = listener.accept()
                with comer:
                    credential = _run(seeker, _making(), f"{seeker.job_key()} {text}")
                    comer.settimeout(_MOST_SECONDS)
                    comer.sendall(credential.encode())


def _making() -> list[str]:
    return ["munge", f"--restrict-uid={os.getuid()}"]


def _learn(seeker: Seeker, place: tuple[str, int]) -> str:
    while True:
        try:
            credential = _ask(place, seeker.seconds_left())
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            if credential:
                return _read(seeker, credential)
            reason = "nothing was sent"
        if seeker.seconds_left() <= 0:
            raise TooLate(f"{place[0]}:{place[1]}: {reason}")
        time.sleep(_PAUSE)


def _ask(place: tuple[str, int], seconds: float) -> str:
    said = b""
    end = time.monotonic() + min(max(seconds, _PAUSE), _MOST_SECONDS)
    with socket.create_connection(place, timeout=end - time.monotonic()) as asked:
        while len(said) < _LONGEST and time.monotonic() < end:
            asked.settimeout(max(_PAUSE, end - time.monotonic()))
            more = asked.recv(_LONGEST)
            if not more:
                break
            said += more
    return said.decode(errors="replace")


def _open(seeker: Seeker, credential: str) -> tuple[str, str]:
    """The author of the credential, and its content."""
    shown = _run(seeker, ["unmunge", "--numeric", "--keys=UID"], credential)
    head, _, payload = shown.partition("\n\n")
    return head.partition(":")[2].strip(), payload


def _read(seeker: Seeker, credential: str) -> str:
    user, payload = _open(seeker, credential)
    if user != str(os.getuid()):
        raise Failed(f"user {user} listens in rank 0's place")
    job, _, text = payload.partition(" ")
    if job != seeker.job_key():
        raise Failed("another job's credential was given")
    return text


def _run(seeker: Seeker, command: list[str], given: str) -> str:
    """The output of munge or unmunge. The secret is in its input, not in its command line."""
    try:
        done = subprocess.run(
            command,
            env=dict(seeker.environ),
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_MOST_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise Failed(f"{command[0]} did not answer") from None
    if done.returncode != 0:
        said = done.stderr.partition("\n")[0].removeprefix(f"{command[0]}: Error: ")
        raise Failed(said or f"{command[0]} ended with {done.returncode}")
    return done.stdout
