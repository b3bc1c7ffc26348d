"""A process of hvdtune's own that cannot start is one sentence on the launcher's output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.jobs.launcher import launch

# Python's own way to run something in every process: here it ends one of hvdtune's.
CUSTOMIZE = """
import os, sys
if {module!r} in " ".join(sys.orig_argv):
    {end}
"""
TRAIN = """
import numpy, hvdtune as hvd
hvd.init()
for step in range(200):
    hvd.allreduce(numpy.ones(4, numpy.float32), name="x")
    time.sleep(0.01)
"""
ENDS = {
    "exit": ("sys.exit('no luck')", "SystemExit: no luck"),
    "status": ("os._exit(7)", "status 7"),
    "error": ("sys.modules['json'] = None", "json"),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("module", "flags", "words"),
    [
        (
            "hvdtune.autotune.session.service",
            ["--autotune"],
            "kept the current settings: the optimiser",
        ),
        ("hvdtune.timeline.viewers.finish", ["--timeline-filename", "t.json"], "were not joined: "),
    ],
)
def test_it_is_said(tmp_path: Path, module: str, flags: list[str], words: str, end: str) -> None:
    does, why = ENDS[end]
    folder = tmp_path / "customized"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(CUSTOMIZE.format(module=module, end=does))
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    ended = launch(tmp_path, ["run", "-np", "2", *flags], TRAIN, {"PYTHONPATH": path})
    assert ended.status == 0, ended.stderr
    [said] = [line for line in ended.stderr.splitlines() if words in line]
    assert why in said
    assert "Traceback" not in ended.stderr
