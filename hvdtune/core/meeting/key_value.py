"""Horovod's rendezvous server, which TonY, tf-yarn and others run for a job: texts over HTTP.

It accepts GET, PUT and DELETE of /scope/key. HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT name it. Under
hvdtune they may also name rank 0's own address, so the server is used only if the job has no
HVDTUNE_SECRET.
"""

from __future__ import annotations

import contextlib
import time

from hvdtune.core.libraries import network
from hvdtune.core.meeting.seeker import Failed, Seeker, TooLate

NAME = "a key-value server"
_SCOPE = "hvdtune"
_PAUSE = 0.01
_MOST_SECONDS = 5.0  # of one request
_LONGEST = 4096  # bytes of an answer
_OK, _NOT_FOUND = 200, 404


def absence(seeker: Seeker) -> str:
    """Why there can be no such server; "" if there may be one."""
    if not network.given(seeker.environ):
        return f"{network.ADDRESS} and {network.PORT} are not set"
    return ""


def exchange(seeker: Seeker, text: str) -> str:
    """Rank 0's text, given as `text` on rank 0."""
    place = network.given(seeker.environ)
    assert place is not None
    if seeker.tells and _is_free(*place):
        raise Failed(f"nobody listens at {network.ADDRESS} and {network.PORT}, on this host")
    path = _path(seeker)
    wanted, body = ("PUT", text) if seeker.tells else ("GET", None)
    reason = ""
    while True:
        status, answer = _request(place, wanted, path, body)
        if status == _OK and (seeker.tells or answer):
            return text if seeker.tells else answer
        if status not in (_OK, _NOT_FOUND):
            reason = answer
        host = f"{place[0]}:{place[1]}"
        if status not in (0, _OK, _NOT_FOUND):
            raise Failed(f"{host}: {answer}")
        if seeker.seconds_left() <= 0:
            raise TooLate(
                f"{host}: {reason or 'rank 0 has not told its address there'}; if it is rank 0's "
                f"own address, also set {network.SECRET}"
            )
        time.sleep(_PAUSE)


def forget(seeker: Seeker) -> None:
    """Empty rank 0's text: a later job with the same server then waits for its own."""
    place = network.given(seeker.environ)
    assert place is not None
    _request(place, "PUT", _path(seeker), "")


def _path(seeker: Seeker) -> str:
    return f"/{_SCOPE}/{seeker.job_key()}"


def _request(place: tuple[str, int], verb: str, path: str, body: str | None) -> tuple[int, str]:
    """The status and the text of an answer; 0 and a reason if there is none."""
    import http.client

    connection = http.client.HTTPConnection(*place, timeout=_MOST_SECONDS)
    with contextlib.closing(connection):
        try:
            connection.request(verb, path, body)
            answer = connection.getresponse()
            said = answer.read(_LONGEST).decode(errors="replace")
        except OSError as error:
            return 0, error.strerror or str(error)
        except http.client.HTTPException:
            return -1, "no HTTP server listens there"
    return answer.status, said if answer.status == _OK else f"{verb} gave {answer.status}"


def _is_free(host: str, port: int) -> bool:
    """Whether the address is this host's, and nobody listens there: probably rank 0's own."""
    import socket

    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError:
        return False
    return True
