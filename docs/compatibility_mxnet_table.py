"""Like compatibility_table.py, for Horovod's package for MXNet.

If MXNet cannot be imported, the page is written from this table alone; if it can,
tests/frameworks/test_mxnet_compatibility.py compares every row with hvdtune.
"""

from __future__ import annotations

from compatibility_table import SUPERSET as TORCH_SUPERSET
from compatibility_table import TORCH
from compatibility_tensorflow_table import BASICS, PROCESS_SETS

SET = "process_set=global_process_set"
SCALES = "prescale_factor=1.0, postscale_factor=1.0"
REDUCE = f"average=None, name=None, priority=0, {SCALES}, {SET}, op=None"
GATHER = f"name=None, priority=0, {SET}"

CONTRACT: dict[str, dict[str, str | None]] = {
    "horovod.mxnet": {
        **{name: TORCH[name] for name in BASICS},
        **{name: TORCH[name] for name in ("Average", "Sum", "Adasum", "Min", "Max", "Product")},
        **{name: TORCH[name] for name in PROCESS_SETS},
        "Compression": None,
        "allreduce": f"(tensor, {REDUCE})",
        "allreduce_": f"(tensor, {REDUCE})",
        "grouped_allreduce": f"(tensors, {REDUCE})",
        "grouped_allreduce_": f"(tensors, {REDUCE})",
        "allgather": f"(tensor, {GATHER})",
        "grouped_allgather": f"(tensors, {GATHER})",
        "broadcast": f"(tensor, root_rank, {GATHER})",
        "broadcast_": f"(tensor, root_rank, {GATHER})",
        "alltoall": f"(tensor, splits=None, {GATHER})",
        "reducescatter": f"(tensor, op=Average, {GATHER}, {SCALES})",
        "grouped_reducescatter": f"(tensors, op=Average, {GATHER}, {SCALES})",
        "broadcast_object": "(obj, root_rank=0, name=None)",
        "allgather_object": "(obj, name=None)",
        "broadcast_parameters": "(params, root_rank=0, prefix=None)",
        "DistributedOptimizer": (
            f"(optimizer, gradient_predivide_factor=1.0, num_groups=0, {SET})"
        ),
        "DistributedTrainer": (
            "(params, optimizer, optimizer_params=None, compression=Compression.none, "
            f"gradient_predivide_factor=1.0, prefix=None, num_groups=0, {SET})"
        ),
    }
}

MORE_TYPES = "Also takes bfloat16 and bool (not averaged), and Adasum."
GROUPS = f"{MORE_TYPES} In place, two parts of one NDArray are refused; Horovod hangs."
SCATTER = "Also takes bfloat16; an unknown `op` is a `ValueError`."
OBJECT = "Has an argument `process_set`; ranks may pass objects of different types."

# What hvdtune does beyond Horovod, or where Horovod crashes, hangs or loses data.
SUPERSET: dict[str, dict[str, str]] = {
    "horovod.mxnet": {
        **{
            name: TORCH_SUPERSET["horovod.torch"][name]
            for name in (
                *("init", "start_timeline", "stop_timeline", "Adasum"),
                *("ProcessSet", "add_process_set", "remove_process_set"),
            )
        },
        **dict.fromkeys(("allreduce", "allreduce_", "grouped_allreduce"), MORE_TYPES),
        "grouped_allreduce_": GROUPS,
        **dict.fromkeys(
            ("allgather", "grouped_allgather", "broadcast", "broadcast_", "alltoall"),
            "Also takes bfloat16 and bool.",
        ),
        "reducescatter": SCATTER,
        "grouped_reducescatter": SCATTER,
        "broadcast_object": OBJECT,
        "allgather_object": OBJECT,
        "broadcast_parameters": (
            "If the ranks' names differ, all ranks get a `ValueError`; Horovod hangs. A deferred "
            "parameter is broadcast at its first initialisation only, not at later ones."
        ),
        "DistributedOptimizer": (
            "Attributes that are set on it, such as `rescale_grad` by Gluon's Trainer, reach the "
            "optimizer. The engine averages gradients, and `rescale_grad` does not change. A "
            "kvstore that would update the weights is a `ValueError`. It can be pickled."
        ),
        "DistributedTrainer": (
            "Takes a list of parameters. The engine averages gradients, and the optimizer's scale "
            "does not change. Parameters on several devices are a `ValueError`."
        ),
    }
}
PARTIAL: dict[str, dict[str, str]] = {}
NOT_AVAILABLE: dict[str, dict[str, str]] = {}

ADDED: dict[str, dict[str, str]] = {
    "hvdtune.mxnet": {
        "barrier": "waits for all ranks of a process set",
        "is_homogeneous": "whether all hosts have equally many ranks",
        "join": "contributes zeros to the others' allreduces until all ranks have joined",
        "mark": "puts a moment into the recording, or a phase if used with `with`",
        "mark_step": "tells the recording that a training step has ended",
        "sycl_built": "always False",
    }
}
