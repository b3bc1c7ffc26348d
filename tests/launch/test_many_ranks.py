"""More ranks on several hosts than one host may have."""

from __future__ import annotations

import pytest
from rank_programs import launched
from support.hosts.hosts_rig import hosts_rig, why_not
from support.jobs.ranks import hvdtune_command, start_under
from support.tiers import EVERY

from hvdtune import _native
from hvdtune.core import job
from hvdtune.core.topology import Topology

REASON = why_not()
RANKS, STEPS = (128, 1000) if EVERY else (72, 20)  # more than one host may have


@pytest.mark.long
@pytest.mark.skipif(bool(REASON), reason=REASON)
@pytest.mark.timeout(1200 if EVERY else 280)
def test_four_hosts(tmp_path):
    with hosts_rig(4) as rig:
        hosts = ",".join(f"{name}:{RANKS // 4}" for name in rig.names)
        command = rig.on("hosta", hvdtune_command("run", "-np", str(RANKS), "-H", hosts))
        environment = rig.environment(tmp_path)
        with start_under(command, launched.identity, 3, STEPS, env=environment) as ranks:
            values = ranks.wait(1000 if EVERY else 240).values
    assert [seen["rank"] for seen in values] == [*range(RANKS)]
    assert all(seen["sums"] == {3.0 * RANKS} for seen in values)
    assert all(seen["gathered"] == [*range(RANKS)] for seen in values)
    assert [seen["cross"][0] for seen in values] == [rank // (RANKS // 4) for rank in range(RANKS)]


@pytest.mark.parametrize(
    ("size", "local", "words"),
    [
        (_native.MAX_RANKS + 1, 1, "a job of 1025 processes; at most 1024 are supported"),
        (65, 65, "65 processes on one host; at most 64 are supported"),
    ],
)
def test_too_many_are_refused(size, local, words):
    with pytest.raises(ValueError, match=words):
        job._check_size(Topology(0, size, 0, local, 0, 1, "here", "job", "hvdtune"))
