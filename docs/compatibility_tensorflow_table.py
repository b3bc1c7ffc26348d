"""Like compatibility_table.py, for Horovod's packages for TensorFlow and Keras.

If TensorFlow cannot be imported, the page is written from this table alone; if it can,
tests/frameworks/test_compatibility_names.py compares every row with hvdtune.
"""

from __future__ import annotations

from compatibility_table import SUPERSET as TORCH_SUPERSET
from compatibility_table import TORCH

SET = "process_set=global_process_set"
SCALES = "prescale_factor=1.0, postscale_factor=1.0"
GATHER = f"name=None, ignore_name_scope=False, {SET}"
DEVICES = "device_dense='', device_sparse=''"
TAPE = (
    f"(gradtape, {DEVICES}, compression=Compression.none, sparse_as_dense=False, op=Average, "
    f"gradient_predivide_factor=1.0, num_groups=0, groups=None, {SET}"
)
OBJECT = f"session=None, name=None, {SET}"
# Of an optimizer of Keras.
OPTIMIZER = (
    f"(optimizer, name=None, {DEVICES}, compression=Compression.none, sparse_as_dense=False, "
    "gradient_predivide_factor=1.0, op=Average"
)
PASSES = "backward_passes_per_step=1, average_aggregated_gradients=False"

# Names that all faces share: the same objects as in horovod.torch.
BASICS = (
    *("init", "shutdown", "is_initialized"),
    *("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"),
    *("start_timeline", "stop_timeline", "mpi_threads_supported", "mpi_enabled", "mpi_built"),
    *("gloo_enabled", "gloo_built", "nccl_built", "ddl_built", "ccl_built", "cuda_built"),
    "rocm_built",
)
PROCESS_SETS = ("ProcessSet", "global_process_set", "add_process_set", "remove_process_set")


def _as_in_torch(*names: str) -> dict[str, str | None]:
    return {name: TORCH[name] for name in names}


TENSORFLOW: dict[str, str | None] = {
    **_as_in_torch(*BASICS),
    "is_homogeneous": "()",
    **_as_in_torch("Average", "Sum", "Adasum", "Min", "Max", "Product", *PROCESS_SETS),
    "Compression": None,
    "allreduce": (
        f"(tensor, average=None, {DEVICES}, compression=Compression.none, op=None, {SCALES}, "
        f"name=None, {SET}, ignore_name_scope=False)"
    ),
    "grouped_allreduce": (
        f"(tensors, average=None, {DEVICES}, compression=Compression.none, op=None, {SCALES}, "
        f"{SET}, ignore_name_scope=False, name=None)"
    ),
    "allgather": f"(tensor, {GATHER})",
    "grouped_allgather": f"(tensors, {GATHER})",
    "broadcast": f"(tensor, root_rank, {GATHER})",
    "broadcast_": f"(variables, root_rank, name=None, {SET})",
    "alltoall": f"(tensor, splits=None, {GATHER})",
    "reducescatter": (
        f"(tensor, device_dense='', compression=Compression.none, op=Average, name=None, {SET}, "
        f"ignore_name_scope=False, {SCALES})"
    ),
    "grouped_reducescatter": (
        f"(tensors, device_dense='', compression=Compression.none, op=Average, {SET}, {SCALES})"
    ),
    "join": "()",
    "size_op": "(process_set_id=0, name=None)",
    "process_set_included_op": "(process_set_id=0, name=None)",
    "local_size_op": "(name=None)",
    "rank_op": "(name=None)",
    "local_rank_op": "(name=None)",
    "broadcast_variables": f"(variables, root_rank, {SET}, inplace=False)",
    "broadcast_object": f"(obj, root_rank=0, {OBJECT})",
    "broadcast_object_fn": f"(root_rank=0, {OBJECT})",
    "allgather_object": f"(obj, {OBJECT})",
    "broadcast_global_variables": "(root_rank)",
    "BroadcastGlobalVariablesHook": "(root_rank, device='')",
    "DistributedOptimizer": (
        f"(optimizer, name=None, use_locking=False, {DEVICES}, compression=Compression.none, "
        "sparse_as_dense=False, backward_passes_per_step=1, op=Average, "
        "gradient_predivide_factor=1.0, average_aggregated_gradients=False, num_groups=0, "
        f"groups=None, {SET}, scale_local_gradients=True)"
    ),
    "DistributedGradientTape": f"{TAPE}, scale_local_gradients=True)",
    "PartialDistributedGradientTape": f"{TAPE}, local_layers=None, scale_local_gradients=True)",
    "SyncBatchNormalization": "(fused=False, **kwargs)",
    "LocalGradientAggregationHelper": (
        "(backward_passes_per_step, allreduce_func, sparse_as_dense, average_aggregated_gradients, "
        f"rank, optimizer_type, {SET}, scale_local_gradients=True, name='')"
    ),
    "check_num_rank_power_of_2": "(num_rank)",
    "handle_average_backwards_compatibility": "(op, average)",
    "gpu_available": None,
    "split_list": None,
    "elastic": None,
}

