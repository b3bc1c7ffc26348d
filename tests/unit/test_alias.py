"""`import horovod` reaches hvdtune's own modules. The mechanism is tested on a stand-in package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hvdtune.launch

ALIAS = Path(hvdtune.launch.__file__).resolve().parents[1] / "_alias"
FILES = {
    "hvdtune/__init__.py": "",
    "hvdtune/torch/__init__.py": "from hvdtune.torch.mpi_ops import allreduce\n",
    "hvdtune/torch/mpi_ops.py": "loads = []\nloads.append(1)\ndef allreduce(): return 'done'\n",
    "hvdtune/torch/broken.py": "import no_such_package\n",
    "hvdtune/core/__init__.py": "",
    "hvdtune/core/exceptions.py": "class HorovodInternalError(RuntimeError): pass\n",
    "hvdtune/core/process_sets.py": "class ProcessSet: pass\n",
    "hvdtune/core/world.py": "def mpi_built(): return 0\ndef gloo_built(): return 0\n",
    "hvdtune/bench.py": "",
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
import horovod.common.util as util, os
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
    "name", ["horovod.tensorflow", "horovod.torch.elastic", "horovod.bench", "horovod.common.nope"]
)
def test_what_is_missing_is_said_to_be(run, name):
    code = f"""
try:
    import {name}
except ModuleNotFoundError as error:
    assert error.name == "{name}"
    print(error)
"""
    assert run(code).startswith(f"hvdtune does not offer {name}")


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


def test_function_mode_is_said_to_be_missing(run):
    code = """
import horovod
assert not hasattr(horovod, "run")
try:
    horovod.run
except AttributeError as error:
    print(error)
"""
    assert "hvdtune run" in run(code)


def test_the_real_horovod_wins_where_it_comes_first(run, tmp_path):
    real = tmp_path / "real" / "horovod"
    real.mkdir(parents=True)
    (real / "__init__.py").write_text("__version__ = 'real'\n")
    assert run("import horovod; print(horovod.__version__)", real.parent) == "real"
