"""Everything around a recording: who records, the signal that toggles it, and its finishing."""

from __future__ import annotations

import contextlib
import glob
import gzip
import itertools
import json
import os
import re
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import util
from pathlib import Path
from types import FrameType
from typing import Any

import hvdtune._native as _native
from hvdtune.bootstrap import python_command
from hvdtune.core import world
from hvdtune.core.driver import member
from hvdtune.core.topology import Topology
from hvdtune.settings import knobs
from hvdtune.version import __version__

_FINISHER = "hvdtune.timeline.viewers.finish"
_CLOSING_S = 10.0  # how long other ranks may take to close their files
_FINISHING_S = 300.0
_JOINING = "hvdtune-timeline"  # threads
_MIB = 2**20
#: Packages whose faces are `hvdtune.` and the package's name.
_FACES = ("torch", "tensorflow", "jax", "mxnet")


def options(topology: Topology, settings: knobs.Settings, hostname: str) -> dict[str, Any]:
    """The engine's options for recording."""
    first, end = settings.timeline_steps or (0, 0)
    return {
        "timeline": of_generation(file_of(settings)),
        "timeline_mark_cycles": settings.timeline_mark_cycles,
        "timeline_format": settings.timeline_format,
        "timeline_all_ranks": settings.timeline_all_ranks,
        "timeline_job": topology.job_id,
        "timeline_identity": _identity(topology, settings, hostname),
        "timeline_buffer_bytes": settings.timeline_buffer_mb * _MIB,
        "timeline_file_limit": settings.timeline_max_mb * _MIB,
        "timeline_first_step": first,
        "timeline_end_step": end,
    }


def file_of(settings: knobs.Settings) -> str:
    """The file to record from the start, or ""."""
    name = settings.timeline or ""
    return "" if name.upper() == "DYNAMIC" else name


def of_generation(name: str) -> str:
    """The file of this generation of an elastic job: `t.json`, then `t.generation2.json`, …"""
    if not name or not member.is_reformed():
        return name
    plain = Path(name.removesuffix(".gz"))
    own = plain.with_name(f"{plain.stem}.generation{member.place().generation}{plain.suffix}")
    return str(own) + name.removeprefix(name.removesuffix(".gz"))


def files(file: str, settings: knobs.Settings, size: int) -> str:
    """In words: where a recording to `file` is while the job runs, and the file made from it."""
    if settings.timeline_format == "horovod":
        return file
    path = Path(file.removesuffix(".gz"))
    if size == 1 or not settings.timeline_all_ranks:
        return f"{path}, {file} when the job has ended" if file != str(path) else file
    others = [f"{path.stem}.rank{rank}{path.suffix}" for rank in sorted({1, size - 1})]
    return (
        f"{path}, other ranks' to {' … '.join(others)} beside it on their hosts; joined into "
        f"{file} when the job has ended"
    )


def check(settings: knobs.Settings) -> None:
    """Raise ValueError for settings that contradict each other."""
    if settings.timeline_steps and settings.timeline_format == "horovod":
        raise ValueError(
            "HVDTUNE_TIMELINE_STEPS needs HVDTUNE_TIMELINE_FORMAT=hvdtune: Horovod's layout has no "
            "steps"
        )


def _identity(topology: Topology, settings: knobs.Settings, hostname: str) -> str:
    """Members of the identity (see hvdtune.timeline.record.layout) as JSON, without the braces."""
    values = {
        knob.env: getattr(settings, key) for key, knob in knobs.KNOBS.items() if not knob.internal
    }
    identity = {
        "rank": topology.rank,
        "size": topology.size,
        "local_rank": topology.local_rank,
        "host": hostname,
        "node": os.uname().nodename,
        "pid": os.getpid(),
        "version": version(),
        "framework": _framework(),
        "settings": values,
    }
    return json.dumps(identity)[1:-1]


def version() -> str:
    """hvdtune's."""
    return __version__


def _framework() -> str:
    """The faces that the program has imported, by their packages: `torch 2.13.0`; `keras 3.10.0,
    jax 0.7.1` for Keras on JAX. A program that has imported none uses NumPy's."""
    faces = {name: sys.modules.get(name) for name in _FACES if f"hvdtune.{name}" in sys.modules}
    keras: Any = sys.modules.get("hvdtune.keras.package")
    if keras is not None:  # it imports its backend's face when that is first used
        backend = keras.backend_name()
        faces = {"keras": keras.keras, backend: sys.modules.get(backend), **faces}
    faces = faces or {"numpy": sys.modules.get("numpy")}
    named = ((name, getattr(module, "__version__", "")) for name, module in faces.items())
    return ", ".join(f"{name} {version}".rstrip() for name, version in named)


# ---- finishing ----------------------------------------------------------------------------------


