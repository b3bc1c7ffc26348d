"""`hvdtune timeline`: reads and checks a timeline, joins files, cuts out steps."""

from __future__ import annotations

import argparse
from pathlib import Path

from hvdtune.cli._files import check_output, check_recordings
from hvdtune.cli._job import add_job

HELP = "read, check, merge and cut timelines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the sub-commands."""
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    about = "print a verdict, the ranks that were late and where the time went"
    about += "; for a file in Horovod's layout (for a recording of all ranks: hvdtune report)"
    command = commands.add_parser("summary", help=about, description=about)
    _add_file(command, "a timeline in Horovod's layout")
    command.add_argument(
        "--rows", type=int, default=10, metavar="N", help="most ranks and tensors shown (10)"
    )
    about = "check that the file is valid and that every begin has its end; exit with 1 if not"
    _add_file(
        commands.add_parser("check", help=about, description=about),
        "a recording, or a timeline in Horovod's layout",
    )
    about = "join the ranks' files of a job, of all its hosts, and PyTorch's profiles of the run"
    command = commands.add_parser("merge", help=about, description=about)
    command.add_argument("files", metavar="FILE", nargs="+", help="recordings and profiles, or .gz")
    command.add_argument(
        "-o",
        metavar="OUT.json",
        dest="out",
        help="the file to write; a single FILE is joined in place",
    )
    about = "write what trace viewers show of some steps, or of all generations of an elastic job"
    command = commands.add_parser("view", help=about, description=about)
    command.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="a recording, or its .gz; for an elastic job, the recording of each generation",
    )
    command.add_argument(
        "--steps", metavar="A:B", help="from step A to the step before B (as many as fit)"
    )
    command.add_argument(
        "-o", metavar="OUT.json", dest="out", required=True, help="the file to write, or .gz"
    )
    about = (
        "begin recording a running job, on all its ranks at once; it must have been started "
        "with HOROVOD_TIMELINE (DYNAMIC records nothing at first)"
    )
    command = commands.add_parser("start", help="begin recording a running job", description=about)
    command.add_argument("file", metavar="FILE", help="the timeline to write, on rank 0's host")
    command.add_argument("--mark-cycles", action="store_true", help="mark every cycle")
    add_job(command)
    about = "end the recording of a running job"
    add_job(commands.add_parser("stop", help=about, description=about))


def run(args: argparse.Namespace) -> int:
    """Print to stdout; return 0, or 1 if a checked file has flaws or there is no such job."""
    if args.command is None:
        raise ValueError("give a command: summary, check, merge, view, start or stop")
    if args.command in ("start", "stop"):
        return _control(args)
    if args.command in ("merge", "view"):
        return _write(args)
    check_recordings([args.file])
    from hvdtune.timeline.horovod.reader import read_layout, read_trace
    from hvdtune.timeline.record.capture_file import is_capture

    if args.command == "summary" and args.rows < 1:
        raise ValueError(f"--rows {args.rows} is not accepted: give a number of at least 1")
    if is_capture(args.file):
        if args.command == "summary":
            raise ValueError(
                f"{args.file} is a recording of all ranks, which `hvdtune report` explains; "
                "summary reads timelines in Horovod's layout"
            )
        return _check_recording(args.file)
    if args.command == "summary":
        from hvdtune.timeline.horovod.summary import summary

        print(summary(read_layout(args.file), args.rows))
        return 0
    trace = read_trace(args.file)
    for problem in trace.problems:
        print(f"{args.file}: {problem}")
    if trace.problems:
        return 1
    lost = f"; {trace.dropped} events were lost while recording" if trace.dropped else ""
    print(
        f"{args.file}: sound. {trace.event_count} events, {len(trace.tensors)} tensors, "
        f"{len(trace.spans)} spans, {len(trace.ticks)} ticks{lost}"
    )
    return 0


def _write(args: argparse.Namespace) -> int:
    from hvdtune.timeline.viewers.generations import write_generations
    from hvdtune.timeline.viewers.merge import merge, write_view
    from hvdtune.timeline.viewers.window import parse_steps

    if args.command == "merge":
        check_recordings(args.files)
        if args.out is not None:
            # A recording is included as a whole; a profile is not.
            check_output("-o", args.out, [file for file in args.files if not _is_recording(file)])
        print(merge(args.files, args.out))
    else:
        check_recordings(args.files)
        check_output("-o", args.out, args.files)
        steps = parse_steps(args.steps) if args.steps else None
        if len(args.files) == 1:
            print(write_view(args.files[0], args.out, steps))
        elif steps:
            raise ValueError("--steps is for one FILE: each generation counts its own steps")
        else:
            print(write_generations(args.files, args.out))
    return 0


def _is_recording(path: str) -> bool:
    from hvdtune.timeline.record.capture_file import is_capture

    return is_capture(path)


def _check_recording(path: str) -> int:
    from hvdtune.timeline.record.array_form import fault_of_array
    from hvdtune.timeline.record.load import read_recording, siblings

    recording = read_recording(path)
    problems = list(recording.problems)
    if not any("cut off" in problem for problem in problems):
        for file in [Path(path), *siblings(Path(path))]:
            fault = fault_of_array(file)
            if fault:
                problems.append(f"{file}: {fault}.")
    for problem in problems:
        print(f"{path}: {problem}")
    if not problems:
        tensors = sum(len(one.tensors) for one in recording.ranks.values())
        print(f"{path}: sound. {len(recording.ranks)} ranks, {tensors} tensor records")
    return 1 if problems else 0


def _control(args: argparse.Namespace) -> int:
    from hvdtune.live import client

    if args.command == "start":
        print(client.start_timeline(client.find(args.job), args.file, args.mark_cycles))
    else:
        print(client.stop_timeline(client.find(args.job)))
    return 0


def _add_file(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("file", metavar="FILE", help=f"{what}, or its .gz")
