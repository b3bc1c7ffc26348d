"""GPUs, as the engine is told of them."""

import pytest

from hvdtune.core.libraries import devices
from hvdtune.settings import knobs

WITHOUT = {"HVDTUNE_CUDA_LIBRARY": "none", "HVDTUNE_NCCL_LIBRARY": "none"}


def options_of(monkeypatch, **environ):
    for name, value in WITHOUT.items():
        monkeypatch.setenv(name, value)
    return devices.options(knobs.from_environ({**WITHOUT, **environ}))


def test_nothing_is_said_to_nccl_of_what_is_not_set(monkeypatch):
    options = options_of(monkeypatch)
    assert (options["nccl_min_ctas"], options["nccl_max_ctas"]) == (0, 0)
    assert (options["nccl_cga_cluster_size"], options["nccl_cta_policy"]) == (-1, -1)


@pytest.mark.parametrize(
    ("text", "number"),
    [("DEFAULT", 0), ("efficiency", 1), ("ZERO", 2), ("0", 0), ("1", 1), ("2", 2)],
)
def test_a_policy_is_a_name_or_a_number_of_nccl_s(monkeypatch, text, number):
    assert options_of(monkeypatch, NCCL_CTA_POLICY=text)["nccl_cta_policy"] == number


def test_what_is_set_reaches_the_engine(monkeypatch):
    options = options_of(
        monkeypatch, NCCL_MIN_CTAS="2", NCCL_MAX_CTAS="4", NCCL_CGA_CLUSTER_SIZE="0"
    )
    assert (options["nccl_min_ctas"], options["nccl_max_ctas"]) == (2, 4)
    assert options["nccl_cga_cluster_size"] == 0