KERAS: dict[str, str | None] = {
    **_as_in_torch(*BASICS, "Average", "Sum"),
    "Compression": None,
    "broadcast_global_variables": "(root_rank)",
    "allreduce": (
        f"(value, name=None, average=None, {SCALES}, op=None, compression=Compression.none)"
    ),
    "allgather": "(value, name=None)",
    "broadcast": "(value, root_rank, name=None)",
    "reducescatter": "(value, name=None, op=Average)",
    "load_model": (
        "(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none, "
        "legacy_opts=False)"
    ),
    "callbacks": None,
    "elastic": None,
}

CALLBACKS: dict[str, str | None] = {
    "BroadcastGlobalVariablesCallback": "(root_rank, device='', local_variables=None)",
    "MetricAverageCallback": "(device='')",
    "LearningRateScheduleCallback": (
        "(initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True, "
        "momentum_correction=True, steps_per_epoch=None)"
    ),
    "LearningRateWarmupCallback": (
        "(initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0)"
    ),
}
BEST = "monitor='val_loss', verbose=0"

KERAS_ELASTIC: dict[str, str | None] = {
    "KerasState": "(model, optimizer=None, **kwargs)",
    "CommitStateCallback": "(state, batches_per_commit=1)",
    "UpdateBatchStateCallback": "(state)",
    "UpdateEpochStateCallback": "(state)",
    "run": "(func)",
}

CONTRACT: dict[str, dict[str, str | None]] = {
    "horovod.tensorflow": TENSORFLOW,
    "horovod.tensorflow.elastic": {
        "TensorFlowKerasState": "(model, optimizer=None, backend=None, **kwargs)",
        "TensorFlowState": "(variables=None, session=None, **kwargs)",
        "run": "(func)",
    },
    "horovod.tensorflow.keras": {
        **KERAS,
        **_as_in_torch(*PROCESS_SETS),
        "DistributedOptimizer": (
            f"{OPTIMIZER}, {PASSES}, num_groups=0, groups=None, {SET}, scale_local_gradients=True)"
        ),
    },
    "horovod.tensorflow.keras.callbacks": {
        **CALLBACKS,
        "BestModelCheckpoint": f"({BEST}, save_weights_only=False, mode='auto', save_freq='epoch')",
    },
    "horovod.tensorflow.keras.elastic": KERAS_ELASTIC,
    "horovod.keras": {
        **KERAS,
        **_as_in_torch("Adasum"),
        "DistributedOptimizer": f"{OPTIMIZER})",  # and then num_groups=0, groups=None
        "PartialDistributedOptimizer": (
            f"{OPTIMIZER}, {PASSES}, groups=None, {SET}, local_layers=None, "
            "scale_local_gradients=True)"
        ),
    },
    "horovod.keras.callbacks": {
        **CALLBACKS,
        "BestModelCheckpoint": f"({BEST})",  # and then mode='auto', save_freq='epoch'
    },
    "horovod.keras.elastic": KERAS_ELASTIC,
    "horovod.tensorflow.data.compute_service": {
        "TfDataServiceConfig": (
            "(dispatchers, workers_per_dispatcher, dispatcher_side, addresses, key, timeout=60)"
        ),
        "TfDataServiceConfig.compute_client": "(self, verbose=1)",
        "TfDataServiceConfig.to_dict": "(self)",
        "TfDataServiceConfig.from_dict": "(config)",
        "TfDataServiceConfig.write": "(self, filename)",
        "TfDataServiceConfig.read": "(filename, wait_for_file_creation=False)",
        "tf_data_service": "(compute_config, rank)",
        "send_to_data_service": (
            "(dataset, compute_config, rank, size=None, processing_mode='distributed_epoch', "
            "reuse_dataset=False, round_robin=False)"
        ),
        "compute_worker_fn": "(compute_config)",
    },
}

