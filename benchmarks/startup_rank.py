"""One process of `startup.py`: goes through a start and notes the time of each step.

`import_only` measures a process without hvdtune, `start` a first allreduce, `again` many rounds of
init and shutdown. Usage: startup_rank.py WHAT FRAMEWORK FOLDER ROUNDS
"""

import time

BEGUN = time.monotonic()  # before anything else is imported; the same clock in all processes

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402


def main() -> None:
    what, framework, folder, rounds = sys.argv[1:]
    found = {"import_only": import_only, "start": start, "again": again}[what](
        framework, int(rounds)
    )
    with open(os.path.join(folder, os.environ["HOROVOD_RANK"]), "w") as file:
        json.dump(found, file)


def import_only(framework: str, _rounds: int) -> dict:
    __import__(framework)
    return {"interpreter": BEGUN, "framework": time.monotonic()}


def start(framework: str, _rounds: int) -> dict:
    found = import_only(framework, 0)
    if framework == "torch":
        import hvdtune.torch as hvd
    else:
        import hvdtune as hvd
    found["hvdtune"] = time.monotonic()
    hvd.init()
    found["init"] = time.monotonic()
    hvd.allreduce(sys.modules[framework].ones(1000), name="first")
    found["allreduce"] = time.monotonic()
    hvd.shutdown()
    found["shutdown"] = time.monotonic()
    return found


def again(_framework: str, rounds: int) -> dict:
    import numpy as np

    import hvdtune as hvd

    array = np.ones(1000, np.float32)
    found: dict = {"init": [], "allreduce": [], "shutdown": [], "round": []}
    for number in range(rounds):
        if number == rounds // 10:
            found["before"] = resources()
        begun = time.monotonic()
        hvd.init()
        there = time.monotonic()
        hvd.allreduce(array, name="first")
        reduced = time.monotonic()
        hvd.shutdown()
        ended = time.monotonic()
        found["init"].append(there - begun)
        found["allreduce"].append(reduced - there)
        found["shutdown"].append(ended - reduced)
        found["round"].append(ended - begun)
    found["after"] = resources()
    return found


def resources() -> dict:
    """The resources of this process: open files, threads, mappings, resident KiB."""
    with open("/proc/self/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    with open("/proc/self/maps") as maps:
        mappings = sum(1 for _ in maps)
    return {
        "files": len(os.listdir("/proc/self/fd")) - 1,
        "threads": int(lines["Threads"]),
        "mappings": mappings,
        "KiB resident": int(lines["VmRSS"].split()[0]),
    }


if __name__ == "__main__":
    main()
