"""An allreduce between hosts: hvdtune's data planes, gloo and Open MPI on the same link.

    python benchmarks/between_hosts.py [--hosts 2] [--ranks 2] [--mbit 1000] [--delay-ms 0.2]

The hosts are network namespaces of this machine (tests/support/hosts/hosts_rig.py; needs root) that
share no memory; `--mbit` and `--delay-ms` (one way) set the link. Systems take turns, `--rounds`
times:

  sockets         hvdtune over its own TCP connections, flat
  WireGuard       the same, encrypted by the program wireguard-go on the machine's CPUs
  hosts first     sockets with HOROVOD_HIERARCHICAL_ALLREDUCE=1
  MPI, Gloo       HOROVOD_CPU_OPERATIONS=MPI|GLOO, hosts first
  Gloo flat       HOROVOD_CPU_OPERATIONS=GLOO, flat
  one host        hvdtune, all ranks on one host
  torch gloo      torch.distributed, gradients in buckets of 25 MB
  Open MPI        MPI_Allreduce from C, gradients in buckets of 25 MB

It prints the median time of a call (of the slowest rank); the bytes that a host sends in a call,
divided by 2(h-1)/h times the bytes, the minimum for h hosts; and the time, divided by the time that
this minimum takes on the link.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.append(str(TESTS))

from peers import environments, works  # noqa: E402
from peers.environments import SOURCES, Unavailable  # noqa: E402
from peers.systems import MpiPeer, all_peers, hvdtune_job  # noqa: E402
from support.hosts import wireguard  # noqa: E402
from support.hosts.hosts_rig import Link, Rig, hosts_rig, why_not  # noqa: E402

FIRST = {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}
# hvdtune's settings.
OURS: dict[str, dict[str, str]] = {
    "sockets": {},
    "WireGuard": {},
    "hosts first": FIRST,
    "MPI": {**FIRST, "HOROVOD_CPU_OPERATIONS": "MPI"},
    "Gloo": {**FIRST, "HOROVOD_CPU_OPERATIONS": "GLOO"},
    "Gloo flat": {"HOROVOD_CPU_OPERATIONS": "GLOO"},
    "one host": {},
}
SYSTEMS = (*OURS, "torch gloo", "Open MPI")
JOB_SECONDS = 300


@dataclass
class Figures:
    """The figures of one system and one work, one for each round."""

    seconds: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)  # bytes of the host that sends most


class Bench:
    """The data that all jobs share."""

    def __init__(self, rig: Rig, args: argparse.Namespace, chosen: Sequence[works.Work]) -> None:
        self.rig, self.args, self.works = rig, args, chosen
        self.ranks = args.hosts * args.ranks
        self.agent = rig.folder / "agent"
        self.agent.write_text(f'#!/bin/sh\nexec {rig.client} -o StrictHostKeyChecking=no "$@"\n')
        self.agent.chmod(0o755)
        self.open_mpi: MpiPeer | None = None

    def run(self, system: str, folder: Path) -> dict[str, Figures]:
        """One job of a system; figures of one round by work."""
        if system == "Open MPI":
            return self._open_mpi(folder)
        program = [str(SOURCES / "hosts_rank.py"), "gloo" if system == "torch gloo" else "hvdtune"]
        words = [work.argument(folder) for work in self.works]
        command = [sys.executable, *program, str(folder), str(self.args.seconds), *words]
        if system == "torch gloo":
            self._end([self._gloo(rank, command) for rank in range(self.ranks)], system)
        else:
            self._end([self._hvdtune(system, command)], system)
        found = [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]
        assert len(found) == self.ranks
        return {
            work.key: Figures(
                [max(statistics.median(rank[word]["times"]) for rank in found)],
                [max(rank[word]["sent"] for rank in found)],
            )
            for work, word in zip(self.works, words, strict=True)
        }

    def _hvdtune(self, system: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        slots = self.args.ranks if system != "one host" else self.ranks
        hosts = ",".join(f"{name}:{slots}" for name in self.rig.names)
        launcher = [*hvdtune_job("", self.ranks).command[:-2]]
        if system == "one host":
            launcher += ["-H", f"{self.rig.names[0]}:{slots}"]
        elif system == "MPI":
            launcher += ["--mpi", "-H", hosts, f"--mpi-args=--mca plm_ssh_agent {self.agent}"]
        else:
            launcher += ["-H", hosts]
        if system == "WireGuard":
            launcher += ["--network-interfaces", wireguard.INTERFACE]
        return self._start(0, [*launcher, *command], OURS[system])

    def _gloo(self, rank: int, command: Sequence[str]) -> subprocess.Popen[bytes]:
        variables = {
            "MASTER_ADDR": self.rig.address(self.rig.names[0]),
            "MASTER_PORT": "29555",
            "WORLD_SIZE": str(self.ranks),
            "RANK": str(rank),
            "GLOO_SOCKET_IFNAME": "eth0",
            "HVDTUNE_COMPARE_STEP": "in buckets of 25 MB",
        }
        return self._start(rank // self.args.ranks, command, variables)

    def _open_mpi(self, folder: Path) -> dict[str, Figures]:
        assert self.open_mpi is not None
        [launcher, *flags, program] = self.open_mpi.start(self.ranks, os.cpu_count() or 1).command
        hosts = ",".join(f"{name}:{self.args.ranks}" for name in self.rig.names)
        words = [work.argument(folder) for work in self.works]
        agent = ["--mca", "plm_ssh_agent", str(self.agent), "-H", hosts]
        arguments = [str(folder), str(self.args.seconds), "2000", *words]
        self._end([self._start(0, [launcher, *agent, *flags, program, *arguments], {})], "Open MPI")
        found: dict[str, Figures] = {}
        ranks = [array("d", path.read_bytes()) for path in sorted(folder.glob("rank-*"))]
        at = 0
        for work in self.works:  # calls, the begin, and the end of every call
            calls = int(ranks[0][at])
            ends = [rank[at + 1 : at + 2 + calls] for rank in ranks]
            medians = [statistics.median(b - a for a, b in pairwise(times)) for times in ends]
            found[work.key] = Figures([max(medians)])
            at += calls + 2
        return found

    def _start(
        self, host: int, command: Sequence[str], variables: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            **self.rig.environment(self.rig.folder / "cache"),
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        words = self.rig.on(self.rig.names[host], command)
        return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)

    @staticmethod
    def _end(processes: Sequence[subprocess.Popen[bytes]], system: str) -> None:
        try:
            for process in processes:
                if process.wait(JOB_SECONDS) != 0:
                    sys.exit(f"{system}: a process ended with {process.returncode}")
        finally:
            for process in processes:
                process.kill()
                process.wait()


def main() -> int:
    args = _parser().parse_args()
    link = Link(args.mbit * 1e6, args.delay_ms / 1e3)
    reason = why_not(link)
    if reason:
        print(f"between_hosts: {reason}", file=sys.stderr)
        return 2
    chosen = works.parse(args.works)
    systems = [name.strip() for name in args.systems.split(",")]
    unknown = [name for name in systems if name not in SYSTEMS]
    if unknown:
        sys.exit(f"unknown system {unknown[0]!r}; accepted: {', '.join(SYSTEMS)}")
    with contextlib.ExitStack() as stack:
        rig = stack.enter_context(hosts_rig(args.hosts, link))
        if "WireGuard" in systems:
            missing = wireguard.why_not()
            if missing:
                print(f"between_hosts: {missing}", file=sys.stderr)
                systems.remove("WireGuard")
            else:
                stack.enter_context(wireguard.tunnel(rig, rig.folder))
        bench = Bench(rig, args, chosen)
        if "Open MPI" in systems:
            peer = all_peers()["open-mpi"]
            assert isinstance(peer, MpiPeer)
            try:
                peer.prepare(args.environments)
                bench.open_mpi = peer
            except Unavailable as error:
                print(f"between_hosts: without Open MPI: {error}", file=sys.stderr)
                systems.remove("Open MPI")
        figures = rounds(bench, systems)
    report(args, chosen, figures)
    if args.json:
        plain = {
            system: {key: vars(found) for key, found in of.items()}
            for system, of in figures.items()
        }
        args.json.write_text(json.dumps({"options": _plain(args), "systems": plain}, indent=1))
    return 0


def rounds(bench: Bench, systems: Sequence[str]) -> dict[str, dict[str, Figures]]:
    """All systems in turns."""
    figures: dict[str, dict[str, Figures]] = {
        system: {work.key: Figures() for work in bench.works} for system in systems
    }
    for number in range(bench.args.rounds):
        for system in systems:
            with tempfile.TemporaryDirectory() as folder:
                found = bench.run(system, Path(folder))
            for key, one in found.items():
                figures[system][key].seconds += one.seconds
                figures[system][key].sent += one.sent
            print(f"round {number + 1}: {system} done", file=sys.stderr, flush=True)
    return figures


def report(
    args: argparse.Namespace,
    chosen: Sequence[works.Work],
    figures: Mapping[str, Mapping[str, Figures]],
) -> None:
    """The tables."""
    print(
        f"{args.hosts} hosts of {args.ranks} ranks, {args.mbit:g} Mbit/s, {args.delay_ms:g} ms one "
        f"way, median of {args.rounds} rounds"
    )
    for work in chosen:
        least = 2 * (args.hosts - 1) / args.hosts * work.size_bytes
        on_link = least / (args.mbit * 1e6 / 8)
        print(f"\n{work.title}, {work.size_bytes} bytes: {1000 * on_link:.1f} ms on the link")
        print(f"{'':14}{'ms':>10}{'x link':>9}{'sent/least':>12}")
        for system, of in figures.items():
            seconds = statistics.median(of[work.key].seconds)
            over = f"{seconds / on_link:9.3f}" if work.size_bytes > 1 << 16 else f"{'':9}"
            sent = of[work.key].sent
            wire = f"{statistics.median(sent) / least:12.3f}" if sent else ""
            print(f"{system:14}{1000 * seconds:10.3f}{over}{wire}")


def _plain(args: argparse.Namespace) -> dict[str, object]:
    return {name: str(value) for name, value in vars(args).items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=2, help="(default: 2)")
    parser.add_argument("--ranks", type=int, default=2, help="of each host (default: 2)")
    parser.add_argument("--mbit", type=float, default=1000, help="of each host (default: 1000)")
    parser.add_argument("--delay-ms", type=float, default=0.2, help="one way (default: 0.2)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--seconds", type=float, default=5, help="of a work's calls (default: 5)")
    parser.add_argument("--works", default="4,1M,resnet50", help="(default: 4,1M,resnet50)")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="(default: all)")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    parser.add_argument(
        "--environments",
        type=Path,
        default=environments.default_folder(),
        help="where Open MPI is installed, as by compare.py (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
