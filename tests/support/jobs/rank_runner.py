"""Runs one function of a test module as one rank: ``rank_runner.py CALL_FILE``.

The call file (written by ``ranks.start_ranks``) holds the module's path, the function's name, its
arguments and the directory for return values. The module is imported by path, under the name that
it has in the test process: what the function returns must be picklable there.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import pickle
import signal
import sys
from pathlib import Path
from types import ModuleType

RANK_VARIABLES = (
    *("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JSM_NAMESPACE_RANK", "RANK"),
    "SLURM_PROCID",
)


def own_rank() -> int:
    """The rank by the first launcher's variable that is present; 0 without a launcher."""
    for variable in RANK_VARIABLES:
        if variable in os.environ:
            return int(os.environ[variable])
    return 0


def load_module(name: str, path: str) -> ModuleType:
    """Import the file ``path`` as the module ``name``."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main(call_file: str) -> None:
    # The test sends SIGUSR2 before it kills a rank that hangs: the dump says where it hung.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    with open(call_file, "rb") as file:
        call = pickle.load(file)
    function = getattr(load_module(call["module"], call["path"]), call["function"])
    value = function(*call["args"])
    final = Path(call["values"]) / f"{own_rank()}.pickle"
    partial = final.with_suffix(f".{os.getpid()}")
    partial.write_bytes(pickle.dumps(value))
    partial.rename(final)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])  # tests/
    main(sys.argv[1])
