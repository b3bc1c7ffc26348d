"""`hvdtune tune -np 4 -- python train.py`: find settings before training, not during it."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from hvdtune.launch.flags import add_knob_flags
from hvdtune.settings.spelling import hint

if TYPE_CHECKING:
    from hvdtune.autotune.messages import Messenger
    from hvdtune.autotune.session.session import Session
    from hvdtune.settings.knobs import Settings

HELP = "find the fastest settings for a script or a bench workload by running it again and again"

DESCRIPTION = """\
Tunes scripts that are too short to be tuned while they run, and settings that need a restart.
Runs the program unchanged, and restarts it until the search is done. As with HOROVOD_AUTOTUNE=1,
a setting is adopted only if it was shown to be faster. Use a short program, or one that saves
nothing.
"""

EPILOG = """\
examples:
  hvdtune tune -np 4 --budget 10m -- python train.py
  hvdtune tune --workload bert-base --np 8
  hvdtune tune -np 2 --cycle-time-ms 1 --autotune-log-file log.csv -- python train.py

The outcome is stored, as after a run with HOROVOD_AUTOTUNE=1 (see: hvdtune autotune list).
Settings given as flags, in --config-file or as variables are fixed, as for hvdtune run.
"""

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
TAIL_LINES = 20
SEARCH_SHARE = 0.6  # of the budget; the rest is for the comparison that decides


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags; everything after the first other word is the command."""
    parser.usage = "hvdtune tune -np N [options] (--workload NAME | [--] command [argument …])"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "-np", "--np", "--num-proc", dest="np", type=_count, metavar="N", required=True,
        help="number of processes",
    )  # fmt: skip
    parser.add_argument(
        "--budget", type=_duration, default=600.0, metavar="TIME",
        help="longest time it may take: 90s, 10m, 1h (default: 10m)",
    )  # fmt: skip
    parser.add_argument(
        "--workload", type=_workload, metavar="NAME",
        help="tune on the gradients of a model instead of a program: resnet50, vgg16, "
        "inception3, bert-base, gpt2 or tiny",
    )  # fmt: skip
    parser.add_argument(
        "--skip-steps", type=_steps, default=3, metavar="N",
        help="steps not measured after every start (default: 3)",
    )  # fmt: skip
    parser.add_argument(
        "--show-output", action="store_true",
        help="show all of the program's output on stderr (default: its last lines, if it fails)",
    )  # fmt: skip
    parser.add_argument("--config-file", metavar="FILE", help="read settings from this YAML file")
    add_knob_flags(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Tune; return 0 if it finished, 1 if the program or the tuner failed, or time ran out."""
    from hvdtune.autotune.session.offline import JobsEnded, RemoteEngine
    from hvdtune.launch.allocation import capacity
    from hvdtune.launch.allocation.hosts import Host

    command = _command(args)
    capacity.require_room([Host("localhost", args.np)], args.np)
    environ, settings = _settings(args)
    # Without a name, so that nothing is left of it, however this process ends.
    with tempfile.TemporaryFile(prefix="hvdtune-tune-") as output:
        start = partial(_start, args, command, environ, output)
        engine = RemoteEngine(start, _restarting(settings), args.skip_steps)
        try:
            finished = _tune(args, engine, settings, command)
        except JobsEnded:
            finished = False
        finally:
            engine.close()
        if engine.failure is not None:
            print(f"hvdtune tune: {engine.failure}.{_tail(output)}", file=sys.stderr)
        return 0 if finished else 1


def _tune(args: argparse.Namespace, engine: Any, settings: Settings, command: list[str]) -> bool:
    """Run the session; return whether it finished."""
    from hvdtune.autotune.messages import Messenger
    from hvdtune.autotune.report import log
    from hvdtune.autotune.session.session import Session
    from hvdtune.autotune.statistics.comparison import LOOKS
    from hvdtune.bench.report.progress import Display

    began = time.monotonic()
    display = Display()
    messenger = Messenger(settings.log_level, settings.log_hide_time, before=display.clear)
    # Warm-up and baseline, the search's samples, the comparison's, and the last row.
    display.total = settings.autotune_warmup_samples + 2
    display.total += settings.autotune_bayes_opt_max_samples + 2 * len(LOOKS)
    display.phase(f"starting {' '.join(command)}")
    try:
        engine.start(began + args.budget)
        path = settings.autotune_log or os.devnull
        writer = _ProgressWriter(log.LogWriter(path, messenger.warn), display)
        memory = _memory(args, settings, messenger, command)
        session = Session(engine, settings, args.np, messenger, writer, memory=memory)
        with _Budget(session, args.budget - (time.monotonic() - began)):
            session.run()
    finally:
        display.clear()
    return writer.ended and not session.unfinished


class _Budget:
    """Ends the search, then the session, when their time is over."""

    def __init__(self, session: Session, seconds: float) -> None:
        import threading

        why = "the time for searching was over"
        self._timers = [
            threading.Timer(max(0.0, SEARCH_SHARE * seconds), session.end_search_soon, (why,)),
            threading.Timer(
                max(0.0, seconds), session.stop_soon, ("the time was over (--budget)",)
            ),
        ]

    def __enter__(self) -> None:
        for timer in self._timers:
            timer.daemon = True
            timer.start()

    def __exit__(self, *exception: object) -> None:
        for timer in self._timers:
            timer.cancel()


class _ProgressWriter:
    """A log writer that also shows its rows on the progress bar."""

    def __init__(self, writer: Any, display: Any) -> None:
        self._writer = writer
        self._display = display
        self.ended = False

    def write(self, row: Any) -> None:
        """Write the row and show it."""
        self._writer.write(row)
        self.ended = self.ended or row.phase == "final"
        time_ms = f", {row.sample.step_time_ms:.4g} ms a step" if row.sample else ""
        self._display.phase(f"{row.phase}{time_ms}")

    def close(self) -> None:
        """Close the log."""
        self._writer.close()


def _command(args: argparse.Namespace) -> list[str]:
    from hvdtune.bootstrap import python_command
    from hvdtune.launch.local.program import without_script

    command = args.command[1:] if args.command[:1] == ["--"] else list(args.command)
    if args.workload and command:
        raise ValueError("give a command or --workload, not both.")
    if args.workload:
        return python_command("hvdtune.bench.workloads.training", args.workload)
    if not command:
        raise ValueError(
            f"give the command to run: hvdtune tune -np {args.np} -- python train.py, or --workload"
        )
    interpreter = without_script(command)
    if interpreter is not None:
        raise ValueError(
            f"{interpreter} has no script, and ranks have no standard input to read one from: "
            f"hvdtune tune -np {args.np} -- {interpreter} train.py"
        )
    return command


def _settings(args: argparse.Namespace) -> tuple[dict[str, str], Settings]:
    """The job's environment, and the settings as the job will read them."""
    from hvdtune.launch.config_file import read_config_file
    from hvdtune.launch.elastic import options
    from hvdtune.launch.settings import choose
    from hvdtune.settings import knobs

    config = read_config_file(args.config_file) if args.config_file else None
    if config is not None:
        options.read_section(config)  # a tuned job is not elastic
    flags = {**args.knobs, "autotune": ("hvdtune tune", True)}
    choice = choose(flags, config, os.environ, one_host=True)
    for notice in choice.notices:
        print(f"hvdtune tune: {notice}", file=sys.stderr)
    environ = {**os.environ, **choice.variables()}
    # When tuning is over, no job runs any more: there is nothing to watch.
    environ.pop(knobs.KNOBS["autotune_watch"].env, None)
    settings = knobs.from_environ(environ)
    # In the job, these would start a tuner of its own.
    for key in ("autotune_log", "autotune_store"):
        environ.pop(knobs.KNOBS[key].env, None)
    return environ, settings


def _restarting(settings: Settings) -> dict[str, Any]:
    """The free settings that only a restart changes, with their values.

    If ranks share a GPU, the launcher makes room for their thread blocks.
    """
    from hvdtune.settings.knobs import KNOBS

    return {
        key: getattr(settings, key)
        for key, knob in KNOBS.items()
        if knob.tunable and knob.restart and not settings.is_fixed(key)
        and not (knob.on_gpus and settings.share_gpu)
    }  # fmt: skip


def _memory(
    args: argparse.Namespace, settings: Settings, messenger: Messenger, command: list[str]
) -> Any:
    from hvdtune.autotune.memory.identity import program_name
    from hvdtune.autotune.memory.recall import open_memory
    from hvdtune.core.libraries.machine import usable_cpus

    scripts = [word for word in command if word.endswith(".py")]
    program = args.workload or program_name(scripts or command)
    return open_memory(settings, messenger, program, args.np, args.np, usable_cpus(), uses=False)


def _start(
    args: argparse.Namespace,
    command: list[str],
    environ: Mapping[str, str],
    output: IO[bytes],
    extra: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    from hvdtune.bootstrap import python_command

    # Without -H, a job within LSF would run on the hosts of its allocation.
    ours = ["-np", str(args.np), "-H", f"localhost:{args.np}", "--parent", str(os.getpid())]
    launcher = python_command("hvdtune.cli.main", "run", *ours)
    output.seek(0)
    output.truncate()
    return subprocess.Popen(
        [*launcher, *command],
        env={**environ, **extra},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if args.show_output else output,
        stderr=None if args.show_output else output,
        start_new_session=True,  # Ctrl-C reaches it once: from here
    )


def _tail(output: IO[bytes]) -> str:
    output.seek(0)
    lines = output.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
    return "".join(f"\n  {line}" for line in lines)


def _workload(text: str) -> str:
    from hvdtune.bench.workloads.gradient_sets import WORKLOADS

    if text not in WORKLOADS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not accepted: give one of {', '.join(WORKLOADS)}{hint(text, WORKLOADS)}"
        )
    return text


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text, re.ASCII)
    if not match or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted: give a time: 90s, 10m or 1h")
    return float(match[1]) * UNITS[match[2]]


def _count(text: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not accepted: give a whole number, {least} or more"
        )
    return int(text)


def _steps(text: str) -> int:
    return _count(text, 0)
