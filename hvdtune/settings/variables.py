"""The environment variables whose names begin with HOROVOD_ or HVDTUNE_, and remarks on others.

Variables of settings are in the table (`knobs`). Here are the others: those that a launcher sets
for its workers, those that hvdtune's programs and tests read, and those of Horovod alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hvdtune.settings.knobs import KNOBS
from hvdtune.settings.spelling import nearest

PREFIXES = ("HOROVOD_", "HVDTUNE_")

#: Those that a launcher, hvdtune's or another, sets for its workers.
_PLACE = {
    *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    *("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME", "HOROVOD_ELASTIC"),
    *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    *("HVDTUNE_ELASTIC_DRIVER", "HVDTUNE_ELASTIC_ID", "HVDTUNE_FUNCTION_KEY"),
}
#: Those that hvdtune reads besides its settings.
_OURS = {
    *("HVDTUNE_PREFER_HOROVOD", "HVDTUNE_TRACEBACK", "HVDTUNE_SPARK_GPUS"),
    *("HVDTUNE_SPARK_ONLY_LOGGED", "HVDTUNE_LIGHTNING_PACKAGE"),
    *("HOROVOD_SPARK_PYTHONPATH", "HOROVOD_SPARK_START_TIMEOUT", "HOROVOD_SPARK_WORK_DIR"),
    "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX",
}
#: Those of tests, benchmarks and builds of hvdtune.
_WORKSHOP = re.compile(r"HVDTUNE_(TEST_|BUILD_|FAKE|COMPARE_|SANITIZE$|NVCC$)")

_CCL = "it is for oneCCL, which hvdtune does not use"
#: Variables that Horovod reads while it runs and hvdtune does not, and why not.
_HOROVODS = {
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "hvdtune chooses the parts of an Adasum itself",
    "HOROVOD_BATCH_D2D_MEMCOPIES": "hvdtune always copies a whole batch with one kernel",
    "HOROVOD_CCL_BGT_AFFINITY": _CCL,
    "HOROVOD_CCL_CACHE": _CCL,
    "HOROVOD_DISABLE_NVTX_RANGES": "hvdtune makes ranges only while a profiler asks for them",
    "HOROVOD_ENABLE_XLA_OPS": "compiled TensorFlow functions have hvdtune's operations anyway",
    "HOROVOD_MLSL_BGT_AFFINITY": _CCL,
    "HOROVOD_TWO_LEVEL_ALLREDUCE": "its name in newer versions is HOROVOD_HIERARCHICAL_ALLREDUCE",
}
#: Variables that say how Horovod is built. An image often sets them, so only `hvdtune config` and
#: `hvdtune doctor` mention them.
_BUILD = re.compile(
    r"HOROVOD_(WITH(OUT)?_(TENSORFLOW|PYTORCH|MXNET|MPI|GLOO|TORCH|CCL|MLSL|DDL)$"
    r"|GPU(_OPERATIONS|_(ALLREDUCE|ALLGATHER|BROADCAST|ALLTOALL|REDUCESCATTER))?$"
    r"|(NCCL|CUDA|ROCM|MPI|DDL|CCL|GLOO)_(HOME|INCLUDE|LIB|LINK)$|MPICXX_SHOW$|CMAKE$|DEBUG$"
    r"|ALLOW_MIXED_GPU_IMPL$|MIXED_INSTALL$|BUILD_(CUDA_CC_LIST|ARCH_FLAGS)$)"
)

_OFF = ("0", "false", "no", "off")


def is_known(name: str) -> bool:
    """Whether hvdtune or Horovod has a variable of this name."""
    return name in _names() or bool(_WORKSHOP.match(name) or _BUILD.match(name))


def remarks(environ: Mapping[str, str], *, building: bool = False) -> list[str]:
    """A sentence about each variable that is set and does nothing.

    Those are unknown variables with these prefixes, and Horovod's own that hvdtune does not read or
    that do nothing here; with `building` also those that say how Horovod is built. Empty variables
    count as absent.
    """
    return list(_remarks(environ, building))


def _remarks(environ: Mapping[str, str], building: bool) -> Iterator[str]:
    switches = {one.env: one.inert for one in KNOBS.values() if one.inert and one.kind == "bool"}
    for name in sorted(environ):
        if not name.startswith(PREFIXES) or not environ[name].strip():
            continue
        if name in _HOROVODS:
            yield f"{name} has no effect: {_HOROVODS[name]}."
        elif name in switches and environ[name].strip().lower() not in _OFF:
            yield f"{name} has no effect: {switches[name]}."
        elif building and _BUILD.match(name):
            yield f"{name} has no effect: it says how Horovod itself is built."
        elif not is_known(name):
            near = _nearest(name)
            end = f"; did you mean {near}?" if near else "."
            yield f"{name} is set, but hvdtune knows no such variable{end}"


def _names() -> set[str]:
    return {knob.env for knob in KNOBS.values()} | _PLACE | _OURS | set(_HOROVODS)


def _nearest(name: str) -> str | None:
    """The known name that is most like `name`, or None; the prefixes, all alike, do not count.

    Names that a launcher sets are not offered: nobody sets them by hand.
    """
    offers = [*(knob.env for knob in KNOBS.values() if not knob.internal), *_OURS, *_HOROVODS]
    tails = {one.partition("_")[2]: one for one in sorted(offers) if one.startswith(PREFIXES)}
    near = nearest(name.partition("_")[2], tails)
    return tails[near] if near else None
