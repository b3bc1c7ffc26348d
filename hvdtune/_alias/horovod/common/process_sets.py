"""Process sets under Horovod's name."""

from __future__ import annotations

from hvdtune.core.membership import add_process_set, remove_process_set
from hvdtune.core.process_sets import ProcessSet, global_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
