"""Rank program: names of Horovod's that no other test has to do with, under Horovod's names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from rank_programs.torch_cases import error_of, run_checks

import hvdtune
import hvdtune.torch as hvd
from hvdtune.launch.doctor.build_info import HOROVOD_VERSION


def package() -> None:
    import horovod

    assert horovod.__version__ == HOROVOD_VERSION == "0.28.1"
    assert horovod.run is hvdtune.run


def built_with() -> None:
    """Tensors travel through shared memory; of Horovod's libraries some could carry them."""
    assert hvd.mpi_built() is True  # the tests' own Open MPI
    assert hvd.gloo_built() is os.path.exists(os.path.join(hvdtune.__path__[0], "_gloo.so"))
    assert hvd.mpi_enabled() is hvd.gloo_enabled() is False
    assert hvd.cuda_built() is hvd.rocm_built() is False
    assert hvd.ddl_built() is hvd.ccl_built() is False
    assert hvd.nccl_built() == 0
    error_of(hvd.mpi_threads_supported, ValueError, "MPI is not enabled")


def helpers() -> None:
    from horovod.common import util
    from horovod.common.exceptions import HorovodVersionMismatchError

    assert util.mpi_built() is hvd.mpi_built()
    assert util.gloo_built() is hvd.gloo_built()
    assert util.nccl_built() is False
    assert util.ddl_built() is util.ccl_built(verbose=True) is False
    assert util.gpu_available("torch") is False
    assert util.extension_available("torch", verbose=True) is True
    assert util.extension_available("tensorflow") is False
    assert util.split_list([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5]]
    assert [n for n in range(9) if util.num_rank_is_power_2(n)] == [1, 2, 4, 8]
    assert util.is_iterable("ab")
    assert not util.is_iterable(3)
    assert util.is_version_greater_equal_than("2.13.0+cpu", "2.9.1")
    assert not util.is_version_greater_equal_than("2.9", "2.9.1")
    with util.env(A_NEW_VARIABLE=hvd.rank(), NONE=None):
        assert os.environ["A_NEW_VARIABLE"] == str(hvd.rank())
        assert "NONE" not in os.environ
    assert "A_NEW_VARIABLE" not in os.environ
    with pytest.raises(ImportError) as caught:
        raise HorovodVersionMismatchError("torch", "2.1", "2.0")
    error = caught.value
    assert (error.name, error.version, error.installed_version) == ("torch", "2.1", "2.0")


def state_handlers() -> None:
    from horovod.torch.elastic.state import OptimizerStateHandler, SamplerStateHandler

    rank = hvd.rank()
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=1.0 + rank, momentum=0.5)
    handler = OptimizerStateHandler(optimizer)
    optimizer.param_groups[0]["lr"] = 7.0
    handler.restore()
    assert optimizer.param_groups[0]["lr"] == 1.0 + rank
    handler.sync()
    assert optimizer.param_groups[0]["lr"] == 1.0
    sampler = hvd.elastic.ElasticSampler(list(range(20)), shuffle=False)
    keeper = SamplerStateHandler(sampler)
    sampler.record_batch(0, 1 + rank)
    keeper.sync()
    assert sampler.processed_num == hvd.size()  # as rank 0 has it
    assert len(sampler) == (20 - hvd.size()) // hvd.size()
    keeper.restore()
    assert sampler.processed_num == 0


def run() -> list[str]:
    sys.path.insert(0, str(Path(hvdtune.__file__).with_name("_alias")))
    hvd.init()
    return run_checks(package, built_with, helpers, state_handlers)
