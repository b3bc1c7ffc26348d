"""`import horovod` reaches hvdtune's own modules. The mechanism is tested on a stand-in package."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hvdtune.launch
from hvdtune.alias.files import command_text

ALIAS = Path(hvdtune.launch.__file__).resolve().parents[1] / "_alias"
FILES = {
    "hvdtune/__init__.py": "",
    "hvdtune/torch/__init__.py": "from hvdtune.torch.mpi_ops import allreduce\n",
    "hvdtune/torch/mpi_ops.py": "loads = []\nloads.append(1)\ndef allreduce(): return 'done'\n",
    "hvdtune/torch/broken.py": "import no_such_package\n",
    "hvdtune/core/__init__.py": "",
    "hvdtune/core/exceptions.py": "class HorovodInternalError(RuntimeError): pass\n",
    "hvdtune/core/process_sets.py": "class ProcessSet: pass\nglobal_process_set = ProcessSet()\n",
    "hvdtune/core/membership.py": "def add_process_set(): pass\ndef remove_process_set(): pass\n",
    "hvdtune/core/libraries/built.py": "def mpi_built(): return 0\ndef gloo_built(): return 0\n",
    "hvdtune/core/world.py": "",
    "hvdtune/bench.py": "",
    "hvdtune/elastic/__init__.py": "class State: pass\n",
    "hvdtune/launch/function/call_site.py": "def run(): return 'run'\n",
    "hvdtune/cli/main.py": "def main(words): return '|'.join(words)\n",
}


@pytest.fixture
def run(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(code, *more_path, options=()):
        path = [*map(str, more_path), str(ALIAS), str(tmp_path / "packages")]
        ended = subprocess.run(
            [sys.executable, *options, "-c", code],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    return run


def test_modules_are_the_very_same_whichever_name_comes_first(run):
    for first, second in (("horovod", "hvdtune"), ("hvdtune", "horovod")):
        code = f"""
import {first}.torch as hvd
import {second}.torch.mpi_ops
import horovod.torch, hvdtune.torch, horovod.torch.mpi_ops as ops
import hvdtune.torch.mpi_ops
assert horovod.torch is hvdtune.torch is hvd
assert ops is hvdtune.torch.mpi_ops
assert ops.loads == [1]
assert hvdtune.torch.__spec__.name == hvdtune.torch.__name__ == "hvdtune.torch"
from horovod.torch import allreduce
from horovod.torch.mpi_ops import allreduce as again
assert allreduce is again
print(horovod.__version__, allreduce())
"""
        assert run(code) == "0.28.1 done"


def test_the_common_package(run):
    code = """
import hvdtune.core.exceptions, hvdtune.core.process_sets
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet
from horovod.common.elastic import State
import horovod.common.util as util, os, hvdtune.elastic
assert State is hvdtune.elastic.State
assert HorovodInternalError is hvdtune.core.exceptions.HorovodInternalError
assert ProcessSet is hvdtune.core.process_sets.ProcessSet
assert util.mpi_built() is False
with util.env(A="1", B=None):
    assert os.environ["A"] == "1" and "B" not in os.environ
assert "A" not in os.environ
assert util.split_list(list(range(7)), 3) == [[0, 1, 2], [3, 4], [5, 6]]
assert [n for n in range(10) if util.num_rank_is_power_2(n)] == [1, 2, 4, 8]
assert util.is_iterable("a") and not util.is_iterable(1)
assert util.is_version_greater_equal_than("2.13.0+cpu", "2.1.0")
assert not util.is_version_greater_equal_than("2.0", "2.1.0")
assert not util.extension_available("no_such_framework")
print("ok")
"""
    assert run(code) == "ok"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("horovod.torch.nope", "horovod.torch.nope is not part of this version"),
        ("horovod.bench", "horovod.bench is not part of this version"),
        ("horovod.elastic", "horovod.elastic is not part of this version"),
        ("horovod.common.nope", "horovod.common.nope is not part of this version"),
    ],
)
def test_what_is_missing_is_said_to_be(run, name, words):
    code = f"""
try:
    import {name}
except ImportError as error:
    assert type(error) is ModuleNotFoundError and error.name == "{name}"
    print(error)
"""
    said = run(code)
    assert words in said
    assert "it offers horovod.torch" in said


def test_modules_are_run_as_python_m_does(run):
    code = """
import runpy
names = runpy.run_module("horovod.common.exceptions", run_name="__main__")
assert names["__name__"] == "__main__"
assert names["HorovodInternalError"].__module__ == "__main__"
print("ok")
"""
    assert run(code) == "ok"


def test_a_part_is_had_by_name_and_what_is_none_is_not_there(run):
    code = """
from horovod import torch
import horovod
import hvdtune.torch
assert torch is hvdtune.torch
assert not hasattr(horovod, "no_such_name")
print("ok")
"""
    assert run(code) == "ok"


def test_without_hvdtune_it_is_said_to_be_missing(run, tmp_path):
    shutil.rmtree(tmp_path / "packages")
    code = """
try:
    import horovod.torch
except ModuleNotFoundError as error:
    assert error.name == "hvdtune"
    print(error)
"""
    # -S: no site-packages, where hvdtune may be installed.
    assert "hvdtune is not installed for" in run(code, options=["-S"])


def test_a_fault_inside_a_module_is_not_hidden(run):
    code = """
try:
    import horovod.torch.broken
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert run(code) == "no_such_package"


def test_the_launcher_is_there_under_its_names_and_loaded_only_when_asked_for(run):
    code = """
import horovod, sys
assert "hvdtune.launch.function.call_site" not in sys.modules
from horovod import run
import horovod.runner
from horovod.runner import run as same
from hvdtune.launch.function.call_site import run as own
assert run is same is own is horovod.run
assert horovod.runner.run is own
from horovod.runner.launch import run_commandline
sys.argv = ["horovodrun", "-np", "2"]
try:
    run_commandline()
except SystemExit as end:
    print(end.code)
"""
    assert run(code) == "run|-np|2"
    assert run("import horovod; print(horovod.runner.run())") == "run"


def test_the_real_horovod_wins_where_it_comes_first(run, tmp_path):
    real = tmp_path / "real" / "horovod"
    real.mkdir(parents=True)
    (real / "__init__.py").write_text("__version__ = 'real'\n")
    assert run("import horovod; print(horovod.__version__)", real.parent) == "real"


def test_the_first_line_of_horovodrun():
    plain = command_text(Path("/x"), "/usr/bin/python3").splitlines()
    assert plain[0] == "#!/usr/bin/python3"
    for interpreter in ("/with a blank/python", f"/{'long' * 30}/python"):
        text = command_text(Path("/x"), interpreter)
        assert text.startswith("#!/bin/sh\n'''exec' ")
        # To Python the shell's lines are a string.
        assert isinstance(ast.parse(text).body[0], ast.Expr)
        assert text.splitlines()[3:] == plain[1:]
