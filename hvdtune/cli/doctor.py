"""`hvdtune doctor`: what this installation and this machine offer, and why the rest is missing."""

from __future__ import annotations

import argparse

HELP = "show what is available here, and for the rest why not and how to get it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--json", action="store_true", help="the report as one JSON document")
    parser.add_argument(
        "--require", metavar="NAME", action="append", default=[],
        help="exit with 1 unless this is available as well: a name from the report, in any case "
        "(MPI, Gloo, PyTorch, ssh, …); may be given several times",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Exit status 0, or 1 if no job can run here or a required item is not available."""
    import json
    import sys

    from hvdtune.cli.main import version
    from hvdtune.launch.doctor import doctor
    from hvdtune.settings.spelling import hint

    findings = doctor.examine(version())
    names = {finding.name.lower(): finding.name for finding in findings}
    unknown = [name for name in args.require if name.lower() not in names]
    if unknown:
        raise ValueError(
            f"--require {unknown[0]}: there is no such name; the names are: "
            f"{', '.join(names.values())}{hint(unknown[0], names.values())}"
        )
    if args.json:
        print(json.dumps(doctor.as_document(findings), indent=2))
    else:
        print(doctor.as_text(findings))
    there = {finding.name.lower() for finding in findings if finding.state == "ok"}
    failed = [f"{f.name}: {f.detail}" for f in findings if f.state == "broken"]
    failed += [f"{names[n.lower()]} is required, and not available" for n in args.require
               if n.lower() not in there]  # fmt: skip
    for sentence in failed:
        print(f"hvdtune doctor: {sentence}.", file=sys.stderr)
    return 1 if failed else 0
