"""Elastic training: state that survives failures and changes of the job's hosts.

The state classes and the loop that starts training over from them, for any framework. Knows
`core`. An elastic job's driver announces changes of hosts; in a job without a driver, the program
that changes its hosts must do so, with ``notification_manager``.
"""

from hvdtune.core.driver.changes import HostUpdateResult
from hvdtune.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from hvdtune.elastic.loop import reset, run, run_fn, run_translated
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
    "run_translated",
]