_SHARED = {name: TORCH_SUPERSET["horovod.torch"][name] for name in ("init", "start_timeline")}
_SHARED["stop_timeline"] = TORCH_SUPERSET["horovod.torch"]["stop_timeline"]
_SETS = {
    name: TORCH_SUPERSET["horovod.torch"][name]
    for name in ("ProcessSet", "add_process_set", "remove_process_set")
}
ADASUM = {"Adasum": TORCH_SUPERSET["horovod.torch"]["Adasum"]}

VALUES = "Also takes arrays, lists and Keras variables."
NAMED = "In eager mode `name` reaches the other ranks, so threads may call it at the same time."
MORE_TYPES = f"Also takes bfloat16, bool (not averaged), int16 and uint16. {VALUES}"
BFLOAT16 = f"Also takes bfloat16. {VALUES}"
EVERY_GROUP = "Members may differ in type."
APPLIED = (
    "With optimizers of Keras, also Keras 3, every way to apply gradients reduces them, also "
    "`apply_gradients`, and never twice"
)
BACKENDS = (
    "`value` may be a tensor or a variable of any backend of Keras 3; `name` names the operation "
    "on all ranks."
)

# What hvdtune does beyond Horovod, or where Horovod crashes, hangs or loses data.
SUPERSET: dict[str, dict[str, str]] = {
    "horovod.tensorflow": {
        **_SHARED,
        **_SETS,
        **ADASUM,
        "is_homogeneous": "Before `init()` it is a `ValueError`; Horovod crashes.",
        "allreduce": f"{MORE_TYPES} {NAMED} `name` also applies to `tf.IndexedSlices`.",
        "grouped_allreduce": f"{MORE_TYPES} {EVERY_GROUP}",
        "allgather": f"{BFLOAT16} {NAMED}",
        "grouped_allgather": (
            f"{BFLOAT16} {EVERY_GROUP} Its gradient reduces and gathers once for all members."
        ),
        "broadcast": f"{BFLOAT16} {NAMED} Its gradient stays correct after the ranks have changed.",
        "broadcast_": "Takes resource variables and reference variables under every TensorFlow.",
        "alltoall": (
            f"{BFLOAT16} {NAMED} Rows that `splits` leaves out have a gradient, which is zero."
        ),
        "reducescatter": f"Also takes the types that `allreduce` takes. {VALUES} {NAMED}",
        "grouped_reducescatter": (
            f"Also takes the types that `allreduce` takes. {VALUES} {EVERY_GROUP} Has arguments "
            "`name` and `ignore_name_scope`."
        ),
        "broadcast_variables": (
            "Takes Keras 3 variables, and variables of types that no operation takes."
        ),
        "broadcast_object": "Needs no session; ranks may pass objects of different types.",
        "broadcast_object_fn": "Also works in eager mode.",
        "allgather_object": "Needs no session.",
        "BroadcastGlobalVariablesHook": (
            "Exists with every TensorFlow; Horovod's exists only with versions before 2.16."
        ),
        "DistributedOptimizer": (
            f"{APPLIED}. `op` and `groups` are also passed on to an optimizer of Keras. Local "
            "variables and Adasum work with optimizers of `tf.compat.v1.train` under TensorFlow 2."
        ),
        "DistributedGradientTape": (
            "`gradient` takes `unconnected_gradients` and nested sources; sources may be Keras 3 "
            "variables; `groups` finds variables by identity, not by name, and lists may be empty."
        ),
        "PartialDistributedGradientTape": (
            "Like `DistributedGradientTape`; also takes layers of Keras 3."
        ),
        "SyncBatchNormalization": (
            "Is also a layer of Keras 3, on its three backends. Ranks may have batches of "
            "different sizes. Takes a mask."
        ),
        "LocalGradientAggregationHelper": "A gradient may be `None`.",
    },
    "horovod.tensorflow.elastic": {
        "TensorFlowKerasState": (
            "Makes the optimizer's variables when the state is made, so it contains all of them."
        ),
        "TensorFlowState": (
            "Every `sync()` broadcasts; Horovod broadcasts only when the state is made."
        ),
        "run": (
            "Recovers from all collectives that fail, also grouped ones. Raises other errors of "
            "TensorFlow; Horovod returns `None`."
        ),
    },
    "horovod.tensorflow.keras": {
        **_SHARED,
        **_SETS,
        "DistributedOptimizer": (
            f"{APPLIED}. Works with `gradient_accumulation_steps` and with loss scaling: all ranks "
            "see one rank's infinite gradient. `device_dense` and `device_sparse` have no effect."
        ),
        **dict.fromkeys(("allreduce", "allgather", "broadcast", "reducescatter"), BACKENDS),
        "load_model": (
            "Also finds the optimizer in files of Keras 3's format; keeps its variables' values."
        ),
    },
    "horovod.tensorflow.keras.elastic": {
        "KerasState": (
            "Takes `backend`, which has no effect; works on all three backends of Keras 3."
        ),
        "run": "Recovers from all collectives that fail, also in compiled steps.",
    },
    "horovod.keras": {
        **_SHARED,
        **ADASUM,
        "allreduce": (
            "Takes `op`. Horovod refuses it, because its `average` is `True` by default. "
            f"{BACKENDS}"
        ),
        "PartialDistributedOptimizer": f"{APPLIED}. Also takes layers of Keras 3.",
    },
    "horovod.tensorflow.data.compute_service": {
        "TfDataServiceConfig": "Refuses wrong values at once, not when they are used.",
        "TfDataServiceConfig.write": (
            "Only this user may read the file, because it contains the key."
        ),
    },
}
for _name in ("allgather", "broadcast", "reducescatter", "load_model"):
    SUPERSET["horovod.keras"][_name] = SUPERSET["horovod.tensorflow.keras"][_name]
