"""`python -m hvdtune script.py`: the script runs as under `python`, with `import horovod` ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs.ranks import clean_environment, mpirun_command

import hvdtune
from hvdtune.launch.local.environment import PREFER_HOROVOD


def call(folder: Path, *words: object, status: int = 0, env=None, python=()) -> tuple[str, str]:
    """Run `python -m hvdtune WORDS` in a folder; returns what it printed."""
    return plain(folder, *python, "-m", "hvdtune", *words, status=status, env=env)


def plain(folder: Path, *words: object, status: int = 0, env=None) -> tuple[str, str]:
    ended = subprocess.run(
        [sys.executable, *map(str, words)],
        env=clean_environment(env),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == status, ended.stderr
    return ended.stdout, ended.stderr


# What a program can see of the way it was started.
SHOW = """
import json, sys
import sibling
names = ("__name__", "__file__", "__package__", "__cached__")
print(json.dumps({
    "names": {name: globals().get(name) for name in names},
    "argv": sys.argv,
    "path": [entry for entry in sys.path if not entry.endswith("_alias")],
    "loader": getattr(__loader__, "__name__", type(__loader__).__name__),
    "spec": __spec__ and __spec__.name,
    "main": sys.modules["__main__"].__dict__ is globals(),
}))
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """Holds `program/` with a script, a module, a package, and a link to the script outside."""
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "sibling.py").write_text("")
    (tmp_path / "sibling.py").write_text("")
    (tmp_path / "program" / "show.py").write_text(SHOW)
    # Of a folder, runpy gives sys.argv[0] as an absolute path.
    last = SHOW.replace("sys.argv,", 'sys.argv[0].rpartition("/")[2:] + tuple(sys.argv[1:]),')
    (tmp_path / "program" / "__main__.py").write_text(last)
    (tmp_path / "program" / "__init__.py").write_text("")
    (tmp_path / "link.py").symlink_to("program/show.py")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["program/show.py", "-v", "--help", "x"],
        ["link.py"],
        ["program", "bench"],
        ["-m", "program.show", "-c", "x"],
        ["-m", "program", "x"],
        ["-c", SHOW, "-m", "x"],
    ],
    ids=["script", "link", "folder", "module", "package", "text"],
)
def test_a_program_sees_what_it_sees_under_python(folder, words):
    # Compiled modules are shown by __cached__.
    expected, got = (
        json.loads(run(folder, *words, env={"PYTHONDONTWRITEBYTECODE": "1"})[0])
        for run in (plain, call)
    )
    assert got == expected


def test_scripts_do_not_see_the_working_directory(folder):
    (folder / "other.py").write_text("")
    (folder / "program" / "ask.py").write_text("import other\n")
    assert "No module named 'other'" in call(folder, "program/ask.py", status=1)[1]


PROGRAM = """
import atexit, multiprocessing, pickle, subprocess, sys

class Own:
    pass

def child(_):
    import horovod.common.util
    return horovod.__version__

if __name__ == "__main__":
    # As at the program's end: its classes can still be found by name.
    atexit.register(lambda: print(type(pickle.loads(pickle.dumps(Own()))) is Own))
    import horovod, hvdtune
    assert horovod.run is hvdtune.run
    assert "_alias" in horovod.__file__
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(child, [0]) == ["0.28.1"]
    command = [sys.executable, "-c", "import horovod; print(horovod.__version__, flush=True)"]
    subprocess.run(command, check=True)
    sys.exit(7)
"""


