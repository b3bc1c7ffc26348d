"""Lightning's view of the job: which process this is among those started."""

from __future__ import annotations

import hvdtune.torch as hvd
from hvdtune.lightning.package import pl


class HvdtuneEnvironment(pl.plugins.environments.ClusterEnvironment):
    """The place of this process in the job that hvdtune connects.

    The numbers are those of the last ``join_job``, and stay readable after the job has ended:
    Lightning asks for the rank until its very last line of output.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rank = 0
        self._size = 1
        self._local_rank = 0
        self._cross_rank = 0

    def join_job(self) -> bool:
        """Initialise hvdtune unless the program has. Returns whether this call did it."""
        started = not hvd.is_initialized()
        if started:
            hvd.init()
        self._rank, self._size = hvd.rank(), hvd.size()
        self._local_rank, self._cross_rank = hvd.local_rank(), hvd.cross_rank()
        return started

    @property
    def creates_processes_externally(self) -> bool:
        """Always: a launcher has started the processes."""
        return True

    @property
    def main_address(self) -> str:
        """Not used: hvdtune's processes find each other by themselves."""
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """Not used: hvdtune's processes find each other by themselves."""
        return 0

    @staticmethod
    def detect() -> bool:
        """Always False: the strategy brings this environment along."""
        return False

    def world_size(self) -> int:
        """Processes of the job."""
        return self._size

    def set_world_size(self, size: int) -> None:
        """Ignored: the launcher has decided."""

    def global_rank(self) -> int:
        """Number of this process in the job."""
        return self._rank

    def set_global_rank(self, rank: int) -> None:
        """Ignored: the launcher has decided."""

    def local_rank(self) -> int:
        """Number of this process among those of its host."""
        return self._local_rank

    def node_rank(self) -> int:
        """Number of this host in the job."""
        return self._cross_rank
