"""The facts behind docs/compatibility.md: what Horovod exports, and where hvdtune differs.

Horovod here is 0.28.1. A signature is written as in Python, with the defaults that a caller can
observe; ``None`` stands for an object that is no function, or whose parameters are not promised.
"""

from __future__ import annotations

TENSOR = "(tensor, name=None, process_set=global_process_set)"
TENSORS = "(tensors, name=None, process_set=global_process_set)"
FROM_ROOT = "(tensor, root_rank, name=None, process_set=global_process_set)"
SCALES = "prescale_factor=1.0, postscale_factor=1.0"
REDUCE = f"average=None, name=None, op=None, {SCALES}, process_set=global_process_set"
REDUCE_COMPRESSED = (
    "average=None, name=None, compression=Compression.none, op=None, "
    f"{SCALES}, process_set=global_process_set"
)
SCATTER = f"name=None, op=Average, process_set=global_process_set, {SCALES}"
SCATTER_COMPRESSED = (
    f"name=None, compression=Compression.none, op=Average, process_set=global_process_set, {SCALES}"
)

TORCH: dict[str, str | None] = {
    "init": "(comm=None, process_sets=None)",
    "shutdown": "()",
    "is_initialized": "()",
    "rank": "()",
    "size": "()",
    "local_rank": "()",
    "local_size": "()",
    "cross_rank": "()",
    "cross_size": "()",
    "start_timeline": "(file_path, mark_cycles=False)",
    "stop_timeline": "()",
    "mpi_threads_supported": "()",
    "mpi_enabled": "()",
    "mpi_built": "()",
    "gloo_enabled": "()",
    "gloo_built": "()",
    "nccl_built": "()",
    "ddl_built": "()",
    "ccl_built": "()",
    "cuda_built": "()",
    "rocm_built": "()",
    "allreduce": f"(tensor, {REDUCE_COMPRESSED})",
    "allreduce_async": f"(tensor, {REDUCE})",
    "allreduce_": f"(tensor, {REDUCE})",
    "allreduce_async_": f"(tensor, {REDUCE})",
    "grouped_allreduce": f"(tensors, {REDUCE_COMPRESSED})",
    "grouped_allreduce_async": f"(tensors, {REDUCE})",
    "grouped_allreduce_": f"(tensors, {REDUCE})",
    "grouped_allreduce_async_": f"(tensors, {REDUCE})",
    "sparse_allreduce_async": "(tensor, name, op, process_set=global_process_set)",
    "allgather": TENSOR,
    "allgather_async": TENSOR,
    "grouped_allgather": TENSORS,
    "grouped_allgather_async": TENSORS,
    "broadcast": FROM_ROOT,
    "broadcast_async": FROM_ROOT,
    "broadcast_": FROM_ROOT,
    "broadcast_async_": FROM_ROOT,
    "alltoall": "(tensor, splits=None, name=None, process_set=global_process_set)",
    "alltoall_async": "(tensor, splits=None, name=None, process_set=global_process_set)",
    "reducescatter": f"(tensor, {SCATTER_COMPRESSED})",
    "reducescatter_async": f"(tensor, {SCATTER})",
    "grouped_reducescatter": f"(tensors, {SCATTER_COMPRESSED})",
    "grouped_reducescatter_async": f"(tensors, {SCATTER})",
    "join": "(device=-1)",
    "barrier": "(process_set=global_process_set)",
    "poll": "(handle)",
    "synchronize": "(handle)",
    "Average": "0",
    "Sum": "1",
    "Adasum": "2",
    "Min": "3",
    "Max": "4",
    "Product": "5",
    "Compression": None,
    "ProcessSet": "(ranks_or_comm)",
    "global_process_set": None,
    "add_process_set": "(process_set)",
    "remove_process_set": "(process_set)",
    "HorovodInternalError": None,
    "DistributedOptimizer": (
        "(optimizer, named_parameters=None, compression=Compression.none, "
        "backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0, num_groups=0, "
        "groups=None, sparse_as_dense=False, process_set=global_process_set)"
    ),
    "broadcast_parameters": "(params, root_rank)",
    "broadcast_optimizer_state": "(optimizer, root_rank, model=None)",
    "broadcast_object": "(obj, root_rank=0, name=None, process_set=global_process_set)",
    "allgather_object": "(obj, name=None)",
    "SyncBatchNorm": (
        "(num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True)"
    ),
    "elastic": None,
}

CONTRACT: dict[str, dict[str, str | None]] = {
    "horovod.torch": TORCH,
    "horovod.torch.elastic": {
        "TorchState": "(model=None, optimizer=None, **kwargs)",
        "ElasticSampler": "(dataset, shuffle=True, seed=0)",
        "run": "(func)",
    },
    "horovod.torch.elastic.state": {
        "TorchState": "(model=None, optimizer=None, **kwargs)",
        "ModelStateHandler": None,
        "OptimizerStateHandler": None,
        "SamplerStateHandler": None,
        "get_handler_registry": "()",
        "set_handler_registry": "(registry)",
    },
    "horovod": {
        "run": (
            "(func, args=(), kwargs=None, num_proc=1, min_num_proc=None, max_num_proc=None, "
            "slots=None, reset_limit=None, cooldown_range=None, hosts=None, hostfile=None, "
            "host_discovery_script=None, start_timeout=None, ssh_port=None, "
            "ssh_identity_file=None, disable_cache=None, output_filename=None, verbose=None, "
            "use_gloo=None, use_mpi=None, mpi_args=None, network_interface=None, "
            "network_interfaces=None, executable=None, np=None, min_np=None, max_np=None)"
        ),
        "__version__": "'0.28.1'",
    },
    "horovod.common.util": {
        "env": "(**kwargs)",
        "gpu_available": None,
        "mpi_built": None,
        "gloo_built": None,
        "nccl_built": None,
        "ddl_built": None,
        "ccl_built": None,
        "extension_available": None,
        "split_list": None,
        "num_rank_is_power_2": None,
        "is_iterable": None,
        "is_version_greater_equal_than": None,
    },
    "horovod.common.exceptions": {
        "HorovodInternalError": None,
        "HostsUpdatedInterrupt": None,
        "HorovodVersionMismatchError": None,
    },
    "horovod.common.elastic": {
        "State": "(bcast_object, get_rank)",
        "ObjectState": "(bcast_object, get_rank, **kwargs)",
        "run_fn": "(func, reset)",
        "notification_manager": None,
    },
    "horovod.common.process_sets": {
        "ProcessSet": "(ranks_or_comm)",
        "global_process_set": None,
        "add_process_set": "(process_set)",
        "remove_process_set": "(process_set)",
    },
}

