"""Variables that do nothing here are named once in a job, by rank 0, and where somebody asks."""

from __future__ import annotations

import json

import pytest
from support.jobs.launcher import launch

TWICE = """\
import hvdtune as hvd
for _ in range(2):
    hvd.init()
    hvd.shutdown()
"""
STRANGE = {
    "HOROVOD_FUSION_TRESHOLD": "1",
    "HOROVOD_CCL_CACHE": "1",
    "HVDTUNE_MY_EXPERIMENT": "1",
    "HOROVOD_WITH_PYTORCH": "1",
}
MISSPELT = (
    "HOROVOD_FUSION_TRESHOLD is set, but hvdtune knows no such variable; "
    "did you mean HOROVOD_FUSION_THRESHOLD?"
)


def test_rank_zero_names_them_once_in_one_line(tmp_path):
    ended = launch(tmp_path, ["run", "-np", "2"], TWICE, env=STRANGE)
    assert ended.status == 0, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("[0]<stderr>:")
    assert MISSPELT in line
    assert "HOROVOD_CCL_CACHE has no effect: it is for oneCCL" in line
    assert "HVDTUNE_MY_EXPERIMENT is set, but hvdtune knows no such variable." in line
    assert "HOROVOD_WITH_PYTORCH" not in line


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"HOROVOD_WITH_PYTORCH": "1", "HOROVOD_NCCL_HOME": "/usr"},
        {"HOROVOD_LOG_LEVEL": "error", "HOROVOD_FUSION_TRESHOLD": "1"},
        {"HVDTUNE_TRACEBACK": "1", "HOROVOD_FUSION_THRESHOLD": "1"},
    ],
)
def test_nothing_is_said_where_there_is_nothing_to_say(tmp_path, env):
    ended = launch(tmp_path, ["run", "-np", "2"], TWICE, env=env)
    assert (ended.status, ended.stderr) == (0, "")


def test_config_and_doctor_name_them_and_those_of_a_build(tmp_path):
    ended = launch(tmp_path, ["config"], env=STRANGE)
    assert f"hvdtune config: {MISSPELT}\n" in ended.stderr
    assert "HOROVOD_WITH_PYTORCH has no effect" in ended.stderr
    told = json.loads(launch(tmp_path, ["doctor", "--json"], env=STRANGE).stdout)
    assert [line["name"] for line in told["Environment"]] == sorted(STRANGE)
