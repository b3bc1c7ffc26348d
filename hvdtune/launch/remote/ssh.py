"""The commands that reach other hosts: ssh's, or those of LSF's blaunch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from hvdtune.bootstrap import python_command
from hvdtune.launch.errors import LaunchError

CONNECT_SECONDS = 10
# LSF's, for hosts that refuse ssh. It replaces rsh and has none of ssh's options.
_BLAUNCH = "blaunch"
# A host that vanishes silently is noticed after four of these.
_ALIVE_SECONDS = 15

#: What the host then says; the ssh program itself may also end with 127.
NO_PYTHON = "there is no Python: neither this one's path nor python3 nor python"
# The Python of the launcher, at the same place, or else whatever the host has.
_START_PYTHON = (
    'for python in "$1" python3 python; do '
    'path=$(command -v "$python" 2>/dev/null) && [ -x "$path" ] && exec "$path" -c "$2" "$3"; '
    f'done; echo "{NO_PYTHON}" >&2; exit 127'
)


class Ssh(NamedTuple):
    """How hosts are reached: the ssh program with the user's arguments, a port, a key."""

    program: str = "ssh"
    port: int | None = None
    identity_file: str | None = None

    def command(self, host: str, mode: str) -> list[str]:
        """The words that start the agent (see `agent`) on a host; see `reach` for errors."""
        return self.reach(host, _agent(mode))

    def reach(self, host: str, command: str) -> list[str]:
        """The words that run a shell's command on a host.

        ssh never asks the user anything. Raises `LaunchError` if `program` cannot be split, or is
        LSF's blaunch, which has no option for a port or a key, and one is given.
        """
        try:
            program = shlex.split(self.program)
        except ValueError as error:
            raise LaunchError(
                f"HVDTUNE_SSH_COMMAND is {self.program!r}, which cannot be split: {error}."
            ) from None
        if program and os.path.basename(program[0]) == _BLAUNCH:
            if self.port or self.identity_file:
                raise LaunchError("blaunch takes no port and no key: leave out -p and -i.")
            return [*program, host, command]
        options = ["PasswordAuthentication=no", "StrictHostKeyChecking=no", "BatchMode=yes"]
        words = [word for option in options for word in ("-o", option)]
        words += [host]
        words += ["-p", str(self.port)] if self.port else []
        words += ["-i", self.identity_file] if self.identity_file else []
        words += ["-o", f"ConnectTimeout={CONNECT_SECONDS}"]
        words += ["-o", f"ServerAliveInterval={_ALIVE_SECONDS}"]
        return [*program, *words, command]


def _agent(mode: str) -> str:
    executable, _, code, word = python_command("hvdtune.launch.remote.agent", mode)
    shell: Sequence[str] = ("exec", "/bin/sh", "-c", _START_PYTHON, "hvdtune", executable)
    return shlex.join([*shell, _without_traceback(code), word])


def _without_traceback(code: str) -> str:
    """The code in one line; if hvdtune cannot be imported, it says so and exits with status 3."""
    words = "hvdtune cannot be imported by {}: {}"
    guarded = (
        "import sys\n"
        f"def start():\n    {code}\n"
        "try: start()\n"
        "except ImportError as error:\n"
        f"    print({words!r}.format(sys.executable, error), file=sys.stderr)\n"
        "    sys.exit(3)\n"
    )
    return f"exec({guarded!r})"
