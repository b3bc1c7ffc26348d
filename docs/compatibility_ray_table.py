"""Like compatibility_table.py, for Horovod's package for Ray.

If Ray cannot be imported, the page is written from this table alone; if it can,
tests/frameworks/test_ray_places.py compares every row with hvdtune.
"""

from __future__ import annotations

_EXECUTABLE = "executable_cls=None, executable_args=None, executable_kwargs=None"
_WORKERS = "cpus_per_worker=1, use_gpu=False, gpus_per_worker=None"

CONTRACT: dict[str, dict[str, str | None]] = {
    "horovod.ray": {
        "RayExecutor": (
            f"(settings, num_workers=None, num_hosts=None, num_workers_per_host=1, {_WORKERS}, "
            "use_current_placement_group=True, min_workers=None, max_workers=None, "
            "reset_limit=None, cooldown_range=None, elastic_timeout=600, override_discovery=True)"
        ),
        "RayExecutor.create_settings": (
            "(timeout_s=30, ssh_identity_file=None, ssh_str=None, placement_group_timeout_s=100, "
            "nics=None)"
        ),
        "RayExecutor.start": f"(self, {_EXECUTABLE}, extra_env_vars=None)",
        "RayExecutor.run": "(self, fn, args=None, kwargs=None, callbacks=None)",
        "RayExecutor.run_remote": "(self, fn, args=None, kwargs=None)",
        "RayExecutor.execute": "(self, fn, callbacks=None)",
        "RayExecutor.execute_single": "(self, fn)",
        "RayExecutor.shutdown": "(self)",
        "BaseHorovodWorker": "(world_rank=0, world_size=1)",
        "BaseHorovodWorker.node_id": "(self)",
        "BaseHorovodWorker.hostname": "(self)",
        "BaseHorovodWorker.get_gpu_ids": "(self)",
        "BaseHorovodWorker.update_env_vars": "(self, env_vars)",
        "BaseHorovodWorker.env_vars": "(self)",
        "BaseHorovodWorker.start_executable": f"(self, {_EXECUTABLE})",
        "BaseHorovodWorker.execute": "(self, func)",
        "BaseHorovodWorker.set_queue": "(self, queue)",
        "ElasticRayExecutor": (
            "(settings, use_gpu=False, cpus_per_slot=1, gpus_per_slot=None, env_vars=None, "
            "override_discovery=True)"
        ),
        "ElasticRayExecutor.create_settings": (
            "(min_num_proc=1, max_num_proc=None, reset_limit=None, elastic_timeout=600, "
            "timeout_s=30, ssh_identity_file=None, nics=None, min_np=None, max_np=None, **kwargs)"
        ),
        "ElasticRayExecutor.start": "(self)",
        "ElasticRayExecutor.run": "(self, worker_fn, callbacks=None)",
    },
    "horovod.ray.ray_logger": {
        "configure": "(queue)",
        "log": "(info_dict, chief_only=True)",
    },
    "horovod.ray.runner": {
        "MiniSettings": None,
        "StaticParams": None,
        "StaticAdapter": None,
        "Coordinator": "(settings)",
        "Coordinator.register": "(self, hostname, node_id, world_rank)",
        "Coordinator.finalize_registration": "(self)",
        "Coordinator.establish_rendezvous": "(self)",
    },
    "horovod.ray.adapter": {"Adapter": None, "BaseParams": f"({_WORKERS})"},
    "horovod.ray.strategy": {
        "create_placement_group": "(resources_per_bundle, num_bundles, pg_timeout, pg_strategy)",
        "BaseStrategy": None,
        "ColocatedStrategy": None,
        "PGStrategy": None,
    },
    "horovod.ray.utils": {
        "map_blocking": "(fn, collection)",
        "detect_nics": "(settings, all_host_names, node_workers=None)",
        "nics_to_env_var": "(nics)",
    },
    "horovod.ray.elastic": {
        "RayHostDiscovery": "(use_gpu=False, cpus_per_slot=1, gpus_per_slot=1)",
        "RayHostDiscovery.find_available_hosts_and_slots": "(self)",
    },
    "horovod.ray.elastic_v2": {
        "RayHostDiscovery": "(use_gpu=False, cpus_per_worker=1, gpus_per_worker=1)",
        "ElasticParams": None,
        "ElasticAdapter": None,
    },
}

_FAILURE = (
    "If a worker raises or dies, the other workers end; with Horovod they hang. The error names "
    "the rank, shows its last lines, and has the class that the worker raised."
)
# What hvdtune does beyond Horovod, or where Horovod hangs or ignores an argument.
SUPERSET: dict[str, dict[str, str]] = {
    "horovod.ray": {
        "RayExecutor": (
            "Also takes a `Settings` object, as Horovod's documentation promises. In elastic jobs, "
            "a worker that starts slowly does not count as a failure."
        ),
        "RayExecutor.start": "The workers get this process's settings (HOROVOD_*, HVDTUNE_*).",
        "RayExecutor.run": f"{_FAILURE} `callbacks` work; Horovod's are for elastic jobs only.",
        "RayExecutor.execute": f"{_FAILURE} `callbacks` work; Horovod's are for elastic jobs only.",
        "RayExecutor.run_remote": (
            "If a worker raises, the others' operations end with a `HorovodInternalError`."
        ),
        "RayExecutor.execute_single": _FAILURE,
        "RayExecutor.shutdown": "Ends the workers; Horovod's end when nothing refers to them.",
    },
}

# Names with the signature, but not all of the effect.
PARTIAL: dict[str, dict[str, str]] = {
    "horovod.ray": {
        "BaseHorovodWorker.get_gpu_ids": "The ids are texts, as Ray gives them now.",
    },
    "horovod.ray.utils": {
        "detect_nics": "Probes nothing: returns the interfaces that the settings name, if any.",
    },
}

# Names that Horovod has and hvdtune has not, and why.
NOT_AVAILABLE: dict[str, dict[str, str]] = {}

# What hvdtune.ray has beyond Horovod's.
ADDED: dict[str, dict[str, str]] = {}
