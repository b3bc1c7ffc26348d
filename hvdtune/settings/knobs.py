"""The table of settings.

Each setting is one row: its environment variable, flag, YAML key, unit, default and range,
whether the autotuner may move it, and one line of help. The flags of
`hvdtune run`, the workers' environment, the reader of `--config-file`, the autotuner's space,
`hvdtune config` and the documentation's table are made from these rows.

A setting counts as *fixed* for the autotuner when its variable is present in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from typing import Any

from hvdtune.settings.spelling import hint
from hvdtune.settings.values import (
    PARSERS,
    Knob,
    KnobError,
    accepted,
    parse,
    size_words,
    to_text,
)

__all__ = [
    "KNOBS",
    "Knob",
    "KnobError",
    "Settings",
    "accepted",
    "check_together",
    "from_environ",
    "parse",
    "size_words",
    "starting_point",
    "to_text",
]

MIB = 2**20

_TABLE = (
    # -- what the engine does with tensors --
    Knob(
        "fusion_threshold", "HOROVOD_FUSION_THRESHOLD", "size", 128 * MIB,
        "Most bytes in one fused operation; 0 turns fusion off.",
        flags=("--fusion-threshold-mb",), yaml="params.fusion_threshold_mb", unit="bytes",
        minimum=0, flag_multiplier=MIB, tunable=True, scale="log",
        tune_range=(MIB / 4, 256 * MIB), tune_first=16 * MIB, acts_on="longer",
    ),
    Knob(
        "cycle_time", "HOROVOD_CYCLE_TIME", "float", 1.0,
        "Longest time a ready tensor waits for others to be fused with.",
        flags=("--cycle-time-ms",), yaml="params.cycle_time_ms", unit="ms",
        minimum=0, maximum=10_000, tunable=True, scale="log", tune_range=(0.1, 25.0),
        tune_first=0.1,
    ),
    Knob(
        "cache_capacity", "HOROVOD_CACHE_CAPACITY", "int", 1024,
        "Tensors whose description is sent only once (all process sets together); 0 turns the "
        "cache off.",
        flags=("--cache-capacity",), yaml="params.cache_capacity", unit="entries",
        minimum=0, maximum=32768, tunable=True, restart=True, scale="log",
        tune_range=(256, 32768),
    ),
    Knob(
        "chunk_size", "HVDTUNE_CHUNK_SIZE", "size", 0,
        "Bytes packed, reduced and unpacked at a time; 0 lets the engine choose.",
        flags=("--chunk-size",), yaml="params.chunk_size", unit="bytes",
        minimum=64 * 1024, maximum=4 * MIB, zero_is_auto=True, tunable=True, scale="log",
        tune_range=(64 * 1024, 4 * MIB), tune_first=256 * 1024, acts_on="longer",
    ),
    Knob(
        "one_shot_limit", "HVDTUNE_ONE_SHOT_LIMIT", "size", 0,
        "Longest message that every rank reduces as a whole, at most one chunk; 0 lets the "
        "engine choose.",
        yaml="params.one_shot_limit", unit="bytes",
        minimum=1, maximum=4 * MIB, zero_is_auto=True, tunable=True, scale="log",
        tune_range=(1024, MIB), acts_on="shorter",
    ),
    Knob(
        "writing", "HVDTUNE_WRITING", "choice", "auto",
        "How a rank writes data that other ranks read next: into the cache, or past it with "
        "streaming stores, which is faster if their CPUs share no cache. auto measures both "
        "from time to time.",
        yaml="params.writing", choices=("auto", "cached", "streamed"),
    ),
    Knob(
        "reduction_threads", "HVDTUNE_REDUCTION_THREADS", "count_or_auto", 0,
        "Threads that help each rank copy and reduce large messages in shared memory. auto "
        "shares out the CPUs left over after one per rank, at most 3 per rank.",
        flags=("--reduction-threads",), yaml="params.reduction_threads",
        minimum=0, maximum=16,
    ),
    Knob(
        "disable_group_fusion", "HOROVOD_DISABLE_GROUP_FUSION", "bool", False,
        "Fuse tensors only within their group, and ungrouped tensors not at all.",
    ),
    Knob(
        "dynamic_process_sets", "HOROVOD_DYNAMIC_PROCESS_SETS", "bool", False,
        "Allow process sets to be added and removed after init.",
    ),
    Knob(
        "spin_us", "HVDTUNE_SPIN_US", "int", -1,
        "How long a waiting thread spins before it sleeps; -1 chooses according to the number "
        "of CPUs.",
        yaml="params.spin_us", unit="us", minimum=-1, maximum=1_000_000,
    ),
    Knob(
        "overlap", "HVDTUNE_OVERLAP", "choice", "auto",
        "Whether DistributedOptimizer reduces gradients during the backward pass (on), or all "
        "together in step() (off). auto: during the backward pass on GPUs, if CPUs are idle, or "
        "if a trial in the first steps shows that this is faster.",
        flags=("--overlap",), yaml="params.overlap", choices=("auto", "on", "off"),
    ),
    Knob(
        "hierarchical_allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE", "bool", False,
        "In a job on several hosts, reduce within each host first, in shared memory, then "
        "between hosts. This sends fewer bytes between hosts; floating-point sums may differ "
        "from those on one host in the last place.",
        flags=("--hierarchical-allreduce",), off_flags=("--no-hierarchical-allreduce",),
        yaml="params.hierarchical_allreduce", between_hosts=True, tunable=True,
    ),
    Knob(
        "hierarchical_allgather", "HOROVOD_HIERARCHICAL_ALLGATHER", "bool", False,
        "In a job on several hosts, send each tensor to every other host once, and share it "
        "there in shared memory.",
        flags=("--hierarchical-allgather",), off_flags=("--no-hierarchical-allgather",),
        yaml="params.hierarchical_allgather", between_hosts=True, tunable=True,
    ),
    Knob(
        "torus_allreduce", "HOROVOD_TORUS_ALLREDUCE", "bool", False,
        "Two-dimensional allreduce with NCCL.",
        flags=("--torus-allreduce",), off_flags=("--no-torus-allreduce",),
        yaml="params.torus_allreduce", inert="NCCL chooses its algorithms itself",
    ),
    # -- autotune --
    Knob(
        "autotune", "HOROVOD_AUTOTUNE", "bool", False,
        "Look for faster settings while training.",
        flags=("--autotune",), off_flags=("--no-autotune",), yaml="autotune.enabled",
    ),
    Knob(
        "autotune_log", "HOROVOD_AUTOTUNE_LOG", "str", None,
        "CSV file to which rank 0 writes every sample.",
        flags=("--autotune-log-file",), yaml="autotune.log_file", unit="path",
        requires="autotune",
    ),
    Knob(
        "autotune_warmup_samples", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "int", 3,
        "Samples thrown away before tuning starts.",
        flags=("--autotune-warmup-samples",), yaml="autotune.warmup_samples", unit="samples",
        minimum=0, requires="autotune",
    ),
    Knob(
        "autotune_steps_per_sample", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "int", 10,
        "Training steps that make a sample (at least 3 are used).",
        flags=("--autotune-steps-per-sample",), yaml="autotune.steps_per_sample", unit="steps",
        minimum=1, requires="autotune",
    ),
    Knob(
        "autotune_bayes_opt_max_samples", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "int", 20,
        "Approximate number of samples from the search on; three fifths of them measure "
        "candidates.",
        flags=("--autotune-bayes-opt-max-samples",), yaml="autotune.bayes_opt_max_samples",
        unit="samples", minimum=1, requires="autotune",
    ),
    Knob(
        "autotune_gaussian_process_noise", "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "float",
        0.0,
        "Noise added to that of every score, in standard deviations of the scores; 0 adds none.",
        flags=("--autotune-gaussian-process-noise",), yaml="autotune.gaussian_process_noise",
        minimum=0, maximum=1, requires="autotune",
    ),
    Knob(
        "autotune_seed", "HVDTUNE_AUTOTUNE_SEED", "int", 0,
        "Seed of the search; the same seed and samples give the same decisions.",
        flags=("--autotune-seed",), yaml="autotune.seed", minimum=0, requires="autotune",
    ),
    Knob(
        "autotune_harm_limit", "HVDTUNE_AUTOTUNE_HARM_LIMIT", "steps_or_share", 200,
        "How much time slow candidates may cost in a run: as a number of steps, or as a share "
        "of HVDTUNE_AUTOTUNE_EXPECTED_STEPS (1% by default if you give that).",
        flags=("--autotune-harm-limit",), yaml="autotune.harm_limit", unit="steps",
        minimum=1, requires="autotune",
    ),
    Knob(
        "autotune_expected_steps", "HVDTUNE_AUTOTUNE_EXPECTED_STEPS", "int", 0,
        "Number of training steps that the run will have; 0 means unknown.",
        flags=("--autotune-expected-steps",), yaml="autotune.expected_steps", unit="steps",
        minimum=0, requires="autotune",
    ),
    Knob(
        "autotune_start", "HVDTUNE_AUTOTUNE_START", "assignments", (),
        "Settings that tuning begins with, without fixing them, such as "
        "cycle_time_ms=100,fusion_threshold_mb=0.",
        flags=("--autotune-start",), yaml="autotune.start", requires="autotune",
    ),
    Knob(
        "autotune_store", "HVDTUNE_AUTOTUNE_STORE", "str", None,
        "JSON file in which tuning stores what it found; autotune.json in the user's cache "
        "folder if not set. Empty: store nothing.",
        flags=("--autotune-store",), yaml="autotune.store", unit="path", requires="autotune",
        empty_counts=True,
    ),
    Knob(
        "autotune_watch", "HVDTUNE_AUTOTUNE_WATCH", "bool", False,
        "Keep watching the step time after tuning, and tune again if it changes.",
        flags=("--autotune-watch",), off_flags=("--no-autotune-watch",), yaml="autotune.watch",
        requires="autotune",
    ),
    # -- timeline --
    Knob(
        "timeline", "HOROVOD_TIMELINE", "str", None,
        "File for the Chrome trace; DYNAMIC waits for start_timeline().",
        flags=("--timeline-filename",), yaml="timeline.filename", unit="path",
    ),
    Knob(
        "timeline_mark_cycles", "HOROVOD_TIMELINE_MARK_CYCLES", "bool", False,
        "Mark the start of every cycle in the trace.",
        flags=("--timeline-mark-cycles",), off_flags=("--no-timeline-mark-cycles",),
        yaml="timeline.mark_cycles", requires="timeline",
    ),
    Knob(
        "timeline_all_ranks", "HVDTUNE_TIMELINE_ALL_RANKS", "bool", True,
        "Every rank records to its own file, and the files are merged when the job ends. "
        "Otherwise only rank 0 records, with the time at which each rank was ready for each "
        "tensor.",
        flags=("--timeline-all-ranks",), off_flags=("--no-timeline-all-ranks",),
        yaml="timeline.all_ranks", requires="timeline",
    ),
    Knob(
        "timeline_format", "HVDTUNE_TIMELINE_FORMAT", "choice", "hvdtune",
        "Format of the timeline: compact records of every rank (hvdtune), or Horovod's layout, "
        "one row per tensor, written by rank 0 (horovod).",
        flags=("--timeline-format",), yaml="timeline.format", choices=("hvdtune", "horovod"),
        requires="timeline",
    ),
    Knob(
        "timeline_steps", "HVDTUNE_TIMELINE_STEPS", "step_range", None,
        "Training steps to record: 100:120 records 20 steps from step 100 on, 100: records all "
        "steps from 100 on.",
        flags=("--timeline-steps",), yaml="timeline.steps", requires="timeline",
    ),
    Knob(
        "timeline_buffer_mb", "HVDTUNE_TIMELINE_BUFFER_MB", "int", 16,
        "Most memory that a rank uses for records not yet written. If it is full, further "
        "records are dropped and counted.",
        flags=("--timeline-buffer-mb",), yaml="timeline.buffer_mb", unit="MiB",
        minimum=1, maximum=4096, requires="timeline",
    ),
    Knob(
        "timeline_max_mb", "HVDTUNE_TIMELINE_MAX_MB", "int", 0,
        "Largest file of a rank. Beyond this size its oldest records are removed; 0 means no "
        "limit.",
        flags=("--timeline-max-mb",), yaml="timeline.max_mb", unit="MiB",
        minimum=0, maximum=1_000_000, requires="timeline",
    ),
    Knob(
        "timeline_signal", "HVDTUNE_TIMELINE_SIGNAL", "choice", None,
        "Signal that starts and stops recording on all ranks; send it to any rank.",
        flags=("--timeline-signal",), yaml="timeline.signal", choices=("SIGUSR1", "SIGUSR2"),
        requires="timeline",
    ),
    # -- stall check --
    Knob(
        "stall_check_disable", "HOROVOD_STALL_CHECK_DISABLE", "bool", False,
        "Do not report stalled tensors.",
        flags=("--no-stall-check",), off_flags=("--stall-check",), yaml="stall_check.enabled",
        yaml_inverted=True,
    ),
    Knob(
        "stall_check_time", "HOROVOD_STALL_CHECK_TIME_SECONDS", "float", 60.0,
        "Time after which a tensor that some ranks have not submitted is reported.",
        flags=("--stall-check-warning-time-seconds",), yaml="stall_check.warning_time_seconds",
        unit="s", minimum=0,
    ),
    Knob(
        "stall_shutdown_time", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "float", 0.0,
        "Time after which such a tensor ends the job; 0 means never.",
        flags=("--stall-check-shutdown-time-seconds",), yaml="stall_check.shutdown_time_seconds",
        unit="s", minimum=0,
    ),
    Knob(
        "straggler_share", "HVDTUNE_STRAGGLER_SHARE", "float", 0.05,
        "Share of each step that a rank or host must cost the others before the log names it as "
        "a straggler; 0 names none.",
        flags=("--straggler-share",), yaml="stall_check.straggler_share", minimum=0, maximum=1,
    ),
    # -- metrics --
    Knob(
        "metrics_file", "HVDTUNE_METRICS_FILE", "str", None,
        "File for the job's metrics in Prometheus' text format, replaced as a whole every few "
        "seconds.",
        flags=("--metrics-file",), yaml="metrics.file", unit="path",
    ),
    Knob(
        "metrics_interval", "HVDTUNE_METRICS_INTERVAL", "float", 5.0,
        "Time between two versions of the metrics' file.",
        flags=("--metrics-interval",), yaml="metrics.interval", unit="s", minimum=0.1,
        maximum=86400, requires="metrics_file",
    ),
    Knob(
        "metrics_port", "HVDTUNE_METRICS_PORT", "int", 0,
        "Port on which rank 0 serves the job's metrics to Prometheus; 0 serves none.",
        flags=("--metrics-port",), yaml="metrics.port", minimum=0, maximum=65535,
    ),
    Knob(
        "metrics_address", "HVDTUNE_METRICS_ADDRESS", "str", "127.0.0.1",
        "Address on which that port listens. The default accepts connections from this host "
        "only; 0.0.0.0 accepts them from anywhere, without authentication.",
        flags=("--metrics-address",), yaml="metrics.address", requires="metrics_port",
    ),
    # -- libraries and threads --
    Knob(
        "thread_affinity", "HOROVOD_THREAD_AFFINITY", "int_list", (),
        "CPU for the communication thread, one per local rank; none means no pinning.",
        flags=("--thread-affinity",), yaml="library_options.thread_affinity", unit="CPUs",
    ),
    Knob(
        "num_nccl_streams", "HOROVOD_NUM_NCCL_STREAMS", "int", 1,
        "Number of NCCL streams and communicators, used in turn. This many batches can run "
        "concurrently.",
        flags=("--num-nccl-streams",), yaml="library_options.num_nccl_streams", unit="streams",
        minimum=0, on_gpus=True, tunable=True, scale="log", tune_range=(1, 4),
    ),
    Knob(
        "nccl_min_ctas", "NCCL_MIN_CTAS", "int", 0,
        "NCCL's own setting: the fewest thread blocks (CTAs), and so channels, per collective; "
        "at most NCCL_MAX_CTAS. 0: NCCL's choice.",
        yaml="library_options.nccl_min_ctas", minimum=1, maximum=64, zero_is_auto=True,
        at_most="nccl_max_ctas",
        on_gpus=True, tunable=True, restart=True, scale="log", tune_range=(1, 32),
    ),
    Knob(
        "nccl_max_ctas", "NCCL_MAX_CTAS", "int", 0,
        "NCCL's own setting: the most thread blocks (CTAs), and so channels, per collective. "
        "Each one occupies a multiprocessor that computing cannot use. 0: NCCL's choice.",
        yaml="library_options.nccl_max_ctas", minimum=1, maximum=64, zero_is_auto=True,
        on_gpus=True, tunable=True, restart=True, scale="log", tune_range=(1, 32),
    ),
    Knob(
        "nccl_bypass_limit", "HVDTUNE_NCCL_BYPASS_LIMIT", "size", 0,
        "With NCCL: for batches up to this size, ranks of one host read each other's GPU memory "
        "instead of calling NCCL. Each rank's GPU must reach those of the others. 0: always NCCL. "
        "Not tried on real GPUs so far.",
        yaml="library_options.nccl_bypass_limit", unit="bytes", minimum=0, maximum=MIB,
        on_gpus=True, tunable=True, offline=True, scale="log", tune_range=(4096, MIB),
    ),
    Knob(
        "nccl_between_hosts", "HVDTUNE_NCCL_BETWEEN_HOSTS", "bool", True,
        "If allreduces on GPUs reduce within each host first, NCCL also moves the shares "
        "between hosts. 0: the shares pass through host memory and use the transport of CPU "
        "tensors.",
        yaml="library_options.nccl_between_hosts", between_hosts=True, on_gpus=True,
    ),
    Knob(
        "nccl_cga_cluster_size", "NCCL_CGA_CLUSTER_SIZE", "int", -1,
        "NCCL's own setting, for GPUs of compute capability 9.0 and above: thread blocks in a "
        "cluster; 0: no clusters, -1: NCCL's choice.",
        yaml="library_options.nccl_cga_cluster_size", minimum=-1, maximum=8, on_gpus=True,
    ),
    Knob(
        "nccl_cta_policy", "NCCL_CTA_POLICY", "choice", None,
        "NCCL's own setting, from NCCL 2.27 on: prefer speed (DEFAULT, 0), use few thread "
        "blocks if buffers are registered (EFFICIENCY, 1), or, from 2.28 on, none if possible "
        "(ZERO, 2). If not set: NCCL's choice.",
        yaml="library_options.nccl_cta_policy",
        choices=("DEFAULT", "EFFICIENCY", "ZERO", "0", "1", "2"), on_gpus=True,
    ),
    Knob(
        "async_completion", "HOROVOD_ENABLE_ASYNC_COMPLETION", "bool", False,
        "With NCCL, an operation is done once it is enqueued: the stream that uses its result "
        "waits for the GPU, not the host.",
    ),
    Knob(
        "mpi_threads_disable", "HOROVOD_MPI_THREADS_DISABLE", "bool", False,
        "If MPI carries tensors, request MPI_THREAD_SERIALIZED instead of MPI_THREAD_MULTIPLE.",
        flags=("--mpi-threads-disable",), off_flags=("--no-mpi-threads-disable",),
        yaml="library_options.mpi_threads_disable",
    ),
    Knob(
        "mpi_library", "HVDTUNE_MPI_LIBRARY", "str", "",
        "Path of the MPI library to use, if hvdtune does not find the right one.",
    ),
    Knob(
        "cuda_library", "HVDTUNE_CUDA_LIBRARY", "str", "",
        "Path of the CUDA driver's library (libcuda.so.1), if hvdtune does not find the right "
        "one; none: use no GPU.",
    ),
    Knob(
        "nccl_library", "HVDTUNE_NCCL_LIBRARY", "str", "",
        "Path of the NCCL to use (2.19 or newer), if hvdtune does not find the right one; none: "
        "use no NCCL.",
    ),
    Knob(
        "nvrtc_library", "HVDTUNE_NVRTC_LIBRARY", "str", "",
        "Path of the NVRTC to use, if hvdtune does not find the right one; none: compile "
        "nothing at run time.",
    ),
    Knob(
        "share_gpu", "HVDTUNE_SHARE_GPU", "bool", False,
        "Let several ranks use one GPU, for development and tests. This needs NCCL 2.30 or newer, "
        "or no NCCL (HVDTUNE_NCCL_LIBRARY=none): ranks of one host then read each other's memory.",
        flags=("--share-gpu",), yaml="library_options.share_gpu",
    ),
    Knob(
        "gloo_timeout", "HOROVOD_GLOO_TIMEOUT_SECONDS", "float", 30.0,
        "If Gloo carries tensors: longest time for one of its messages, and for connecting.",
        flags=("--gloo-timeout-seconds",), yaml="library_options.gloo_timeout_seconds",
        unit="s", minimum=0,
    ),
    Knob(
        "gloo_iface", "HOROVOD_GLOO_IFACE", "str", "",
        "Network interfaces for ranks on several hosts and for Gloo, separated by commas. "
        "Empty: the interface that leads to rank 0, and the loopback interface for Gloo on one "
        "host.",
    ),
    Knob(
        "tcp", "NCCL_IB_DISABLE", "bool", False,
        "NCCL's own setting: use no InfiniBand. CPU tensors use TCP between hosts anyway, unless "
        "MPI carries them.",
        flags=("--tcp",), between_hosts=True, on_gpus=True,
    ),
    Knob(
        "controller", "HOROVOD_CONTROLLER", "choice", None,
        "Library that carries control messages.",
        yaml="controller", choices=("mpi", "gloo"),
        inert="control messages travel over hvdtune's own sockets",
    ),
    Knob(
        "cpu_operations", "HOROVOD_CPU_OPERATIONS", "choice", None,
        "Transport of tensors. If not set: shared memory within a host, TCP between hosts. ccl "
        "is refused.",
        choices=("mpi", "gloo", "ccl"),
    ),
    # -- logging and starting --
    Knob(
        "log_level", "HOROVOD_LOG_LEVEL", "choice", "WARNING",
        "Lowest severity of messages that are printed.",
        flags=("--log-level",), yaml="logging.level",
        choices=("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"),
    ),
    Knob(
        "log_hide_time", "HOROVOD_LOG_HIDE_TIME", "bool", False,
        "Leave the time out of log messages.",
        flags=("--log-without-timestamp", "--log-hide-timestamp"),
        off_flags=("--log-with-timestamp", "--no-log-hide-timestamp"),
        yaml="logging.with_timestamp", yaml_inverted=True,
    ),
    Knob(
        "start_timeout", "HOROVOD_START_TIMEOUT", "float", 30.0,
        "Longest wait for all ranks to start.",
        flags=("--start-timeout",), unit="s", minimum=0,
    ),
    Knob(
        "host_fanout", "HVDTUNE_HOST_FANOUT", "int", 15,
        "Fan-out of the control tree: up to this many hosts connect to rank 0's host directly; "
        "larger jobs form a tree.",
        minimum=1, maximum=4096,
    ),
    Knob(
        "ssh_command", "HVDTUNE_SSH_COMMAND", "str", "ssh",
        "The ssh client that reaches other hosts, with its options: ssh -F my-config. LSF's "
        "blaunch works as well.",
        flags=("--ssh-command",),
    ),
    Knob(
        "elastic_timeout", "HOROVOD_ELASTIC_TIMEOUT", "float", 600.0,
        "Elastic jobs: longest wait for enough slots, and for processes to come together.",
        flags=("--elastic-timeout",), yaml="elastic.elastic_timeout", unit="s", minimum=1,
    ),
    Knob(
        "elastic_heartbeat", "HVDTUNE_ELASTIC_HEARTBEAT", "float", 5.0,
        "Elastic jobs: a process that has been silent for this long is given up. At least 2; 0 "
        "turns that off.",
        yaml="elastic.heartbeat", unit="s", minimum=0,
    ),
    # -- given by the launcher --
    Knob(
        "autotune_driver", "HVDTUNE_AUTOTUNE_DRIVER", "str", None,
        "Socket of the `hvdtune tune` that started the job.", internal=True,
    ),
    Knob("job_id", "HVDTUNE_JOB_ID", "str", None, "Name of the job.", internal=True),
    Knob(
        "host_salt", "HVDTUNE_HOST_SALT", "str", None,
        "Keeps processes of one machine apart as if they were on different hosts; for tests.",
        internal=True,
    ),
    Knob("secret", "HVDTUNE_SECRET", "str", None, "Key shared by the job's ranks.", internal=True),
)  # fmt: skip

KNOBS: dict[str, Knob] = {knob.key: knob for knob in _TABLE}


class Settings:
    """The values in force, each with where it came from; read-only.

    A setting is an attribute named by its key: `settings.fusion_threshold`.
    """

    __slots__ = ("_sources", "_values")

    def __init__(self, values: Mapping[str, Any], sources: Mapping[str, str]) -> None:
        object.__setattr__(self, "_values", dict(values))
        object.__setattr__(self, "_sources", dict(sources))

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_") or key not in self._values:
            raise AttributeError(f"there is no setting named {key!r}")
        return self._values[key]

    def __setattr__(self, key: str, value: Any) -> None:
        raise AttributeError(f"settings are read-only: cannot set {key!r}")

    def source(self, key: str) -> str:
        """Where the value came from: "default", or the environment variable's name."""
        return self._sources.get(key, "default")

    def is_fixed(self, key: str) -> bool:
        """Whether the variable is present, so that the autotuner leaves the setting alone."""
        return key in self._sources

    def as_dict(self) -> dict[str, Any]:
        """All values by key."""
        return dict(self._values)

    def __repr__(self) -> str:
        given = ", ".join(
            f"{key}={self._values[key]!r}" for key in self._sources if not KNOBS[key].internal
        )
        return f"Settings({given})"