def finish(engine: _native.Engine, rank: int, waits: bool = True) -> None:
    """Rank 0, after the engine's shutdown: join the ranks' files of each recording into one.

    A separate process does it. A failure is one warning, and the ranks' files stay. Unless `waits`,
    a thread starts the process; the program's end waits for that thread.
    """
    files = engine.recorded()
    if not files:
        return
    if waits:
        _join(engine, rank, files)
    else:
        threading.Thread(target=_join, args=(engine, rank, files), name=_JOINING).start()


def _join(engine: _native.Engine, rank: int, files: Sequence[str]) -> None:
    engine.await_recordings(_CLOSING_S)
    for file in files:
        _join_one(file, rank)


def _join_one(file: str, rank: int) -> None:
    problem = run_finisher(file)
    if problem:
        _native.log("warning", __file__, 0, rank, problem)


def finish_generations(settings: knobs.Settings, rank: int) -> None:
    """Rank 0, at the end of an elastic job: join files of generations whose rank 0 has died.

    Only those on this host.
    """
    job, name = member.job(), file_of(settings)
    if not job or rank != 0 or not name or settings.timeline_format == "horovod":
        return
    for thread in threading.enumerate():
        if thread.name == _JOINING:
            thread.join()
    for file in list(_files_named_like(os.path.abspath(name))):
        if _job_of(file).startswith(job) and len(_files_of_ranks(str(file))) > 1:
            _join_one(str(file), rank)


def finish_after_failure(environ: Mapping[str, str]) -> str:
    """The same for an ended job that was started with these variables; "" or the problem."""
    file = unfinished(environ)
    return run_finisher(file) if file else ""


def unfinished(environ: Mapping[str, str]) -> str:
    """The recording left by a failed job that was started with these variables; or ""."""
    file = _file_of_job(environ)
    return file if file and os.path.exists(file.removesuffix(".gz")) else ""


def outcome(environ: Mapping[str, str], began: float) -> str:
    """What to tell at the end of a job that was started with these variables, at `began` (s since
    the epoch): that its recording has another name than the user asked for, or that it was cut
    off; "" if there is nothing to tell."""
    file = _file_of_job(environ) or _file_in_horovods_layout(environ, began)
    asked = os.path.abspath(file_of(knobs.from_environ(environ)))
    found = []
    if file and file != asked:
        found.append(f"the timeline of this job is {file}")
    why = next(filter(None, map(_cut_off_by, _files_of_ranks(file))), "") if file else ""
    if why:
        found.append(
            f"the timeline {file} was cut off: {why}; `hvdtune timeline check {file}` says when"
        )
    return "; ".join(found)


def _file_of_job(environ: Mapping[str, str]) -> str:
    """Rank 0's file of a job that was started with these variables, or "". If they include the
    job's name, the file is this job's and not another's of the same name."""
    settings = knobs.from_environ(environ)
    name = file_of(settings)
    if not name or settings.timeline_format == "horovod":
        return ""
    asked = os.path.abspath(name)
    job = environ.get("HVDTUNE_JOB_ID")
    if not job:
        return asked
    for file in _files_named_like(asked):
        if _job_of(file).startswith(f"{job}/"):
            return str(file).removesuffix(".gz") + asked.removeprefix(asked.removesuffix(".gz"))
    return ""


def _file_in_horovods_layout(environ: Mapping[str, str], began: float) -> str:
    """The file in Horovod's layout that was begun at that time or later, or "". The file does not
    name its job."""
    settings = knobs.from_environ(environ)
    name = file_of(settings)
    if not name or settings.timeline_format != "horovod":
        return ""
    for file in _files_named_like(os.path.abspath(name)):
        for line in itertools.islice(_lines(file), 3):
            found = re.search(rb'"start_time_since_epoch_in_micros":\s*([0-9]+)', line)
            if found and int(found[1]) >= 1e6 * began:
                return str(file)
    return ""


def _files_named_like(asked: str) -> Iterator[Path]:
    """Files that a job may have recorded to if the user asked for this one: `t.json`, `t-2.json`,
    those of later generations."""
    plain = Path(asked.removesuffix(".gz"))
    number = r"(\.generation[0-9]+)?(-[0-9]+)?"
    named = re.compile(f"{re.escape(plain.stem)}{number}{re.escape(plain.suffix)}" + r"(\.gz)?")
    files = sorted(plain.parent.glob(f"{glob.escape(plain.stem)}*"))
    return (file for file in files if named.fullmatch(file.name))


def _files_of_ranks(file: str) -> list[Path]:
    path, plain = Path(file), Path(file.removesuffix(".gz"))
    others = plain.parent.glob(f"{glob.escape(plain.stem)}.rank*{glob.escape(plain.suffix)}")
    first = path if path.exists() else plain
    return [first, *(other for other in sorted(others) if _job_of(other) == _job_of(first))]


def _job_of(file: Path) -> str:
    """The job that a recording names; "" if there is no such file, or it is no recording."""
    for line in itertools.islice(_lines(file), 3):
        if b'"hvdtune_identity"' in line:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return str(json.loads(line.strip(b" \n,[]"))["args"]["job"])
    return ""


