"""What public code imports of Horovod does what docs/compatibility.md says, line by line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hvdtune.launch

pytest.importorskip("torch")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
ALIAS = Path(hvdtune.launch.__file__).resolve().parents[1] / "_alias"

RUN = """
import json, sys

def outcome(statement):
    try:
        exec(statement, {})
    except ImportError as error:
        return str(error)
    return "works"

print(json.dumps({statement: outcome(statement) for statement in json.load(sys.stdin)}))
"""


def outcomes(statements) -> dict[str, str]:
    """What each import gives in a process that has the alias."""
    path = os.pathsep.join([str(ALIAS), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(list(statements)),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_every_line_of_the_page_is_true():
    section = PAGE.read_text(encoding="utf-8").partition("## What public code imports")[2]
    said = dict(re.findall(r"^\| `(.+?)` \| (.+) \|$", section, re.M))
    assert list(said.values()).count("works") > 40
    assert len(said) > 70
    framework = [one for one, words in said.items() if words.startswith("works with ")]
    assert len(framework) > 30
    found = outcomes(said)
    for statement in framework:  # tests/frameworks runs them where there is the framework
        words = found.pop(statement)
        assert words == "works" or re.search("TensorFlow|Keras|MXNet|Ray|Spark", words), (
            f"{statement}: {words}"
        )
        assert "not part of this version" not in words
        del said[statement]
    assert found == said


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        # None of these is in the table.
        ("import horovod.runner.gloo_run as launcher", "horovod.run() start jobs"),
        ("from horovod.runner.http import http_client", "without such a service"),
        ("from horovod.runner.elastic import worker", "start elastic jobs"),
        ("from horovod.runner.common.util.config_parser import HOROVOD_TIMELINE", "hvdtune config"),
        ("import horovod.torch.mpi_lib_v2", "horovod.torch.mpi_ops has the operations"),
        ("import horovod.runner.no_such", "is not part of this version of hvdtune"),
    ],
)
def test_what_is_not_there_says_what_to_do(statement, words):
    said = outcomes([statement])[statement]
    assert words in said
    assert said.endswith(".")
    assert "\n" not in said


def test_hasattr_still_answers_for_names_that_nobody_has():
    lines = [
        "import horovod.runner.util",
        "assert not hasattr(horovod.runner.util, 'surely_not')",
        "assert not hasattr(horovod.common, 'surely_not')",
        "assert horovod.common.rank is horovod.torch.rank",
    ]
    statement = "\n".join(["import horovod.common, horovod.torch", *lines])
    assert outcomes([statement])[statement] == "works"


@pytest.mark.long
def test_distributed_optimizers_are_recognised():
    statement = "\n".join(
        [
            "import torch, horovod.torch as hvd",
            "from horovod.torch.optimizer import _DistributedOptimizer",
            "assert hvd._DistributedOptimizer is _DistributedOptimizer",
            "hvd.init()",
            "plain = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)",
            "for op in (hvd.Average, hvd.Sum, hvd.Adasum):",
            "    optimizer = hvd.DistributedOptimizer(plain, op=op)",
            "    assert isinstance(optimizer, _DistributedOptimizer)",
            "    assert isinstance(optimizer, torch.optim.SGD)",
            "assert not isinstance(plain, _DistributedOptimizer)",
            "hvd.shutdown()",
        ]
    )
    assert outcomes([statement])[statement] == "works"
