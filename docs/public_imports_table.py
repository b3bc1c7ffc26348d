"""Imports of Horovod in public code: training programs, libraries with a backend for Horovod, and
tools that start jobs. Found by searching public repositories; one line stands for many.

generate_compatibility.py runs each import and writes what happens.
tests/unit/test_public_imports.py checks that the page agrees.
"""

#: What works.
WORKS = (
    "import horovod",
    "import horovod.torch as hvd",
    "from horovod import __version__ as hvd_version",
    "from horovod import run as hvd_run",
    "from horovod import torch as hvd",
    "from horovod.common import init, local_rank, local_size, rank, shutdown, size",
    "from horovod.common.basics import HorovodBasics",
    "from horovod.common.elastic import ObjectState, State, run_fn",
    "from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt",
    "from horovod.common.exceptions import HorovodVersionMismatchError",
    "from horovod.common.process_sets import ProcessSet, global_process_set",
    "from horovod.common.process_sets import add_process_set, remove_process_set",
    "from horovod.common.util import ccl_built, ddl_built, gloo_built, mpi_built, nccl_built",
    "from horovod.common.util import check_extension, get_ext_suffix, gpu_available, split_list",
    "from horovod.common.util import check_num_rank_power_of_2, num_rank_is_power_2",
    "from horovod.common.util import env, extension_available, is_iterable",
    "from horovod.common.util import get_average_backwards_compatibility_fun",
    "from horovod.common.util import is_version_greater_equal_than",
    "from horovod.data import AsyncDataLoaderMixin, BaseDataLoader",
    "from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader",
    "from horovod.runner import run",
    "from horovod.runner.common.service.compute_service import ComputeService",
    "from horovod.runner.common.util import codec, secret, timeout",
    "from horovod.runner.common.util.env import get_env_rank_and_size, is_exportable",
    "from horovod.runner.common.util.host_hash import host_hash",
    "from horovod.runner.common.util.hosts import HostInfo, SlotInfo, get_host_assignments",
    "from horovod.runner.common.util.hosts import INVALID_SLOT_INFO, parse_host_files, parse_hosts",
    "from horovod.runner.common.util import safe_shell_exec, tiny_shell_exec",
    "from horovod.runner.common.util.timeout import Timeout, TimeoutException",
    "from horovod.runner.launch import run_commandline",
    "from horovod.runner.util.network import filter_local_addresses, get_local_host_addresses",
    "from horovod.runner.util.network import get_local_host_intfs",
    "from horovod.runner.util.threads import execute_function_multithreaded, in_thread, on_event",
    "from horovod.torch import _DistributedOptimizer",
    "from horovod.torch import allgather_object, broadcast_object, elastic, mpi_ops",
    "from horovod.torch.compression import Compression, Compressor",
    "from horovod.torch.compression import FP16Compressor, NoneCompressor",
    "from horovod.torch.elastic import ElasticSampler, TorchState, run",
    "from horovod.torch.elastic.sampler import ElasticSampler",
    "from horovod.torch.elastic.state import TorchState",
    "from horovod.torch.functions import allgather_object, broadcast_object",
    "from horovod.torch.functions import broadcast_optimizer_state, broadcast_parameters",
    "from horovod.torch.mpi_ops import Adasum, Average, Max, Min, Product, Sum",
    "from horovod.torch.mpi_ops import allgather_async, allreduce_async_, broadcast_async_",
    "from horovod.torch.mpi_ops import grouped_allreduce_async_, sparse_allreduce_async",
    "from horovod.torch.mpi_ops import HorovodInternalError, poll, synchronize",
    "from horovod.torch.mpi_ops import init, local_rank, local_size, rank, shutdown, size",
    "from horovod.torch.optimizer import DistributedOptimizer, _DistributedOptimizer",
    "from horovod.torch.sync_batch_norm import SyncBatchNorm",
)

