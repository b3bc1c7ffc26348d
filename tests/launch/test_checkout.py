"""In a checkout that was not compiled, `import hvdtune` reaches the installed hvdtune."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs.ranks import clean_environment, hvdtune_command

import hvdtune

PACKAGE = Path(hvdtune.__file__).parent
ROOT = PACKAGE.parent

CHECK = """
import sys
import hvdtune
from hvdtune.core import job
files = [getattr(module, "__file__", None) or "" for module in sys.modules.values()]
wrong = [file for file in files if file.startswith({clone!r}) and "/hvdtune/" in file]
assert not wrong, wrong
assert sys.modules["hvdtune"] is hvdtune
names = [start.__name__ for start, _ in job._hooks]
assert len(names) == len(set(names)) >= 3, names
print("found", hvdtune.__file__)
"""
POOL = """
import multiprocessing
import hvdtune

def where(process_set):
    return hvdtune.__file__, type(process_set) is hvdtune.ProcessSet

if __name__ == "__main__":
    for method in ("spawn", "forkserver", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            place, same = pool.apply(where, (hvdtune.ProcessSet([0]),))
            assert same
    print("found", place)
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return copy(tmp_path / "clone")


def copy(folder: Path) -> Path:
    """What `git clone` leaves of the package."""
    ignored = shutil.ignore_patterns("*.so", "pmix_program", "__pycache__")
    shutil.copytree(PACKAGE, folder / "hvdtune", ignore=ignored)
    return folder


def run(
    clone: Path, *words: str, text: str | None = None, status: int = 0, **environ: str | None
) -> str:
    """Run a command in the checkout; what it printed."""
    ended = subprocess.run(
        words,
        cwd=clone,
        env=clean_environment(environ),
        input=text or "",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == status, ended.stdout
    return ended.stdout


@pytest.mark.parametrize(
    ("how", "first"),
    [
        ("script", ""),
        ("script", "import hvdtune.torch"),
        ("module", "from hvdtune.core.observation import marks"),
        ("code", "import hvdtune.elastic as elastic"),
        ("stdin", ""),
        ("below", "from hvdtune import *"),
    ],
)
def test_what_is_imported(clone, how, first):
    program = first + CHECK.format(clone=str(clone))
    (clone / "user").mkdir()
    (clone / "user" / "train.py").write_text(program)
    (clone / "train.py").write_text(program)
    words, text = {
        "script": (["train.py"], None),
        "module": (["-m", "user.train"], None),
        "code": (["-c", program], None),
        "stdin": ([], program),
        # The checkout on PYTHONPATH.
        "below": (["user/train.py"], None),
    }[how]
    path = os.pathsep.join(filter(None, [str(clone), os.environ.get("PYTHONPATH")]))
    more = {"PYTHONPATH": path} if how == "below" else {}
    assert f"found {hvdtune.__file__}" in run(clone, sys.executable, *words, text=text, **more)


def test_processes_of_multiprocessing(clone):
    (clone / "pool.py").write_text(POOL)
    assert f"found {hvdtune.__file__}" in run(clone, sys.executable, "pool.py")


@pytest.mark.long
def test_scripts_that_say_horovod(clone):
    (clone / "train.py").write_text(
        "import horovod.torch as hvd, hvdtune.torch\n"
        "hvd.init()\nassert hvd is hvdtune.torch\nprint('rank', hvd.rank(), hvd.__file__)\n"
    )
    for command in (
        hvdtune_command("run", "-np", "2", sys.executable, "train.py"),
        [sys.executable, "-m", "hvdtune", "train.py"],
        [sys.executable, "-m", "hvdtune", "run", "-np", "2", sys.executable, "train.py"],
    ):
        assert f"rank 0 {PACKAGE / 'torch'}" in run(clone, *command)


def test_another_version_is_named(clone):
    version = clone / "hvdtune" / "version.py"
    ours = f'__version__ = "{hvdtune.__version__}"'
    assert ours in version.read_text()
    version.write_text(version.read_text().replace(ours, '__version__ = "9.9.9"'))
    # What the newer source has and the installed one does not, is not missed.
    init = clone / "hvdtune" / "__init__.py"
    text = init.read_text()
    imported = "import mark, mark_step"
    assert imported in text
    init.write_text(text.replace(imported, f"{imported}, a_new_name"))
    printed = run(clone, sys.executable, "-c", "import hvdtune; print(hvdtune.__version__)")
    warning = (
        f"{clone}/hvdtune is the source of hvdtune 9.9.9, which was not compiled: hvdtune "
        f"{hvdtune.__version__}, installed as {hvdtune.__file__}, takes its place"
    )
    assert printed.count(warning) == 1
    assert printed.endswith(f"{hvdtune.__version__}\n")


def test_two_checkouts(clone, tmp_path):
    other = copy(tmp_path / "other")
    path = os.pathsep.join(filter(None, [str(other), os.environ.get("PYTHONPATH")]))
    code = CHECK.format(clone=str(tmp_path))
    assert "found" in run(clone, sys.executable, "-c", code, PYTHONPATH=path)


def test_where_none_is_installed_one_sentence_says_what_to_do(clone, tmp_path):
    copy(tmp_path / "other")
    for path in ([], [str(tmp_path / "other")]):
        # -S: without the folders of installed packages.
        words = (sys.executable, "-S", "-c", "import hvdtune")
        printed = run(clone, *words, status=1, PYTHONPATH=os.pathsep.join(path))
        assert (
            f"ImportError: {clone}/hvdtune is hvdtune's source, which was not compiled" in printed
        )
