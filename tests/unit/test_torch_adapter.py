"""New tensors for results: dense plain tensors of the type of what is reduced."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hvdtune.core import memory  # noqa: E402
from hvdtune.torch.adapter import CODES, TorchAdapter  # noqa: E402

LARGE = memory.LARGE_RESULT_BYTES // 4  # float32


class Marked(torch.Tensor):
    """A subclass that says what operations on it return."""


CASES = {
    "dense": lambda: torch.ones(4, 3),
    "one number": lambda: torch.ones(()),
    "no rows": lambda: torch.ones(0, 3),
    "transposed": lambda: torch.ones(4, 3).t(),
    "channels last": lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.ones(1).expand(6),
    "part of another": lambda: torch.ones(4, 6)[:, :3],
    "parameter": lambda: torch.nn.Parameter(torch.ones(4, 3)),
    "subclass": lambda: torch.ones(4, 3).as_subclass(Marked),
    "sparse": lambda: torch.ones(4, 3).to_sparse(),
    "large": lambda: torch.ones(LARGE),
    "large, transposed": lambda: torch.ones(LARGE, 2).t(),
}


def check(made: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    assert type(made) is torch.Tensor
    assert (made.dtype, tuple(made.shape)) == (dtype, shape)
    assert made.layout is torch.strided
    assert made.is_contiguous()
    assert made.device.type == "cpu"
    assert not made.requires_grad


@pytest.mark.parametrize("case", CASES)
def test_a_new_tensor_is_dense_and_plain(case: str) -> None:
    tensor = CASES[case]()
    with torch.device("meta"):  # the default device does not matter
        made = TorchAdapter().fresh(tensor)
    check(made, tensor.dtype, tuple(tensor.shape))


@pytest.mark.parametrize("case", [case for case in CASES if case != "one number"])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_so_is_one_with_other_rows(case: str, rows: int) -> None:
    tensor = CASES[case]()
    with torch.device("meta"):
        made = TorchAdapter().fresh(tensor, rows)
    check(made, tensor.dtype, (rows, *tensor.shape[1:]))


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_a_new_tensor_is_of_the_same_type(dtype: Any) -> None:
    tensor = torch.zeros(5, 2).to(dtype)
    check(TorchAdapter().fresh(tensor), dtype, (5, 2))
    check(TorchAdapter().fresh(tensor, 3), dtype, (3, 2))
