"""`hvdtune report`: what a recorded timeline means, and what to do next."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from hvdtune.cli._files import check_output, check_recordings

HELP = "show where the step's time goes and what to do next; as text, JSON, or an illustrated page"
EPILOG = """\
examples:
  hvdtune run -np 4 --timeline-filename t.json python train.py    # makes a recording
  hvdtune report t.json                     # text
  hvdtune report t.json -o report.html      # one page that needs no network
  hvdtune report t.json t.rank1.json …      # ranks' files from several folders
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="recording of a job: rank 0's file (the others' are found beside it), or all files; "
        "also a timeline of Horovod's; plain or .gz",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the page there")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--text", action="store_true", help="print the text, even with -o")


def run(args: argparse.Namespace) -> int:
    """Print and write the requested forms; return 0."""
    from hvdtune.timeline import api

    target = args.output
    check_recordings(args.files)
    if target:
        check_output("--output", target, args.files)
    if args.json and args.text:
        raise ValueError("--json and --text exclude each other: give one")
    numbers = api.document(args.files)
    if target:
        Path(target).write_text(api.page(numbers), encoding="utf-8")
    if args.json:
        print(json.dumps(numbers, indent=1, ensure_ascii=False, allow_nan=False))
    elif args.text or not target:
        print(api.text(numbers))
    else:
        print(f"{target}: {numbers['verdict']['sentence']} {numbers['verdict']['action']}".rstrip())
    return 0
