"""Before anything is started: can ssh reach every host, and what is there?

32 hosts are asked at once, and asked again if that may help. The answers are valid for an hour,
unless --disable-cache; rank 0's host is asked for every job on several hosts, as its address may
have changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hvdtune.launch.errors import LaunchError
from hvdtune.launch.local import processes
from hvdtune.launch.remote.agent import FACTS
from hvdtune.launch.remote.interfaces import Interfaces
from hvdtune.launch.remote.ssh import NO_PYTHON, Ssh

CACHE_SECONDS = 3600.0
ATTEMPTS = 5
_PAUSE_SECONDS = 0.5
_LOOK_SECONDS = 0.2
_AT_ONCE = 32  # connections
_MOST_NAMED = 3  # hosts in an error
_MOST_OUTPUT = 2**20

# Ssh's messages, and what they mean. Trying again helps only after those in `_TRANSIENT`.
_REASONS = (
    (("Could not resolve hostname",), "no such host is known"),
    (
        ("Permission denied", "Too many authentication failures"),
        "ssh asks for a password or passphrase, or accepts no key of yours: give it a key "
        "(ssh-copy-id, ssh-agent, -i FILE)",
    ),
    (("Host key verification failed",), "ssh does not trust the host's key"),
    (("Bad configuration option", "unknown option", "illegal option"), "ssh refuses its options"),
)
_TRANSIENT = (
    *("Connection refused", "Connection timed out", "No route to host", "reset by", "closed by"),
    *("Network is unreachable", "Operation timed out", "Connection closed"),
)


class _Attempt(NamedTuple):
    status: int
    stdout: str
    stderr: str


def check_hosts(
    names: Sequence[str], ssh: Ssh, timeout: float, cache: Path | None, fresh: str = ""
) -> dict[str, dict[str, Any]]:
    """The facts (see `hvdtune.launch.remote.identity.facts`) of every host, by name.

    They are asked in groups, each of which has `timeout` seconds; after a group with an unusable
    host no further group is asked. `cache` is a file that may not exist, or None; the host `fresh`
    is asked in any case. Raises `LaunchError` naming the hosts that cannot be used and why.
    """
    known = _read_cache(cache, ssh)
    known.pop(fresh, None)
    found = {name: known[name] for name in names if name in known}
    missing = [name for name in dict.fromkeys(names) if name not in found]
    for start in range(0, len(missing), _AT_ONCE):
        found.update(_check_group(missing[start : start + _AT_ONCE], ssh, timeout))
    _write_cache(cache, ssh, found, known)
    return found


def require_alike(
    found: Mapping[str, Mapping[str, Any]], version: str, interfaces: Interfaces
) -> None:
    """Raise `LaunchError` for a host with another hvdtune, or without an interface."""
    for name, facts in found.items():
        if facts.get("version") != version:
            raise LaunchError(
                f"host {name} has hvdtune {facts.get('version')}, this one {version}: "
                "install the same version on both."
            )
        interfaces.require(facts.get("interfaces", ()), f"host {name}")


def _check_group(names: Sequence[str], ssh: Ssh, timeout: float) -> dict[str, dict[str, Any]]:
    """`check_hosts` for hosts that are asked at once."""
    found: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = {}
    deadline = time.monotonic() + timeout
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(max(0.0, min(_PAUSE_SECONDS, deadline - time.monotonic())))
        again = []
        for name, ended in _ask(names, ssh, deadline).items():
            answer = _facts(ended)
            if answer is not None:
                found[name] = answer
                problems.pop(name, None)
                continue
            problems[name], may_help = _reason(ended, timeout)
            again += [name] if may_help else []
        names = again
        if not names or time.monotonic() >= deadline:
            break
    if problems:
        raise LaunchError(_words(problems))
    return found


def _ask(names: Sequence[str], ssh: Ssh, deadline: float) -> dict[str, _Attempt | None]:
    """Run the agent's "facts" on some hosts at once; None for those that did not answer in time."""
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        clients = {}
        output: dict[tuple[str, int], bytearray] = {}
        for name in names:
            process = _start(ssh.command(name, "facts"))
            stack.callback(_end, process)
            clients[name] = process
            for number, pipe in ((1, process.stdout), (2, process.stderr)):
                assert pipe is not None
                output[name, number] = bytearray()
                selector.register(pipe, selectors.EVENT_READ, (name, number))
        while selector.get_map() and time.monotonic() < deadline:
            left = max(0.0, deadline - time.monotonic())
            ready = selector.select(min(left, _LOOK_SECONDS))
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                if data and len(output[key.data]) < _MOST_OUTPUT:
                    output[key.data] += data
                elif not data:
                    selector.unregister(key.fileobj)
            if not ready and all(process.poll() is not None for process in clients.values()):
                break  # a connection that ssh keeps for later (ControlPersist) holds a pipe
        ended: dict[str, _Attempt | None] = {}
        for name, process in clients.items():
            try:
                status = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                ended[name] = None
                continue
            texts = (bytes(output[name, n]).decode("utf-8", "replace") for n in (1, 2))
            ended[name] = _Attempt(status, *texts)
        return ended


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    parent = os.getpid()
    try:
        # In a session of its own it has no terminal to ask the user on.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            bufsize=0, start_new_session=True,
            preexec_fn=lambda: processes.die_with_parent(signal.SIGKILL, parent),
        )  # fmt: skip
    except OSError as error:
        raise LaunchError(
            f"cannot start {command[0]!r} to reach other hosts: {error.strerror}."
        ) from None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()


