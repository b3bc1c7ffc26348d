"""`hvdtune run --share-gpu`: what the workers' NCCL is told, and which NCCL is refused."""

from __future__ import annotations

import pytest
from support.gpus.cuda_answers import forget_what_is_loaded
from support.jobs.launcher import launch

from hvdtune.launch.doctor import share_gpu
from hvdtune.launch.errors import LaunchError

SHOW = [
    "-c",
    "import os; print(*(f'{k}={v}' for k, v in sorted(os.environ.items()) if 'NCCL' in k))",
]


@pytest.fixture
def nccl(tmp_path, monkeypatch):
    """Makes files that are found as NCCL of a version; this process has loaded none."""
    forget_what_is_loaded(monkeypatch)

    def make(version: str) -> str:
        path = tmp_path / f"libnccl.so.{version}"
        path.write_bytes(b"\x7fELF")
        return str(path)

    return make


def started(tmp_path, library: str, *flags: str, **environment: str):
    return launch(
        tmp_path,
        ["run", "-np", "2", *flags, "python3", *SHOW],
        env={"HVDTUNE_NCCL_LIBRARY": library, **environment},
    )


def test_the_workers_are_told(tmp_path, nccl):
    path = nccl("2.30.3")
    ended = started(tmp_path, path, "--share-gpu", NCCL_DEBUG="WARN")
    assert ended.status == 0, ended.stderr
    told = (
        f"HVDTUNE_NCCL_LIBRARY={path} NCCL_DEBUG=WARN NCCL_MAX_CTAS=4 "
        "NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0"
    )
    lines = sorted(line.partition(">:")[2] for line in ended.stdout.splitlines())
    assert lines == [told, told]
    without = started(tmp_path, path)
    assert "NCCL_MULTI_RANK" not in without.stdout


def test_what_the_user_sets_stays(tmp_path, nccl):
    ended = started(
        tmp_path, nccl("2.32.3"), "--share-gpu", NCCL_MAX_CTAS="1", NCCL_NVLS_ENABLE="2"
    )
    assert "NCCL_MAX_CTAS=1 NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=2" in ended.stdout


def test_an_older_nccl_is_refused_with_one_sentence(tmp_path, nccl):
    path = nccl("2.29.7")
    ended = started(tmp_path, path, "--share-gpu")
    assert ended.status == 2
    assert ended.stdout == ""
    assert ended.stderr == (
        f"hvdtune run: --share-gpu needs NCCL 2.30 or newer, and {path} is NCCL 2.29.7: pip "
        "install -U nvidia-nccl-cu12 (nvidia-nccl-cu13 with CUDA 13)\n"
    )


def test_no_nccl_is_refused_and_none_by_choice_is_not(tmp_path):
    ended = started(tmp_path, "/nowhere/libnccl.so.2", "--share-gpu")
    assert ended.status == 2
    assert "--share-gpu needs NCCL 2.30 or newer: HVDTUNE_NCCL_LIBRARY is /nowhere" in ended.stderr
    ended = started(tmp_path, "none", "--share-gpu")
    assert ended.status == 0, ended.stderr
    assert "NCCL_MULTI_RANK" not in ended.stdout


@pytest.mark.parametrize(("ranks", "ctas"), [(1, "4"), (2, "4"), (3, "2"), (4, "2"), (8, "1")])
def test_more_ranks_have_fewer_thread_blocks(nccl, ranks, ctas):
    environ = {"HVDTUNE_NCCL_LIBRARY": nccl("2.30.3")}
    assert share_gpu.variables(environ, ranks, here=True)["NCCL_MAX_CTAS"] == ctas


def test_the_least_number_of_thread_blocks_has_room(nccl):
    environ = {"HVDTUNE_NCCL_LIBRARY": nccl("2.30.3"), "NCCL_MIN_CTAS": "8"}
    assert share_gpu.variables(environ, 2, here=True)["NCCL_MAX_CTAS"] == "8"
    environ["NCCL_MIN_CTAS"] = "2"
    assert share_gpu.variables(environ, 2, here=True)["NCCL_MAX_CTAS"] == "4"


def test_the_nccl_of_other_hosts_is_left_to_them(nccl):
    environ = {"HVDTUNE_NCCL_LIBRARY": nccl("2.19.3")}
    assert share_gpu.variables(environ, 2, here=False)["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    with pytest.raises(LaunchError, match=r"is NCCL 2\.19\.3"):
        share_gpu.variables(environ, 2, here=True)
