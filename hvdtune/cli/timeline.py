"""`hvdtune timeline`: what a recorded timeline says, and whether the file is sound."""

from __future__ import annotations

import argparse

HELP = "read a timeline: who was late, where the time went; or check that the file is sound"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two sub-commands."""
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about = "print a verdict, the ranks that were late and where the time went"
    command = commands.add_parser("summary", help=about, description=about)
    _add_file(command)
    command.add_argument(
        "--rows", type=int, default=10, metavar="N", help="most ranks and tensors shown (10)"
    )
    about = "check that the file is valid and that every begin has its end; exit with 1 if not"
    _add_file(commands.add_parser("check", help=about, description=about))


def run(args: argparse.Namespace) -> int:
    """Print to stdout; 0, or 1 when a checked file has flaws."""
    from hvdtune.timeline.reader import read_trace

    if args.command == "summary" and args.rows < 1:
        raise ValueError(f"--rows {args.rows} is not accepted: give a number of at least 1")
    trace = read_trace(args.file)
    if args.command == "summary":
        from hvdtune.timeline.summary import summary

        print(summary(trace, args.rows))
        return 0
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


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a timeline of hvdtune or Horovod, or its .gz")