def _facts(ended: _Attempt | None) -> dict[str, Any] | None:
    """The agent's answer, among whatever a login shell has printed."""
    for line in ended.stdout.splitlines() if ended else []:
        if line.startswith(FACTS):
            with contextlib.suppress(ValueError):
                answer = json.loads(line.removeprefix(FACTS))
                if isinstance(answer, dict) and "machine" in answer:
                    return answer
    return None


def _reason(ended: _Attempt | None, timeout: float) -> tuple[str, bool]:
    """Why a host cannot be used, and whether trying again may help."""
    if ended is None:
        return f"it did not answer within {timeout:g} s (HOROVOD_START_TIMEOUT)", False
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    last = lines[-1].rstrip(".") if lines else ""
    if ended.status == 127 and any(NO_PYTHON in line for line in lines):
        return NO_PYTHON, False
    if ended.status == 3 and "hvdtune cannot be imported" in last:
        return last, False
    if ended.status == 255:
        for texts, meaning in _REASONS:
            said = next((line for line in lines if any(text in line for text in texts)), None)
            if said:
                return f"{meaning} ({said.rstrip('.')})", False
        return f"ssh failed ({last or 'it said nothing'})", any(t in last for t in _TRANSIENT)
    return f"ssh ended with status {ended.status} ({last or 'it said nothing'})", False


def _words(problems: Mapping[str, str]) -> str:
    named = [f"host {name}: {why}" for name, why in list(problems.items())[:_MOST_NAMED]]
    more = len(problems) - len(named)
    return "; ".join([*named, *([f"and {more} more hosts cannot be used"] if more else [])]) + "."


# ---- the cache of facts -------------------------------------------------------------------------


def cache_file(environ: Mapping[str, str]) -> Path | None:
    """`hvdtune/hosts.json` in the user's cache folder; None if there is no home."""
    folder = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(folder):
        return Path(folder, "hvdtune", "hosts.json")
    try:
        return Path("~/.cache/hvdtune/hosts.json").expanduser()
    except RuntimeError:
        return None


def _key(ssh: Ssh, name: str) -> str:
    from hvdtune.launch.remote.identity import machine

    # After a reboot everything is asked again.
    return json.dumps([name, *ssh.command(name, "facts"), machine()])


def _read_cache(cache: Path | None, ssh: Ssh) -> dict[str, dict[str, Any]]:
    """Fresh facts by host; nothing from a file that is not ours or not readable."""
    found = {}
    for entry in _entries(cache):
        name = entry["name"]
        if 0 <= time.time() - entry["time"] < CACHE_SECONDS and entry["key"] == _key(ssh, name):
            found[name] = entry["facts"]
    return found


def _entries(cache: Path | None) -> list[dict[str, Any]]:
    if cache is None:
        return []
    try:
        content = json.loads(cache.read_text(encoding="utf-8"))
        return [
            entry
            for entry in content["hosts"]
            if isinstance(entry["name"], str)
            and isinstance(entry["key"], str)
            and isinstance(entry["time"], int | float)
            and isinstance(entry["facts"]["machine"], str)
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _write_cache(
    cache: Path | None,
    ssh: Ssh,
    found: Mapping[str, dict[str, Any]],
    known: Mapping[str, dict[str, Any]],
) -> None:
    new = {name: facts for name, facts in found.items() if name not in known}
    if cache is None or not new:
        return
    now = time.time()
    entries = [
        entry
        for entry in _entries(cache)
        if entry["name"] not in new and now - entry["time"] < CACHE_SECONDS
    ]
    entries += [
        {"name": name, "key": _key(ssh, name), "time": now, "facts": facts}
        for name, facts in new.items()
    ]
    # Without a cache the hosts are simply asked again.
    with contextlib.suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=cache.parent, prefix=cache.name)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump({"hosts": entries}, file)
        os.replace(name, cache)