def _cut_off_by(file: Path) -> str:
    for line in _lines(file):
        if line.startswith(b'{"name":"hvdtune_cut_off"'):
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return str(json.loads(line.strip(b" \n,[]"))["args"]["reason"])
    return ""


def _lines(file: Path) -> Iterator[bytes]:
    opener = gzip.open if file.suffix == ".gz" else open
    with contextlib.suppress(OSError, EOFError, zlib.error), opener(file, "rb") as lines:
        yield from lines


def run_finisher(file: str) -> str:
    """Finish one recording; return "" or one sentence about the problem."""
    import subprocess  # few programs get here, and all would wait 2 ms for this at their start

    if util.find_spec(_FINISHER) is None:
        return ""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_TIMELINE")}
    try:
        ended = subprocess.run(
            python_command(_FINISHER, file),
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, timeout=_FINISHING_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        why = f"it took longer than {_FINISHING_S:g} s"
    except OSError as error:
        why = str(error)
    else:
        if ended.returncode == 0:
            return ""
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        why = lines[-1].removeprefix("hvdtune: ") if lines else f"status {ended.returncode}"
    return (
        f"the ranks' files of the timeline {file} were not joined: {why}; "
        f"`hvdtune timeline merge {file}` does it later."
    )


# ---- the signal ---------------------------------------------------------------------------------


def toggle_by_signal(settings: knobs.Settings, engine: Callable[[], Any]) -> str:
    """Let the signal of `timeline_signal` start and stop recording; return "" or why it cannot."""
    if not settings.timeline_signal:
        return ""
    if not settings.timeline:
        return "HVDTUNE_TIMELINE_SIGNAL does nothing without HOROVOD_TIMELINE (a file, or DYNAMIC)"

    def toggle(_number: int, _frame: FrameType | None) -> None:
        running = engine()
        if running is not None:
            running.toggle_timeline(_unused(settings), settings.timeline_mark_cycles)

    try:
        signal.signal(getattr(signal, settings.timeline_signal), toggle)
    except ValueError:
        return (
            f"HVDTUNE_TIMELINE_SIGNAL={settings.timeline_signal} has no effect: init() was not "
            "called in the main thread"
        )
    return ""


def _unused(settings: knobs.Settings) -> str:
    """An unused name similar to that of HOROVOD_TIMELINE."""
    path = Path(of_generation(file_of(settings) or "timeline.json"))
    number = 1
    name = path
    while name.exists():
        number += 1
        name = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return str(name)


def forget_signal(settings: knobs.Settings) -> None:
    """Restore the signal: without an engine it has nothing to do."""
    if settings.timeline_signal and settings.timeline:
        with contextlib.suppress(ValueError):
            signal.signal(getattr(signal, settings.timeline_signal), signal.SIG_IGN)


def start_timeline(file_path: str, mark_cycles: bool = False, *, steps: int | None = None) -> None:
    """Record from now on; all ranks begin at the same place in the schedule.

    One rank may call it, or all ranks. The file is rank 0's, and a relative name refers to rank
    0's working directory; see docs/timeline.md for the other ranks' files. Returns when this rank
    records. A recording to the same file goes on; a recording to another file ends. If the file
    cannot be written, that is logged once, and training goes on.

    Args:
        file_path: the file to record to.
        mark_cycles: mark the coordinator's cycles as well.
        steps: record only this many training steps, beginning with the one after next; then
            the recording ends by itself.

    Raises:
        ValueError: HOROVOD_TIMELINE was not set at init (``DYNAMIC`` records nothing yet), or
            ``steps`` is not 1 or more, or is given with HVDTUNE_TIMELINE_FORMAT=horovod.
    """
    begin_timeline(file_path, mark_cycles, steps)


def begin_timeline(file_path: str, mark_cycles: bool = False, steps: int | None = None) -> str:
    """start_timeline(); returns what keeps it from recording, or an empty string."""
    running = world.engine()
    if not world.settings().timeline:
        raise ValueError(
            "start_timeline needs HOROVOD_TIMELINE at init; set HOROVOD_TIMELINE=DYNAMIC to start "
            "recording later"
        )
    first, end = 0, 0
    if steps is not None:
        if world.settings().timeline_format == "horovod":
            raise ValueError("start_timeline(steps=...) needs HVDTUNE_TIMELINE_FORMAT=hvdtune")
        if steps < 1:
            raise ValueError(f"start_timeline(steps={steps!r}): give 1 or more")
        first = running.steps_ended() + 2
        end = first + int(steps)
    path = os.fspath(file_path)
    if os.path.exists(path):  # perhaps that of the previous generation
        path = of_generation(path)
    return running.start_timeline(path, bool(mark_cycles), first, end, True)


def stop_timeline() -> None:
    """Stop recording on all ranks, at one place in the schedule; does nothing if nobody records.

    Returns when this rank's file is complete. One rank may call it, or all ranks.
    """
    world.engine().stop_timeline(True)