#: What works if TensorFlow and Keras are installed. tests/frameworks/test_compatibility_names.py
#: runs these there.
TENSORFLOW = (
    "import horovod.keras as hvd",
    "import horovod.tensorflow as hvd",
    "import horovod.tensorflow.keras as hvd",
    "from horovod import keras as hvd",
    "from horovod import tensorflow as hvd",
    "from horovod.keras import callbacks, elastic",
    "from horovod.keras.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback",
    "from horovod.keras.callbacks import LearningRateScheduleCallback, LearningRateWarmupCallback",
    "from horovod.keras.elastic import CommitStateCallback, KerasState, run",
    "from horovod.tensorflow import Compression, elastic",
    "from horovod.tensorflow import DistributedGradientTape, DistributedOptimizer",
    "from horovod.tensorflow import broadcast_variables, join, local_rank, rank, size",
    "from horovod.tensorflow import Adasum, Average, Sum, mpi_ops",
    "from horovod.tensorflow import _allreduce, _grouped_allreduce, _LegacyOptimizer",
    "from horovod.tensorflow import keras as hvd",
    "from horovod.tensorflow.compression import Compression, FP16Compressor, NoneCompressor",
    "from horovod.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service",
    "from horovod.tensorflow.data.compute_service import compute_worker_fn, send_to_data_service",
    "from horovod.tensorflow.elastic import TensorFlowKerasState, TensorFlowState, run",
    "from horovod.tensorflow.functions import allgather_object, broadcast_object",
    "from horovod.tensorflow.functions import broadcast_object_fn, broadcast_variables",
    "from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper",
    "from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager",
    "from horovod.tensorflow.keras import DistributedOptimizer, load_model",
    "from horovod.tensorflow.keras import callbacks as hvd_callbacks",
    "from horovod.tensorflow.keras.callbacks import BestModelCheckpoint, MetricAverageCallback",
    "from horovod.tensorflow.keras.callbacks import BroadcastGlobalVariablesCallback",
    "from horovod.tensorflow.keras.elastic import KerasState, UpdateBatchStateCallback",
    "from horovod.tensorflow.mpi_ops import Average, Sum, allgather, alltoall, broadcast",
    "from horovod.tensorflow.mpi_ops import _allreduce, _grouped_allreduce, rank_op, size_op",
    "from horovod.tensorflow.mpi_ops import init, local_rank, local_size, rank, shutdown, size",
    "from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization",
    "from horovod.tensorflow.util import _executing_eagerly",
)

#: What works if MXNet is installed.
MXNET = (
    "import horovod.mxnet as hvd",
    "from horovod.mxnet.compression import Compression",
    "from horovod.mxnet.functions import allgather_object, broadcast_object",
    "from horovod.mxnet.mpi_ops import allgather, allreduce, allreduce_, broadcast, broadcast_",
    "from horovod.mxnet.mpi_ops import init, local_rank, local_size, rank, shutdown, size",
)

#: What works if Ray is installed.
RAY = (
    "from horovod.ray import BaseHorovodWorker, RayExecutor, ray_logger",
    "from horovod.ray.elastic import ElasticRayExecutor, RayHostDiscovery",
    "from horovod.ray.elastic_v2 import ElasticAdapter, ElasticParams, RayHostDiscovery",
    "from horovod.ray.runner import Coordinator, MiniSettings, RayExecutor",
    "from horovod.ray.strategy import ColocatedStrategy, PGStrategy, create_placement_group",
    "from horovod.ray.utils import detect_nics, nics_to_env_var",
    "from horovod.ray.worker import BaseHorovodWorker",
)

#: What works if Spark is installed.
SPARK = (
    "from horovod.spark import conf, run, run_elastic",
    "from horovod.spark.common.backend import Backend, SparkBackend",
    "from horovod.spark.common.store import HDFSStore, LocalStore, Store",
    "from horovod.spark.task import get_available_devices",
    "from horovod.spark.torch import TorchEstimator, TorchModel",
)

#: What raises an ImportError; the page shows its text.
REFUSED = (
    "from horovod.ray.driver_service import _driver_fn",
    "from horovod.common.util import check_installed_version",
    "from horovod.common.util import support_non_legacy_keras_optimizers",
    "from horovod.run.common.util import secret",
    "from horovod.run.runner import run",
    "from horovod.runner import _HorovodArgs",
    "from horovod.runner import gloo_run",
    "from horovod.runner.common.util import config_parser",
    "from horovod.runner.common.util import settings",
    "from horovod.runner.driver import driver_service",
    "from horovod.runner.elastic.discovery import HostDiscovery",
    "from horovod.runner.elastic.rendezvous import create_rendezvous_handler",
    "from horovod.runner.elastic.worker import WorkerNotificationManager",
    "from horovod.runner.gloo_run import launch_gloo",
    "from horovod.runner.http.http_server import RendezvousServer",
    "from horovod.runner.js_run import js_run",
    "from horovod.runner.launch import _run",
    "from horovod.runner.launch import parse_args",
    "from horovod.runner.mpi_run import mpi_available",
    "from horovod.runner.task import task_service",
    "from horovod.runner.util import lsf",
    "from horovod.runner.util.remote import get_remote_command",
    "from horovod.runner.util.streams import Pipe",
    "from horovod.torch.mpi_lib_v2 import horovod_torch_allreduce_async_torch_FloatTensor",
    "from horovod.torch.mpi_lib_impl import horovod_torch_poll",
)
