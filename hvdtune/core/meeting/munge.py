"""Slurm's munge: credentials that only one user of the cluster can read, and cannot have forged.

Rank 0 listens on the first node of the step, at a port made from the job's number, and gives
everybody who comes rank 0's text in a credential of munge's. It is encrypted with the cluster's
key; munge decrypts it for processes of this user alone, and says who has made it. Others may come,
or listen in rank 0's place: the ones learn nothing, and the others are not believed. A credential
of an earlier job is not, either, for the job's name is in it.
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

NAME = "munge"
_PAUSE = 0.01
_LONGEST = 16384  # of a credential
_MOST_SECONDS = 5.0  # of one question


def absence(seeker: Seeker) -> str:
    """Why this process cannot use munge; "" if it can."""
    environ, topology = seeker.environ, seeker.topology
    if topology.launcher not in ("slurm", "pmi") or not network.first_of_slurm(environ):
        return "no srun has started the processes"
    if seeker.root != 0:
        return "init() got a list whose first rank is not on the first node"
    for program in ("munge", "unmunge"):
        if shutil.which(program, path=environ.get("PATH")) is None:
            return f"{program} is not on PATH"
    return ""


def exchange(seeker: Seeker, text: str) -> str:
    """Rank 0's text. `text` is it on rank 0."""
    _run(seeker, ["munge", "--no-input"], "")  # all ranks learn here if munge does not work
    place = network.first_of_slurm(seeker.environ), network.port_of(seeker.topology.job_id)
    if not seeker.tells:
        return _learn(seeker, place)
    try:
        listener = socket.create_server(
            place, family=socket.AF_INET6 if _is_ipv6(place) else socket.AF_INET, backlog=1024
        )
    except OSError as error:
        raise Failed(f"{place[0]}:{place[1]}: {error.strerror}") from None
    threading.Thread(
        target=_serve, args=(seeker, listener, text), name="hvdtune munge", daemon=True
    ).start()
    return text


def _is_ipv6(place: tuple[str, int]) -> bool:
    return socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0][0] == socket.AF_INET6


def _serve(seeker: Seeker, listener: socket.socket, text: str) -> None:
    """Give a credential to everybody who comes before the deadline; each can be read only once."""
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
            reason = "nothing was said"
        if seeker.seconds_left() <= 0:
            raise TooLate(f"{place[0]}:{place[1]}: {reason}")
        time.sleep(_PAUSE)


def _ask(place: tuple[str, int], seconds: float) -> str:
    said = b""
    with socket.create_connection(place, timeout=min(max(seconds, _PAUSE), _MOST_SECONDS)) as asked:
        while len(said) < _LONGEST and (more := asked.recv(_LONGEST)):
            said += more
    return said.decode(errors="replace")


def _read(seeker: Seeker, credential: str) -> str:
    shown = _run(seeker, ["unmunge", "--numeric", "--keys=UID"], credential)
    head, _, payload = shown.partition("\n\n")
    user = head.partition(":")[2].strip()
    if user != str(os.getuid()):
        raise Failed(f"user {user} listens in rank 0's place")
    job, _, text = payload.partition(" ")
    if job != seeker.job_key():
        raise Failed("another job's credential was given")
    return text


def _run(seeker: Seeker, command: list[str], given: str) -> str:
    """What munge or unmunge prints. Its input has the secret, its command line has not."""
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
