"""Builds the native tests under the sanitizers and runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from support import native_runs
from support.hosts.mpis import MPIS, OPEN_MPI, Mpi
from support.native_builds import COMPILER, SANITIZERS, BuildFailed, NativeBuilds
from support.tiers import EVERY, long_too

import hvdtune


def require_compiler(sanitizer: str, directory: Path) -> None:
    """Skip unless there is a compiler, and a program built with `sanitizer` also runs here."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no C++ compiler: {COMPILER} is not on PATH")
    source = directory / "probe.cc"
    source.write_text("int main() { return 0; }\n")
    program = directory / "probe"
    build = [COMPILER, f"-fsanitize={sanitizer}", str(source), "-o", str(program)]
    for step in (build, [str(program)]):
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
            missing = f"{COMPILER} has no working -fsanitize={sanitizer}: {reason}"
            # A user's compiler may lack the runtime; where changes are judged it must be there.
            if os.environ.get("CI"):
                pytest.fail(missing)
            pytest.skip(missing)


def check_run(command: list[str], seconds: float = native_runs.SECONDS, **variables: str) -> None:
    """Run `command`; if it fails, fail the test with the end of its output."""
    wrong = native_runs.run(command, seconds, **variables)
    if wrong:
        pytest.fail(wrong[-native_runs.LAST :], pytrace=False)


@pytest.fixture
def programs(native_builds: NativeBuilds, tmp_path: Path) -> Callable[..., Path]:
    """The folder of what is built with a sanitizer, all or one target; built once."""

    def built(sanitizer: str, target: str = "all") -> Path:
        require_compiler(sanitizer, tmp_path)
        try:
            return native_builds.programs(sanitizer, target)
        except BuildFailed as failed:
            pytest.fail(str(failed), pytrace=False)

    return built


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("sanitizer", long_too(SANITIZERS[0], long=SANITIZERS))
def test_native(sanitizer: str, programs: Callable[[str], Path]) -> None:
    folder = programs(sanitizer)
    early = native_runs.early(folder)
    if early.reports:
        pytest.fail("\n".join(early.reports), pytrace=False)
    expected = native_runs.test_files()
    assert expected
    # Two at once: their threads mostly wait for each other, and leave a CPU idle.
    with ThreadPoolExecutor(2) as pool:
        left = [file for file in expected if file.name not in early.passed]
        runs = [pool.submit(check_run, file.command(folder)) for file in left]
        wait(runs, return_when=FIRST_EXCEPTION)
        pool.shutdown(wait=True, cancel_futures=True)
    for run in runs:
        if not run.cancelled():
            run.result()


@pytest.mark.timeout(1200)
@pytest.mark.long
@pytest.mark.parametrize("mpi", MPIS if EVERY else MPIS[:1], ids=str)
def test_the_communicator_over_mpi(mpi: Mpi, programs: Callable[[str], Path]) -> None:
    mpi.require()
    # What leaks is MPI's own.
    check_run(
        [*mpi.command(8), str(programs("address,undefined") / "mpi_communicator")],
        HVDTUNE_TEST_MPI=mpi.library, ASAN_OPTIONS="detect_leaks=0",
    )  # fmt: skip


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mpi", long_too(OPEN_MPI, long=MPIS), ids=str)
def test_messages_over_tcp(mpi: Mpi, programs: Callable[[str], Path]) -> None:
    """On one machine MPIs would use its memory, which needs less of the sender."""
    mpi.require()
    program = programs("address,undefined") / "mpi_communicator"
    check_run(
        [*mpi.command(2), str(program), "what_was_sent"],
        seconds=120,
        HVDTUNE_TEST_MPI=mpi.library, ASAN_OPTIONS="detect_leaks=0",
        OMPI_MCA_btl="tcp,self", UCX_TLS="tcp,self",
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["gloo_communicator", *(["gloo_hosts"] if EVERY else [])])
def test_the_communicator_over_gloo(name: str, programs: Callable[..., Path]) -> None:
    if not hvdtune.gloo_built():
        pytest.skip("hvdtune was built without Gloo (Debian: libgloo-dev)")
    program = programs("address,undefined", name) / name
    suppressions = Path(__file__).with_name("gloo.supp")
    check_run([str(program)], LSAN_OPTIONS=f"suppressions={suppressions}:print_suppressions=0")
