"""Horovod's exceptions, under Horovod's names."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective failed: ranks disagree, a peer died, or the job was shut down."""


def is_mistake(error: HorovodInternalError) -> bool:
    """Whether the ranks were refused what they asked for, after which the job goes on."""
    text = str(error)
    return text.startswith("Mismatched") or " is not supported with Join " in text


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts has changed; elastic training starts over from its current state."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework differs in version from the one that the extension was built for."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(f"{name} {installed_version} is installed, {version} is needed")
        self.name = name
        self.version = version
        self.installed_version = installed_version
