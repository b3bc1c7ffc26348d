"""`hvdtune doctor`: what this installation and this machine offer to a job, and what is missing.

Each question is one function of `_CHECKS`; it answers with a list of `Finding`s. A check changes
nothing and loads no foreign library into this process: a child process does that.
"""

from __future__ import annotations

import importlib.metadata
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from hvdtune.core.libraries import gloo, machine, mpi
from hvdtune.core.meeting import places
from hvdtune.launch.doctor import gpu_checks
from hvdtune.settings import variables

_SECONDS = 20.0  # for a program's answer
_ASK_MPI = (
    "import ctypes, sys; text = ctypes.create_string_buffer(8192); length = ctypes.c_int();"
    "ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL).MPI_Get_library_version(text, "
    "ctypes.byref(length)); print(text.value.decode(errors='replace'))"
)


class Finding(NamedTuple):
    """One line of the report.

    `state` is "ok", "missing" (something optional) or "broken" (no job can run). `detail` says
    what was found, or why nothing was; `advice` how to get it.
    """

    section: str
    name: str
    state: str
    detail: str
    advice: str = ""


def examine(version: str, environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Everything, in the order of the report."""
    found = _engine(version)
    for check in _CHECKS:
        found += check(environ)
    sections = list(dict.fromkeys(finding.section for finding in found))
    return sorted(found, key=lambda finding: sections.index(finding.section))


def as_document(findings: list[Finding]) -> dict[str, Any]:
    """The report as a JSON document: a list of findings for each section."""
    document: dict[str, Any] = {"ok": not any(f.state == "broken" for f in findings)}
    for finding in findings:
        line = {key: value for key, value in finding._asdict().items() if key != "section"}
        document.setdefault(finding.section, []).append(line)
    return document


def as_text(findings: list[Finding]) -> str:
    """The report for a terminal: per line a tick or a cross, and below it what can be done."""
    marks = {"ok": "[X]", "missing": "[ ]", "broken": "[!]"}
    width = max(len(finding.name) for finding in findings)
    lines: list[str] = []
    section = None
    for finding in findings:
        if finding.section != section:
            section = finding.section
            lines += ["", f"{section}:"]
        lines.append(f"    {marks[finding.state]} {finding.name:<{width}}  {finding.detail}")
        if finding.advice:
            lines.append(f"        {'':<{width}}  to get it: {finding.advice}")
    return "\n".join(lines[1:])


def _ask(command: list[str], environ: Mapping[str, str] | None = None) -> tuple[bool, str]:
    """Whether a program answers, and its first line, or the reason why it does not."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=None if environ is None else dict(environ),
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer in {_SECONDS:g} s"
    except OSError as error:
        return False, error.strerror or str(error)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0:
        return False, lines[-1] if lines else f"exit status {done.returncode}"
    return True, lines[0] if lines else ""


# ---- hvdtune itself and the frameworks ----


def _engine(version: str) -> list[Finding]:
    python = f"Python {sys.version.split()[0]}"
    return [Finding("hvdtune", "engine", "ok", f"{version}, {python}, {sys.executable}")]


def _frameworks(environ: Mapping[str, str]) -> list[Finding]:
    rows = (
        ("PyTorch", ".torch", ("torch",)),
        ("PyTorch Lightning", ".lightning", ("lightning", "pytorch-lightning")),
        ("TensorFlow", ".tensorflow", ("tensorflow", "tensorflow-cpu")),
        ("Keras", ".keras", ("keras", "tf-keras")),
        ("JAX", ".jax", ("jax",)),
        ("MXNet", ".mxnet", ("mxnet",)),
        ("NumPy", ".arrays", ("numpy",)),
    )
    return [_framework(*row) for row in rows]


def _framework(title: str, module: str, wanted: tuple[str, ...]) -> Finding:
    version = next(filter(None, map(_version_of, wanted)), "")
    if not _is_there(module):
        detail = f"{version} is installed, but this version" if version else "this version"
        return Finding("Frameworks", title, "missing", f"{detail} of hvdtune has no module for it")
    if not version:
        return Finding("Frameworks", title, "missing", "not installed", f"pip install {wanted[0]}")
    return Finding("Frameworks", title, "ok", version)


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _is_there(module: str) -> bool:
    try:
        return find_spec(module, "hvdtune") is not None
    except (ImportError, ValueError):
        return False


# ---- data planes ----


def _shared_memory(environ: Mapping[str, str]) -> list[Finding]:
    section, name = "Data planes", "Shared memory"
    try:
        file = os.memfd_create("hvdtune-doctor")
    except OSError as error:
        return [
            Finding(
                section,
                name,
                "broken",
                f"memfd_create fails: {error.strerror}",
                "a Linux kernel of 3.17 or newer whose sandbox allows memfd_create",
            )
        ]
    try:
        os.posix_fallocate(file, 0, 64 << 20)
    except OSError as error:
        return [
            Finding(
                section,
                name,
                "broken",
                f"64 MiB cannot be allocated: {error.strerror}",
                "a higher memory limit of the container or the user",
            )
        ]
    finally:
        os.close(file)
    limit = _memory_limit()
    detail = "memfd works; default on one host"
    return [Finding(section, name, "ok", detail + (f"; memory limit {limit}" if limit else ""))]


def _memory_limit() -> str:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < 1 << 50:
            return f"{int(text) / 2**30:.1f} GiB"
    return ""


def _sockets(environ: Mapping[str, str]) -> list[Finding]:
    name = "Sockets"
    try:
        with socket.socket(socket.AF_UNIX) as local, socket.socket() as network:
            local.bind(f"\0hvdtune-doctor-{os.getpid()}")
            network.bind(("127.0.0.1", 0))
    except OSError as error:
        return [
            Finding(
                "Data planes",
                name,
                "broken",
                f"no socket can be bound: {error.strerror}",
                "a sandbox that allows abstract Unix sockets and 127.0.0.1",
            )
        ]
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return [
        Finding(
            "Data planes",
            name,
            "ok",
            f"control of every job, and tensors between hosts; open files: {files}",
        )
    ]


def _mpi(environ: Mapping[str, str]) -> list[Finding]:
    libraries = mpi.find_all(environ)
    if not libraries:
        return [Finding("Data planes", "MPI", "missing", "no libmpi was found", mpi.ADVICE)]
    # A library would take the variables of a launcher for those of its own job.
    plain = {key: value for key, value in environ.items() if not key.startswith(("OMPI_", "PMI"))}
    found = []
    for library in libraries:
        works, answer = _ask([sys.executable, "-I", "-c", _ASK_MPI, library.path], plain)
        if works:
            said = " ".join(answer.split(",")[0].split())
            detail = f"{said}: {library.path} ({library.found})"
            found.append(Finding("Data planes", "MPI", "ok", detail))
        else:
            detail = f"{library.path} cannot be loaded: {answer}"
            found.append(Finding("Data planes", "MPI", "missing", detail, mpi.ADVICE))
    return found


def _gloo(environ: Mapping[str, str]) -> list[Finding]:
    path = gloo.module_path()
    if not path:
        return [
            Finding(
                "Data planes",
                "Gloo",
                "missing",
                "this hvdtune was built without it",
                gloo.ADVICE,
            )
        ]
    works, answer = _ask(
        [sys.executable, "-I", "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", path]
    )
    if not works:
        advice = "install Gloo's library again (Debian: libgloo0)"
        return [Finding("Data planes", "Gloo", "missing", f"cannot be loaded: {answer}", advice)]
    return [Finding("Data planes", "Gloo", "ok", path)]


# ---- launchers ----


def _launchers(environ: Mapping[str, str]) -> list[Finding]:
    rows = (
        ("ssh", ["-V"], "several hosts", "the distribution's openssh-client"),
        ("mpirun", ["--version"], "hvdtune run --mpi", mpi.ADVICE),
        ("srun", ["--version"], "Slurm", "a Slurm cluster has it"),
        ("jsrun", ["--version"], "hvdtune run --jsrun", "an LSF cluster has it"),
    )
    found = [Finding("Launchers", "hvdtune run", "ok", "starts the processes itself (--gloo)")]
    for name, words, purpose, advice in rows:
        path = shutil.which(name, path=environ.get("PATH"))
        if path is None:
            found.append(Finding("Launchers", name, "missing", f"not on PATH ({purpose})", advice))
            continue
        works, answer = _ask([path, *words])
        state, detail = ("ok", answer) if works else ("missing", f"does not work: {answer}")
        found.append(Finding("Launchers", name, state, f"{detail}: {path}"))
    return found


def _meeting(environ: Mapping[str, str]) -> list[Finding]:
    """How ranks on several hosts would find rank 0 in this very environment."""
    try:
        there, detail = places.explain(environ)
    except ValueError as error:
        there, detail = False, str(error)
    state = "ok" if there else "missing"
    advice = "" if there else "start with hvdtune run, mpirun or srun, or set HVDTUNE_SECRET"
    return [Finding("Launchers", "several hosts", state, detail, advice)]


def _clusters(environ: Mapping[str, str]) -> list[Finding]:
    """The programs that run jobs on the processes of their own cluster, and what they lack."""
    rows = (
        ("Ray", ".ray", ("ray",), ""),
        ("Spark", ".spark", ("pyspark", "numpy", "pandas", "pyarrow", "fsspec"), "java"),
    )
    return [_cluster(environ, *row) for row in rows]


def _cluster(
    environ: Mapping[str, str], title: str, module: str, packages: tuple[str, ...], program: str
) -> Finding:
    if not _is_there(module):
        detail = "this version of hvdtune has no module for it"
        return Finding("Launchers", title, "missing", detail)
    lacking = [package for package in packages if not _version_of(package)]
    advice = [f"pip install 'hvdtune[{module[1:]}]'"] if lacking else []
    if program and not _program(program, environ):
        lacking.append(program)
        advice.append("the distribution's openjdk-17-jre-headless")
    if lacking:
        detail = f"lacks {', '.join(lacking)}"
        return Finding("Launchers", title, "missing", detail, "; ".join(advice))
    return Finding("Launchers", title, "ok", f"{packages[0]} {_version_of(packages[0])}")


def _program(name: str, environ: Mapping[str, str]) -> str | None:
    """The path of one of Java's programs."""
    home = environ.get("JAVA_HOME")
    path = os.pathsep.join([*([f"{home}/bin"] if home else []), environ.get("PATH", "")])
    return shutil.which(name, path=path)


# ---- the machine ----


def _cpus(environ: Mapping[str, str]) -> list[Finding]:
    usable, there = machine.usable_cpus(), os.cpu_count() or 1
    detail = f"{usable} of {there} may be used"
    return [Finding("Machine", "CPUs", "ok", f"{detail}; more ranks than that take turns")]


def _huge_pages(environ: Mapping[str, str]) -> list[Finding]:
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError as error:
        return [Finding("Machine", "Huge pages", "missing", f"unknown: {error.strerror}")]
    chosen = text.partition("[")[2].partition("]")[0]
    if chosen == "never":
        return [
            Finding(
                "Machine",
                "Huge pages",
                "missing",
                "transparent huge pages are off",
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (root)",
            )
        ]
    return [Finding("Machine", "Huge pages", "ok", f"transparent: {chosen}")]


def _variables(environ: Mapping[str, str]) -> list[Finding]:
    return [
        Finding("Environment", name, "missing", words.rstrip("."))
        for remark in variables.remarks(environ, building=True)
        for name, _, words in [remark.partition(" ")]
    ]


def _gpus(environ: Mapping[str, str]) -> list[Finding]:
    return [Finding(*line) for line in gpu_checks.examine(environ)]


_CHECKS: tuple[Callable[[Mapping[str, str]], list[Finding]], ...] = (
    _frameworks,
    _shared_memory,
    _sockets,
    _mpi,
    _gloo,
    _launchers,
    _clusters,
    _meeting,
    _cpus,
    _huge_pages,
    _gpus,
    _variables,
)