MORE_TYPES = "Also takes bfloat16, bool (not averaged), uint8, int8, int16 and uint16."
EVERY_MEMBER = "Every member of a group is checked; a group is queued whole or not at all."
GATHERED_TYPES = "Also takes bfloat16, bool and uint16."

# What hvdtune does beyond Horovod, or where Horovod crashes, hangs or loses data.
SUPERSET: dict[str, dict[str, str]] = {
    "horovod.torch": {
        "init": (
            "Can be called again after `shutdown()`, also under mpirun. Handles stay valid if it "
            "is called twice. A list of ranks as `comm` also works without MPI."
        ),
        **dict.fromkeys(
            ("allreduce", "allreduce_async", "allreduce_", "allreduce_async_"), MORE_TYPES
        ),
        **dict.fromkeys(
            (
                "grouped_allreduce",
                "grouped_allreduce_async",
                "grouped_allreduce_",
                "grouped_allreduce_async_",
            ),
            f"{MORE_TYPES} {EVERY_MEMBER} `[]` gives an empty result.",
        ),
        **dict.fromkeys(("reducescatter", "reducescatter_async"), MORE_TYPES),
        **dict.fromkeys(
            ("grouped_reducescatter", "grouped_reducescatter_async"),
            f"{MORE_TYPES} {EVERY_MEMBER}",
        ),
        **dict.fromkeys(
            ("broadcast", "broadcast_async", "broadcast_", "broadcast_async_"), GATHERED_TYPES
        ),
        "allgather": f"{GATHERED_TYPES} A scalar is refused on all ranks with the same message.",
        "allgather_async": GATHERED_TYPES,
        **dict.fromkeys(
            ("grouped_allgather", "grouped_allgather_async"), f"{GATHERED_TYPES} {EVERY_MEMBER}"
        ),
        **dict.fromkeys(
            ("alltoall", "alltoall_async"),
            f"{GATHERED_TYPES} A scalar is a `ValueError`; Horovod crashes.",
        ),
        "join": (
            "If the other ranks call an operation that a joined rank does not support, they get an "
            "error, even if it is cached or with autotuning; Horovod crashes. `device` only "
            "matters on a process that has had no tensor on a GPU."
        ),
        "start_timeline": (
            "Records every rank; `steps` is the number of training steps to record. Whichever rank "
            "calls it, all ranks begin at the same operation."
        ),
        "stop_timeline": "Whichever rank calls it, all ranks end at the same operation.",
        "barrier": "Refused while a rank has joined; Horovod leaves that undefined.",
        "Adasum": "Works without MPI and takes bfloat16.",
        "ProcessSet": (
            "Using a set that is not registered is a `ValueError` that names it, not a `TypeError`."
        ),
        "add_process_set": (
            "Different or impossible ranks are a `ValueError` on every rank and the job goes on; "
            "Horovod aborts."
        ),
        "remove_process_set": (
            "Different sets are a `ValueError` on every rank and the job goes on; Horovod aborts."
        ),
        "DistributedOptimizer": (
            "`gradient_predivide_factor` works with `groups`; `zero_grad` takes `set_to_none`; "
            "L-BFGS, GradScaler, sparse gradients that only some ranks have, copies and several "
            "optimizers at once are supported; `gradient_as_buffer_view`, the last argument, "
            "reduces gradients without copying them. Of the private attributes, it has "
            "`_parameter_names`, `_allreduce_grad_async`, `_requires_update` and `_compression`."
        ),
        "broadcast_parameters": (
            "Takes any iterable, such as `model.named_parameters()`, and tensors that are not "
            "contiguous."
        ),
        "broadcast_optimizer_state": (
            "Creates missing state without a step, so weights do not change; also broadcasts "
            "nested state and `None`."
        ),
        "allgather_object": "Has an argument `process_set`.",
        "SyncBatchNorm": "Works on the CPU, and has `convert_sync_batchnorm`.",
        "elastic": "Also exports `State` and `ObjectState`.",
    },
    "horovod": {
        "run": (
            "The script needs no main guard, the results of elastic jobs are returned, and nothing "
            "is left behind if the caller is killed."
        ),
    },
}

# Names with the signature, but not all of the effect.
PARTIAL: dict[str, dict[str, str]] = {}

# Contract names that are missing here, and why.
NOT_AVAILABLE: dict[str, dict[str, str]] = {}

# Public names of hvdtune.torch that horovod.torch does not have.
ADDED = {
    "mark": "puts a moment of the program's own into the [timeline](timeline.md)",
    "mark_step": "marks the end of a training step in the [timeline](timeline.md); "
    "`DistributedOptimizer.step()` calls it",
    "is_homogeneous": "whether all hosts have equally many processes; in Horovod only for "
    "TensorFlow",
    "sycl_built": "False; Horovod has it after 0.28.1",
}
