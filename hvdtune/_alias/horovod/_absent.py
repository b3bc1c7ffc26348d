"""What Horovod has and hvdtune does not: the errors that such imports raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

_JOBS = "`hvdtune run`, `horovodrun` and horovod.run() start jobs"
_ELASTIC = "`hvdtune run --min-np`, `horovodrun --min-np` and horovod.run() start elastic jobs"
_MEETING = f"the ranks of a job find each other without such a service; {_JOBS}"
_SPARK_JOBS = "horovod.spark.run() starts jobs in Spark"
_MEETING_IN_SPARK = f"Spark's tasks find each other without such a service; {_SPARK_JOBS}"
_SETTINGS = "`hvdtune run` reads flags and files itself, and `hvdtune config` shows the result"
_COMPILED = "hvdtune is not compiled against any framework"
# Modules and names, and what to do instead.
_INSTEAD = {
    "horovod.common.gradient_aggregation": "horovod.tensorflow.gradient_aggregation has it",
    "horovod.common.util.check_installed_version": _COMPILED,
    "horovod.common.util.get_extension_full_path": _COMPILED,
    "horovod.common.util.support_non_legacy_keras_optimizers": "horovod.keras takes both kinds",
    "horovod.mxnet.mpi_lib": f"{_COMPILED}; horovod.mxnet.mpi_ops has the operations",
    "horovod.ray.driver_service": "ranks on Ray meet at the addresses that Ray uses",
    "horovod.run": "since Horovod 0.20 it is not a module but a function: from horovod import run",
    "horovod.runner._HorovodArgs": f"{_JOBS} with arguments of their own",
    "horovod.runner.common.service.driver_service": _MEETING,
    "horovod.runner.common.service.task_service": _MEETING,
    "horovod.runner.common.util.config_parser": _SETTINGS,
    "horovod.runner.common.util.network": _MEETING,
    "horovod.runner.common.util.settings": _SETTINGS,
    "horovod.runner.driver": _MEETING,
    "horovod.runner.elastic": _ELASTIC,
    "horovod.runner.gloo_run": _JOBS,
    "horovod.runner.http": _MEETING,
    "horovod.runner.js_run": "`hvdtune run --jsrun` starts jobs with jsrun",
    "horovod.runner.launch._check_all_hosts_ssh_successful": "`hvdtune run` checks the hosts",
    "horovod.runner.launch._run": _JOBS,
    "horovod.runner.launch._run_elastic": _ELASTIC,
    "horovod.runner.launch.is_gloo_used": _JOBS,
    "horovod.runner.launch.parse_args": _SETTINGS,
    "horovod.runner.launch.run_controller": _JOBS,
    "horovod.runner.mpi_run": "`hvdtune run --mpi` starts jobs with mpirun",
    "horovod.runner.run_task": _JOBS,
    "horovod.runner.task": _MEETING,
    "horovod.runner.task_fn": _MEETING,
    "horovod.runner.util.cache": "`hvdtune run` remembers its checks itself",
    "horovod.runner.util.lsf": "`hvdtune run` asks LSF itself",
    "horovod.runner.util.remote": "`hvdtune run` reaches other hosts itself",
    "horovod.runner.util.streams": _JOBS,
    "horovod.spark.codec": "horovod.runner.common.util.codec has it",
    "horovod.spark.driver": _MEETING_IN_SPARK,
    "horovod.spark.gloo_run": _SPARK_JOBS,
    "horovod.spark.mpi_run": _SPARK_JOBS,
    "horovod.spark.task.gloo_exec_fn": _MEETING_IN_SPARK,
    "horovod.spark.task.mpirun_exec_fn": _MEETING_IN_SPARK,
    "horovod.spark.task.task_info": "horovod.spark.task has get_available_devices",
    "horovod.spark.task.task_service": _MEETING_IN_SPARK,
    "horovod.torch.mpi_lib": f"{_COMPILED}; horovod.torch.mpi_ops has the operations",
    "horovod.torch.mpi_lib_impl": f"{_COMPILED}; horovod.torch.mpi_ops has the operations",
    "horovod.torch.mpi_lib_v2": f"{_COMPILED}; horovod.torch.mpi_ops has the operations",
}


def missing(fullname: str) -> ModuleNotFoundError:
    """The error for importing a module or a name."""
    parts = fullname.split(".")
    for end in range(len(parts), 1, -1):
        instead = _INSTEAD.get(".".join(parts[:end]))
        if instead:
            return ModuleNotFoundError(
                f"{fullname} is not in hvdtune, which stands for Horovod here: {instead}.",
                name=fullname,
            )
    return ModuleNotFoundError(
        f"No module named {fullname!r}: {fullname} is not part of this version of hvdtune, which "
        "stands for Horovod here (it offers horovod.torch, horovod.tensorflow, horovod.keras, "
        "horovod.mxnet, horovod.ray, horovod.spark, horovod.data, horovod.common and "
        "horovod.runner).",
        name=fullname,
    )


def refuse(module: str, name: str) -> NoReturn:
    """Refuse to look up a missing attribute of a module.

    `from horovod import tensorflow` would drop the text of an AttributeError, so names that Horovod
    has raise ImportError.
    """
    fullname = f"{module}.{name}"
    if fullname in _INSTEAD:
        raise missing(fullname)
    raise AttributeError(f"module {module!r} (hvdtune's) has no attribute {name!r}")


def refusing(module: str) -> Callable[[str], Any]:
    """A module's `__getattr__`."""

    def look_up(name: str) -> Any:
        refuse(module, name)

    return look_up