_CALLBACKS = {
    "BroadcastGlobalVariablesCallback": (
        "Broadcasts before the first step if the model is built by then; also takes Keras 3 "
        "variables."
    ),
    "MetricAverageCallback": "A metric that some ranks lack is averaged over the other ranks.",
}
for _package in ("horovod.tensorflow.keras", "horovod.keras"):
    SUPERSET[f"{_package}.callbacks"] = dict(_CALLBACKS)
SUPERSET["horovod.keras.elastic"] = SUPERSET["horovod.tensorflow.keras.elastic"]

_MOMENTUM = (
    "With Keras 3 on TensorFlow and JAX, and with the newer optimizers of tf-keras, the momentum "
    "is not corrected, because it is compiled into the step; a warning says so."
)
_STEPS = (
    "The first epoch after a reset is only shorter if `fit` is given `steps_per_epoch`: Keras "
    "does not read `params['steps']` any more."
)

# Names with the signature, but not all of the effect.
PARTIAL: dict[str, dict[str, str]] = {
    "horovod.keras": {
        "DistributedOptimizer": (
            f"{APPLIED}. `op` is followed by `backward_passes_per_step`, "
            "`average_aggregated_gradients`, `num_groups`, `groups`, `process_set` and "
            "`scale_local_gradients`, so you must pass `num_groups` and `groups` by name."
        ),
    },
    "horovod.keras.callbacks": {
        "BestModelCheckpoint": (
            "`verbose` is followed by `save_weights_only`, `mode` and `save_freq`, so you must "
            "pass `mode` by name."
        ),
    },
}
for _package in ("horovod.tensorflow.keras", "horovod.keras"):
    PARTIAL.setdefault(f"{_package}.callbacks", {}).update(
        LearningRateScheduleCallback=_MOMENTUM, LearningRateWarmupCallback=_MOMENTUM
    )
    PARTIAL[f"{_package}.elastic"] = {"UpdateBatchStateCallback": _STEPS}

# Names that Horovod has and hvdtune does not have, and why.
NOT_AVAILABLE: dict[str, dict[str, str]] = {}

_MARKS = {
    "mark": "as in hvdtune.torch",
    "mark_step": "as in hvdtune.torch",
    "HorovodInternalError": "the error that an elastic job recovers from",
    "sycl_built": "as in hvdtune.torch",
}
# What the faces have beyond Horovod's.
ADDED: dict[str, dict[str, str]] = {
    "hvdtune.tensorflow": {
        **_MARKS,
        "barrier": "waits for all ranks of a process set; in Horovod only for PyTorch",
        "util": "the module `horovod.tensorflow.util`",
    },
    "hvdtune.keras": {
        **_MARKS,
        **dict.fromkeys(("Min", "Max", "Product"), "operators of `allreduce`"),
        **dict.fromkeys(PROCESS_SETS, "in Horovod only for `tf.keras`"),
        "is_homogeneous": "in Horovod only for TensorFlow",
        "SyncBatchNormalization": "in Horovod only for TensorFlow",
        "broadcast_variables": "copies one rank's variables to all ranks; any backend",
        "broadcast_object": "sends any object from one rank to all",
        "allgather_object": "every rank's object, on all ranks",
    },
}
