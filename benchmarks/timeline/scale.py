"""The time and memory that reading and analysing a large recording takes.

    python benchmarks/timeline/scale.py [--ranks 8] [--steps 10000] [--tensors 200] [--batches 4]
        [--unpacked]

Writes capture files of a job that never ran (the ranks' compute times are noisy, one rank is late
in some steps), then reads and analyses them and makes the report's page, in a process of their own,
and prints seconds and the largest resident memory of that process. Files take 17 MB a rank at full
size, and 48 MB with a record for each tensor.
"""

from __future__ import annotations

import argparse
import base64
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from hvdtune.timeline.record.layout import BATCH, MARK, NONE, TENSOR, WAIT, Identity, Mark
from hvdtune.timeline.record.tensor_runs import NARROW, RUN, WIDE

START = 10**12
STEP = 40_000_000  # ns
RECORDS = 1 << 15  # of a block


def rank_streams(rank: int, args: argparse.Namespace) -> dict[str, np.ndarray]:
    """The records of one rank: `batches` batches a step, all waited for at the end."""
    random = np.random.default_rng(rank)
    steps, tensors, batches = args.steps, args.tensors, args.batches
    count, share = steps * batches, -(-tensors // batches)
    begin = START + np.arange(steps, dtype=np.int64) * STEP
    late = random.integers(0, 200_000, steps) + np.where(np.arange(steps) % 97 < 9, rank * 10**6, 0)
    submissions = np.zeros(steps * tensors, TENSOR)
    own = begin[:, None] + 5_000_000 + np.arange(tensors) * (10_000_000 // tensors) + late[:, None]
    submissions["submitted"] = own.ravel()
    submissions["name"] = np.tile(np.arange(tensors), steps)
    in_step = np.minimum(np.arange(tensors) // share, batches - 1)
    submissions["batch"] = (np.arange(steps)[:, None] * batches + in_step).ravel()
    table = np.zeros(count, BATCH)
    closed = begin[:, None] + 24_000_000 + np.arange(batches) * (10_000_000 // batches)
    table["begin"] = closed.ravel() + 30_000
    table["end"] = table["begin"] + 8_000_000 // batches
    table["packed"], table["unpacking"] = table["begin"] + 50_000, table["end"] - 50_000
    if rank == 0:
        table["scheduled"], table["first_ready"] = closed.ravel(), closed.ravel() - 1_000_000
    table["serial"], table["tensors"] = np.arange(count), np.bincount(in_step)[0]
    table["tensors"] = np.tile(np.bincount(in_step, minlength=batches), steps)
    table["bytes"], table["dtype"], table["reason"], table["flags"] = 10 << 20, 7, 1, 1
    waits = np.zeros(steps, WAIT)
    waits["begin"], waits["name"] = begin + 20_000_000, NONE
    waits["end"] = table["end"].reshape(steps, batches)[:, -1] + 5000
    marks = np.zeros(steps, MARK)
    marks["time"], marks["kind"], marks["text"] = begin + STEP, int(Mark.STEP), NONE
    marks["value"] = np.arange(1, steps + 1)
    return {"tensors": submissions, "batches": table, "waits": waits, "marks": marks}


def packed(part: np.ndarray) -> tuple[int, bytes]:
    """The tensors as the recorder writes them, and in how many runs (docs/timeline-format.md); a
    run is narrow if all of its times are short."""
    goes_on = (np.diff(part["batch"]) == 0) & (np.diff(part["name"]) == 1)
    first = np.r_[0, np.flatnonzero(~goes_on) + 1]
    runs = np.zeros(len(first), RUN)
    for column in ("name", "batch", "submitted"):
        runs[column] = part[column][first]
    runs["tensors"] = np.diff(np.r_[first, len(part)])
    runs["stride"] = 1
    later = np.r_[0, np.diff(part["submitted"]) * goes_on]
    narrow = np.maximum.reduceat(later, first) <= np.iinfo(NARROW).max
    runs["width"] = np.where(narrow, NARROW.itemsize, WIDE.itemsize)
    in_narrow = np.repeat(narrow, runs["tensors"])[1:][goes_on]
    later = later[1:][goes_on]
    wide = later[~in_narrow].astype(WIDE)
    return len(runs), runs.tobytes() + wide.tobytes() + later[in_narrow].astype(NARROW).tobytes()


def write(path: Path, rank: int, args: argparse.Namespace) -> int:
    """One rank's file; returns its tensor records."""
    streams = rank_streams(rank, args)
    identity = Identity("scale", rank, args.ranks, rank, "host", 1, "0", settings={})
    names = [[i, f"layer{i}", 0, "allreduce", "float32", 200 << 10] for i in range(args.tensors)]

    def line(name: str, content: object) -> str:
        return json.dumps({"name": name, "ph": "M", "pid": rank, "args": content}) + ",\n"

    with path.open("w") as file:
        file.write("[\n" + line("hvdtune_identity", asdict(identity)))
        file.write(line("hvdtune_names", {"names": names}))
        if rank:
            for at in range(START, START + args.steps * STEP + 1, 10**10):
                reading = {"local_ns": at, "offset_ns": 0, "bound_ns": 20_000}
                file.write(line("hvdtune_clock", reading))
        for stream, table in streams.items():
            for at in range(0, len(table), RECORDS):
                part = table[at : at + RECORDS]
                content = {"stream": stream, "count": len(part)}
                data = part.tobytes()
                if stream == "tensors" and not args.unpacked:
                    content["runs"], data = packed(part)
                content["data"] = base64.b64encode(data).decode()
                file.write(line("hvdtune_block", content))
        file.write(line("hvdtune_end", {"reason": "shutdown"}).rstrip(",\n") + "\n]\n")
    return len(streams["tensors"])


def measure(path: Path) -> None:
    """Read, analyse and make the page, in this process; prints one line of JSON."""
    from hvdtune.timeline import api
    from hvdtune.timeline.advice.verdict import findings
    from hvdtune.timeline.analysis.analyse import analyse
    from hvdtune.timeline.record.load import read_recording
    from hvdtune.timeline.report.document import numbers_of

    times = [time.monotonic()]
    recording = read_recording(path)
    times.append(time.monotonic())
    analysis = analyse(recording)
    times.append(time.monotonic())
    found = findings(analysis)
    times.append(time.monotonic())
    page = api.page(numbers_of(analysis, found))
    times.append(time.monotonic())
    spent = np.diff(times).round(2).tolist()
    print(
        json.dumps(
            {
                "read_s": spent[0],
                "analyse_s": spent[1],
                "findings_s": spent[2],
                "page_s": spent[3],
                "page_mb": round(len(page.encode()) / 1e6, 2),
                "total_s": round(sum(spent), 2),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                "steps": len(analysis.found_steps),
                "verdict": found[0].kind,
                "problems": recording.problems[:3],
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument(
        "--unpacked", action="store_true", help="a record for each tensor, as before format 2"
    )
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure)
        return
    with tempfile.TemporaryDirectory() as folder:
        records = 0
        for rank in range(args.ranks):
            name = "t.json" if rank == 0 else f"t.rank{rank}.json"
            records += write(Path(folder, name), rank, args)
        size = sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6
        print(f"{records} tensor records, {size:.0f} MB", flush=True)
        command = [sys.executable, __file__, "--measure", str(Path(folder, "t.json"))]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