def from_environ(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read every setting from environment variables; an empty variable counts as absent.

    Starting points of the autotuner become values of their settings, which stay unfixed. Raises
    `KnobError` naming the variable, its value and what is accepted.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, knob in KNOBS.items():
        text = environ.get(knob.env, "")
        if text.strip() or (knob.empty_counts and knob.env in environ):
            values[key] = parse(knob, text, knob.env)
            sources[key] = knob.env
        else:
            values[key] = knob.default
    values.update(starting_point(values, sources))
    return Settings(values, sources)


def check_together(values: Mapping[str, Any]) -> None:
    """Refuse values that are only acceptable together with others. Raises `KnobError`."""
    for knob in KNOBS.values():
        if knob.at_most is None:
            continue
        value, most = values[knob.key], values[knob.at_most]
        if value and most and value > most:
            raise KnobError(
                f"{knob.env} is {value}, more than {KNOBS[knob.at_most].env}, which is {most}: "
                f"give at most {most}, or 0 to leave the choice to NCCL."
            )
    limit = values["autotune_harm_limit"]
    if values["autotune"] and isinstance(limit, str) and not values["autotune_expected_steps"]:
        raise KnobError(
            f"{KNOBS['autotune_harm_limit'].env} is {limit}, but the number of steps is not "
            f"known: give {KNOBS['autotune_expected_steps'].env}, or set the limit in steps."
        )


def starting_point(values: Mapping[str, Any], fixed: Container[str]) -> dict[str, Any]:
    """The values, by key, that `autotune_start` among `values` gives to settings not `fixed`."""
    if not values["autotune"]:
        return {}
    return {key: value for key, value in values["autotune_start"] if key not in fixed}


def _parse_assignments(_knob: Knob, text: str, _multiplier: int) -> tuple[tuple[str, Any], ...]:
    """Read "cycle_time_ms=100,fusion_threshold_mb=0": names as in YAML, or a setting's key."""
    named: dict[str, tuple[Knob, int]] = {}
    for knob in KNOBS.values():
        if knob.tunable:
            named[knob.key] = knob, 1
            if knob.yaml:
                named[knob.yaml.rpartition(".")[2]] = knob, knob.flag_multiplier
    values: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            raise ValueError(part)
        if name not in named:
            raise KnobError(
                f"{name!r} is not a setting that the autotuner may move: give one of "
                f"{', '.join(sorted(named))}{hint(name, named)}"
            )
        knob, multiplier = named[name]
        if knob.key in values:
            raise KnobError(f"{name!r} is given twice: give each setting once.")
        values[knob.key] = parse(knob, value, name, multiplier)
    return tuple(values.items())


PARSERS["assignments"] = _parse_assignments
