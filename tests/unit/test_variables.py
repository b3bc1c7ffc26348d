"""Environment variables that nobody knows are named, and all that anybody knows are not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdtune.settings import variables
from hvdtune.settings.knobs import KNOBS

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"(?:HOROVOD|HVDTUNE)_[A-Z0-9_]*[A-Z0-9]")
#: Names of CMake's options and of Python's constants that documents mention.
NO_VARIABLES = re.compile(r"HVDTUNE_(BUILD_|SANITIZE|GPU_ARCHITECTURES)|HOROVOD_VERSION")


def names_in_product() -> Iterator[tuple[str, Path]]:
    """Every name of these prefixes that is a whole string of a program or in a document."""
    programs = [
        path
        for folder in ("hvdtune", "benchmarks", "examples", "scripts", ".ci")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix in ("", ".py", ".sh")
    ]
    for path in [*programs, ROOT / "conftest.py", ROOT / "tests/support/jobs/ranks.py"]:
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".py":
            strings = (
                node.value
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            )
            matches = (NAME.fullmatch(string.removesuffix("=")) for string in strings)
            yield from ((match[0], path) for match in matches if match)
        else:
            yield from ((name, path) for name in NAME.findall(text))
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        yield from ((name, path) for name in NAME.findall(path.read_text(encoding="utf-8")))


def test_every_variable_of_the_product_is_known():
    found = list(names_in_product())
    assert {knob.env for knob in KNOBS.values() if knob.env.startswith(variables.PREFIXES)} <= {
        name for name, _ in found
    }
    unknown = {
        f"{path.relative_to(ROOT)}: {name}"
        for name, path in found
        if not variables.is_known(name) and not NO_VARIABLES.match(name)
    }
    assert not unknown


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("HOROVOD_FUSION_TRESHOLD", "HOROVOD_FUSION_THRESHOLD"),
        ("HVDTUNE_CYCLE_TIME", "HOROVOD_CYCLE_TIME"),
        ("HOROVOD_CHUNK_SIZE", "HVDTUNE_CHUNK_SIZE"),
        ("HOROVOD_AUTO_TUNE", "HOROVOD_AUTOTUNE"),
        ("HVDTUNE_TIMELINE_STEP", "HVDTUNE_TIMELINE_STEPS"),
        ("HVDTUNE_PREFER_HORVOD", "HVDTUNE_PREFER_HOROVOD"),
        ("HOROVOD_EXPERIMENT", None),
        ("HVDTUNE_", None),
        ("HOROVOD_HOME", None),
    ],
)
def test_an_unknown_variable_is_named_with_the_one_that_may_be_meant(name, near):
    end = f"; did you mean {near}?" if near else "."
    assert variables.remarks({name: "1", "PATH": "/bin", "HOROVOD_CYCLE_TIME": "1"}) == [
        f"{name} is set, but hvdtune knows no such variable{end}"
    ]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("HOROVOD_CCL_CACHE", "oneCCL"),
        ("HOROVOD_ENABLE_XLA_OPS", "TensorFlow"),
        ("HOROVOD_BATCH_D2D_MEMCOPIES", "kernel"),
        ("HOROVOD_TORUS_ALLREDUCE", "NCCL"),
    ],
)
def test_a_variable_that_only_horovod_has_is_named_with_what_that_means(name, why):
    (remark,) = variables.remarks({name: "1"})
    assert remark.startswith(f"{name} has no effect: ")
    assert why in remark


@pytest.mark.parametrize(
    "name",
    [
        *("HOROVOD_WITH_PYTORCH", "HOROVOD_WITHOUT_MXNET", "HOROVOD_GPU", "HOROVOD_GPU_OPERATIONS"),
        *("HOROVOD_GPU_ALLREDUCE", "HOROVOD_NCCL_HOME", "HOROVOD_NCCL_LINK", "HOROVOD_CUDA_HOME"),
        *("HOROVOD_ROCM_HOME", "HOROVOD_BUILD_CUDA_CC_LIST", "HOROVOD_BUILD_ARCH_FLAGS"),
        *("HOROVOD_CMAKE", "HOROVOD_DEBUG", "HOROVOD_ALLOW_MIXED_GPU_IMPL"),
    ],
)
def test_variables_of_horovods_build_are_named_only_where_somebody_asks(name):
    assert variables.remarks({name: "1"}) == []
    (remark,) = variables.remarks({name: "1"}, building=True)
    assert "how Horovod itself is built" in remark


@pytest.mark.parametrize(
    "name",
    [
        *("HOROVOD_RANK", "HOROVOD_HOSTNAME", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_ELASTIC"),
        *("HVDTUNE_TEST_LONG", "HVDTUNE_TRACEBACK", "HVDTUNE_JOB_ID", "HVDTUNE_FAKE_CUDA"),
        *("HOROVOD_CONTROLLER", "HOROVOD_AUTOTUNE", "PATH", "HOROVODE", "NCCL_IB_DISABLE"),
    ],
)
def test_nothing_is_said_about_what_is_known_or_not_ours(name):
    assert variables.remarks({name: "1"}, building=True) == []


def test_what_is_empty_or_off_says_nothing():
    off = {"HOROVOD_FUSION_TRESHOLD": "", "HOROVOD_CCL_CACHE": " ", "HOROVOD_TORUS_ALLREDUCE": "no"}
    assert variables.remarks(off, building=True) == []