def test_horovod_is_hvdtune_in_the_program_and_in_its_children(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    # A package horovod that would come first otherwise.
    real = tmp_path / "real" / "horovod"
    real.mkdir(parents=True)
    (real / "__init__.py").write_text("__version__ = 'real'\n")
    path = f"{real.parent}:{Path(hvdtune.__file__).parents[1]}"
    out, _ = call(tmp_path, "train.py", status=7, env={"PYTHONPATH": path})
    assert out.splitlines() == ["0.28.1", "True"]
    code = "import horovod; print(horovod.__version__)"
    prefer = {"PYTHONPATH": path, PREFER_HOROVOD: "1"}
    assert call(tmp_path, "-c", code, env=prefer)[0] == "real\n"


@pytest.mark.parametrize(
    "program",
    [
        "def step():\n    raise LookupError('lost')\nstep()\n",
        "1 = 2\n",
        "import sys\nsys.excepthook = lambda *error: print(error[0])\n1 / 0\n",
        "import sys\nsys.exit('a reason')\n",
        "import atexit, sys\n"
        "atexit.register(lambda: print(getattr(sys, 'last_type', None)))\n1 / 0\n",
    ],
    ids=["exception", "syntax", "hook", "exit", "exit handlers"],
)
def test_an_error_ends_as_under_python(tmp_path, program):
    (tmp_path / "train.py").write_text(program)
    expected = plain(tmp_path, "train.py", status=1)
    assert call(tmp_path, "train.py", status=1) == expected
    assert any(expected)


def test_names_of_commands(tmp_path):
    assert call(tmp_path, "run", "-v")[0] == f"{hvdtune.__version__}\n"
    assert call(tmp_path, "--version")[0] == f"hvdtune {hvdtune.__version__}\n"
    (tmp_path / "bench").mkdir()  # a folder that is no program
    assert "usage: hvdtune bench" in call(tmp_path, "bench", "--help")[0]
    # A file of that name is what is meant, as for `python run`.
    (tmp_path / "run").write_text("print('a script')\n")
    assert call(tmp_path, "run")[0] == "a script\n"


def test_mistakes_end_in_a_sentence(tmp_path):
    for words, said in (
        (["train.py"], "python -m hvdtune: there is no script 'train.py'.\n"),
        (["code/train"], "python -m hvdtune: there is no script 'code/train'.\n"),
        (["-c"], "python -m hvdtune: -c needs a program's text after it.\n"),
        (["-m"], "python -m hvdtune: -m needs a module's name after it.\n"),
    ):
        assert call(tmp_path, *words, status=2) == ("", said)
    assert "there is no command 'trian'" in call(tmp_path, "trian", status=2)[1]
    for words, status in (([], 2), (["--help"], 0)):
        (tmp_path / "__main__.py").write_text("")  # of the working directory: not asked for
        printed, _ = call(tmp_path, *words, status=status)
        assert "python -m hvdtune SCRIPT.py" in printed
        assert "usage: hvdtune COMMAND" in printed


# Names that scripts import, from the places they import them from.
SURFACE = """
import horovod.torch as hvd
import hvdtune.torch
import torch
assert hvd is hvdtune.torch
from horovod.torch import elastic, mpi_ops
from horovod.torch.compression import Compression
from horovod.torch.functions import broadcast_object, broadcast_parameters
from horovod.torch.mpi_ops import allreduce, synchronize, Sum, Average
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm
from horovod.torch.elastic import TorchState, run
from horovod.torch.elastic.state import TorchState as same_state
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.common.elastic import State, ObjectState, run_fn, notification_manager
from horovod.common.exceptions import (
    HorovodInternalError, HorovodVersionMismatchError, HostsUpdatedInterrupt)
from horovod.common.process_sets import (
    ProcessSet, add_process_set, global_process_set, remove_process_set)
from horovod.common.util import (
    ccl_built, ddl_built, env, extension_available, gloo_built, gpu_available, is_iterable,
    is_version_greater_equal_than, mpi_built, nccl_built, num_rank_is_power_2, split_list)
assert hvd.DistributedOptimizer is DistributedOptimizer and hvd.SyncBatchNorm is SyncBatchNorm
assert hvd.elastic is elastic and elastic.TorchState is TorchState is same_state
assert hvd.HorovodInternalError is HorovodInternalError and hvd.ProcessSet is ProcessSet
assert issubclass(TorchState, State) and hvd.allreduce is allreduce
hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)
print("rank", hvd.rank(), "of", hvd.size(), "sum", total.item(), flush=True)
"""


def test_under_mpirun_with_every_name_that_scripts_import(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SURFACE)
    command = [*mpirun_command(2), sys.executable, "-m", "hvdtune", str(script)]
    ended = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [f"rank {rank} of 2 sum 3.0" for rank in range(2)]
