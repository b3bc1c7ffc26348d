"""torchrun's store of keys and texts, which its agent on the first node serves."""

from __future__ import annotations

import contextlib
import datetime
from importlib.util import find_spec
from typing import Any

from hvdtune.core.meeting.seeker import Failed, Seeker, TooLate

_SERVED = "TORCHELASTIC_USE_AGENT_STORE"
_store: Any = None  # rank 0's, until all have met


def absence(seeker: Seeker) -> str:
    """Why this process cannot ask the store; "" if it can."""
    environ = seeker.environ
    if environ.get(_SERVED) != "True" or not environ.get("MASTER_ADDR"):
        return f"no torchrun serves its store ({_SERVED})"
    if not environ.get("MASTER_PORT", "").isdecimal():
        return "MASTER_PORT is no port"
    return "" if find_spec("torch") else "torch cannot be imported"


def _key(seeker: Seeker) -> str:
    return f"hvdtune/{seeker.job_key()}/{seeker.size}"


def exchange(seeker: Seeker, text: str) -> str:
    """Rank 0's text, given as `text` on rank 0."""
    try:
        from torch.distributed import TCPStore
    except (ImportError, OSError) as error:
        raise Failed(f"torch cannot be imported: {error}") from None

    global _store
    environ = seeker.environ
    key = _key(seeker)
    limit = datetime.timedelta(seconds=max(1.0, seeker.seconds_left()))
    address = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    try:
        store = TCPStore(*address, is_master=False, wait_for_workers=False, timeout=limit)
        if seeker.tells:
            store.set(key, text)
            _store = store
            return text
        return store.get(key).decode()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        kind = Failed if seeker.seconds_left() > 0 else TooLate
        raise kind(f"the store at {address[0]}:{address[1]}: {reason}") from None


def forget(seeker: Seeker) -> None:
    """The agent outlives its ranks: those that it starts next wait for their own text."""
    global _store
    store, _store = _store, None
    with contextlib.suppress(RuntimeError):  # the agent is gone
        store.delete_key(_key(seeker))
