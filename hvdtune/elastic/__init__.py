"""Elastic training: state that survives failures and changes of the job's hosts.

The state classes and the loop that starts training over from them, for any framework. The driver of
an elastic job decides who forms the job, and announces changes of hosts; without one, whoever
changes the hosts of a running job announces it through ``notification_manager``.
"""

from hvdtune.core.driver.changes import HostUpdateResult
from hvdtune.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from hvdtune.elastic.loop import reset, run, run_fn
from hvdtune.elastic.notifications import notification_manager
from hvdtune.elastic.state import ObjectState, State

__all__ = [
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "notification_manager",
    "reset",
    "run",
    "run_fn",
]
